"""An asyncio loop that has the watch over a node's sockets: its selector looks at ours, its rounds turn the engine."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable
from typing import Protocol

LOOP_REST = 0.1
"""Seconds without a call on a loop after which it gives the watch back."""


class Watched(Protocol):
    """What a loop that watches needs of the driver."""

    def turn_on_loop(self) -> None:
        """Turn now, on the loop's thread."""
        ...

    def loop_may_rest(self) -> bool:
        """Whether no call of this node is open, made or served."""
        ...

    def release_loop(self, watch: LoopWatch) -> None:
        """Take the watch back, if this loop still has it."""
        ...


class LoopWatch:
    """Registered with one loop from its first call until a rest. Made on the loop's thread.

    Args:
        fd: descriptor that is readable when a socket has something.

    Raises:
        NotImplementedError, OSError, ValueError: this loop or system cannot watch a descriptor of another selector.
    """

    def __init__(self, driver: Watched, loop: asyncio.AbstractEventLoop, fd: int) -> None:
        self.loop = loop
        self.used_at = time.monotonic()
        self._driver = driver
        self._fd = fd
        self._soon = False
        self._over = False
        loop.add_reader(fd, self._ready)
        loop.call_later(LOOP_REST, self._check)

    def turn_soon(self) -> None:
        """Turn in the loop's next round, once for all that is posted until then."""
        self.used_at = time.monotonic()
        if not self._soon:
            self._soon = True
            self.loop.call_soon(self._turn)

    def end(self) -> None:
        """The watch was taken from this loop (any thread)."""
        self._over = True

    def leave(self) -> None:
        """Take our descriptor out of the loop, before it is closed (any thread)."""
        if self.loop is asyncio._get_running_loop():
            self.loop.remove_reader(self._fd)
        elif self.loop.is_running():
            gone = threading.Event()

            def remove() -> None:
                self.loop.remove_reader(self._fd)
                gone.set()

            if self._ask_loop(remove):
                gone.wait(1.0)

    def _ask_loop(self, fn: Callable[[], object]) -> bool:
        try:
            self.loop.call_soon_threadsafe(fn)
        except RuntimeError:  # closed meanwhile
            return False
        return True

    def _turn(self) -> None:
        self._soon = False
        self._driver.turn_on_loop()

    def _ready(self) -> None:
        if self._over:  # the loop rested, and the watch was taken from it
            self.loop.remove_reader(self._fd)
        else:
            self._driver.turn_on_loop()

    def _check(self) -> None:
        """Give the watch back when no call was made here for a while and none is open."""
        if self._over:
            return
        if time.monotonic() - self.used_at < LOOP_REST or not self._driver.loop_may_rest():
            self.loop.call_later(LOOP_REST, self._check)
            return
        self.loop.remove_reader(self._fd)
        self._driver.release_loop(self)
