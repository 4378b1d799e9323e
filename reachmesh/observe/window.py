"""The last five minutes of one capability: counts and durations in slots of five seconds, the oldest forgotten as time goes on."""

from __future__ import annotations

from collections import deque

from reachmesh.observe.histogram import bucket_of

SLOT = 5.0
"""Seconds of one slot: the step in which old calls are forgotten."""

SLOTS = 60
"""Slots kept; with `SLOT` the five minutes that `stats` speaks of."""


class _Slot:
    __slots__ = ("buckets", "count", "failures", "number")

    def __init__(self, number: int) -> None:
        self.number = number
        self.count = self.failures = 0
        self.buckets: dict[int, int] = {}


class Window:
    """Counts of one capability. `count` and `failures` are totals since the start, for counters that never fall.

    Invariant: at most `SLOTS` slots, however many calls there are; a slot holds at most one integer per bucket.
    """

    __slots__ = ("_now", "_slots", "count", "failures")

    def __init__(self) -> None:
        self._slots: deque[_Slot] = deque(maxlen=SLOTS)
        self._now = _Slot(-1)
        self.count = self.failures = 0

    def add(self, now: float, seconds: float | None, failed: bool) -> None:
        """Count one call that ended; `seconds` None = its duration says nothing."""
        slot = self._now
        number = int(now / SLOT)
        if slot.number != number:
            slot = self._now = _Slot(number)
            self._slots.append(slot)
        slot.count += 1
        if failed:
            slot.failures += 1
            self.failures += 1
        self.count += 1
        if seconds is not None:
            bucket = bucket_of(seconds)
            buckets = slot.buckets
            buckets[bucket] = buckets.get(bucket, 0) + 1

    def sum(self, now: float, seconds: float) -> Sums:
        """Counts of the last `seconds`, to the slot. O(slots)."""
        oldest = int((now - seconds) / SLOT)
        sums = Sums()
        for slot in self._slots:
            if slot.number > oldest:
                sums.count += slot.count
                sums.failures += slot.failures
                for bucket, count in slot.buckets.items():
                    sums.buckets[bucket] = sums.buckets.get(bucket, 0) + count
        return sums

    @property
    def last(self) -> float:
        """End of the newest slot: nothing was counted after it."""
        return (self._now.number + 1) * SLOT


class Sums:
    """Counts over some time: calls, failures among them, and durations by bucket."""

    __slots__ = ("buckets", "count", "failures")

    def __init__(self) -> None:
        self.count = self.failures = 0
        self.buckets: dict[int, int] = {}

    def add(self, other: Sums) -> None:
        """Take another's counts in."""
        self.count += other.count
        self.failures += other.failures
        for bucket, count in other.buckets.items():
            self.buckets[bucket] = self.buckets.get(bucket, 0) + count
