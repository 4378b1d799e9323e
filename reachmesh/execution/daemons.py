"""The default executor of our own event loop, for `asyncio.to_thread` and `run_in_executor(None, ...)` in async handlers.

The standard one is joined by the interpreter at its end: one function that blocks would keep the process for as long as it does. The
threads here are daemons, as those of all other handlers are.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, ParamSpec, TypeVar, cast

from reachmesh.execution.job import Job
from reachmesh.execution.pool import ThreadPool

P = ParamSpec("P")
T = TypeVar("T")

_VERY_LONG = 1e9

_MOST = min(32, (os.cpu_count() or 1) + 4)
"""Threads at most: as many as the standard library would take."""


class _Work:
    """One function to run: of a `Job`, what a `ThreadPool` looks at."""

    priority = 100

    def __init__(self, future: Future[Any], run: Callable[[], Any]) -> None:
        self.future, self._run = future, run

    def run(self) -> None:
        """Run it, unless it was cancelled before."""
        if self.future.set_running_or_notify_cancel():
            try:
                result = self._run()
            except BaseException as error:
                self.future.set_exception(error)
            else:
                self.future.set_result(result)

    def fail(self, error: BaseException) -> None:
        """No thread can be had for it."""
        if self.future.set_running_or_notify_cancel():
            self.future.set_exception(error)


class DaemonThreads(ThreadPoolExecutor):
    """As its base, which asyncio insists on, with other threads.

    Args:
        name: threads are called `reachmesh-<name>-<n>`.
    """

    def __init__(self, name: str) -> None:
        super().__init__(1)  # it starts no thread before its own `submit`
        self._pool = ThreadPool(name, lambda job: cast("_Work", job).run(), _MOST, _MOST)

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> Future[T]:
        """As of any executor."""
        future: Future[T] = Future()
        if not self._pool.put(cast("Job", _Work(future, lambda: fn(*args, **kwargs)))):
            raise RuntimeError("cannot schedule new futures after shutdown")
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more. What waits is cancelled in any case: no thread is left for it."""
        for work in self._pool.close():
            cast("_Work", work).future.cancel()
        if wait:
            self.join(time.monotonic() + _VERY_LONG)

    def join(self, deadline: float) -> bool:
        """Wait until all threads have ended or `deadline` (monotonic) is there; True = all ended."""
        return self._pool.join(deadline)
