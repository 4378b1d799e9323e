"""Trying the lost again: after a partition somebody has to dial first.

Each period a node dials at most one lost member, the one not tried for longest whose turn it is. An address that is
silent may be a cut cable and is tried every few periods for as long as the loss is remembered; one that refuses is
tried ever more rarely; one where another process answers is given up. In a large mesh each node tries only sometimes, so
that all of them together make about `TRIERS` tries a period.
"""

from __future__ import annotations

from random import Random

SILENT_PERIODS = 4.0
REFUSED_PERIODS = 64.0
TRIERS = 16


class Healing:
    """The lost worth a try, with the time of the next one."""

    def __init__(self, period: float, rng: Random) -> None:
        self._period = period
        self._rng = rng
        self._tries: dict[bytes, tuple[float, int]] = {}
        self._refused: set[bytes] = set()

    def lost(self, boot: bytes, now: float) -> None:
        """A member was lost."""
        self._tries[boot] = (now + self._period, 0)

    def forget(self, boot: bytes) -> None:
        """It is back, or gone for good."""
        self._tries.pop(boot, None)
        self._refused.discard(boot)

    def failed(self, boot: bytes, refused: bool) -> None:
        """A try failed."""
        if refused and boot in self._tries:
            self._refused.add(boot)

    def pick(self, living: int, now: float) -> bytes | None:
        """The one to dial in this period, or None."""
        if not self._tries or self._rng.random() * living > TRIERS:
            return None
        due = [(at, boot) for boot, (at, _) in self._tries.items() if at <= now]
        if not due:
            return None
        boot = min(due)[1]
        times = self._tries[boot][1] + 1
        limit = REFUSED_PERIODS if boot in self._refused else SILENT_PERIODS
        self._tries[boot] = (now + self._period * min(2.0**times, limit), times)
        return boot
