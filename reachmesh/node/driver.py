"""The driver: gives the engine its turns, and carries what comes out of them to sockets, futures and handlers.

A turn belongs to whoever sits on the *seat* (one lock): take the inbox, read what the sockets have, let the engine do what is due,
send, deliver. A background thread guarantees that the engine turns even when nobody else does, so heartbeats and deadlines never
depend on user code. Any other thread that has something for the engine puts it into the inbox and turns at once if the seat is
free; if it is taken, whoever sits there looks into the inbox again after getting up, so nothing is ever left lying.

Nothing of the user's runs while the seat is held: results only wake their waiters, requests go to the executor, and inline handlers
are kept until the seat is free again.
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

MAX_SLEEP = 60.0
"""Longest sleep of the background thread in seconds."""

ROUNDS = 64
"""Times one turn may go around before it gets up, so that others can sit down."""

LOGGED_AT_ONCE = 256
"""Ended calls that wait to be entered into the log together: more make the turn that does it longer (about 0.15 ms for these)."""

INLINE_PATIENCE = 0.25
"""Seconds an inline handler may hold up the background thread before another takes its place."""


class Driver:
    """Turns one engine over one transport.

    Args:
        serve: makes the job of an accepted request; called with the seat held, runs nothing of the user's.
        submit: hands a job to its domain.
        notice: told about notes of the engine, in order; called with the seat held.
        log: where calls that ended are entered, many at a time.
    """

    def __init__(
        self,
        name: str,
        engine: Engine,
        transport: Transport,
        *,
        serve: Callable[[Any], Job | None],
        submit: Callable[[Job], None],
        notice: Callable[[list[Note]], None],
        log: CallLog,
    ) -> None:
        self.engine, self.transport = engine, transport
        self._name, self._serve, self._submit, self._notice = name, serve, submit, notice
        self._call_log = log
        self._seat = threading.Lock()
        self._inbox: deque[tuple[Callable[..., None], tuple[Any, ...]]] = deque()
        self._inline: deque[Job] = deque()
        self._mine = threading.local()
        self._due = 0.0
        self._sleeping_until = 0.0
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._guard: threading.Thread | None = None
        self._inline_since: float | None = None
        self._ended = threading.Event()

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Start the background thread."""
        self._thread = threading.Thread(target=self._run, name=f"reachmesh-{self._name}-engine", daemon=True)
        self._thread.start()

    def guard_inline(self) -> None:
        """From now on, replace the background thread whenever an inline handler holds it up."""
        if self._guard is None:
            self._guard = threading.Thread(target=self._watch_inline, name=f"reachmesh-{self._name}-guard", daemon=True)
            self._guard.start()

    def _watch_inline(self) -> None:
        while not self._ended.wait(INLINE_PATIENCE):
            since = self._inline_since
            if since is not None and time.monotonic() - since > INLINE_PATIENCE and not self._stopping:
                self._inline_since = None
                self.start()

    def stop(self, linger: float) -> None:
        """End the background thread and close the sockets; what was sent has `linger` seconds to leave. The engine has left before."""
        self._stopping = True
        self.transport.wake()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)
        with self._seat:
            self._ended.set()
            self.transport.close(int(linger * 1000))

    # ---------------------------------------------------------------- from any thread

    def post(self, action: Callable[..., None], *args: Any) -> None:
        """Have the engine do `action(*args, now=...)`, in the order of posting. Returns at once; never raises."""
        self._inbox.append((action, args))
        if not getattr(self._mine, "draining", False):
            self._drain()

    def ask(self, question: Callable[[float], T]) -> T:
        """Read something of the engine between two turns: `question(now)`."""
        with self._seat:
            answer = question(time.monotonic())
        if self._inbox:
            self._drain()
        return answer

    def ask_log(self, question: Callable[[CallLog, float], T]) -> T:
        """Read the log of calls: `question(log, now)`, all calls that have ended being in it."""

        def ask(now: float) -> T:
            self._call_log.take(self.engine.take_ended())
            return question(self._call_log, now)

        return self.ask(ask)

    # ---------------------------------------------------------------- turning

    def _drain(self) -> None:
        self._mine.draining = True
        try:
            while (self._inbox or self._inline) and not self._ended.is_set():
                if self._inbox:
                    if not self._seat.acquire(blocking=False):
                        return
                    try:
                        self._turn(())
                    finally:
                        self._seat.release()
                self._run_inline()
        finally:
            self._mine.draining = False
        if self.transport.pending or self.engine.links.busy or self._due < self._sleeping_until:
            self.transport.wake()

    def _run(self) -> None:
        """The background thread."""
        self._mine.draining = True
        transport = self.transport
        me = threading.current_thread()
        while not self._stopping and self._thread is me:
            ready: Any = ()
            if not self._inbox:
                now = time.monotonic()
                busy = transport.pending or self.engine.links.busy
                until = now if busy else min(self._due, transport.next_timeout(), now + MAX_SLEEP)
                self._sleeping_until = until
                if self._inbox:  # posted between the look and the note above: its poster saw no sleeper to wake
                    until = now
                try:
                    ready = transport.wait(until - now)
                except (OSError, ValueError):  # the selector was closed under us by a stop
                    if self._stopping:
                        return
                    raise
                self._sleeping_until = 0.0
            if self._stopping:
                return
            with self._seat:
                if self._ended.is_set():
                    return
                self._turn(ready)
            if self._inline:
                self._inline_since = time.monotonic()
                self._run_inline()
                if self._thread is me:
                    self._inline_since = None

    def _run_inline(self) -> None:
        """Inline handlers that the last turn brought; each runs in one thread, whichever comes first."""
        while self._inline:
            try:
                job = self._inline.popleft()
            except IndexError:
                return
            self._submit(job)

    def _turn(self, ready: Any) -> None:
        """One turn, with the seat held."""
        engine, transport = self.engine, self.transport
        for _ in range(ROUNDS):
            now = time.monotonic()
            try:
                engine.note_turn(now, time.time())
                for key, batch, parts in transport.read(ready, now):
                    engine.handle_message(key, batch, parts, now)
                for what, key, reason in transport.take_changes():
                    if what == "opened":
                        engine.handle_opened(key, now)
                    else:
                        engine.handle_closed(key, reason, now)
                self._take_inbox(now)
                if now >= self._due:
                    engine.tick(now)
                else:
                    engine.settle(now)
                self._flush(now)
                self._deliver()
            except Exception:
                _log.exception("the engine of %s failed in a turn; it goes on", self._name)
            ready = ()
            if not (self._inbox or transport.pending or engine.links.busy):
                break
        if not transport.pending:
            engine.note_drained(time.monotonic())
        self._due = engine.next_timeout()

    def _take_inbox(self, now: float) -> None:
        inbox = self._inbox
        for _ in range(len(inbox)):
            action, args = inbox.popleft()
            try:
                action(*args, now=now)
            except Exception:
                _log.exception("the engine of %s could not do what was asked", self._name)

    def _flush(self, now: float) -> None:
        engine, transport = self.engine, self.transport
        for key, address in engine.links.take_dials():
            transport.dial(key, address)
        for key, batch, parts in engine.links.take_sends():
            if key:
                transport.send(key, batch, parts)
            else:
                engine.handle_message(0, batch, parts, now)
                engine.settle(now)
        for key in engine.links.take_closes():
            transport.close_link(key, linger_ms=200)

    def _deliver(self) -> None:
        for kind, target, value in self.engine.take_deliveries():
            if kind is Kind.ANSWER:
                target.answered(*value)
            elif kind is Kind.REQUEST:
                job = self._serve(target)
                if job is None:
                    continue
                if job.domain == "inline":
                    self._inline.append(job)
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
                continue
            elif kind is Kind.STOPPED:
                target.handle.stopped(value)
            elif kind is Kind.INPUT:
                target.handle.received(value)
            elif kind is Kind.INPUT_END:
                target.handle.input_ended()
            elif kind is Kind.OUTPUT_ROOM:
                target.handle.has_room()
        notes = self.engine.take_notes()
        if notes:
            self._notice(notes)
        if len(self.engine.ended) >= LOGGED_AT_ONCE:
            self._call_log.take(self.engine.take_ended())
