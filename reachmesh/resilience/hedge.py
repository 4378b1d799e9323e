"""Hedging: asking a second instance when the first is slower than nearly all calls are.

Only for idempotent capabilities, only when switched on, and each hedge is paid from the retry throttle. Source: Dean and Barroso,
"The Tail at Scale", 2013: a second request after the 95th percentile costs about 5 % load and cuts the tail most.
"""

from __future__ import annotations

import msgspec

from reachmesh.resilience.latency import LatencyWindow


class HedgeConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of hedging."""

    enabled: bool = False
    """Whether idempotent calls are hedged at all."""
    percentile: float = 0.95
    """Share of calls that must be faster, 0.5 to 1. Low doubles load, high hedges almost nothing."""
    samples: int = 20
    """Calls the window must hold, >= 1."""
    least: float = 0.005
    """Least delay in seconds, >= 0: below it a hedge costs more than it saves."""


def hedge_delay(config: HedgeConfig, window: LatencyWindow | None, *, idempotent: bool, now: float) -> float | None:
    """Seconds after which a second instance is asked; None = not at all.

    The caller still asks `RetryThrottle.allow` at that moment and takes the answer that comes first, cancelling the other.
    """
    if not config.enabled or not idempotent or window is None:
        return None
    delay = window.percentile(config.percentile, now)
    if delay is None or window.count < config.samples:
        return None
    return max(delay, config.least)
