"""Deadlines in order: one heap for everything that must happen at an instant, with the forgotten entries swept out."""

from __future__ import annotations

import heapq
from typing import Protocol

NEVER = float("inf")
_SWEEP_FROM = 512


class Timed(Protocol):
    """What a timer belongs to; a closed one no longer matters."""

    @property
    def closed(self) -> bool:
        """Whether it is over."""


class Timers:
    """Heap of (instant, owner). `forget` counts owners that closed early; a heap that is mostly dead is rebuilt.

    Invariant: at most twice as many entries as live ones (plus a constant), so a million short calls with a long deadline
    cost the memory of those that are open.
    """

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Timed]] = []
        self._sequence = 0
        self._dead = 0

    def __len__(self) -> int:
        return len(self._heap)

    def add(self, when: float, owner: Timed) -> None:
        """Wake `owner` at `when` (monotonic seconds). O(log n)."""
        self._sequence += 1
        heapq.heappush(self._heap, (when, self._sequence, owner))

    def forget(self) -> None:
        """One owner with an entry here has closed."""
        self._dead += 1
        if self._dead > _SWEEP_FROM and self._dead * 2 > len(self._heap):
            self._heap = [entry for entry in self._heap if not entry[2].closed]
            heapq.heapify(self._heap)
            self._dead = 0

    def due(self, now: float) -> list[Timed]:
        """Take the live owners whose instant has come, in order."""
        taken: list[Timed] = []
        while self._heap and self._heap[0][0] <= now:
            owner = heapq.heappop(self._heap)[2]
            if not owner.closed:
                taken.append(owner)
            elif self._dead:
                self._dead -= 1
        return taken

    def next(self) -> float:
        """The earliest live instant; NEVER when there is none."""
        while self._heap and self._heap[0][2].closed:
            heapq.heappop(self._heap)
            if self._dead:
                self._dead -= 1
        return self._heap[0][0] if self._heap else NEVER
