"""The driver: gives the engine its turns, and carries what comes out of them to sockets, futures and handlers.

A turn belongs to whoever sits on the *seat* (one lock): take the inbox, read what the sockets have, let the engine do what is due,
send, deliver. Any thread that has something for the engine puts it into the inbox and turns at once if the seat is free; if it is
taken, whoever sits there looks into the inbox again after getting up, so nothing is ever left lying.

Waiting for the sockets is a second role, the *watch*, and one thread has it at a time. At rest it is the background thread. A thread
that blocks for an answer takes the watch over and turns the engine itself, which saves two thread switches a call; so does an
asyncio loop on which calls are made, through its own selector. The background thread then stands by: every few milliseconds it
looks whether whoever took the watch still looks, and does what is due if not. So heartbeats, deadlines and answers to others
never depend on user code, and a loop blocked by its user costs some milliseconds and no more.

Nothing of the user's runs while the seat is held: results only wake their waiters, requests go to the executor, and inline handlers
are kept until the seat is free again.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from reachmesh.calls.ports import Kind
from reachmesh.engine import Engine, Note
from reachmesh.execution.job import Job
from reachmesh.observe.calls import CallLog
from reachmesh.transport.sockets import Transport

T = TypeVar("T")

_log = logging.getLogger("reachmesh")

MAX_SLEEP = 60.0
"""Longest sleep of the background thread in seconds."""

NOTE_EVERY = 0.01
"""Seconds between two reports of a turn to the membership, which looks for pauses twenty times as long."""

ROUNDS = 64
"""Times one turn may go around before it gets up, so that others can sit down."""

STANDBY = 0.005
"""Seconds between two looks of the background thread while another has the watch. Shorter wakes it more often, longer lets a loop
that its user blocks hold up others for longer."""

STANDBY_QUIET = 0.05
"""The same while no message has come for a second."""

LOOP_REST = 0.1
"""Seconds without a call on a loop after which it gives the watch back."""

LOGGED_AT_ONCE = 256
"""Ended calls that wait to be entered into the log together: more make the turn that does it longer (about 0.15 ms for these)."""

INLINE_PATIENCE = 0.25
"""Seconds an inline handler may hold up the background thread before another takes its place."""


class Waiting(Protocol):
    """Somebody blocked for an answer: a future."""

    def done(self) -> bool:
        """Whether the answer is here."""

    def nudge(self) -> None:
        """Wake the waiter, so that it looks around."""

    def doze(self, timeout: float | None) -> None:
        """Sleep until the answer is here, a nudge comes, or `timeout` seconds are over."""


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
        self._watch = threading.Lock()
        self._standby = threading.Event()
        self._watched_at = 0.0
        self._read_at = 0.0
        self._note_at = 0.0
        self._background_watches = False
        self._parked: deque[Waiting] = deque()
        self._loop: LoopWatch | None = None
        self._loop_lock = threading.Lock()
        self._loops_refuse = False
        self._messages: deque[Any] = deque()
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
        self._standby.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)
        with self._seat:
            self._ended.set()
        self.transport.wake()
        if (loop := self._loop) is not None:
            loop.leave()
            self.release_loop(loop)
        with self._watch, self._seat:  # whoever watched has been woken and gives it back
            self._settle_late()
            self.transport.close(int(linger * 1000))

    # ---------------------------------------------------------------- from any thread

    def post(self, action: Callable[..., None], *args: Any) -> None:
        """Have the engine do `action(*args, now=...)`, in the order of posting. Returns at once; never raises.

        On the thread of a loop that has the watch the turn comes with the loop's next round, so that what is posted in one round
        leaves together; elsewhere it comes at once.
        """
        self._inbox.append((action, args))
        mine = self._mine
        if getattr(mine, "draining", False):
            return
        watch = self._loop
        if watch is not None and watch.loop is asyncio._get_running_loop():
            watch.turn_soon()
        else:
            self._drain()

    def ask(self, question: Callable[[float], T]) -> T:
        """Read something of the engine between two turns: `question(now)`."""
        with self._seat:
            answer = question(time.monotonic())
        if self._inbox:
            self._drain()
        return answer

    def attend(self, waiting: Waiting, timeout: float | None) -> None:
        """Block until `waiting` is done or `timeout` seconds are over, turning the engine meanwhile if nobody else does."""
        limit = None if timeout is None else time.monotonic() + timeout
        while not waiting.done():
            if limit is not None and time.monotonic() >= limit:
                return
            if self._ended.is_set():
                self._drain()
                waiting.doze(STANDBY)
            elif self._watch.acquire(blocking=False):
                self._attend_watching(waiting, limit)
            elif self._background_watches:
                self._background_watches = False
                self.transport.wake()
                if self._watch.acquire(timeout=STANDBY):
                    self._attend_watching(waiting, limit)
            elif (loop := self._loop) is not None and not loop.loop.is_running():
                self.release_loop(loop)
            else:
                self._parked.append(waiting)
                if self._watch.acquire(blocking=False):  # given back between the two looks
                    self._attend_watching(waiting, limit)
                else:
                    left = None if limit is None else limit - time.monotonic()
                    waiting.doze(left if left is None or left > 0 else 0.0)

    def _attend_watching(self, waiting: Waiting, limit: float | None) -> None:
        """Turn with the watch held until the answer is here; then give the watch to whoever else waits."""
        was_draining = getattr(self._mine, "draining", False)
        self._mine.draining = True
        try:
            while not waiting.done() and not self._ended.is_set():
                now = time.monotonic()
                if limit is not None and now >= limit:
                    break
                self._watched_at = now
                self._watch_once(now, limit)
        finally:
            self._mine.draining = was_draining
            self._watched_at = time.monotonic()
            self._watch.release()
            self._hand_over()

    def _hand_over(self) -> None:
        """The watch is free: the next blocked caller takes it, or the background thread, soon or (when others may be served) at once."""
        while self._parked:
            try:
                waiting = self._parked.popleft()
            except IndexError:
                break
            if not waiting.done():
                waiting.nudge()
                return
        if self.engine.callee.open or self.engine.serves:
            self._standby.set()

    def watch_from(self, loop: asyncio.AbstractEventLoop) -> None:
        """Calls are made on this loop, on whose thread this runs: let it turn the engine as long as they are."""
        watch = self._loop
        if watch is not None and watch.loop is loop:
            watch.used_at = time.monotonic()
            return
        if watch is None and not self._loops_refuse and not self._ended.is_set():
            if not self._watch.acquire(blocking=False):
                if not self._background_watches:
                    return
                self._background_watches = False
                self.transport.wake()
                if not self._watch.acquire(timeout=STANDBY):
                    return
            try:
                self._loop = LoopWatch(self, loop)
            except (NotImplementedError, OSError, ValueError):  # a loop or a system whose selectors cannot be nested
                self._loops_refuse = True
                self._watch.release()
                self._standby.set()

    def release_loop(self, watch: LoopWatch) -> None:
        """A loop gives the watch back, or has ended and it is taken from it (any thread)."""
        with self._loop_lock:
            if self._loop is not watch:
                return
            self._loop = None
        self._watch.release()
        self._hand_over()
        self._standby.set()

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
            while self._inbox or self._inline:
                if self._inbox:
                    if not self._seat.acquire(blocking=False):
                        return
                    try:
                        if self._ended.is_set():
                            self._settle_late()
                        else:
                            self._turn(())
                    finally:
                        self._seat.release()
                self._run_inline()
        finally:
            self._mine.draining = False
        if self._ended.is_set():
            return
        if self.transport.pending or self.engine.links.busy or self._due < self._sleeping_until:
            self.transport.wake()

    def _settle_late(self) -> None:
        """With the seat held, after the end: what is still asked is answered by a stopped engine, and nothing is sent."""
        self._take_inbox(time.monotonic())
        self._deliver()

    def turn_on_loop(self) -> None:
        """A turn on the thread of the loop that has the watch: read what is ready, and what is in the inbox."""
        if self._ended.is_set():
            self._drain()
            return
        self._watched_at = time.monotonic()
        self._mine.draining = True
        try:
            for _ in range(ROUNDS):
                ready = self.transport.wait(0.0)
                with self._seat:
                    if self._ended.is_set():
                        self._settle_late()
                        return
                    self._turn(ready)
                if self._inline:
                    self._run_inline()
                if not (self._inbox or self._inline or self.transport.pending or self.engine.links.busy):
                    return
        finally:
            self._mine.draining = False

    def _run(self) -> None:
        """The background thread."""
        self._mine.draining = True
        me = threading.current_thread()
        while not self._stopping and self._thread is me:
            now = time.monotonic()
            if now - self._watched_at >= STANDBY and self._watch.acquire(blocking=False):
                try:
                    self._background_watches = True
                    while not self._stopping and self._thread is me and self._background_watches:
                        self._watch_once(time.monotonic(), None)
                finally:
                    self._background_watches = False
                    self._watch.release()
                if self._parked:
                    self._hand_over()
                self._watched_at = time.monotonic()
            else:
                self._stand_by(now)

    def _stand_by(self, now: float) -> None:
        """Another has the watch: see that it looks, and do what is due if it does not."""
        quiet = now - self._read_at > 1.0
        if self._standby.wait(STANDBY_QUIET if quiet else STANDBY):
            self._standby.clear()
            self._watched_at = 0.0
        now = time.monotonic()
        if self._stopping or (now - self._watched_at < STANDBY and now < self._due and not self._inbox):
            return
        watch = self._loop
        if watch is not None and not watch.loop.is_running():
            self.release_loop(watch)
            return
        ready = self.transport.wait(0.0)
        if ready or now >= self._due or self._inbox or self._inline:
            with self._seat:
                if self._ended.is_set():
                    return
                self._turn(ready)
            self._run_inline_guarded()

    def _watch_once(self, now: float, limit: float | None) -> None:
        """With the watch held: sleep until something is to be done, and do it."""
        transport = self.transport
        ready: Any = ()
        if not self._inbox:
            busy = transport.pending or self.engine.links.busy
            until = now if busy else min(self._due, transport.next_timeout(), now + MAX_SLEEP)
            if limit is not None and limit < until:
                until = limit
            self._sleeping_until = until
            if self._inbox:  # posted between the look and the note above: its poster saw no sleeper to wake
                until = now
            ready = transport.wait(until - now)
            self._sleeping_until = 0.0
        with self._seat:
            if self._ended.is_set():
                return
            self._turn(ready)
        if self._inline:
            self._run_inline_guarded()

    def _run_inline_guarded(self) -> None:
        """Inline handlers, with the guard looking on when this is the background thread."""
        if self._thread is threading.current_thread():
            self._inline_since = time.monotonic()
            self._run_inline()
            if self._thread is threading.current_thread():
                self._inline_since = None
        else:
            self._run_inline()

    def _run_inline(self) -> None:
        """Inline handlers that the last turn brought; each runs in one thread, whichever comes first."""
        while self._inline:
            try:
                job = self._inline.popleft()
            except IndexError:
                return
            self._submit(job)

    def _turn(self, ready: Any) -> None:
        """One turn, with the seat held. An interrupt of the main thread in the middle of it is let through when the turn is done."""
        try:
            self._turn_once(ready)
        except Exception:
            _log.exception("the engine of %s failed in a turn; it goes on", self._name)
        except BaseException:
            self._turn_once(())
            raise

    def _turn_once(self, ready: Any) -> None:
        engine, transport = self.engine, self.transport
        now = 0.0
        for _ in range(ROUNDS):
            now = time.monotonic()
            if now >= self._note_at:
                self._note_at = now + NOTE_EVERY
                engine.note_turn(now, time.time())
            if ready or transport.pending or now >= transport.next_timeout():
                self._read(ready, now)
            if self._inbox:
                self._take_inbox(now)
            if now >= self._due:
                engine.tick(now)
            else:
                engine.settle(now)
            self._flush(now)
            self._deliver()
            ready = ()
            if not (self._inbox or transport.pending or engine.links.busy):
                break
        if not transport.pending:
            engine.note_drained(now)
        self._due = engine.next_timeout()

    def _read(self, ready: Any, now: float) -> None:
        engine, messages = self.engine, self._messages
        came = self.transport.read(ready, now)
        if came:
            self._read_at = now
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
        inbox = self._inbox
        for _ in range(len(inbox)):
            action, args = inbox.popleft()
            try:
                action(*args, now=now)
            except Exception:
                _log.exception("the engine of %s could not do what was asked", self._name)

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
        if not self.engine.deliveries and not self.engine.has_notes:
            return
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
        if self.engine.has_notes:
            self._notice(self.engine.take_notes())
        if len(self.engine.ended) >= LOGGED_AT_ONCE:
            self._call_log.take(self.engine.take_ended())


class LoopWatch:
    """An asyncio loop that has the watch: its selector looks at ours, its rounds turn the engine."""

    def __init__(self, driver: Driver, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self.used_at = time.monotonic()
        self._driver = driver
        self._soon = False
        self._fd = driver.transport.fileno()
        loop.add_reader(self._fd, self._ready)
        loop.call_later(LOOP_REST, self._check)

    def turn_soon(self) -> None:
        """Turn in the loop's next round, once for all that is posted until then."""
        self.used_at = time.monotonic()
        if not self._soon:
            self._soon = True
            self.loop.call_soon(self._turn)

    def _turn(self) -> None:
        self._soon = False
        self._driver.turn_on_loop()

    def _ready(self) -> None:
        if self._driver._loop is self:
            self._driver.turn_on_loop()
        else:  # the loop rested, and the watch was taken from it
            self.loop.remove_reader(self._fd)

    def leave(self) -> None:
        """Take our descriptor out of the loop before it is closed (any thread)."""
        if self.loop is asyncio._get_running_loop():
            self.loop.remove_reader(self._fd)
        elif self.loop.is_running():
            gone = threading.Event()

            def remove() -> None:
                self.loop.remove_reader(self._fd)
                gone.set()

            try:
                self.loop.call_soon_threadsafe(remove)
            except RuntimeError:  # closed meanwhile
                return
            gone.wait(1.0)

    def _check(self) -> None:
        """Give the watch back when no call was made here for a while and none is open."""
        if self._driver._loop is not self:
            return
        if time.monotonic() - self.used_at < LOOP_REST or self._driver.engine.caller.open:
            self.loop.call_later(LOOP_REST, self._check)
            return
        self.loop.remove_reader(self._fd)
        self._driver.release_loop(self)
