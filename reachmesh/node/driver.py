"""The driver: who waits for the sockets of a node, and so takes the engine's turns (`turns`).

Waiting for the sockets is a role, the *watch*, and one thread has it at a time. At rest it is the background thread. A thread
that blocks for an answer takes the watch over and turns the engine itself, which saves two thread switches a call; so does an
asyncio loop on which calls are made or served, through its own selector (`looping`). The background thread then stands by: every few
milliseconds it looks whether whoever took the watch still looks, and does what is due if not. So heartbeats, deadlines and answers
to others never depend on user code, and a loop blocked by its user costs some milliseconds and no more.
"""

from __future__ import annotations

import asyncio
import os
import threading
import time
from collections import deque
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from reachmesh.errors import UsageError
from reachmesh.node.looping import LoopWatch
from reachmesh.node.turns import TOGETHER, Turns
from reachmesh.observe.calls import CallLog

T = TypeVar("T")

MAX_SLEEP = 60.0
"""Longest sleep of the background thread in seconds."""

STANDBY = 0.005
"""Seconds between two looks of the background thread while another has the watch. Shorter wakes it more often, longer lets a loop
that its user blocks hold up others for longer."""

STOOD_IN = 4
"""Turns in a row that the background thread takes in a loop's place before it takes the watch from it."""

STANDBY_QUIET = 0.05
"""The same while no message has come for a second."""

QUIET = 0.001
"""Seconds of silence after which an item of a stream leaves at once; one that follows sooner may share a frame with the next ones."""

QUIET_ANSWERS = 0.0001
"""The same for answers of handlers, which are waited for. A pool that works through its queue answers several times in this time."""

ABANDONED = 2.0
"""Seconds after which a watch that nobody is known to keep is taken from its holder."""

QUIET_CALLS = 0.0001
"""The same for calls that a thread makes one after the other without waiting for their answers."""

FEW = 8
"""Calls that leave together at least, if they come in quick succession: a message costs as much as several calls."""

INLINE_PATIENCE = 0.25
"""Seconds an inline handler may hold up the background thread before another takes its place."""


class Waiting(Protocol):
    """Somebody blocked for an answer: a future."""

    def done(self) -> bool:
        """Whether the answer is here."""
        ...

    def nudge(self) -> None:
        """Wake the waiter, so that it looks around."""
        ...

    def doze(self, timeout: float | None) -> None:
        """Sleep until the answer is here, a nudge comes, or `timeout` seconds are over."""
        ...


def foreign() -> UsageError:
    """The error of who uses the parent's node, or what came of it, in a forked child."""
    return UsageError("this node belongs to the parent process", hint="make a node in the child, after the fork")


class Driver:
    """Keeps the turns of one node coming. `engine` is what they turn."""

    now: Callable[[], float] = staticmethod(time.monotonic)
    """The clock of the engine and of deadlines."""

    def __init__(self, turns: Turns) -> None:
        self.engine = turns.engine
        self._pid = os.getpid()
        self._turns = turns
        self._transport = turns.transport
        self._watch = threading.Lock()
        self._standby = threading.Event()
        self._watched_at = 0.0
        self._background_watches = False
        self._parked: deque[Waiting] = deque()
        self._attending: Waiting | None = None
        self._unkept_since = time.monotonic()
        self._stood_in = 0
        self._answered_at = 0.0
        self._loop: LoopWatch | None = None
        self._loop_lock = threading.Lock()
        self._loops_refuse = False
        self._mine = threading.local()
        self._sleeping_until = 0.0
        self._stopping = False
        self._thread: threading.Thread | None = None
        self._guard: threading.Thread | None = None
        self.helpers: set[threading.Thread] = set()
        """Threads that work for one call each; they end when it is over."""
        self._inline_since: float | None = None

    # ---------------------------------------------------------------- life

    def start(self) -> None:
        """Start the background thread."""
        self._thread = threading.Thread(target=self._run, name=f"reachmesh-{self._turns.name}-engine", daemon=True)
        self._thread.start()

    def guard_inline(self) -> None:
        """From now on, replace the background thread whenever an inline handler holds it up."""
        if self._guard is None:
            self._guard = threading.Thread(target=self._watch_inline, name=f"reachmesh-{self._turns.name}-guard", daemon=True)
            self._guard.start()

    def _watch_inline(self) -> None:
        while not self._turns.ended.wait(INLINE_PATIENCE):
            since = self._inline_since
            if since is not None and time.monotonic() - since > INLINE_PATIENCE and not self._stopping:
                self._inline_since = None
                self.start()

    def stop(self, linger: float, settle: float = 0.0) -> None:
        """End the background thread and close the sockets; what was sent has `linger` seconds to leave. The engine has left before.

        The helpers have `settle` seconds together to end; those that user code blocks are left behind.
        """
        turns = self._turns
        self._stopping = True
        self._transport.wake()
        self._standby.set()
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(5.0)
        with turns.seat:
            turns.ended.set()
        self._transport.wake()
        if (loop := self._loop) is not None:
            loop.leave()
            self.release_loop(loop)
        self._watch.acquire(timeout=ABANDONED)  # whoever watched has been woken and gives it back
        with turns.seat:
            turns.settle()
            self._transport.close(int(linger * 1000))
        self._give_back_watch()
        self._drain_if_any()  # what was asked while the seat was taken for this
        until = time.monotonic() + settle
        for each in (*self.helpers, *filter(None, (self._guard,))):
            if each is not threading.current_thread():
                each.join(max(0.0, until - time.monotonic()))

    # ---------------------------------------------------------------- from any thread

    def post(self, action: Callable[..., None], *args: Any) -> None:
        """Have the engine do `action(*args, now=...)`, in the order of posting. Returns at once; never raises.

        On the thread of a loop that has the watch the turn comes with the loop's next round, so that what is posted in one round
        leaves together; elsewhere it comes at once.
        """
        if os.getpid() != self._pid:
            return  # a forked child: the engine lives in the parent
        self._turns.inbox.append((action, args))
        if getattr(self._mine, "turning", False):
            return
        watch = self._loop
        if watch is not None and watch.loop is asyncio._get_running_loop():
            watch.turn_soon()
        else:
            self._drain()

    def post_soon(self, action: Callable[..., None], *args: Any) -> None:
        """As `post`, for what comes in quick succession: it leaves with the next turn, which comes by itself or after `TOGETHER` posts.

        Whoever has the watch is woken for it once, so nothing waits for what may never be posted.
        """
        if os.getpid() != self._pid:
            return
        inbox = self._turns.inbox
        inbox.append((action, args))
        if not getattr(self._mine, "turning", False):
            self._soon(len(inbox) >= TOGETHER)

    def post_call(self, action: Callable[..., None], *args: Any) -> None:
        """As `post`, for calls: those that are made in quick succession leave together.

        They leave when as many wait as are on their way, so that this side and the other one work at the same time, but not fewer than
        `FEW` and not more than `TOGETHER`; and in any case with the loop's next round, or at once when this thread's call before was long ago.
        """
        if os.getpid() != self._pid:
            return
        inbox = self._turns.inbox
        inbox.append((action, args))
        mine = self._mine
        if getattr(mine, "turning", False):
            return
        now = time.monotonic()
        alone, mine.called_at = now - getattr(mine, "called_at", 0.0) > QUIET_CALLS, now
        waiting = len(inbox)
        enough = waiting >= FEW and (waiting >= TOGETHER or waiting >= self.engine.caller.open)
        self._soon(enough, alone)

    def _soon(self, enough: bool, alone: bool = False) -> None:
        """Have a turn with the loop's next round or by whoever has the watch; now if `enough` waits, or there is neither or one is `alone`."""
        turns, watch = self._turns, self._loop
        if watch is not None and watch.loop is asyncio._get_running_loop():
            if enough:
                self._turn_within(watch)
            else:
                watch.turn_soon()
        elif enough or alone or not self._watch.locked():
            self._drain()
        elif not turns.called:
            turns.called = True
            self._transport.wake()

    def _turn_within(self, watch: LoopWatch) -> None:
        """A turn in the middle of the loop's round; inline handlers do not run in the middle of other code of the user's."""
        turns = self._turns
        self._mine.turning = True
        try:
            turns.try_turn()
        finally:
            self._mine.turning = False
        if turns.restless or turns.inline:
            watch.turn_soon()

    def post_answer(self, action: Callable[..., None], *args: Any) -> None:
        """As `post` for the first answer after a pause, and as `post_soon` for those that follow it at once."""
        now = time.monotonic()
        post = self.post if now - self._answered_at > QUIET_ANSWERS else self.post_soon
        self._answered_at = now
        post(action, *args)

    def flush(self) -> None:
        """Have what was posted taken now."""
        self._drain_if_any()

    def look(self) -> None:
        """Have what the sockets hold read now, unless another thread is at it: the end of a peer may be there to be read."""
        if not getattr(self._mine, "turning", False):
            self._turns.inbox.append((_nothing, ()))
            self._drain()

    def ask(self, question: Callable[[float], T]) -> T:
        """Read something of the engine between two turns: `question(now)`."""
        answer = self._turns.ask(question)
        self._drain_if_any()
        return answer

    def ask_log(self, question: Callable[[CallLog, float], T]) -> T:
        """Read the log of calls: `question(log, now)`, all calls that have ended being in it."""
        answer = self._turns.ask_log(question)
        self._drain_if_any()
        return answer

    def _drain_if_any(self) -> None:
        if self._turns.inbox and not getattr(self._mine, "turning", False):
            self._drain()

    def _drain(self) -> None:
        """Take turns until the inbox is empty, or leave it to whoever has the seat."""
        turns = self._turns
        self._mine.turning = True
        try:
            while turns.inbox or turns.inline:
                if turns.inbox and not turns.try_turn():
                    return
                if turns.inline:
                    turns.run_inline()
        finally:
            self._mine.turning = False
        if turns.restless or turns.due < self._sleeping_until:
            self._transport.wake()
        else:
            self._wake_watcher()

    def _wake_watcher(self) -> None:
        """After a turn of another thread: what the watcher waits for may have come in it, and its sockets will not tell."""
        attending = self._attending
        if attending is not None and attending.done():
            self._transport.wake()

    def check_process(self) -> None:
        """Raise UsageError in a forked child, where nothing would ever come and locks may be held for ever."""
        if os.getpid() != self._pid:
            raise foreign()

    # ---------------------------------------------------------------- blocked callers

    def attend(self, waiting: Waiting, timeout: float | None) -> None:
        """Block until `waiting` is done or `timeout` seconds are over, turning the engine meanwhile if nobody else does."""
        self.check_process()
        limit = None if timeout is None else time.monotonic() + timeout
        while not waiting.done():
            if limit is not None and time.monotonic() >= limit:
                return
            if self._turns.ended.is_set():
                self._drain()
                waiting.doze(STANDBY)
            elif self._watch.acquire(blocking=False):
                self._attend_watching(waiting, limit)
            elif self._background_watches:
                self._background_watches = False
                self._transport.wake()
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
        mine = self._mine
        was_turning, mine.turning = getattr(mine, "turning", False), True
        self._attending = waiting
        try:
            while not waiting.done() and not self._turns.ended.is_set():
                now = time.monotonic()
                if limit is not None and now >= limit:
                    break
                self._watched_at = now
                self._watch_once(now, limit)
        finally:
            mine.turning = was_turning
            self._attending = None
            self._watched_at = time.monotonic()
            self._give_back_watch()
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

    # ---------------------------------------------------------------- loops

    def _give_back_watch(self) -> None:
        try:
            self._watch.release()
        except RuntimeError:  # it was taken for abandoned, wrongly: this thread had not run for that long
            return

    def watch_from(self, loop: asyncio.AbstractEventLoop) -> None:
        """Calls are made or served on this loop, on whose thread this runs: let it turn the engine as long as they are."""
        watch = self._loop
        if watch is not None:
            if watch.loop is loop:
                watch.used_at = time.monotonic()
            return
        if self._loops_refuse or self._turns.ended.is_set():
            return
        if not self._watch.acquire(blocking=False):
            if not self._background_watches:
                return
            self._background_watches = False
            self._transport.wake()
            if not self._watch.acquire(timeout=STANDBY):
                return
        try:
            self._loop = LoopWatch(self, loop, self._transport.fileno())
        except (NotImplementedError, OSError, ValueError):  # selectors that cannot be nested: Windows' proactor, for one
            self._loops_refuse = True
            self._give_back_watch()
            self._standby.set()

    def release_loop(self, watch: LoopWatch) -> None:
        """A loop gives the watch back, or has ended and it is taken from it (any thread)."""
        with self._loop_lock:
            if self._loop is not watch:
                return
            self._loop = None
        watch.end()
        self._give_back_watch()
        self._hand_over()
        self._standby.set()

    def loop_may_rest(self) -> bool:
        """Whether no call of this node is open, made or served."""
        return not (self.engine.caller.open or self.engine.callee.open)

    def turn_on_loop(self) -> None:
        """Turns on the thread of the loop that has the watch: read what is ready, and what is in the inbox."""
        turns, mine = self._turns, self._mine
        self._watched_at = time.monotonic()
        self._stood_in = 0
        mine.turning = True
        try:
            for _ in range(MAX_ROUNDS):
                turns.turn(self._transport.wait(0.0))
                if turns.inline:
                    turns.run_inline()
                if not (turns.restless or turns.inline):
                    return
        finally:
            mine.turning = False
        if (watch := self._loop) is not None:
            watch.turn_soon()

    # ---------------------------------------------------------------- the background thread

    def _run(self) -> None:
        self._mine.turning = True
        me = threading.current_thread()
        while not self._stopping and self._thread is me:
            now = time.monotonic()
            if now - self._watched_at >= STANDBY and self._watch.acquire(blocking=False):
                try:
                    self._background_watches = True
                    while self._background_watches and not self._stopping and self._thread is me:
                        self._watch_once(time.monotonic(), None)
                finally:
                    self._background_watches = False
                    self._give_back_watch()
                if self._parked:
                    self._hand_over()
                self._watched_at = self._unkept_since = time.monotonic()
            else:
                self._stand_by(now)

    def _stand_by(self, now: float) -> None:
        """Another has the watch: see that it looks, and do what is due if it does not."""
        turns = self._turns
        quiet = now - turns.read_at > 1.0
        if self._standby.wait(STANDBY_QUIET if quiet else STANDBY):
            self._standby.clear()
            self._watched_at = 0.0
        now = time.monotonic()
        if self._stopping or (now - self._watched_at < STANDBY and now < turns.due and not turns.inbox):
            return
        watch = self._loop
        if watch is not None and not watch.loop.is_running():
            self.release_loop(watch)
            return
        if watch is not None or self._attending is not None or not self._watch.locked():
            self._unkept_since = now
        elif now - self._unkept_since > ABANDONED:  # an interrupt caught its holder between taking it and noting that it did
            self._unkept_since = now
            self._give_back_watch()
            return
        ready = self._transport.wait(0.0)
        if ready or now >= turns.due or turns.inbox or turns.inline:
            turns.turn(ready)
            self._run_inline()
            self._wake_watcher()
            self._stood_in += 1
            if watch is not None and self._stood_in >= STOOD_IN:
                self.release_loop(watch)  # its user blocks it: until it calls again, the sockets are watched from here

    def _watch_once(self, now: float, limit: float | None) -> None:
        """With the watch held: sleep until something is to be done, and do it."""
        turns = self._turns
        ready: Any = ()
        if not (turns.inbox or turns.inline):
            until = now if turns.restless else min(turns.due, self._transport.next_timeout(), now + MAX_SLEEP)
            if limit is not None and limit < until:
                until = limit
            self._sleeping_until = until
            if turns.inbox:  # posted between the look and the note above: its poster saw no sleeper to wake
                until = now
            ready = self._transport.wait(until - now)
            self._sleeping_until = 0.0
        turns.turn(ready)
        if turns.inline:
            self._run_inline()

    def _run_inline(self) -> None:
        """Inline handlers, with the guard looking on when this is the background thread."""
        if self._thread is threading.current_thread():
            self._inline_since = time.monotonic()
            self._turns.run_inline()
            if self._thread is threading.current_thread():
                self._inline_since = None
        else:
            self._turns.run_inline()


MAX_ROUNDS = 64
"""Turns in one round of a loop, so that the loop's other work is not kept waiting."""


def _nothing(*, now: float) -> None:
    """What is asked of the engine for the turn alone."""
