"""Virtual time: what is to happen when, and whoever waits for it.

Time stands still while code runs and jumps to the next instant at which something is to happen. Things of one instant happen in the
order in which they were asked for, so a run depends on nothing but what was asked.

Code that waits (`wait`) makes things happen itself until its wait is over. A plain handler that waits does so on top of the code that
waits already, and what is below goes on only when it has returned: that is the price of having no threads. A wait that only the code
below could end is found out and refused.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
from collections.abc import Callable
from contextvars import Context, copy_context

from reachmesh.errors import UsageError

PATIENCE = 3600.0
"""Virtual seconds after which a wait without a limit of its own is given up: a test that can not end is to fail."""

_MAKE_ASYNC = "make the handler `async`: plain ones wait on top of each other here, see reachmesh/testing/README.md"

NESTED_PATIENCE = 60.0
"""The same for a wait on top of another whose end has come."""

DEEPEST = 50
"""Waits on top of each other at most; each takes some twenty frames of the one stack there is."""


class Schedule:
    """The clock and the queue of one world.

    Attributes:
        now: virtual seconds since the start.
    """

    def __init__(self) -> None:
        self.now = 0.0
        self._queue: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count()
        self._waits: list[Callable[[], bool]] = []
        self._context: Context = copy_context()

    def time(self) -> float:
        """`now`, as a function."""
        return self.now

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Have something happen at a time, at once if that is past."""
        heapq.heappush(self._queue, (max(time, self.now), next(self._numbers), action))

    def run(self, seconds: float) -> None:
        """Let so much time pass.

        Raises:
            UsageError: on an event loop of the world; `await asyncio.sleep(...)` there.
        """
        self.wait(lambda: False, seconds)

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Let time pass until `done()`; false when `timeout` seconds were not enough.

        Raises:
            UsageError: on an event loop of the world, or when nothing in the world would ever end the wait.
        """
        if asyncio._get_running_loop() is not None:
            raise UsageError("waiting here would stop the world", hint="`await` it; for time to pass, `await asyncio.sleep(...)`")
        if len(self._waits) >= DEEPEST:
            raise UsageError(f"{DEEPEST} plain handlers wait on top of each other", hint=_MAKE_ASYNC)
        began = self.now
        limit = began + (PATIENCE if timeout is None else timeout)
        below = self._waits[-1] if self._waits else None
        self._waits.append(done)
        try:
            while not done():
                if not self._step(limit):
                    self.now = max(self.now, limit)
                    if timeout is None and not done():
                        raise UsageError(f"nothing ended this wait in {PATIENCE:g} virtual seconds", hint="give the call a timeout=")
                    return done()
                if below is not None and self.now > began + NESTED_PATIENCE and not done() and below():
                    raise UsageError(
                        "this handler waits for what only the code that waits for the handler could do",
                        hint=_MAKE_ASYNC,
                    )
            return True
        finally:
            self._waits.pop()

    def _step(self, limit: float) -> bool:
        """Have the next thing happen; false when there is none up to `limit`."""
        queue = self._queue
        if not queue or queue[0][0] > limit:
            return False
        at, _, action = heapq.heappop(queue)
        self.now = max(self.now, at)
        self._context.copy().run(action)  # nothing of whoever waits: no call is made in the name of another
        return True
