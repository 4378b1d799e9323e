"""Requests with a key run once: a repetition gets the first one's answer, while it runs or within a time after it ended.

States of a key: running (others may join), finished (its answer is kept for `ttl`), unknown. A failure of something that ran is its
answer too. What was cancelled before it started is forgotten, so that its repetition runs. When the table is full a new key is
refused: forgetting an old one would run it twice, which is what the key is there to prevent. An answer too big to keep leaves
its key behind: repetitions learn that it ran and that the answer is gone.

Invariant: between the moment `begin` answers NEW for a key and `ttl` after its end, no other `begin` answers NEW for it, unless `forget`
was called. Scope: one instance and boot; the table is not shared and not stored.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from enum import Enum
from typing import Any

import msgspec


class DedupConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the table."""

    ttl: float = 300.0
    """Seconds an answer is kept after its end, > 0. Short runs a late repetition again, long fills the table."""
    keys: int = 100_000
    """Keys, running and finished, >= 1."""
    size: int = 64 * 1024 * 1024
    """Bytes of all kept answers, >= 0."""


class Seen(Enum):
    """What `begin` found."""

    NEW = "new"
    """Run it; then `finish`, or `forget` if it never started."""
    RUNNING = "running"
    """It runs already; the ticket is handed over when it ends."""
    FINISHED = "finished"
    """The answer is there."""
    ANSWER_GONE = "answer_gone"
    """It ran, and its answer was too big to keep."""
    FULL = "full"
    """No room for a new key."""


_GONE = object()


class DedupTable:
    """Keys of one node; answers and tickets are opaque. Everything is O(1), expiry amortised."""

    __slots__ = ("_bytes", "_config", "_finished", "_running")

    def __init__(self, config: DedupConfig | None = None) -> None:
        self._config = config or DedupConfig()
        self._running: dict[Hashable, dict[Hashable, None]] = {}
        self._finished: OrderedDict[Hashable, tuple[float, int, Any]] = OrderedDict()
        self._bytes = 0

    def __len__(self) -> int:
        return len(self._running) + len(self._finished)

    @property
    def size(self) -> int:
        """Bytes of kept answers."""
        return self._bytes

    def begin(self, key: Hashable, ticket: Hashable, now: float) -> tuple[Seen, Any]:
        """A request with `key` arrived; answers what was found, and the answer where it is FINISHED."""
        self.expire(now)
        waiting = self._running.get(key)
        if waiting is not None:
            waiting[ticket] = None
            return Seen.RUNNING, None
        kept = self._finished.get(key)
        if kept is not None:
            return (Seen.ANSWER_GONE, None) if kept[2] is _GONE else (Seen.FINISHED, kept[2])
        if len(self) >= self._config.keys or self._bytes >= self._config.size:
            return Seen.FULL, None
        self._running[key] = {ticket: None}
        return Seen.NEW, None

    def finish(self, key: Hashable, answer: Any, size: int, now: float) -> list[Hashable]:
        """It ran to its end, good or bad; answers the tickets that get this answer, the first one included."""
        tickets = self._running.pop(key, None)
        if tickets is None:
            return []
        self.expire(now)
        if size > self._config.size - self._bytes:
            answer, size = _GONE, 0
        self._bytes += size
        self._finished[key] = (now + self._config.ttl, size, answer)
        return list(tickets)

    def forget(self, key: Hashable) -> list[Hashable]:
        """It surely never started; answers the tickets that still want it, so that one of them may begin anew."""
        return list(self._running.pop(key, ()))

    def leave(self, key: Hashable, ticket: Hashable) -> bool:
        """One request with the key was cancelled. Answers whether nobody is left who wants the running execution.

        Only then may it be cancelled; if it had started it still has to `finish` with its failure.
        """
        tickets = self._running.get(key)
        if tickets is None:
            return False
        tickets.pop(ticket, None)
        return not tickets

    def expire(self, now: float) -> None:
        """Forget the answers whose time is over; `begin` and `finish` do it too."""
        while self._finished:
            key, (until, size, _) = next(iter(self._finished.items()))
            if until > now:
                return
            del self._finished[key]
            self._bytes -= size
