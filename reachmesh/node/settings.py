"""Where a node's options come from: arguments first, then the environment, then defaults; checked before anything is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from reachmesh.discovery import NAMES, Source, make_sources
from reachmesh.errors import ConfigError, shown
from reachmesh.node.rules import NAME_LIST, TAGS, TEXTS, Rule, Rules, check, is_text, number
from reachmesh.node.rules import name as name_rule
from reachmesh.transport.interfaces import Interface, present_interfaces


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """The resolved options of one node; see `ReachNode`."""

    name: str
    mesh: str
    secret: str | None
    seeds: tuple[str, ...]
    discovery: tuple[str, ...]
    bind: tuple[str, int] | None
    interfaces: tuple[str, ...] | None
    tags: Mapping[str, Any]
    version: str
    weight: float
    zone: str | None
    state_dir: str | None

    def sources(self) -> list[Source]:
        """The discovery sources these options ask for."""

        def interfaces() -> list[Interface]:
            return present_interfaces(self.interfaces)

        return make_sources(self.discovery, mesh=self.mesh, interfaces=interfaces, seeds=self.seeds, state_dir=self.state_dir)


def resolve(
    *,
    name: str,
    mesh: str | None,
    secret: str | None,
    seeds: Sequence[str] | str | None,
    discovery: Sequence[str] | str | None,
    bind: str | None,
    interfaces: Sequence[str] | str | None,
    tags: Mapping[str, Any] | None,
    version: Any,
    weight: float,
    zone: str | None,
    state_dir: str | Path | None,
    environ: Mapping[str, str] | None = None,
) -> Settings:
    """Resolve and check a node's options.

    Raises:
        ConfigError: an option is wrong; the message names it and what it should be.
    """
    env = os.environ if environ is None else environ
    given: dict[str, Any] = {"mesh": mesh, "secret": secret, "seeds": seeds, "discovery": discovery, "bind": bind, "interfaces": interfaces}
    given |= {"tags": tags, "version": version, "weight": weight, "zone": zone, "state_dir": state_dir}
    check(OPTION_RULES, {"name": name, **given})
    chosen = _list(discovery, env.get("REACHMESH_DISCOVERY"))
    if zone is None and is_text(named := (tags or {}).get("zone"), 255):
        zone = named
    directory = state_dir if state_dir is not None else env.get("REACHMESH_STATE_DIR") or None
    settings = Settings(
        name=name,
        mesh=mesh if mesh is not None else env.get("REACHMESH_MESH") or "default",
        secret=secret if secret is not None else env.get("REACHMESH_SECRET") or None,
        seeds=_list(seeds or None, env.get("REACHMESH_SEEDS")) or (),
        discovery=NAMES if chosen is None else chosen,
        bind=_bind(bind if bind is not None else env.get("REACHMESH_BIND") or None),
        interfaces=_list(interfaces, env.get("REACHMESH_INTERFACES")),
        tags={**(tags or {}), **({"zone": zone} if zone is not None else {})},
        version=version,
        weight=float(weight),
        zone=zone,
        state_dir=None if directory is None else os.fspath(directory),
    )
    if settings.state_dir is not None:
        _check_folder(settings.state_dir)
    settings.sources()
    return settings


def _check_folder(text: str) -> None:
    """A directory that is there or can be made later; whether it can be written shows when it is."""
    path = Path(text).expanduser()
    try:
        there = next((each for each in (path, *path.parents) if each.exists()), None)
    except OSError as error:
        raise ConfigError(f"state_dir must be the path of a directory, not {shown(text)}: {error.strerror}") from None
    if there is not None and not there.is_dir():
        raise ConfigError(f"state_dir must be the path of a directory, and {shown(str(there))} is something else")


def _list(given: Sequence[str] | str | None, env: str | None) -> tuple[str, ...] | None:
    """Texts, given as such or comma-separated; None when neither the argument nor the environment says anything."""
    given = given if given is not None else env or None
    if given is None:
        return None
    return tuple(each.strip() for each in given.split(",") if each.strip()) if isinstance(given, str) else tuple(given)


def _is_bind(given: Any) -> bool:
    host, colon, port = given.rpartition(":") if isinstance(given, str) else ("", "", "")
    return bool(colon and host and port.isascii() and port.isdecimal() and len(port) < 6 and int(port) <= 65535)


def _bind(given: str | None) -> tuple[str, int] | None:
    if given is None:
        return None
    host, _, port = given.rpartition(":")
    return (host[1:-1] if host.startswith("[") and host.endswith("]") else host), int(port)


def is_path(given: Any) -> bool:
    """Whether it can be the path of a file or directory."""
    return (
        isinstance(given, str | os.PathLike)
        and isinstance(path := os.fspath(given), str)
        and path != ""
        and "\0" not in path
        and _encodes(path)
    )


def _encodes(path: str) -> bool:
    try:
        return bool(os.fsencode(path))
    except UnicodeEncodeError:
        return False


def _is_secret(given: Any) -> bool:
    return isinstance(given, str) and given != "" and given.encode(errors="ignore").decode() == given


OPTION_RULES: Rules = {
    "name": name_rule(120),  # the instance id made from it has to fit the 255 bytes of a name on the wire
    "mesh": name_rule().or_none(),
    "secret": Rule("text, not empty", _is_secret, private=True).or_none(),
    "seeds": Rule('"host:port", or a list of such', lambda given: isinstance(given, str) or TEXTS.test(given)).or_none(),
    "discovery": Rule(
        f"a list of some of {', '.join(NAMES)}; () = none", lambda given: NAME_LIST.test(given) or TEXTS.test(given)
    ).or_none(),
    "bind": Rule("host:port (port 0 = any free one)", _is_bind).or_none(),
    "interfaces": NAME_LIST.or_none(),
    "tags": TAGS.or_none(),
    "version": name_rule(),
    "weight": number(0, 1e8),
    "zone": name_rule().or_none(),
    "state_dir": Rule("the path of a directory", is_path).or_none(),
}
"""The options of a node, its name included."""
