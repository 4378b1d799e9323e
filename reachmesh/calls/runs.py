"""Executions that are not bound to one caller's call: of requests with a dedup key, and of tasks whose answer goes elsewhere.

Place in the data path: the callee asks `begin` for each complete request that has a dedup key or a `reply_to`. The execution is then a call
of its own (a *run*) without a link, so that no caller's cancel, deadline or death ends what others still wait for. The caller's own
call waits as a *ticket* for the run's outcome (dedup), or is answered at once with the id of its task (`reply_to`).

Invariants: per key at most one run at a time and none within the table's time after it, unless it surely never started; every ticket gets
exactly one outcome or has left; a task is remembered for `TASK_SECONDS` after its end, and at most `TASKS` and `TASK_BYTES` are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from typing import Any, NamedTuple

import msgpack

from reachmesh.calls.flags import MSGPACK, REQUEST_SENDS_STREAM, REQUEST_WANTS_STREAM
from reachmesh.calls.flows import Buffer
from reachmesh.calls.incoming import IncomingCall
from reachmesh.errors import BadRequest, Overloaded, ReachError, shown
from reachmesh.resilience.dedup import DedupTable, Seen

TASKS = 10_000
"""Tasks of a node, open and remembered; one more is refused while none can be forgotten."""

TASK_BYTES = 64 * 1024 * 1024
"""Bytes of all remembered results; the oldest go first."""

TASK_SECONDS = 300.0
"""Seconds for which the outcome of a task can be asked for. Short surprises who asks late, long costs memory."""

_KEY_LENGTH = 1024
_PRINTED = 16 * 1024


class Outcome(NamedTuple):
    """How a run ended, as it goes into a RESPONSE."""

    flags: int
    payload_format: int
    segments: Sequence[Buffer]
    status: str = "ok"

    @property
    def size(self) -> int:
        """Bytes."""
        return sum(map(len, self.segments))


class Task:
    """One `reply_to` call on its way.

    Attributes:
        id: hex boot of this node, a dash, hex id.
        run: the execution.
        outcome: set when it has ended.
        until: when it is forgotten, once it has ended.
    """

    __slots__ = ("id", "outcome", "run", "until")

    def __init__(self, task_id: str, run: IncomingCall) -> None:
        self.id, self.run = task_id, run
        self.outcome: Outcome | None = None
        self.until = 0.0

    @property
    def state(self) -> str:
        """queued, running, done, failed or cancelled."""
        status = self.run.status
        if self.outcome is not None or self.run.closed:
            return "done" if status == "ok" else "cancelled" if status == "cancelled" else "failed"
        return "running" if self.run.claimed else "queued"


class Begun(NamedTuple):
    """What is to be done with a request: answer it now, run something, both, or (all None) let it wait for a run that is there."""

    outcome: Outcome | None = None
    error: ReachError | None = None
    run: IncomingCall | None = None


Fingerprint = tuple[int, bytes]
"""Of a request's arguments: bytes, and a digest of which bytes."""


def fingerprint(call: IncomingCall) -> Fingerprint:
    """What tells other arguments under one key, and never calls the same ones other.

    A set is written in another order by another process, and so may a dict be. So the order of the bytes does not count, and of
    arguments over `_PRINTED` bytes only their number does: some differences go unnoticed, no honest repetition is refused.
    """
    segments = () if call.body is None else call.body.segments
    size = sum(map(len, segments))
    return size, hashlib.blake2b(bytes(sorted(b"".join(map(bytes, segments)))), digest_size=16).digest() if size <= _PRINTED else b""


class Runs:
    """All runs of a node.

    Args:
        boot: hex boot id, for task ids.
    """

    def __init__(self, boot: str, table: DedupTable) -> None:
        self._boot, self._table = boot, table
        self._open: dict[IncomingCall, None] = {}
        self._by_key: dict[Any, IncomingCall] = {}
        self._prints: dict[Any, Fingerprint] = {}
        self._tasks: dict[str, Task] = {}
        self._ended: dict[str, Task] = {}
        self._bytes = 0
        self._count = 0

    @property
    def open(self) -> int:
        """Runs that have not ended."""
        return len(self._open)

    def all(self) -> list[IncomingCall]:
        """Runs that have not ended, oldest first."""
        return list(self._open)

    def task(self, task_id: str) -> Task | None:
        """A task that is open or remembered."""
        return self._tasks.get(task_id)

    def begin(self, call: IncomingCall, now: float) -> Begun:
        """A complete request with a dedup key, a reply capability, or both."""
        key, reply_to = call.extras.get("d"), call.extras.get("r")
        for what, value in (("dedup_key", key), ("reply_to", reply_to)):
            if value is not None and (type(value) is not str or not 0 < len(value) <= _KEY_LENGTH):
                return Begun(error=BadRequest(f"{what} must be text of 1 to {_KEY_LENGTH} characters"))
        if call.flags & (REQUEST_SENDS_STREAM | REQUEST_WANTS_STREAM):
            return Begun(error=BadRequest("a stream takes neither dedup_key nor reply_to", hint="use submit() without a stream"))
        if key is None:
            return self._begin_task(call, now)
        place = (call.capability, key)
        seen, kept = self._table.begin(place, call, now)
        print_ = fingerprint(call)
        if seen is Seen.FINISHED:
            first, outcome = kept
            return Begun(outcome=outcome) if first == print_ else self._reused(key)
        if seen is Seen.ANSWER_GONE:
            message = f"the request with this key has run, and its answer was too big to keep: {key[:80]!r}"
            return Begun(error=ReachError(message, code="answer_gone", executed="yes"))
        if seen is Seen.FULL:
            return Begun(error=Overloaded("no more dedup keys can be remembered here", retry_after=5.0))
        if seen is Seen.RUNNING and self._prints[place] != print_:
            self._table.leave(place, call)
            return self._reused(key)
        call.run_key = place
        if seen is Seen.RUNNING:
            run = self._by_key[place]
            run.deadline = None if call.deadline is None or run.deadline is None else max(run.deadline, call.deadline)
            return Begun()
        if reply_to is not None:
            begun = self._begin_task(call, now)
            call.run_key = None
            if begun.outcome is None:
                self._table.forget(place)
            else:
                self._table.finish(place, (print_, begun.outcome), begun.outcome.size, now)
            return begun
        run = self._by_key[place] = self._detach(call, now)
        self._prints[place] = print_
        run.run_key, run.silent = place, True
        return Begun(run=run)

    @staticmethod
    def _reused(key: str) -> Begun:
        message = f"dedup_key {shown(key)} was used before with other arguments; nothing was run"
        return Begun(error=BadRequest(message, hint="give each request a key of its own, and repeat it as it was"))

    def _begin_task(self, call: IncomingCall, now: float) -> Begun:
        self._forget_tasks(now)
        if len(self._tasks) >= TASKS:
            return Begun(error=Overloaded("too many tasks are open here", retry_after=1.0))
        self._count += 1
        run = self._detach(call, now)
        task = Task(f"{self._boot}-{self._count:x}", run)
        run.task = self._tasks[task.id] = task
        call.silent = True
        return Begun(outcome=Outcome(0, MSGPACK, [msgpack.packb({"task_id": task.id})]), run=run)

    def _detach(self, call: IncomingCall, now: float) -> IncomingCall:
        """The execution: all that the call is, but no link."""
        run = IncomingCall(
            NOWHERE,
            call.call_id,
            boot=call.boot,
            caller=call.caller,
            capability=call.capability,
            extras=call.extras,
            flags=call.flags,
            payload_format=call.payload_format,
            priority=call.priority,
            depth=call.depth,
            trace_id=call.trace_id,
            span_id=call.span_id,
            deadline=call.deadline,
            now=now,
        )
        run.body, call.body = call.body, None
        self._open[run] = None
        return run

    def settle(self, run: IncomingCall, outcome: Outcome, now: float, *, ran: bool) -> list[IncomingCall]:
        """A run ended, well or not; answers the tickets that get the outcome. Without `ran` it surely never started: its key is free again."""
        if run not in self._open:
            return []
        del self._open[run]
        outcome = outcome._replace(segments=[bytes(each) for each in outcome.segments])
        if run.task is not None:
            self._keep(run.task, outcome, now)
        if run.run_key is None:
            return []
        self._by_key.pop(run.run_key, None)
        kept = (self._prints.pop(run.run_key), outcome)
        tickets = self._table.finish(run.run_key, kept, outcome.size, now) if ran else self._table.forget(run.run_key)
        return [each for each in tickets if isinstance(each, IncomingCall)]

    def leave(self, ticket: IncomingCall) -> IncomingCall | None:
        """A ticket's call is over; the run that nobody waits for any more, or None."""
        key, ticket.run_key = ticket.run_key, None
        return self._by_key.get(key) if key is not None and self._table.leave(key, ticket) else None

    def _keep(self, task: Task, outcome: Outcome, now: float) -> None:
        task.outcome, task.until = outcome, now + TASK_SECONDS
        self._ended[task.id] = task
        self._bytes += outcome.size
        self._forget_tasks(now)

    def _forget_tasks(self, now: float) -> None:
        """Those whose time is over, and the oldest as long as all together are too many or too big."""
        while self._ended:
            oldest = next(iter(self._ended.values()))
            assert oldest.outcome is not None
            if oldest.until > now and self._bytes <= TASK_BYTES and len(self._tasks) < TASKS:
                return
            del self._ended[oldest.id], self._tasks[oldest.id]
            self._bytes -= oldest.outcome.size


NOWHERE = -(1 << 62)
"""Link key of runs: no link has it."""
