"""Where a node's options come from: arguments first, then the environment, then defaults; checked before anything is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from reachmesh.discovery import NAMES, Source, make_sources
from reachmesh.errors import ConfigError
from reachmesh.transport.interfaces import Interface, present_interfaces

_NAME_BYTES = 120
"""Bytes of a node name, so that the instance id made from it fits the 255 bytes of a name on the wire."""

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclass(frozen=True, kw_only=True)
class Settings:
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
    if tags is not None and not isinstance(tags, Mapping):
        raise ConfigError(f"tags must be a mapping, not {type(tags).__name__}")
    if isinstance(weight, bool) or not isinstance(weight, int | float) or not 0 <= weight < 1e9:
        raise ConfigError(f"weight must be a number from 0, not {weight!r}")
    chosen = _list("discovery", discovery, env.get("REACHMESH_DISCOVERY"))
    directory = state_dir if state_dir is not None else env.get("REACHMESH_STATE_DIR") or None
    settings = Settings(
        name=_name("name", name, _NAME_BYTES),
        mesh=_name("mesh", mesh if mesh is not None else env.get("REACHMESH_MESH") or "default", 255),
        secret=secret if secret is not None else env.get("REACHMESH_SECRET") or None,
        seeds=_list("seeds", seeds or None, env.get("REACHMESH_SEEDS")) or (),
        discovery=NAMES if chosen is None else chosen,
        bind=_bind(bind if bind is not None else env.get("REACHMESH_BIND") or None),
        interfaces=_list("interfaces", interfaces or None, env.get("REACHMESH_INTERFACES")),
        tags={**(tags or {}), **({"zone": zone} if zone is not None else {})},
        version=str(version),
        weight=float(weight),
        zone=zone,
        state_dir=None if directory is None else str(directory),
    )
    settings.sources()
    return settings


def _name(what: str, value: Any, limit: int) -> str:
    if not isinstance(value, str) or not value or not 0 < len(value.encode("utf-8", "surrogatepass")) <= limit:
        raise ConfigError(f"{what} must be a string of 1 to {limit} bytes, not {value!r}")
    try:
        value.encode("utf-8")
    except UnicodeEncodeError:
        raise ConfigError(f"{what} {value!r} is not valid Unicode") from None
    if _CONTROL.search(value):
        raise ConfigError(f"{what} {value!r} has control characters")
    return value


def _list(what: str, given: Sequence[str] | str | None, env: str | None) -> tuple[str, ...] | None:
    """A sequence of strings, given as such or comma-separated; None when neither the argument nor the environment says anything."""
    if given is None:
        given = env or None
    if given is None:
        return None
    values = [each.strip() for each in given.split(",") if each.strip()] if isinstance(given, str) else list(given)
    if any(not isinstance(each, str) or not each for each in values):
        raise ConfigError(f"{what} must be strings, not {given!r}")
    return tuple(values)


def _bind(given: str | None) -> tuple[str, int] | None:
    if given is None:
        return None
    host, colon, port = given.rpartition(":") if isinstance(given, str) else ("", "", "")
    if not colon or not host or not port.isdecimal() or int(port) > 65535:
        raise ConfigError(f"bind must be host:port (port 0 = any free one), not {given!r}")
    return host, int(port)
