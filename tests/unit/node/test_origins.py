"""Where settings come from."""

from __future__ import annotations

from pathlib import Path

import pytest

from reachmesh import ConfigError, NodeConfig, ReachNode
from reachmesh.node.origins import OPTIONS, Origins

FILE = """
mesh = "from-file"
weight = 2.5
drain = 20
hedging = true
seeds = ["10.0.0.5:7400"]
[tags]
size = "70b"
[access]
reset = ["name:ops"]
"""


@pytest.fixture
def path(tmp_path: Path) -> str:
    file = tmp_path / "node.toml"
    file.write_text(FILE)
    return str(file)


def origins_of(origins: Origins) -> dict[str, str]:
    values = {**origins.options, **{name: getattr(origins.config, name) for name in NodeConfig.__dataclass_fields__}}
    return {each.name: each.origin for each in origins.settings(values)}


def test_arguments_beat_environment_beats_file_beats_default(path: str) -> None:
    """Each value comes from the highest layer that has it, and tells which."""
    env = {"REACHMESH_CONFIG": path, "REACHMESH_DRAIN": "15", "REACHMESH_MESH": "from-env", "REACHMESH_HEARTBEAT_PERIOD": "2.5"}
    origins = Origins({**OPTIONS, "mesh": "given"}, {"retries": 2}, env)
    assert (origins.options["mesh"], origins.options["weight"], origins.options["tags"]) == ("given", 2.5, {"size": "70b"})
    config = origins.config
    assert (config.drain, config.hedging, config.retries, config.heartbeat_period, config.grace) == (15.0, True, 2, 2.5, 1.5)
    told = origins_of(origins)
    assert (told["mesh"], told["retries"], told["drain"]) == ("argument", "argument", "environment REACHMESH_DRAIN")
    assert (told["weight"], told["grace"]) == (f"file {path}", "default")


def test_a_path_given_as_config_is_the_file(path: str) -> None:
    """`config="node.toml"` reads it, whatever the environment names."""
    origins = Origins(dict(OPTIONS), path, {"REACHMESH_CONFIG": "/nowhere.toml"})
    assert origins.config.access == {"reset": ["name:ops"]}
    assert origins.options["seeds"] == ["10.0.0.5:7400"]


def test_an_explicit_default_in_a_mapping_beats_the_file(path: str) -> None:
    """Who writes `drain=10` in Python means it, though it is the default."""
    assert Origins(dict(OPTIONS), {"drain": 10.0}, {"REACHMESH_CONFIG": path}).config.drain == 10.0


@pytest.mark.parametrize(
    ("text", "message"),
    [("nonsense = 1", "nonsense"), ("drain = -1", "drain"), ("= broken", "TOML"), ("hedging = 3\nretries = 'x'", "retries")],
)
def test_a_wrong_file_is_told(tmp_path: Path, text: str, message: str) -> None:
    """Unknown keys, values out of range and broken syntax are ConfigErrors that name them."""
    file = tmp_path / "node.toml"
    file.write_text(text)
    with pytest.raises(ConfigError, match=message):
        Origins(dict(OPTIONS), str(file), {})


def test_a_wrong_variable_is_told() -> None:
    """A variable of the wrong kind is named."""
    for variable, text in (("REACHMESH_RETRIES", "many"), ("REACHMESH_HEDGING", "perhaps"), ("REACHMESH_WEIGHT", "heavy")):
        with pytest.raises(ConfigError, match=variable):
            Origins(dict(OPTIONS), None, {variable: text})
    with pytest.raises(ConfigError, match="cannot be read"):
        Origins(dict(OPTIONS), "/nowhere/node.toml", {})


def test_a_node_shows_every_setting_but_no_secret(path: str) -> None:
    """`settings()` has each option and field once, with its origin, and `***` for the secret."""
    node = ReachNode("a", config=path, secret="hush-hush-hush-hush")
    told = {each.name: each for each in node.settings()}
    assert set(told) == {*OPTIONS, *NodeConfig.__dataclass_fields__, "log_level", "max_concurrent", "weights"}
    assert (told["secret"].value, told["secret"].origin) == ("***", "argument")
    assert (told["weight"].value, told["weight"].origin) == (2.5, f"file {path}")
