"""How long capabilities take as this node's calls see it: for timeouts nobody named, the time of one try, and hedges.

Place in the data path: the caller adds an attempt as it ends. Where calls are many only every eighth is added, so that measuring stays
cheap. `timeouts` is read by threads without the engine's seat: it is a dictionary of numbers, replaced one by one.
"""

from __future__ import annotations

from reachmesh.resilience.deadline import TimeoutConfig, default_timeout
from reachmesh.resilience.latency import LatencyWindow

NAMES = 1024
"""Capabilities measured; the ones that came first are forgotten first."""

_MANY = 512
_EVERY = 8
_ANEW_AFTER = 1.0


class Latencies:
    """One sliding window per capability."""

    def __init__(self, config: TimeoutConfig) -> None:
        self.config = config
        self.timeouts: dict[str, float] = {}
        """Measured default timeouts in seconds, for capabilities of which enough is known."""
        self._windows: dict[str, LatencyWindow] = {}
        self._told: dict[str, float] = {}
        self._skipped = 0

    def window(self, capability: str) -> LatencyWindow | None:
        """What is known of a capability."""
        return self._windows.get(capability)

    def add(self, capability: str, seconds: float, now: float) -> None:
        """One attempt was answered, or waited for in vain, after `seconds`."""
        window = self._windows.get(capability)
        if window is None:
            window = self._new(capability)
        elif window.count > _MANY:
            self._skipped += 1
            if self._skipped % _EVERY:
                return
        window.add(seconds, now)
        if window.count >= self.config.samples and now - self._told.get(capability, -_ANEW_AFTER) >= _ANEW_AFTER:
            self._told[capability] = now
            self.timeouts[capability] = default_timeout(self.config, window, None, now)

    def add_vain(self, capability: str, seconds: float, now: float) -> None:
        """An attempt waited in vain. It says something when it waited longer than nearly all answers take, not when its caller was hasty."""
        window = self._windows.get(capability)
        p99 = None if window is None else window.p99(now)
        if p99 is None or seconds >= p99:
            self.add(capability, seconds, now)

    def forget_stale(self, now: float) -> None:
        """Windows that have run empty say nothing any more."""
        for capability in list(self.timeouts):
            window = self._windows[capability]
            window.percentile(0.5, now)
            if window.count < self.config.samples:
                del self.timeouts[capability]

    def _new(self, capability: str) -> LatencyWindow:
        if len(self._windows) >= NAMES:
            oldest = next(iter(self._windows))
            del self._windows[oldest]
            self.timeouts.pop(oldest, None)
            self._told.pop(oldest, None)
        window = self._windows[capability] = LatencyWindow()
        return window
