"""One turn of the engine, and the seat it is taken on.

The seat is one lock; whoever holds it takes the inbox, reads what the sockets have, lets the engine do what is due, sends and
delivers. Any thread that has something for the engine puts it into the inbox and turns at once if the seat is free; if it is taken,
whoever sits there looks into the inbox again after getting up, so nothing is ever left lying. Who waits for the sockets in between
is the `driver`'s business.

Nothing of the user's runs while the seat is held: results only wake their waiters, requests go to the executor, and inline handlers
are kept in `inline` until the seat is free again.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, TypeVar

from reachmesh.calls.ports import Kind
from reachmesh.engine import Engine, Note
from reachmesh.execution.job import Job
from reachmesh.observe.calls import CallLog
from reachmesh.transport.sockets import Transport

T = TypeVar("T")

_log = logging.getLogger("reachmesh")

NOTE_EVERY = 0.01
"""Seconds between two reports of a turn to the membership, which looks for pauses twenty times as long."""

LAG_EVERY = 0.2
"""Seconds between two looks, while calls are open, whether the loop of the async handlers comes to its work."""

LOGGED_AT_ONCE = 256
"""Ended calls that wait to be entered into the log together: more make the turn that does it longer (about 0.15 ms for these)."""

TOGETHER = 32
"""Calls, or answers, that leave together at most when more of them come in quick succession. More cost less each, as one message does; with
fewer the two sides work at the same time. With 64 calls on the way and all in one message, each side waited for the other by turns."""

ROUNDS = 64
"""Times one turn may go around before it gets up, so that others can sit down."""


class Turns:
    """The engine, the transport and the seat between them.

    Args:
        serve: makes the job of an accepted request; called with the seat held, runs nothing of the user's.
        submit: hands a job to its domain.
        lag: how many seconds the loop of the async handlers is late.
        notice: told about notes of the engine, in order; called with the seat held.
        log: where calls that ended are entered, many at a time.
        now, wall: the clocks.

    Attributes:
        due: monotonic second at which the engine wants its next turn.
        read_at: when something was read last.
        called: whether a turn was asked for that has not come yet.
        inline: jobs to be run in place once the seat is free.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        transport: Transport,
        *,
        serve: Callable[[Any], Job | None],
        submit: Callable[[Job], None],
        lag: Callable[[float], float],
        notice: Callable[[list[Note]], None],
        log: CallLog,
        now: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._log = log
        self._now, self._wall = now, wall
        self.name, self.engine, self.transport = name, engine, transport
        self._serve, self._submit, self._notice, self._lag = serve, submit, notice, lag
        self.seat = threading.Lock()
        self.inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self.inline: deque[Job] = deque()
        self.ended = threading.Event()
        self.due = 0.0
        self.read_at = 0.0
        self.called = False
        self._note_at = self._lag_at = 0.0
        self._messages: deque[Any] = deque()

    @property
    def restless(self) -> bool:
        """Whether another turn has something to do at once."""
        return bool(self.inbox) or self.transport.pending or self.engine.links.busy

    def ask(self, question: Callable[[float], T]) -> T:
        """Read something of the engine between two turns: `question(now)`."""
        with self.seat:
            return question(self._now())

    def ask_log(self, question: Callable[[CallLog, float], T]) -> T:
        """Read the log of calls between two turns, with all that has ended in it."""
        with self.seat:
            now = self._now()
            self._log.take(self.engine.take_ended())
            return question(self._log, now)

    def try_turn(self) -> bool:
        """A turn for the inbox, if the seat is free; false when it is taken (its holder looks into the inbox afterwards).

        What the sockets have comes before what the inbox wants: a call is not sent to a peer whose end is there to be read.
        """
        if self.seat.locked():
            return False
        with self.seat:  # not `acquire`: an interrupt right behind that call would leave the seat taken for ever
            self._turn_or_settle(self.transport.wait(0.0))
        return True

    def turn(self, ready: Any) -> None:
        """A turn, waiting for the seat; `ready` is what `Transport.wait` gave."""
        with self.seat:
            self._turn_or_settle(ready)

    def settle(self) -> None:
        """With the seat held, after the end: what is still asked is answered by a stopped engine, and nothing is sent."""
        self._take_inbox(self._now())
        self._deliver()

    def run_inline(self) -> None:
        """Inline handlers that turns have brought, without the seat; each runs in one thread, whichever comes first.

        Their answers leave `TOGETHER` at a time: a caller need not wait for all of them, and works on these while the others are made.
        """
        for _ in range(len(self.inline)):
            try:
                job = self.inline.popleft()
            except IndexError:
                return
            self._submit(job)
            if len(self.inbox) >= TOGETHER:
                self.try_turn()

    def _turn_or_settle(self, ready: Any) -> None:
        """An interrupt of the main thread in the middle of a turn is let through when the turn is done."""
        if self.ended.is_set():
            self.settle()
            return
        try:
            self._turn(ready)
        except Exception:
            _log.exception("the engine of %s failed in a turn; it goes on", self.name)
        except BaseException:
            self._turn(())
            raise

    def _turn(self, ready: Any) -> None:
        engine, transport = self.engine, self.transport
        now = 0.0
        for _ in range(ROUNDS):
            now = self._now()
            if now >= self._note_at:
                self._note_at = now + NOTE_EVERY
                engine.note_turn(now, self._wall())
            if ready or transport.pending or now >= transport.next_timeout():
                self._read(ready, now)
            self.called = False  # before the look, and also when there is nothing: who posts after it asks again
            if self.inbox:
                self._take_inbox(now)
            if now >= self.due:
                if engine.callee.open and now >= self._lag_at:
                    self._lag_at = now + LAG_EVERY
                    engine.loop_lag = self._lag(now)
                engine.tick(now)
            else:
                engine.settle(now)
            self._flush(now)
            self._deliver()
            ready = ()
            if not self.restless:
                break
        if not transport.pending:
            engine.note_drained(now)
        self.due = engine.next_timeout()

    def _read(self, ready: Any, now: float) -> None:
        engine, messages = self.engine, self._messages
        came = self.transport.read(ready, now)
        if came:
            self.read_at = now
            messages.extend(came)
        while messages:
            key, batch, parts = messages.popleft()
            engine.handle_message(key, batch, parts, now)
        for what, key, reason in self.transport.take_changes():
            if what == "opened":
                engine.handle_opened(key, now)
            elif what == "stranger":
                engine.handle_stranger(now)
            else:
                engine.handle_closed(key, reason, now)

    def _take_inbox(self, now: float) -> None:
        inbox = self.inbox
        for _ in range(len(inbox)):
            action, args = inbox.popleft()
            try:
                action(*args, now=now)
            except Exception:
                _log.exception("the engine of %s could not do what was asked", self.name)
                self.engine.give_up(args, now)

    def _flush(self, now: float) -> None:
        engine, transport = self.engine, self.transport
        links = engine.links
        if links.restless:
            for key, address in links.take_dials():
                transport.dial(key, address)
        for key, batch, parts in links.take_sends():
            if key:
                transport.send(key, batch, parts)
            else:
                engine.handle_message(0, batch, parts, now)
                engine.settle(now)
        if links.restless:
            for key in links.take_closes():
                transport.close_link(key, linger_ms=200)

    def _deliver(self) -> None:
        engine = self.engine
        if not engine.deliveries and not engine.has_notes:
            return
        for kind, target, value in engine.take_deliveries():
            try:
                self._deliver_one(kind, target, value)
            except Exception:  # one receiver's mistake is not the others'
                _log.exception("%s could not deliver %s", self.name, kind.name)
        if engine.has_notes:
            self._notice(engine.take_notes())
        if len(engine.ended) >= LOGGED_AT_ONCE:
            self._log.take(engine.take_ended())

    def _deliver_one(self, kind: Kind, target: Any, value: Any) -> None:
        if kind is Kind.ANSWER:
            target.answered(*value)
        elif kind is Kind.REQUEST:
            job = self._serve(target)
            if job is None:
                return
            if job.domain == "inline":
                self.inline.append(job)
            else:
                self._submit(job)
        elif kind is Kind.ITEMS:
            target.received(value)
        elif kind is Kind.FAILED:
            target.failed(value)
        elif kind is Kind.ROOM:
            target.has_room()
        elif kind is Kind.ACCEPTED:
            target.accepted()
        elif target.handle is None:
            return
        elif kind is Kind.STOPPED:
            target.handle.stopped(value)
        elif kind is Kind.INPUT:
            target.handle.received(value)
        elif kind is Kind.INPUT_END:
            target.handle.input_ended()
        elif kind is Kind.OUTPUT_ROOM:
            target.handle.has_room()
