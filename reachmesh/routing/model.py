"""Values that go into the router and come out of it."""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from typing import Any, Literal

import msgspec

from reachmesh.errors import Backpressure, BreakerOpen, NoProvider, ReachError, VersionMismatch

NoPickKind = Literal["none", "no_match", "version", "suspended", "breaker", "excluded", "backpressure"]
"""Why nobody was picked.

none: nobody offers it. no_match: nobody with these tags or this target. version: nobody speaks this version. suspended: those who
match are starting, draining or gone. breaker: their breakers are open. excluded: all of them were tried in this call.
backpressure: all of them asked us to slow down and the call is of low priority.
"""


class Provider(msgspec.Struct, frozen=True, kw_only=True):
    """One capability of one instance, as membership sees it now."""

    boot: bytes
    instance_id: str
    name: str
    capability: str
    node_version: str = "1"
    version: str = "1"
    compatible_from: str | None = None
    tags: Mapping[str, Any] = msgspec.field(default_factory=dict)
    zone: str | None = None
    host: str = ""
    weight: float = 1.0
    max_concurrent: int | None = None
    idempotent: bool = False
    pure: bool = False
    timeout: float | None = None
    state: str = "HEALTHY"
    suspected: bool = False
    since: float = 0.0
    """Monotonic second at which this node first saw the instance; the ramp of a new instance begins there."""
    backpressure: int = 0
    full: bool = False
    """Its permits for this capability are taken, by whomever: others are preferred as long as there are some."""
    options: Mapping[str, Any] = msgspec.field(default_factory=dict)


class RouteRequest(msgspec.Struct, frozen=True, kw_only=True):
    """What a call asks of routing. Cheap to keep and use again for many calls."""

    capability: str
    version: str | Mapping[str, float] | None = None
    tags: Mapping[str, Any] | None = None
    """Each must match; a list, tuple or set of values matches any of them. `zone` is a tag too."""
    target: str | bytes | None = None
    """Node name, instance id, or (bytes) a boot."""
    session: str | None = None
    strategy: str | object | None = None
    """Name of a strategy; an object is asked outside, see `Router.candidates`."""
    priority: int = 100
    metadata: Mapping[str, Any] | None = None
    shadow: bool = False
    """The answer goes nowhere: instances tagged `shadow` take it when there are any."""
    fail_fast: bool = False
    """The caller has a fallback: open breakers are obeyed even where nobody else is left."""


class NoPick(msgspec.Struct, frozen=True, kw_only=True):
    """Nobody was picked, and why."""

    kind: NoPickKind
    message: str
    hint: str = ""
    near: tuple[str, ...] = ()
    retry_after: float = 0.0

    def error(self) -> ReachError:
        """The error a caller sees; nothing was executed."""
        if self.kind == "version":
            return VersionMismatch(self.message, hint=self.hint)
        if self.kind == "breaker":
            return BreakerOpen(self.message, hint=self.hint)
        if self.kind == "backpressure":
            return Backpressure(self.message, hint=self.hint, retry_after=self.retry_after)
        return NoProvider(self.message, hint=self.hint)


class Outcome(Enum):
    """How a call to an instance ended, in the terms of routing. Each call is counted once, here and nowhere else."""

    OK = "ok"
    FAILED = "failed"
    """Lost connection, internal error, the handler's exception, a timeout that was surely long enough."""
    TIMEOUT = "timeout"
    """The caller's time was over: a failure unless that time was shorter than the capability usually takes."""
    SEMANTIC = "semantic"
    """The handler called its answer a failure: counts like FAILED, though its latency is real."""
    REFUSED = "refused"
    """It had no room: no failure for the breaker, but one for the share, or who refuses fast looks idle and draws calls."""
    IGNORED = "ignored"
    """Says nothing about the instance: cancelled, bad request, draining."""


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """What a strategy of the user's own sees of an instance."""

    provider: Provider
    outstanding: int
    latency: float
    """Peak-EWMA in seconds, decayed to now; the capability's average while nothing is known."""
    share: float
    """Effective weight: declared weight x speed x state x warm-up x successes."""
    full: bool

    @property
    def boot(self) -> bytes:
        """Boot id, the internal key."""
        return self.provider.boot

    @property
    def instance_id(self) -> str:
        """Instance id."""
        return self.provider.instance_id

    @property
    def name(self) -> str:
        """Node name."""
        return self.provider.name

    @property
    def weight(self) -> float:
        """Declared weight."""
        return self.provider.weight

    @property
    def state(self) -> str:
        """Public state."""
        return self.provider.state

    @property
    def tags(self) -> Mapping[str, Any]:
        """Tags of the instance."""
        return self.provider.tags

    @property
    def zone(self) -> str | None:
        """Zone of the instance."""
        return self.provider.zone

    @property
    def host(self) -> str:
        """Host of the instance."""
        return self.provider.host

    @property
    def version(self) -> str:
        """Version of the capability."""
        return self.provider.version


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """One line of `explain`."""

    instance_id: str
    usable: bool
    reason: str
    factors: Mapping[str, float]


class RouteEvent(msgspec.Struct, frozen=True, kw_only=True):
    """`session_moved`, `breaker_opened` or `breaker_closed`."""

    kind: Literal["session_moved", "breaker_opened", "breaker_closed"]
    boot: bytes
    instance_id: str
    capability: str
    reason: str
    at: float
