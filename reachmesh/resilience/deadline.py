"""How long a call may take when nobody said so, and how much of it one attempt gets.

A deadline is absolute and belongs to the call: it is outside of retries, so no number of attempts stretches it. A timeout is
relative and made here from what was measured.
"""

from __future__ import annotations

import msgspec

from reachmesh.resilience.latency import LatencyWindow


class TimeoutConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the default timeout; times in seconds."""

    default: float = 3.0
    """Timeout until enough is known and nothing is declared, > 0."""
    samples: int = 20
    """Calls in the window from which on it is measured, >= 1. Few believe chance, many stay at the default."""
    factor: float = 1.5
    """Measured timeout as a multiple of P99, >= 1. Near 1 cuts the slow tail off, high notices a hang late."""
    floor: float = 2.0
    """Least measured timeout, >= 0. Low turns a garbage collection of a fast handler, or a busy machine, into an error; high hides hangs."""


def default_timeout(config: TimeoutConfig, window: LatencyWindow | None, declared: float | None, now: float) -> float:
    """Timeout in seconds of a call that names none.

    Until `samples` calls are known: the duration its capability declares, else the default. Then max(P99 x factor, floor). Calls that
    ran into their timeout belong in the window with the time they waited, or a service that became slower would never be
    waited for again: each round of timeouts lifts the next timeout by `factor`.
    Example: P99 of 2 s gives 3 s; P99 of 10 ms gives the floor.
    """
    if window is not None:
        p99 = window.p99(now)
        if p99 is not None and window.count >= config.samples:
            return max(p99 * config.factor, config.floor)
    return declared if declared is not None and declared > 0 else config.default


def try_timeout(config: TimeoutConfig, window: LatencyWindow | None, remaining: float, now: float) -> float:
    """Time one attempt of a retryable call gets: min(1.5 x P99, half of what remains); half while P99 is not known.

    Example: 10 s remaining and P99 of 1 s gives 1.5 s; 2 s remaining gives 1 s.
    """
    half = max(remaining, 0.0) / 2.0
    if window is None:
        return half
    p99 = window.p99(now)
    if p99 is None or window.count < config.samples:
        return half
    return min(max(p99 * config.factor, config.floor / 10.0), half)
