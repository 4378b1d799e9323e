"""Figures of routing, each with its meaning and what both extremes cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import msgspec

from reachmesh.resilience.breaker import BreakerConfig
from reachmesh.resilience.limiter import LimiterConfig

if TYPE_CHECKING:
    from reachmesh.routing.model import Candidate

Predicate = Callable[["Candidate", Mapping[str, Any]], bool]
"""Content predicate: may this candidate have a call with this metadata? Runs in the caller, see `strategies.choose`."""


class RoutingConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of one node's router; times in seconds."""

    strategy: str = "p2c"
    """Strategy of calls that name none; one of `strategies.STRATEGIES`."""
    warmup: float = 60.0
    """Ramp of a new instance's share, >= 0 (0 = none). Short floods cold caches, long leaves new capacity idle."""
    warmup_from: float = 0.1
    """Share at which the ramp begins, 0 to 1."""
    founding: float = 5.0
    """An instance first seen within this time of the router's own start is not new: it was there before us."""
    window_share: float = 0.9
    """Part of an instance's advertised concurrency that may be outstanding from here before others are preferred, 0 to 1."""
    panic_share: float = 0.5
    """Under this usable part of the live candidates, open breakers are ignored, 0 to 1 (0 = never, 1 = at the first one)."""
    busy_factor: float = 0.5
    """Weight factor of a BUSY instance, 0 to 1."""
    degraded_factor: float = 0.2
    """Weight factor of a DEGRADED instance, 0 to 1. 0 starves it so that it cannot show its recovery."""
    latency_decay: float = 5.0
    """Time constant of the peak-EWMA, > 0. Short forgets a slow instance and asks it again, long punishes one hiccup."""
    prefer_host: bool = True
    """Same host before other hosts of the zone."""
    spill_outstanding: int = 16
    """Calls outstanding to each near instance before farther ones share the load, >= 1. Low leaves the zone early."""
    session_memory: int = 10_000
    """Sessions whose instance is remembered; beyond it the oldest fall back to the rendezvous hash alone."""
    timeout_counts_after: float = 0.1
    """A caller's timeout shorter than this is no failure of the instance, unless calls usually take much less."""
    breaker: BreakerConfig = msgspec.field(default_factory=BreakerConfig)
    """Figures of the circuit breakers."""
    limiter: LimiterConfig = msgspec.field(default_factory=LimiterConfig)
    """Figures of the caller-side limiter."""
    predicate: Predicate | None = None
    """Content predicate on a call's metadata, or None."""
