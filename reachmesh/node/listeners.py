"""Who is told of what happens in the mesh: functions, event iterators, and whoever waits for a change.

Place in the data path: the driver brings the engine's notes with the seat held. Waiters and iterators are woken right there, which runs
nothing of the user's; functions are called in the callbacks' thread, so a slow one holds up other functions and nobody else.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
import weakref
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any

from reachmesh.engine import Note
from reachmesh.execution.pool import blocking
from reachmesh.node.callbacks import Callbacks
from reachmesh.node.peers import Event, event_of
from reachmesh.node.wakers import Waker, call_soon

_log = logging.getLogger("reachmesh")

EVENTS_WAITING = 10_000
"""Events one slow iterator may be behind; beyond it the oldest are dropped."""

LOOK_AGAIN = 0.25
"""Seconds after which a waiter looks though nothing was told: a breaker opens by time alone, a broken link is made again in silence."""

_LOGGED = ("link_refused", "version_refused")
"""Kinds that are logged too: who expects a peer and sees none looks there first. The same refusal comes every 30 s at most."""

Listener = tuple[str, Callable[[Event], Any]]
"""The kind of event ("*" = all) and the function."""


class Events(AsyncIterator[Event]):
    """The events from its making on; ends when the node stops."""

    def __init__(self) -> None:
        self._waiting: deque[Event] = deque(maxlen=EVENTS_WAITING)
        self._waker: Waker | None = None
        self._over = False

    def put(self, event: Event) -> None:
        """One more happened (any thread)."""
        self._waiting.append(event)
        self._wake()

    def end(self) -> None:
        """No more will come (any thread)."""
        self._over = True
        self._wake()

    async def aclose(self) -> None:
        """Listen no longer."""
        self.end()

    def _wake(self) -> None:
        waker = self._waker
        if waker is not None:
            waker.wake()

    async def __anext__(self) -> Event:
        while True:
            if self._waiting:
                return self._waiting.popleft()
            if self._over:
                raise StopAsyncIteration
            self._waker = Waker()
            if not (self._waiting or self._over):  # put before the waker was there
                await self._waker.future


class Listeners:
    """All of them, of one node.

    Args:
        functions: those that were there before (of a node that becomes another instance in a forked process).
    """

    def __init__(self, callbacks: Callbacks, functions: Iterable[Listener] = ()) -> None:
        self._callbacks = callbacks
        self.functions: list[Listener] = list(functions)
        self._iterators: weakref.WeakSet[Events] = weakref.WeakSet()
        self._iterators_lock = threading.Lock()
        self._waiters: dict[int, Callable[[], None]] = {}
        self._closed = False

    def events(self) -> Events:
        """An iterator over what happens from now on."""
        events = Events()
        with self._iterators_lock:
            self._iterators.add(events)
        if self._closed:
            events.end()
        return events

    def notice(self, notes: Sequence[Note]) -> None:
        """Something happened. With the seat held: who listens now hears of it, and nobody who begins to listen later."""
        self._wake()
        for note in notes:
            if note.kind in _LOGGED:
                self._callbacks.put(_log.warning, "a link was refused: %s", note.reason)
        functions, iterators = tuple(self.functions), self._all_iterators()
        if not functions and not iterators:
            return
        for event in map(event_of, notes):
            for each in iterators:
                each.put(event)
            for kind, fn in functions:
                if kind in ("*", event.kind):
                    self._callbacks.put(fn, event)

    def close(self) -> None:
        """The node has stopped: whoever waits looks a last time, iterators end."""
        self._closed = True
        self._wake()
        for each in self._all_iterators():
            each.end()

    def _all_iterators(self) -> tuple[Events, ...]:
        with self._iterators_lock:
            return tuple(self._iterators)

    def _wake(self) -> None:
        for wake in tuple(self._waiters.values()):
            wake()

    # ---------------------------------------------------------------- waiting for a change

    def wait(self, look: Callable[[], bool], timeout: float | None) -> bool:
        """Block until `look()` is true, looking again at every change and now and then; false when `timeout` seconds were not enough."""
        changed = threading.Event()
        limit = None if timeout is None else time.monotonic() + timeout
        self._waiters[id(changed)] = changed.set
        try:
            with blocking():
                while True:
                    changed.clear()
                    if look():
                        return True
                    left = None if limit is None else limit - time.monotonic()
                    if left is not None and left <= 0:
                        return False
                    changed.wait(LOOK_AGAIN if left is None else min(left, LOOK_AGAIN))
        finally:
            del self._waiters[id(changed)]

    async def wait_async(self, look: Callable[[], bool], timeout: float | None) -> bool:
        """The twin of `wait` for event loops."""
        loop = asyncio.get_running_loop()
        limit = None if timeout is None else loop.time() + timeout
        changed = asyncio.Event()
        self._waiters[id(changed)] = lambda: call_soon(loop, changed.set)
        try:
            while True:
                changed.clear()
                if look():
                    return True
                left = None if limit is None else limit - loop.time()
                if left is not None and left <= 0:
                    return False
                try:
                    await asyncio.wait_for(changed.wait(), LOOK_AGAIN if left is None else min(left, LOOK_AGAIN))
                except TimeoutError:
                    continue
        finally:
            del self._waiters[id(changed)]
