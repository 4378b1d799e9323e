"""Latencies: a sliding window with percentiles, and the exponential averages that routing weighs by.

`LatencyWindow` is a ring of time slices, each a sparse histogram with buckets 5 % apart from 10 us to 1,000 s, so its memory is bounded
(10 slices x at most 378 counters) whatever the rate, and a percentile is off by at most 2.5 %.
"""

from __future__ import annotations

from math import exp, log

_SLICES = 10
_SMALLEST = 1e-5
_GROWTH = 1.05
_SCALE = 1.0 / log(_GROWTH)
_LARGEST = 1000.0


class LatencyWindow:
    """Latencies of the last `window` seconds (within one tenth of it). Percentiles are cached until the window changes by 1 % or a second."""

    __slots__ = ("_cached", "_cached_at", "_cached_total", "_counts", "_slice", "_totals", "_width", "count")

    def __init__(self, window: float = 300.0) -> None:
        self._width = window / _SLICES
        self._counts: list[dict[int, int]] = [{} for _ in range(_SLICES)]
        self._totals = [0] * _SLICES
        self._slice = 0
        self.count = 0
        """Samples in the window, as of the last `add` or `percentile`."""
        self._cached: dict[float, float] = {}
        self._cached_at = 0.0
        self._cached_total = 0

    def add(self, latency: float, now: float) -> None:
        """Take one sample in seconds; one that is negative or not a number is dropped, one over 1,000 s counts as that."""
        if not latency >= 0.0:
            return
        current = int(now / self._width)
        if current != self._slice:
            self._turn(current)
        bucket = int(log(min(latency, _LARGEST) / _SMALLEST) * _SCALE) + 1 if latency > _SMALLEST else 0
        counts = self._counts[current % _SLICES]
        counts[bucket] = counts.get(bucket, 0) + 1
        self._totals[current % _SLICES] += 1
        self.count += 1

    def percentile(self, share: float, now: float) -> float | None:
        """Latency in seconds that `share` (0 to 1) of the samples do not exceed; None without samples. O(buckets) when not cached."""
        current = int(now / self._width)
        if current != self._slice:
            self._turn(current)
        if self.count == 0:
            return None
        if abs(self.count - self._cached_total) * 100 > self._cached_total or now - self._cached_at >= 1.0:
            self._cached.clear()
            self._cached_at, self._cached_total = now, self.count
        found = self._cached.get(share)
        if found is None:
            found = self._cached[share] = self._compute(share)
        return found

    def p50(self, now: float) -> float | None:
        """Median."""
        return self.percentile(0.50, now)

    def p90(self, now: float) -> float | None:
        """90 of 100 are at most this."""
        return self.percentile(0.90, now)

    def p95(self, now: float) -> float | None:
        """95 of 100 are at most this."""
        return self.percentile(0.95, now)

    def p99(self, now: float) -> float | None:
        """99 of 100 are at most this."""
        return self.percentile(0.99, now)

    def _compute(self, share: float) -> float:
        merged: dict[int, int] = {}
        for counts in self._counts:
            for bucket, number in counts.items():
                merged[bucket] = merged.get(bucket, 0) + number
        rank = max(1, -int(-share * self.count // 1))
        for bucket in sorted(merged):
            rank -= merged[bucket]
            if rank <= 0:
                return _SMALLEST * _GROWTH ** (bucket - 0.5) if bucket else _SMALLEST
        return _LARGEST

    def _turn(self, current: int) -> None:
        """Forget the slices that time has passed over."""
        passed = current - self._slice
        if passed < 0 or passed >= _SLICES:
            stale = range(_SLICES)
        else:
            stale = range(self._slice + 1, current + 1)
        for each in stale:
            place = each % _SLICES
            self.count -= self._totals[place]
            self._totals[place] = 0
            self._counts[place] = {}
        self._slice = current
        self._cached.clear()


class PeakEwma:
    """Average that jumps up at once and comes down with time: a worse sample counts fully, a better one by its age.

    Source: Finagle's `Ewma` load balancer metric. Old peaks fade towards `prior`, not towards 0, so that a long-unasked
    instance does not become the most attractive one.
    Example: peak 1.0, decay 5 s, a sample of 0.1 five seconds later gives 0.1 + 0.9/e = 0.431.
    """

    __slots__ = ("_decay", "_stamp", "value")

    def __init__(self, decay: float) -> None:
        self._decay = decay
        self._stamp = 0.0
        self.value = 0.0
        """Seconds as of the last sample; 0 while there was none."""

    def observe(self, latency: float, now: float) -> None:
        """Take one sample in seconds."""
        value = self.value
        self.value = latency if latency >= value else latency + (value - latency) * exp((self._stamp - now) / self._decay)
        self._stamp = now

    def read(self, prior: float, now: float) -> float:
        """Value at `now`; `prior` while nothing is known, and where old peaks fade to."""
        value = self.value
        if value > prior:
            return prior + (value - prior) * exp((self._stamp - now) / self._decay)
        return value or prior
