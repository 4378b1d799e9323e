"""The log of calls of one node: what it served, and what it made.

Place in the data path: the call machines leave one plain tuple in a list as a call ends, which is all that a call pays; the driver
hands the list over every few hundred calls and before anybody reads. Writing and reading happen with the engine's seat held, so
there is no lock.

Invariants: at most `RECENT` executions and `NAMES` windows a side are kept, whatever peers and users do; every call that ended is
in exactly one window.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import msgspec

from reachmesh.observe.histogram import percentile
from reachmesh.observe.window import SLOT, SLOTS, Sums, Window

KEPT = SLOT * SLOTS
"""Seconds that `stats` looks back: five minutes."""

LATELY = 60.0
"""Seconds that `rates` looks back. Shorter jumps with every pause; longer hides what goes on now."""

RECENT = 8192
"""Executions kept one by one, for `status` and `trace`: about 3 MiB. Fewer lose the hops of a trace sooner on a busy node."""

NAMES = 1024
"""Capabilities with a window of their own; further ones share one."""

UNCOUNTED = ("ok", "sent", "cancelled")
"""Statuses that are no failures; every other one is the code of an error."""


class Execution(NamedTuple):
    """One call that ended, as one side saw it; instants are monotonic seconds of this process.

    Attributes:
        made: made by this node; else served by it.
        capability: what was called.
        status: "ok", "sent" (one-way), "running", or the code of the error.
        arrived: the request came in; at the caller: the call was made.
        started: the handler began, or None if it never did; at the caller always None.
        ended: the last frame of the answer left; at the caller: the outcome was known.
        trace_id, span_id: 16 and 8 bytes.
        depth: how many calls deep in its trace, 0 = the outermost.
        peer: instance id of the other side; "" when there was none.
        subtasks: seconds of each part of its work that the handler measured, or None.
        retries: attempts before this one; at the caller: further attempts that were made.
    """

    made: bool
    capability: str
    status: str
    arrived: float
    started: float | None
    ended: float
    trace_id: bytes
    span_id: bytes
    depth: int
    peer: str
    retries: int
    subtasks: Mapping[str, float] | None = None


@dataclass(frozen=True, slots=True)
class Stats:
    """A capability in the last five minutes.

    Attributes:
        count: calls that ended.
        failures: those of them that ended with an error; a cancelled call is none.
        p50_ms, p90_ms, p99_ms: percentiles of their durations, within 3.2 %; 0.0 while there are none.
    """

    count: int
    failures: int
    p50_ms: float
    p90_ms: float
    p99_ms: float


class Rates(msgspec.Struct, frozen=True):
    """All capabilities together in the last minute.

    Attributes:
        qps: calls ended per second.
        p95: seconds, or None when no call ended.
        fail_rate: failures among them, 0 to 1.
    """

    qps: float
    p95: float | None
    fail_rate: float


class Side:
    """Executions and statistics of the calls made, or of those served."""

    def __init__(self, now: float) -> None:
        self._began = now
        self._recent: deque[tuple[Any, ...]] = deque(maxlen=RECENT)
        self._windows: dict[str, Window] = {}
        self._others = Window()

    def _window(self, capability: str, now: float) -> Window:
        """A new window; when there are too many, in the place of one in which nothing happened for long, or the shared one."""
        if len(self._windows) >= NAMES:
            quiet = next((name for name, each in self._windows.items() if each.last < now - KEPT), None)
            if quiet is None:
                return self._others
            del self._windows[quiet]
        window = self._windows[capability] = Window()
        return window

    def windows(self) -> list[tuple[str, Window]]:
        """Every capability that has a window, by name."""
        return sorted(self._windows.items())

    def stats(self, capability: str, now: float) -> Stats:
        """A capability's last five minutes; all zero for one that is not known."""
        window = self._windows.get(capability)
        sums = Sums() if window is None else window.sum(now, KEPT)
        p50, p90, p99 = (percentile(sums.buckets, share) * 1000 for share in (0.50, 0.90, 0.99))
        return Stats(sums.count, sums.failures, p50, p90, p99)

    def rates(self, now: float) -> Rates:
        """The last minute of everything."""
        sums = Sums()
        for window in (*self._windows.values(), self._others):
            if window.last > now - LATELY:
                sums.add(window.sum(now, LATELY))
        seconds = max(SLOT, min(LATELY - SLOT + now % SLOT, now - self._began))
        p95 = percentile(sums.buckets, 0.95) if sums.buckets else None
        return Rates(sums.count / seconds, p95, sums.failures / sums.count if sums.count else 0.0)

    def recent(self, count: int) -> list[Execution]:
        """The last executions, the oldest of them first."""
        return [Execution._make(self._recent[index]) for index in range(max(0, len(self._recent) - count), len(self._recent))]

    def of_trace(self, trace_id: bytes) -> Iterator[Execution]:
        """Executions of one trace that are still remembered, oldest first. O(RECENT)."""
        return (Execution._make(each) for each in self._recent if each[_TRACE] == trace_id)


class CallLog:
    """Both sides.

    Args:
        now: when the log begins, so that the rates of a young node are not diluted.
        hidden: prefix of capabilities that are left out: looking at a node must not change what one sees.
    """

    def __init__(self, now: float, *, hidden: str) -> None:
        self._hidden = hidden
        self.made, self.served = Side(now), Side(now)

    def take(self, ended: Iterable[tuple[Any, ...]]) -> None:
        """Enter calls that have ended, oldest first; each tuple has the fields of `Execution`. About half a microsecond each."""
        hidden = self._hidden
        for each in ended:
            made, capability, status, arrived, _, over, *_ = each
            side = self.made if made else self.served
            window = side._windows.get(capability)
            if window is None:
                if capability.startswith(hidden):
                    continue
                window = side._window(capability, over)
            side._recent.append(each)
            if status == "ok":
                window.add(over, over - arrived, False)
            else:
                window.add(over, None if status == "sent" else over - arrived, status not in UNCOUNTED)


_TRACE = Execution._fields.index("trace_id")
