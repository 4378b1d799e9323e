"""What a serving node measures about itself: rate, failures and run times of the last seconds, for its state and its peers' eyes.

Place in the data path: the callee adds each call that ended; the engine asks a few times a second. A call costs an append and two
additions; the percentile is computed when asked for.
"""

from __future__ import annotations

from collections import deque

SECONDS = 10
"""Seconds looked back. Short makes a state flutter, long shows trouble and its end late."""

LEAST = 10
"""Calls in that time from which on a failure rate means something."""

_RUNS = 128


class Meter:
    """Counters of the last `SECONDS`, one slot a second, and the last 128 run times."""

    __slots__ = ("_ended", "_failed", "_runs", "_second")

    def __init__(self) -> None:
        self._ended = [0] * SECONDS
        self._failed = [0] * SECONDS
        self._second = 0
        self._runs: deque[float] = deque(maxlen=_RUNS)

    def add(self, seconds: float | None, failed: bool, now: float) -> None:
        """One call ended after running for `seconds` (None = it never ran)."""
        second = int(now)
        if second != self._second:
            self._turn(second)
        place = second % SECONDS
        self._ended[place] += 1
        if failed:
            self._failed[place] += 1
        if seconds is not None:
            self._runs.append(seconds)

    def read(self, now: float) -> tuple[float, float, float]:
        """Calls ended per second, failed share (0 while under `LEAST` calls), and P95 of the run times in seconds (0 = none)."""
        second = int(now)
        if second != self._second:
            self._turn(second)
        ended = sum(self._ended)
        if not ended:
            self._runs.clear()
            return 0.0, 0.0, 0.0
        rate = sum(self._failed) / ended if ended >= LEAST else 0.0
        runs = sorted(self._runs)
        p95 = runs[min(len(runs) - 1, int(0.95 * len(runs)))] if runs else 0.0
        return ended / SECONDS, rate, p95

    def _turn(self, second: int) -> None:
        """Forget the seconds that time has passed over."""
        passed = second - self._second
        if not 0 <= passed < SECONDS:
            self._ended, self._failed = [0] * SECONDS, [0] * SECONDS
        else:
            for skipped in range(self._second + 1, second + 1):
                self._ended[skipped % SECONDS] = self._failed[skipped % SECONDS] = 0
        self._second = second
