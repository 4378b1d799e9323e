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
        self._some = threading.Semaphore(0)
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
        self._some.release()

    def close(self, timeout: float = 1.0) -> None:
        """Run what waits, then end the thread; a callback that does not end is left behind after `timeout` seconds."""
        with self._lock:
            self._closed = True
            thread = self._thread
        if thread is not None:
            self._some.release()
            if thread is not threading.current_thread():
                thread.join(timeout)

    def _run(self) -> None:
        while True:
            self._some.acquire()
            with self._lock:
                if not self._waiting:
                    if self._closed:
                        return
                    continue
                fn, args = self._waiting.popleft()
            try:
                fn(*args)
            except BaseException as error:
                log_failure(_log, error, "a callback of %s failed", self._name)
