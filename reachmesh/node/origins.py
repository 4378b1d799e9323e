"""Where settings come from: arguments over environment over a TOML file over defaults; and which of them each value came from.

The file is named by `config="path.toml"` or `REACHMESH_CONFIG`; nothing is read that was not named. Its keys are the options of `ReachNode`
(but the name and the capabilities) and the fields of `NodeConfig`, side by side, with tables where a value is a mapping::

    weight = 2.0
    drain = 30
    seeds = ["10.0.0.5:7400"]
    [tags]
    size = "70b"

Each scalar has an environment variable: `REACHMESH_` and its name in capitals.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

from reachmesh.errors import ConfigError, shown
from reachmesh.node.config import NodeConfig
from reachmesh.node.rules import check
from reachmesh.node.settings import OPTION_RULES, is_path

FILE_VARIABLE = "REACHMESH_CONFIG"

OPTIONS: dict[str, Any] = {
    "mesh": None,
    "secret": None,
    "seeds": (),
    "discovery": None,
    "bind": None,
    "interfaces": None,
    "tags": None,
    "version": "1",
    "weight": 1.0,
    "zone": None,
    "state_dir": None,
}
"""Options of a node that a file may hold, with their defaults."""

_DEFAULTS = {each.name: getattr(NodeConfig(), each.name) for each in fields(NodeConfig)}

_NO_TEXT = ("tags", "access", "predicate")
"""Settings whose values have no form as one text."""

_NUMBERS = ("heartbeat_period", "metrics_port", "suspect_after", "weight")

_SECRET = ("secret",)

_DECLARED = ("weights", "max_concurrent")
"""Mappings by capability, each declared with it."""


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting of a node.

    Attributes:
        name: option or config field.
        value: what holds now; a secret is not shown.
        origin: "argument", "environment REACHMESH_...", "file <path>", "default", or "reconfigure".
    """

    name: str
    value: Any
    origin: str


class Origins:
    """The layers of one node's settings.

    Args:
        options: the options as given to `ReachNode`; those at their default count as not given.
        config: a `NodeConfig`, a mapping of its fields, the path of a TOML file, or None.

    Raises:
        ConfigError: the file cannot be read, is no TOML or has an unknown key; a variable is not of the kind it should be; or what `NodeConfig` raises.
    """

    def __init__(self, options: Mapping[str, Any], config: Any, environ: Mapping[str, str] | None = None) -> None:
        env = os.environ if environ is None else environ
        check(OPTION_RULES, options)
        given = config
        path = env.get(FILE_VARIABLE) or None
        if isinstance(config, str | Path):
            path, given = str(config), None
        file = _read(path) if path is not None else {}
        self._origins: dict[str, str] = {}
        self.options = {
            name: self._choose(name, value, default=OPTIONS[name], env=env, file=file, path=path) for name, value in options.items()
        }
        explicit = self._explicit(given)
        chosen = {
            name: self._choose(name, explicit.get(name, default), default=default, env=env, file=file, path=path)
            for name, default in _DEFAULTS.items()
        }
        self.config = NodeConfig.of({**chosen, **explicit})

    @staticmethod
    def _explicit(given: Any) -> dict[str, Any]:
        """The config's fields as given in Python, checked; those of a `NodeConfig` that are at their default count as not given."""
        config = NodeConfig.of(given)
        if isinstance(given, Mapping):
            return {str(name): getattr(config, str(name)) for name in given}
        return {name: value for name, default in _DEFAULTS.items() if (value := getattr(config, name)) != default}

    def _choose(self, name: str, given: Any, *, default: Any, env: Mapping[str, str], file: Mapping[str, Any], path: str | None) -> Any:
        if given is not None and given != default:
            self._origins[name] = "argument"
            return given
        variable = f"REACHMESH_{name.upper()}"
        if name not in _NO_TEXT and (text := env.get(variable)):
            self._origins[name] = f"environment {variable}"
            return _parse(name, text, default, variable)
        if name in file:
            self._origins[name] = f"file {path}"
            return file[name]
        return given

    def changed(self, name: str) -> None:
        """A setting was changed while the node runs."""
        self._origins[name] = "reconfigure"

    def settings(self, values: Mapping[str, Any]) -> list[Setting]:
        """All settings with these values, by name."""
        return [
            Setting(name, "***" if name in _SECRET and value is not None else value, self._origins.get(name, _usual(name, value)))
            for name, value in sorted(values.items())
        ]


def _usual(name: str, value: Any) -> str:
    """Origin of a setting that no layer gave; what capabilities declare is given with them."""
    return "argument" if name in _DECLARED and value else "default"


def _read(path: str) -> dict[str, Any]:
    import tomllib  # few need it

    if not is_path(path):
        raise ConfigError(f"config must be a NodeConfig, a mapping of its fields or the path of a file, not {shown(path)}")
    try:
        with open(path, "rb") as file:
            found = tomllib.load(file)
    except OSError as error:
        raise ConfigError(f"the settings file {shown(path)} cannot be read: {error.strerror or error}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"the settings file {shown(path)} is no TOML: {error}") from None
    if unknown := sorted(set(found) - set(OPTIONS) - set(_DEFAULTS)):
        known = ", ".join(sorted({*OPTIONS, *_DEFAULTS} - {"predicate"}))
        raise ConfigError(f"{path}: no such setting: {', '.join(unknown)}", hint=f"there are: {known}")
    return found


def _parse(name: str, text: str, default: Any, variable: str) -> Any:
    """The value of a variable, of the kind its default has."""
    if isinstance(default, bool):
        if text.lower() in ("1", "true", "yes", "on"):
            return True
        if text.lower() in ("0", "false", "no", "off"):
            return False
        raise ConfigError(f"{variable} must be true or false, not {shown(text)}")
    if isinstance(default, int | float) or name in _NUMBERS:
        try:
            return int(text) if isinstance(default, int) or name == "metrics_port" else float(text)
        except ValueError:
            raise ConfigError(f"{variable} must be a number, not {shown(text)}") from None
    return text
