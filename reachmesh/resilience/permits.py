"""Permits of one capability: how many calls run at once, who waits for a place and for how long.

States of a ticket: holding, waiting, unknown. Inputs: `acquire`, `release`, `cancel`, `expire`, `resize`. Outputs: `take_granted` hands over
tickets that got a permit after waiting; `expire` answers those that waited too long.

Invariants, over any interleaving: holding <= limit (but for a limit just lowered); nobody waits while a permit is free; a ticket is
granted at most once and is afterwards in exactly one of holding, released; a released permit goes to the next in line.
"""

from __future__ import annotations

from collections.abc import Hashable
from enum import Enum
from math import ceil

import msgspec

from reachmesh.resilience.priorities import PriorityQueues

_STEP = 0.1


class PermitConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the wait for a permit."""

    wait: float = 0.2
    """Seconds a call waits at most, >= 0. Short refuses bursts, long makes every caller slow instead of one refused."""
    queue: int = 1024
    """Calls that may wait, >= 0; beyond them the answer is a refusal at once."""
    full_share: float = 0.9
    """Part of a capability's permits in use from which on it counts as full, above 0 to 1."""


class Grant(Enum):
    """Answer to `acquire`."""

    GRANTED = "granted"
    QUEUED = "queued"
    REFUSED = "refused"


class Permits:
    """Concurrency limit of one capability; tickets are opaque and unique per call."""

    __slots__ = ("_granted", "_hold", "_holding", "_limit", "_until", "_waiting", "config")

    def __init__(self, limit: int, config: PermitConfig | None = None) -> None:
        self.config = config or PermitConfig()
        self._limit = max(limit, 1)
        self._holding: dict[Hashable, float] = {}
        self._waiting: PriorityQueues[Hashable] = PriorityQueues()
        self._until: dict[Hashable, float] = {}
        self._granted: dict[Hashable, None] = {}
        self._hold = 0.0

    @property
    def limit(self) -> int:
        """Permits in all."""
        return self._limit

    @property
    def holding(self) -> int:
        """Permits in use."""
        return len(self._holding)

    @property
    def waiting(self) -> int:
        """Tickets in line."""
        return len(self._waiting)

    def acquire(self, ticket: Hashable, now: float, priority: int = 100) -> Grant:
        """Ask for a permit. A ticket that already holds or waits changes nothing and gets the same answer."""
        if ticket in self._holding:
            return Grant.GRANTED
        if ticket in self._waiting:
            return Grant.QUEUED
        if len(self._holding) < self._limit:
            self._holding[ticket] = now
            return Grant.GRANTED
        if len(self._waiting) >= self.config.queue or self.config.wait <= 0:
            return Grant.REFUSED
        self._waiting.push(ticket, priority)
        self._until[ticket] = now + self.config.wait
        return Grant.QUEUED

    def release(self, ticket: Hashable, now: float) -> float | None:
        """Give a permit back; the next in line gets it. Answers how long it was held.

        A ticket that holds none changes nothing (None), so releasing twice is safe.
        """
        since = self._holding.pop(ticket, None)
        if since is None:
            return None
        self._granted.pop(ticket, None)
        held = max(now - since, 0.0)
        self._hold = self._hold + _STEP * (held - self._hold) if self._hold else held
        self._pass_on(now)
        return held

    def cancel(self, ticket: Hashable, now: float) -> None:
        """The call is over before it ran: it leaves the line, or gives its permit back."""
        if self._waiting.remove(ticket):
            del self._until[ticket]
        elif ticket in self._holding:
            del self._holding[ticket]
            self._granted.pop(ticket, None)
            self._pass_on(now)

    def expire(self, now: float) -> list[Hashable]:
        """Take those out who waited too long, the oldest first. All wait equally long, so only the front is looked at."""
        late: list[Hashable] = []
        for ticket, until in self._until.items():
            if until > now:
                break
            late.append(ticket)
        for ticket in late:
            del self._until[ticket]
            self._waiting.remove(ticket)
        return late

    def take_granted(self) -> list[Hashable]:
        """Hand over the tickets that got their permit after waiting, except those that were cancelled or released since."""
        granted, self._granted = self._granted, {}
        return list(granted)

    def next_timeout(self) -> float:
        """Instant of the next `expire` that finds something; infinity when nobody waits."""
        return next(iter(self._until.values()), float("inf"))

    def resize(self, limit: int, now: float) -> None:
        """Change the limit; permits over a lowered one are not taken away but not given again."""
        self._limit = max(limit, 1)
        self._pass_on(now)

    def retry_after(self) -> float:
        """Seconds until a permit is likely to be free for one more: measured hold time x line / limit, 0.05 to 30."""
        return min(max(self._hold * (len(self._waiting) + 1) / self._limit, 0.05, self.config.wait / 2), 30.0)

    def _pass_on(self, now: float) -> None:
        while len(self._holding) < self._limit and self._waiting:
            ticket = self._waiting.pop()
            del self._until[ticket]
            self._holding[ticket] = now
            self._granted[ticket] = None


def auto_limit(rate: float, latency: float) -> int:
    """Permits for a target `rate` (calls a second) at a measured `latency` (seconds): Little's law, at least 1.

    Example: 50 calls/s at 0.1 s need 5 places.
    """
    return max(1, ceil(rate * latency - 1e-9))
