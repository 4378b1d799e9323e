"""What the router knows of one instance and capability beyond its record: load, latency, failures, breaker, ramp.

Never decides: the plan (`group.py`), the strategies and `explain` read it. Lives as long as the capability is offered by that boot.
"""

from __future__ import annotations

from math import exp, isfinite

from reachmesh.resilience.breaker import Breaker
from reachmesh.resilience.latency import PeakEwma
from reachmesh.resilience.limiter import UNLIMITED, Limiter
from reachmesh.routing.config import RoutingConfig
from reachmesh.routing.model import Provider

ROUTED = frozenset({"HEALTHY", "BUSY", "DEGRADED"})
"""States that may be asked; STARTING, DRAINING, LOST, LEFT and anything unknown may not."""

_FAILURE_MEMORY = 30.0
_MEAN_STEP = 0.1
_SPEED_FLOOR = 0.002
_HEAVIEST = 1000.0


class Entry:
    """Mutable state of one (instance, capability). Fields are read directly on the hot path."""

    __slots__ = (
        "_config",
        "_failed_at",
        "boot",
        "breaker",
        "ease",
        "failing",
        "instance_id",
        "latency",
        "limiter",
        "mean",
        "outstanding",
        "provider",
        "rank",
        "roomy",
        "slow",
        "turn",
        "warm_at",
        "warm_from",
        "weight",
        "window",
    )

    def __init__(self, provider: Provider, config: RoutingConfig, *, rank: int, settled: bool) -> None:
        self._config = config
        self.boot = provider.boot
        self.instance_id = provider.instance_id
        self.breaker = Breaker(config.breaker)
        self.latency = PeakEwma(config.latency_decay)
        self.limiter = Limiter(config.limiter, concurrency=provider.max_concurrent)
        self.mean = 0.0
        self.failing = 0.0
        self._failed_at = 0.0
        self.outstanding = 0
        self.slow = UNLIMITED
        self.turn = 0
        self.rank = rank
        self.warm_from = provider.since
        self.warm_at = provider.since if settled else provider.since + config.warmup
        self.roomy = True
        self.weight = self.ease = 1.0
        self.window = UNLIMITED
        self.update(provider)

    def update(self, provider: Provider) -> None:
        """Take a new record; measurements stay. A weight that is not a number or negative counts as 0, one over 1,000 as 1,000."""
        self.provider = provider
        weight = provider.weight
        self.weight = min(weight, _HEAVIEST) if isfinite(weight) and weight > 0 else 0.0
        self.ease = max(self.weight, 1e-6) * self.state_factor() / (1.0 + max(0, min(provider.backpressure, 255)) / 64.0)
        self._bound()

    def state_factor(self) -> float:
        """Factor of the public state."""
        if self.provider.state == "DEGRADED":
            return max(self._config.degraded_factor, 1e-6)
        if self.provider.state == "BUSY":
            return max(self._config.busy_factor, 1e-6)
        return 1.0

    def live(self) -> bool:
        """Whether the state lets it be asked at all (suspicion and breakers apart)."""
        return self.provider.state in ROUTED

    def warm(self, now: float) -> float:
        """Share of a new instance: linear from `warmup_from` to 1 over `warmup` seconds."""
        if now >= self.warm_at:
            return 1.0
        begin = self._config.warmup_from
        return begin + (1.0 - begin) * max(now - self.warm_from, 0.0) / max(self.warm_at - self.warm_from, 1e-9)

    def success(self, now: float) -> float:
        """Factor of past failures, 0.05 to 1; failures fade with their age (time constant 30 s) and with successes."""
        if not self.failing:
            return 1.0
        return max(0.05, 1.0 - self.failing * exp((self._failed_at - now) / _FAILURE_MEMORY))

    def speed(self, prior: float) -> float:
        """Measured speed against the capability's average `prior`, 0.25 to 4; differences of about 2 ms and less hardly count."""
        if not self.mean or not prior:
            return 1.0
        return min(4.0, max(0.25, (prior + _SPEED_FLOOR) / (self.mean + _SPEED_FLOOR)))

    def observe(self, latency: float, now: float) -> None:
        """Take the latency of an answer."""
        self.latency.observe(latency, now)
        self.mean = self.mean + _MEAN_STEP * (latency - self.mean) if self.mean else latency

    def note_failure(self, now: float) -> None:
        """Let a failure weigh on the share."""
        faded = self.failing * exp((self._failed_at - now) / _FAILURE_MEMORY)
        self.failing = faded + 0.2 * (1.0 - faded)
        self._failed_at = now

    def note_success(self) -> None:
        """Let an answer make up for failures."""
        self.failing = self.failing * 0.9 if self.failing > 0.01 else 0.0

    def press(self, level: int, now: float) -> bool:
        """Take the backpressure level of an answer; answers whether the window came or went."""
        before = self.slow
        self.slow = self.limiter.observe(level, self.outstanding, now)
        self._bound()
        return (before == UNLIMITED) != (self.slow == UNLIMITED)

    def _bound(self) -> None:
        limit = self.provider.max_concurrent
        advertised = float(limit) * self._config.window_share if limit is not None and limit > 0 else UNLIMITED
        self.window = 0.0 if self.provider.full else min(advertised, self.slow)
