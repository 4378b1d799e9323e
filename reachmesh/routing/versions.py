"""Versions of capabilities: which ones a provider answers for, and canary shares between them.

Versions are dotted numbers compared part by part ("1.10" > "1.9"); other text compares as text. A provider answers for its
capability's version, for the range from `compatible_from` up to it, and for its node's version (a deployment's version) where one was
set: "1" is what a node has that says nothing.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from reachmesh.errors import ConfigError, shown

_DEFAULT = "1"


def order(version: str) -> tuple[tuple[int, int, str], ...]:
    """Sort key of a version: numbers by value, text after numbers, so "1.10" is after "1.9" and "1" equals "1.0"."""
    parts = [(0, int(part), "") if part.isdecimal() and len(part) < 20 else (1, 0, part) for part in version.split(".")]
    while len(parts) > 1 and parts[-1] == (0, 0, ""):
        parts.pop()
    return tuple(parts)


def accepts(asked: str, *, version: str, compatible_from: str | None = None, node_version: str | None = None) -> bool:
    """Whether a provider with these versions answers a caller who asks for `asked`."""
    if asked == version or (asked == node_version and node_version != _DEFAULT):
        return True
    wanted, highest = order(asked), order(version)
    lowest = order(compatible_from) if compatible_from is not None else highest
    return lowest <= wanted <= highest


def check_version(version: object) -> None:
    """Raise ConfigError for a version option that cannot mean anything: shares that are none, negative or not finite."""
    if version is None or isinstance(version, str):
        return
    if not isinstance(version, Mapping):
        raise ConfigError(f"version= takes a version or a mapping of versions to shares, not {type(version).__name__}")
    for name, share in version.items():
        if not isinstance(name, str) or isinstance(share, bool) or not isinstance(share, int | float):
            raise ConfigError(f"version= shares are numbers by version text, not {shown(name)}: {shown(share)}")
        if not math.isfinite(share) or share < 0:
            raise ConfigError(f"the share of version {shown(name)} is {shown(share)}; shares are finite and not negative")
    if not version:
        raise ConfigError("version= got no shares", hint='give versions with shares, such as {"2": 0.1}')


def share_of(shares: Mapping[str, float], *, version: str, node_version: str) -> str | None:
    """Name under which a provider takes part in `shares`; None = elsewhere.

    The capability's own version counts first where it was set, else the node's.
    """
    if version != _DEFAULT and version in shares:
        return version
    if node_version in shares:
        return node_version
    return version if version in shares else None


def draw_share(shares: Mapping[str, float], point: float, *, elsewhere: bool) -> str | None:
    """Version whose turn `point` (0 <= point < 1) is; None = elsewhere, which takes what the shares leave of 1.

    Shares over 1 in sum, or with nobody elsewhere, are taken relative to their sum.
    A share of 0 for all is a canary that is switched off: everything goes elsewhere, to anybody where nobody is.
    Example: {"2": 0.3} with somebody elsewhere gives "2" for points under 0.3.
    """
    total = sum(shares.values())
    if total > 1.0 or not elsewhere:
        point *= total
    reached = 0.0
    for version, share in shares.items():
        reached += share
        if point < reached:
            return version
    return None
