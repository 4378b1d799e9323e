"""The options of a call: what may be said about it, checked as soon as it is said."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reachmesh.errors import ConfigError
from reachmesh.node.last_good import LAST_GOOD
from reachmesh.node.rules import FLAG, NAMED, TEXT, WANTED_TAGS, Rule, Rules, number, refusal, whole
from reachmesh.routing import check_strategy, check_version

FOR_EVER = 1e9
"""Seconds from which on a limit is none (thirty years; `float("inf")` included)."""

MOST_RETRIES = 2
"""Further attempts that a call may ask for."""


class _Unset:
    def __repr__(self) -> str:
        return "..."


UNSET: Any = _Unset()


@dataclass(frozen=True, slots=True)
class Options:
    """How calls of one `Reach` are made; see `ReachNode.reach`."""

    version: str | Mapping[str, float] | None = None
    tags: Mapping[str, Any] | None = None
    session: str | None = None
    priority: int | None = None
    timeout: float | None = None
    retries: int | None = None
    strategy: Any = None
    target: str | None = None
    fallback: Any = UNSET
    dedup_key: str | None = None
    idle_timeout: float | None = None
    reply_to: str | None = None
    correlation_id: str | None = None
    shadow: bool = False
    trace_id: str | None = None
    metadata: Mapping[str, Any] | None = None

    def check(self) -> None:
        """Raise ConfigError for what cannot be meant."""
        for name, rule in REACH_RULES.items():
            value = getattr(self, name)
            if value is not None and not rule.test(value):
                raise refusal(rule, name, value)
        if self.fallback is LAST_GOOD and self.reply_to is not None:
            raise ConfigError("fallback=LAST_GOOD is for answers that come back here, not for reply_to")
        check_version(self.version)
        check_strategy(self.strategy)

    def extras(self) -> dict[str, Any] | None:
        """The rarer things of a request's header, or None."""
        extras: dict[str, Any] = {}
        if self.session is not None:
            extras["s"] = self.session
        if self.dedup_key is not None:
            extras["d"] = self.dedup_key
        if self.reply_to is not None:
            extras["r"] = self.reply_to
        if self.correlation_id is not None:
            extras["c"] = self.correlation_id
        if self.metadata:
            extras["m"] = dict(self.metadata)
        if isinstance(self.version, str):
            extras["v"] = self.version
        return extras or None


def _is_trace(text: object) -> bool:
    if not isinstance(text, str) or len(text) != 32:
        return False
    try:
        return any(bytes.fromhex(text))
    except ValueError:
        return False


REACH_RULES: Rules = {
    "tags": WANTED_TAGS,
    "session": TEXT,
    "priority": whole(0, 255),
    "timeout": number(0, above=True),
    "retries": whole(0, MOST_RETRIES),
    "target": TEXT,
    "dedup_key": TEXT,
    "idle_timeout": number(0, above=True),
    "reply_to": TEXT,
    "correlation_id": TEXT,
    "shadow": FLAG,
    "trace_id": Rule("32 hex digits, not all zero", _is_trace),
    "metadata": NAMED,
}
"""The options of a `Reach` (None = not given); version and strategy are checked where they are used, and a fallback may be anything."""
