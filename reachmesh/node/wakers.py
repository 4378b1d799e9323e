"""Waking what waits on an event loop, from any thread: at once on the loop's own thread, else through the loop."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable


def call_soon(loop: asyncio.AbstractEventLoop, fn: Callable[[], object]) -> None:
    """Have a loop call `fn`, from any thread; a closed one does not, for nobody waits there any more."""
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(fn)


class Waker:
    """One task's wait. Made on the loop's thread; `wake` may be called from anywhere, any number of times."""

    __slots__ = ("_loop", "_thread", "future")

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self._thread = threading.get_ident()
        self.future: asyncio.Future[None] = self._loop.create_future()

    def wake(self) -> None:
        """End the wait."""
        if threading.get_ident() == self._thread:
            self._set()
        else:
            call_soon(self._loop, self._set)

    def _set(self) -> None:
        if not self.future.done():
            self.future.set_result(None)
