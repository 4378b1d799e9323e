"""Caller-side window toward one instance, driven by the backpressure level (0-255) that every answer carries.

Additive increase, multiplicative decrease: a level above 0 shrinks the window by up to half of what is outstanding, at most once per
`pause`; answers without a level widen it again by about one call per window, and after a quiet time it is gone. Without any
level ever seen the window is infinite, so a calm instance costs one comparison.
Invariant: the window never falls under `floor`, so an instance that says 255 for ever still gets asked.
"""

from __future__ import annotations

import msgspec

UNLIMITED = float("inf")


class LimiterConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the caller-side limiter."""

    floor: int = 4
    """Calls that may always be outstanding, >= 1. Low obeys harder and may idle a fast instance, high obeys less."""
    pause: float = 0.1
    """Seconds between two decreases, >= 0: one burst of answers is one opinion."""
    quiet: float = 10.0
    """Seconds without a level after which the window is forgotten. Short swings, long stays slow after the storm."""


class Limiter:
    """Window of one instance and capability; `window` is the number of calls that may be outstanding."""

    __slots__ = ("_config", "_cut_at", "_floor", "_pressed_at", "window")

    def __init__(self, config: LimiterConfig, *, concurrency: int | None = None) -> None:
        self._config = config
        self._floor = float(max(config.floor, concurrency or 0, 1))
        self._cut_at = -UNLIMITED
        self._pressed_at = -UNLIMITED
        self.window = UNLIMITED

    def observe(self, level: int, outstanding: int, now: float) -> float:
        """Take the level of one answer while `outstanding` calls are still out; answers the new window.

        Example: 40 outstanding at level 255 gives a window of 20; at level 51 one of 36.
        """
        if level > 0:
            self._pressed_at = now
            if now - self._cut_at >= self._config.pause:
                self._cut_at = now
                base = min(self.window, float(outstanding + 1))
                self.window = max(self._floor, base * (1.0 - 0.5 * min(level, 255) / 255.0))
        elif self.window != UNLIMITED:
            if now - self._pressed_at >= self._config.quiet:
                self.window = UNLIMITED
            else:
                self.window += 1.0 / self.window
        return self.window
