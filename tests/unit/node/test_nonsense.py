"""Every argument of the public face, given every kind of nonsense: a clear error of ours that names it, and nothing is half-changed."""

from __future__ import annotations

import math
import secrets
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from reachmesh import ConfigError, NodeConfig, PayloadError, ReachError, ReachNode, UsageError, capability
from reachmesh.node.capability import CAPABILITY_RULES
from reachmesh.node.config import CONFIG_RULES
from reachmesh.node.options import Options
from reachmesh.node.origins import OPTIONS
from reachmesh.node.settings import OPTION_RULES


class Hostile:
    """Has methods that raise wherever somebody calls them."""

    def __repr__(self) -> str:
        raise RuntimeError("repr")

    def __eq__(self, other: object) -> bool:
        raise RuntimeError("eq")

    def __bool__(self) -> bool:
        raise RuntimeError("bool")

    def __hash__(self) -> int:
        return 1

    def __len__(self) -> int:
        raise RuntimeError("len")


NONSENSE: dict[str, Any] = {
    "nan": math.nan,
    "inf": math.inf,
    "minus": -1,
    "minus_inf": -math.inf,
    "fraction": 0.5,
    "huge": 10**400,
    "true": True,
    "number": 5,
    "empty": "",
    "text": "x",
    "long": "x" * 100_000,
    "control": "a\0b",
    "surrogate": "\ud800",
    "bytes": b"x",
    "list": [],
    "objects": [object()],
    "numbers": [1],
    "dict": {},
    "keys": {1: object()},
    "values": {"a": object()},
    "object": object(),
    "class": int,
    "hostile": Hostile(),
    "function": lambda: None,
    "unhashable": [[]],
}

GOOD: dict[str, set[str]] = {
    # ReachNode
    "name": {"text"},
    "mesh": {"text"},
    "secret": {"text", "long", "control"},
    "seeds": {"empty", "list"},
    "discovery": {"list"},
    "bind": set(),
    "interfaces": {"text"},
    "tags": {"dict"},
    "version": {"text"},
    "weight": {"fraction", "number"},
    "zone": {"text"},
    "state_dir": {"text"},
    "config": {"dict"},
    "observer": {"true"},
    "caps": {"list", "dict"},
}


def told(error: ReachError, name: str) -> None:
    """A readable, bounded message that names the argument."""
    assert name in str(error) or isinstance(error, PayloadError), error
    assert len(str(error)) < 1000


def refused(make: Callable[[Any], Any], name: str, kind: str, errors: type[ReachError] | tuple[type[ReachError], ...]) -> bool:
    """Whether a value is refused, with one of these errors; anything else that is raised fails the test."""
    try:
        make(NONSENSE[kind])
    except errors as error:
        told(error, name)
        return True
    return False


@pytest.mark.parametrize("name", [*OPTION_RULES, "config", "observer", "caps"])
def test_options_of_a_node(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever an option of `ReachNode` is given, it is taken because it means something, or is a ConfigError; no thread is left."""
    monkeypatch.chdir(tmp_path)
    before = threading.active_count()

    def make(value: Any) -> None:
        ReachNode(**{"name": "solo", "discovery": (), name: value})

    words = {"config": "", "caps": ""}.get(name, name if name != "seeds" else "seed")
    for kind in NONSENSE:
        assert refused(make, words, kind, ConfigError) is (kind not in GOOD[name]), kind
    assert threading.active_count() == before


@pytest.mark.parametrize("name", [each.name for each in fields(NodeConfig)])
def test_fields_of_the_config(name: str) -> None:
    """A field out of its range or of another kind is a ConfigError that names it, from arguments and mappings alike."""
    for kind, value in NONSENSE.items():
        taken = CONFIG_RULES[name].test(value)
        assert refused(lambda value: NodeConfig(**{name: value}), name, kind, ConfigError) or taken, kind
        refused(lambda value: ReachNode("solo", config={name: value}), name, kind, ConfigError)


@pytest.mark.parametrize("name", CAPABILITY_RULES)
def test_options_of_a_capability(name: str) -> None:
    """What `capability(...)` takes can be served; all else is a ConfigError that names it."""

    def make(value: Any) -> None:
        declared = capability(**{"name": "x", "handler": lambda: 1, name: value})
        ReachNode("solo", caps=[declared])

    for kind, value in NONSENSE.items():
        assert refused(make, name if name != "domain" else "", kind, ConfigError) or CAPABILITY_RULES[name].test(value), kind


@pytest.fixture(scope="module")
def node() -> Iterator[ReachNode]:
    made = ReachNode(
        "solo", caps={"echo": lambda value: value}, mesh="nonsense-" + secrets.token_hex(4), interfaces=["127.0.0.1"], discovery=()
    )
    with made:
        yield made


@pytest.mark.parametrize("name", ["cap", *Options.__dataclass_fields__])
def test_options_of_a_reach(node: ReachNode, name: str) -> None:
    """What `reach(...)` takes makes a call that ends, with an answer or an error of ours; all else is refused there."""
    reaches = []

    def make(value: Any) -> None:
        reaches.append(node.reach(**{"cap": "echo", "fallback": None, "timeout": 5, name: value}))

    words = {"metadata": ""}.get(name, name)
    for kind in NONSENSE:
        wrong = refused(make, words, kind, (ConfigError, PayloadError))  # what does not fit into a header is a PayloadError
        if name != "cap":
            assert wrong is refused_by_options(node, name, kind), kind
    for each in reaches:
        assert name in ("reply_to", "fallback") or each.submit(value=1).exception(10) is None


def refused_by_options(node: ReachNode, name: str, kind: str) -> bool:
    try:
        node.reach("echo").options(**{name: NONSENSE[kind]})
    except ReachError:
        return True
    return False


VERBS: dict[str, Callable[[ReachNode, Any], Any]] = {
    "wait_for cap": lambda node, value: node.wait_for(value, timeout=0),
    "wait_for count": lambda node, value: node.wait_for("echo", count=value, timeout=0),
    "wait_for timeout": lambda node, value: node.wait_for("echo", timeout=value),
    "providers cap": lambda node, value: node.providers(value),
    "stats cap": lambda node, value: node.stats(value),
    "explain cap": lambda node, value: node.explain(value),
    "explain version": lambda node, value: node.explain("echo", version=value),
    "explain tags": lambda node, value: node.explain("echo", tags=value),
    "explain target": lambda node, value: node.explain("echo", target=value),
    "explain session": lambda node, value: node.explain("echo", session=value),
    "explain nonsense": lambda node, value: node.explain("echo", nonsense=value),
    "task id": lambda node, value: node.task(value),
    "on kind": lambda node, value: node.on(value, print),
    "on fn": lambda node, value: node.on("peer_lost", value),
    "use middleware": lambda node, value: node.use(value),
    "remove_capability name": lambda node, value: node.remove_capability(value),
    "capability name": lambda node, value: node.capability(value)(lambda: 1),
    "serve processes": lambda node, value: node.serve(processes=value),
    "stop drain": lambda node, value: node.stop(drain=value),
    "reconfigure weight": lambda node, value: node.reconfigure(weight=value),
    "reconfigure weights": lambda node, value: node.reconfigure(weights=value),
    "reconfigure max_concurrent": lambda node, value: node.reconfigure(max_concurrent=value),
    "reconfigure log_level": lambda node, value: node.reconfigure(log_level=value),
    "reconfigure drain": lambda node, value: node.reconfigure(drain=value),
    "result timeout": lambda node, value: unanswered(node).result(value),
    "exception timeout": lambda node, value: unanswered(node).exception(value),
}

DO_SOMETHING = {
    "stop drain": {"inf", "fraction", "huge", "number"},
    "serve processes": {"number"},
    "reconfigure log_level": {"number"},
    "result timeout": {"inf", "huge", "fraction", "number"},
    "exception timeout": {"inf", "huge", "fraction", "number"},
}
"""What is taken and would change the node that the tests share, or wait."""


def unanswered(node: ReachNode) -> Any:
    future = node.reach("nobody", timeout=600).submit()
    future._driver = None
    future._state = "PENDING"
    return future


@pytest.mark.parametrize("verb", VERBS)
def test_arguments_of_verbs(node: ReachNode, verb: str) -> None:
    """A verb given nonsense raises an error of ours, or does what it says; the node works afterwards as before."""
    for kind in NONSENSE.keys() - DO_SOMETHING.get(verb, set()):
        with suppress(TimeoutError):
            refused(lambda value: VERBS[verb](node, value), "", kind, ReachError)
    assert node.is_running
    assert node.reach("echo").call(value=1) == 1


def test_a_forgotten_empty_option_is_told() -> None:
    """An empty secret or list of interfaces is never "no secret" or "all interfaces"."""
    empty: list[tuple[str, Any]] = [("secret", ""), ("interfaces", []), ("interfaces", ""), ("mesh", "")]
    for name, value in empty:
        with pytest.raises(ConfigError, match=name):
            ReachNode("solo", **{name: value})


def test_a_secret_of_a_wrong_kind_is_not_shown() -> None:
    """The error about a secret does not spell it out."""
    with pytest.raises(ConfigError) as caught:
        ReachNode("solo", secret=b"hunter2")  # type: ignore[arg-type]
    assert "hunter2" not in str(caught.value)
    with pytest.raises(ConfigError, match="secret must be text, not empty, not ''"):
        ReachNode("solo", secret="")


def test_a_state_dir_has_to_be_a_directory(tmp_path: Path) -> None:
    """A file where the directory should be, or above it, is a ConfigError."""
    file = tmp_path / "file"
    file.write_text("")
    for path in (file, file / "below"):
        with pytest.raises(ConfigError, match="state_dir"):
            ReachNode("solo", state_dir=path)


def test_a_state_dir_that_cannot_be_written_is_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """The node starts without remembering, and says so."""
    with ReachNode("solo", interfaces=["127.0.0.1"], discovery=("local",), mesh=secrets.token_hex(4), state_dir="/proc/reachmesh") as node:
        assert node.is_running
    assert "state" in caplog.text


def test_options_are_all_checked() -> None:
    """No option, field or keyword is without a rule."""
    assert {*OPTIONS, "name"} == set(OPTION_RULES)
    assert {each.name for each in fields(NodeConfig)} == set(CONFIG_RULES)
    with pytest.raises(UsageError):
        ReachNode("solo").on("no_such_kind", print)
