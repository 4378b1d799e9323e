"""The number of permits of a capability with `max_concurrent="auto"`, found from what its calls take and how many end.

Little's law: a service that ends `rate` calls a second and needs `latency` seconds for one that nothing slows has rate x latency calls
in it; more of them only wait for each other. So the limit grows by half while it is in force and calls are no slower than they can be,
and goes to rate x unslowed latency x `margin` when they slow each other down. What was never asked for teaches nothing: with less than
half of the limit in use it stays.

The unslowed latency is the lowest median of the last `memory` seconds. A service that was under full load all that time has none to
show, so when calls slow each other, and at most once per `memory`, one period is run with half the limit to measure it (the
ProbeRTT of BBR, Cardwell and others, 2016). Otherwise a slow drift upwards would feed itself.

Inputs: `ended`. Output: `limit`. Invariants: least <= limit <= most; the limit changes at most once per `period`; it never grows unless calls
were waiting for it, or close to it.
"""

from __future__ import annotations

from collections import deque
from math import ceil

import msgspec

from reachmesh.resilience.permits import auto_limit

_SAMPLES = 256
_IN_FORCE = 0.9
"""Part of the limit in use from which on it is what holds calls back."""


class AdaptiveConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the automatic limit; times in seconds."""

    start: int = 16
    """Permits before anything is known, least to most. Low refuses the first burst, high lets the first burst crowd."""
    least: int = 4
    """Permits at least, >= 1. Low leaves a service idle between two calls, high overcommits a single core."""
    most: int = 1024
    """Permits at most, >= least: the bound of memory and threads."""
    period: float = 1.0
    """Time between two decisions, > 0. Short follows noise, long reacts late."""
    samples: int = 10
    """Calls that must end before a decision is made, >= 1."""
    slowed: float = 1.25
    """How many times the unslowed latency counts as calls slowing each other down, > 1."""
    margin: float = 1.25
    """Permits beyond rate x latency, >= 1, so that a call is ready when one ends."""
    memory: float = 60.0
    """How long a low latency is believed, >= 10 periods. Short probes often, long refuses work that became slower by itself."""


class AdaptiveLimit:
    """See the module. Memory is bounded; `ended` is O(1) but for the median of at most 256 samples once a period."""

    __slots__ = ("_began", "_config", "_count", "_lows", "_peak", "_probed_at", "_samples", "_suspended", "limit")

    def __init__(self, config: AdaptiveConfig | None = None) -> None:
        self._config = config or AdaptiveConfig()
        self.limit = max(self._config.least, min(self._config.start, self._config.most))
        """Permits now."""
        self._suspended: int | None = None
        """The limit that holds again after a probe."""
        self._probed_at: float | None = None
        self._lows: deque[tuple[float, float]] = deque()
        self._samples: deque[float] = deque(maxlen=_SAMPLES)
        self._count = self._peak = 0
        self._began: float | None = None

    def ended(self, took: float, holding: int, now: float) -> bool:
        """A call ended that held its permit for `took` seconds, while `holding` were in use. Answers whether the limit changed."""
        if self._began is None:
            self._began = now
        self._count += 1
        self._samples.append(max(took, 0.0))
        self._peak = max(self._peak, holding)
        elapsed = now - self._began
        if elapsed < self._config.period or self._count < self._config.samples:
            return False
        before = self.limit
        self._decide(elapsed, now)
        self._began, self._count, self._peak = now, 0, 0
        self._samples.clear()
        return self.limit != before

    def _decide(self, elapsed: float, now: float) -> None:
        config, lows = self._config, self._lows
        latency = sorted(self._samples)[len(self._samples) // 2]
        probed, self._suspended = self._suspended, None
        if probed is not None:
            lows.clear()
        while lows and lows[-1][1] >= latency:
            lows.pop()
        lows.append((now, latency))
        if probed is not None:
            self.limit = probed
            return
        while lows[0][0] < now - config.memory:
            lows.popleft()
        unslowed = lows[0][1]
        if self._peak * 2 < self.limit:
            return
        if latency <= unslowed * config.slowed:
            if self._peak >= self.limit * _IN_FORCE:
                self.limit = min(config.most, ceil(self.limit * 1.5))
        elif self._probed_at is None or now - self._probed_at >= config.memory:
            self._suspended, self._probed_at = self.limit, now
            self.limit = max(config.least, self.limit // 2)
        else:
            self.limit = max(config.least, min(self.limit, auto_limit(self._count / elapsed, unslowed * config.margin)))
