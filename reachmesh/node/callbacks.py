"""One thread per node for callbacks of the user's: events and done-callbacks, in order, away from the engine."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from reachmesh.observe.stacks import log_failure

_log = logging.getLogger("reachmesh")

MAX_WAITING = 100_000
"""Callbacks that may wait for a slow one; beyond it the oldest are dropped with a warning."""


class Callbacks:
    """A queue of callbacks and the thread that runs them, started with the first. A callback that raises is logged."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._lock = threading.Lock()
        self._waiting: deque[tuple[Callable[..., Any], tuple[Any, ...]]] = deque()
        self._idle = False
        self._wake = threading.Lock()
        self._wake.acquire()
        self._thread: threading.Thread | None = None
        self._closed = False
        self._dropped = 0

    def put(self, fn: Callable[..., Any], *args: Any) -> None:
        """Have `fn(*args)` called soon. Callable from anywhere."""
        with self._lock:
            if self._closed:
                return
            if len(self._waiting) >= MAX_WAITING:
                self._waiting.popleft()
                self._dropped += 1
                if self._dropped in (1, 1000):
                    _log.warning("callbacks of %s are too slow; %d dropped", self._name, self._dropped)
            self._waiting.append((fn, args))
            if self._thread is None:
                self._thread = threading.Thread(target=self._run, name=f"reachmesh-{self._name}-callbacks", daemon=True)
                self._thread.start()
            self._rouse()

    def close(self, timeout: float = 1.0) -> None:
        """Run what waits, then end the thread; a callback that does not end is left behind after `timeout` seconds."""
        with self._lock:
            self._closed = True
            thread = self._thread
            self._rouse()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)

    def _rouse(self) -> None:
        """With the lock held: wake the thread if it sleeps; one that is at work looks again by itself."""
        if self._idle:
            self._idle = False
            self._wake.release()

    def _next(self) -> tuple[Callable[..., Any], tuple[Any, ...]] | None:
        while True:
            with self._lock:
                if self._waiting:
                    return self._waiting.popleft()
                if self._closed:
                    return None
                self._idle = True
            self._wake.acquire()

    def _run(self) -> None:
        while (found := self._next()) is not None:
            fn, args = found
            try:
                fn(*args)
            except BaseException as error:
                log_failure(_log, error, "a callback of %s failed", self._name)
