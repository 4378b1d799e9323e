"""Runs async handlers as tasks of an event loop, the user's while it runs or one of our own.

Place in the data path: the executor hands jobs over from any thread; many handed over between two turns of the loop cost
one wake-up. Cancellation reaches the task by `call_soon_threadsafe`.

Invariants: an async generator is advanced and closed in one task. No exception of a handler leaves its task, for asyncio
lets SystemExit and KeyboardInterrupt tear the whole loop down. A task cancelled before its first step still ends its job.
"""

from __future__ import annotations

import asyncio
import inspect
import logging
import threading
import time
import types
from collections.abc import Coroutine
from typing import Any

from reachmesh.errors import Cancelled
from reachmesh.execution.daemons import DaemonThreads
from reachmesh.execution.job import Job
from reachmesh.execution.running import failed, finished, not_a_stream, stream_closed

log = logging.getLogger("reachmesh.execution")

SLICE = 0.001
"""Seconds after which a generator that never waits lets the loop's other tasks run: its reader may be so quick that credit never ends."""

_Entry = tuple[Job, Coroutine[Any, Any, Any] | None]


class LoopRunner:
    """The jobs of one running event loop.

    Args:
        loop: the loop; it is neither started nor stopped here.
    """

    def __init__(self, loop: asyncio.AbstractEventLoop) -> None:
        self.loop = loop
        self._lock = threading.Lock()
        self._pending: list[_Entry] = []
        self._scheduled = False
        self._retired = False
        self._tasks: dict[int, tuple[asyncio.Task[None], Job, Coroutine[Any, Any, Any] | None]] = {}
        self._unstarted: set[int] = set()
        self._empty: threading.Event | None = None
        self._asked_at: float | None = None

    def put(self, job: Job, coroutine: Coroutine[Any, Any, Any] | None = None) -> bool:
        """Run the job (or go on with the coroutine its handler returned) as a task. False = this loop takes no more."""
        if asyncio._get_running_loop() is self.loop and not self._retired:
            self._launch(job, coroutine)
            return True
        with self._lock:
            if self._retired:
                return False
            if not self._scheduled:
                try:
                    self.loop.call_soon_threadsafe(self._drain)
                except RuntimeError:  # closed
                    return False
                self._scheduled = True
            self._pending.append((job, coroutine))
        return True

    def cancel(self, job: Job) -> bool:
        """Cancel the job's task, if it has one here; from any thread."""
        if id(job) not in self._tasks:
            return False
        if asyncio._get_running_loop() is self.loop:
            self._cancel(id(job))
        else:
            try:
                self.loop.call_soon_threadsafe(self._cancel, id(job))
            except RuntimeError:
                return False
        return True

    def retire(self) -> list[_Entry]:
        """Take no more jobs; gives back those without a task. Running tasks go on."""
        with self._lock:
            self._retired = True
            pending, self._pending = self._pending, []
        return pending

    def cancel_all(self) -> None:
        """Cancel every task; from any thread. The jobs of a loop that was closed under them fail here."""
        try:
            self.loop.call_soon_threadsafe(self._cancel_tasks)
        except RuntimeError:
            self._bury_unstarted()
            for key, (_, job, _) in list(self._tasks.items()):
                failed(job, _loop_closed())
                self._forget(key)

    def wait(self, timeout: float) -> bool:
        """Wait until no task is left; True = none is. Never waits on the loop's own thread."""
        if asyncio._get_running_loop() is self.loop:
            return not self._tasks
        self._empty = threading.Event()
        self._bury_unstarted()
        if self._tasks and timeout > 0:
            self._empty.wait(timeout)
        return not self._tasks

    def load(self) -> tuple[int, int]:
        """Jobs with a task, and jobs on their way to one."""
        if self._unstarted:
            self._bury_unstarted()
        return len(self._tasks), len(self._pending)

    def lag(self, now: float) -> float:
        """Seconds for which the loop has not come to what it was asked to do; each look that finds it punctual asks anew."""
        asked_at = self._asked_at
        if asked_at is not None:
            return max(0.0, now - asked_at)
        if self._tasks or self._pending:
            self._asked_at = now
            try:
                self.loop.call_soon_threadsafe(self._answer)
            except RuntimeError:  # closed
                self._asked_at = None
        return 0.0

    def _answer(self) -> None:
        self._asked_at = None

    def _drain(self) -> None:
        with self._lock:
            self._scheduled = False
            pending, self._pending = self._pending, []
        for job, coroutine in pending:
            self._launch(job, coroutine)

    def _launch(self, job: Job, coroutine: Coroutine[Any, Any, Any] | None) -> None:
        key = id(job)
        self._unstarted.add(key)
        self._tasks[key] = (self.loop.create_task(self._run(job, coroutine)), job, coroutine)

    def _bury_unstarted(self) -> None:
        """Fail the jobs whose tasks were cancelled by others (`asyncio.run` at its end) before their first step.

        A callback on each task would tell at once, and cost a third of the domain's throughput.
        """
        for key in list(self._unstarted):
            entry = self._tasks.get(key)
            if entry is not None and entry[0].done():
                self._bury(key)

    def _bury(self, key: int) -> None:
        _, job, coroutine = self._tasks[key]
        if coroutine is not None:
            coroutine.close()
        failed(job, Cancelled("cancelled before the handler started", executed="no"))
        self._forget(key)

    def _forget(self, key: int) -> None:
        self._unstarted.discard(key)
        self._tasks.pop(key, None)
        if self._empty is not None and not self._tasks:
            self._empty.set()

    def _cancel_tasks(self) -> None:
        for key in list(self._tasks):
            self._cancel(key)

    def _cancel(self, key: int) -> None:
        entry = self._tasks.get(key)
        if entry is not None:
            entry[0].cancel()
            if key in self._unstarted:
                self._bury(key)

    async def _run(self, job: Job, coroutine: Coroutine[Any, Any, Any] | None) -> None:
        key = id(job)
        self._unstarted.discard(key)
        try:
            if coroutine is None:
                arguments = job.begin()
                if arguments is None:
                    return
                handler = job.handler
                token = job.entered()
                try:
                    value = handler.fn(*arguments[0], **arguments[1])
                    if type(value) is types.CoroutineType or inspect.isawaitable(value):
                        value = await value
                    if handler.streams:
                        await _pump(job, value)
                        value = None
                finally:
                    job.left(token)
            else:
                value = await _resume(job, coroutine)
        except GeneratorExit as error:
            if asyncio._get_running_loop() is self.loop:  # the handler raised it
                failed(job, error)
                return
            failed(job, _loop_closed())  # the loop was dropped with this task unfinished
            raise
        except BaseException as error:
            failed(job, error)
        else:
            finished(job, value)
        finally:
            self._forget(key)


def _loop_closed() -> Cancelled:
    return Cancelled("the event loop that ran the handler was closed", executed="yes")


async def _resume(job: Job, coroutine: Coroutine[Any, Any, Any]) -> Any:
    token = job.entered()
    try:
        return await coroutine
    finally:
        job.left(token)


async def _pump(job: Job, items: Any) -> None:
    """Move items until the generator ends; close it in any case. `Cancelled` when nobody wants more."""
    if not hasattr(items, "__anext__"):
        raise not_a_stream(job, items)
    emit, clock = job.emit, time.monotonic
    until = clock() + SLICE
    try:
        async for item in items:
            if not (emit(item) or await job.room()) or job.cancelled:
                raise stream_closed()
            if clock() > until:
                await asyncio.sleep(0)
                until = clock() + SLICE
    finally:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()


class OwnLoop:
    """An event loop in a thread of its own, for nodes whose user has none running.

    Args:
        name: the thread is called `reachmesh-<name>-loop`.
    """

    def __init__(self, name: str) -> None:
        self.loop = asyncio.new_event_loop()
        self._blocking = DaemonThreads(f"{name}-to-thread")
        self.loop.set_default_executor(self._blocking)
        self._stopping = False
        self._thread = threading.Thread(target=self._main, name=f"reachmesh-{name}-loop", daemon=True)
        self.runner = LoopRunner(self.loop)
        self._thread.start()

    def stop(self, timeout: float) -> bool:
        """Cancel what is left, stop and close the loop; True = its thread has ended. From the loop itself: only asks for it.

        `timeout` is for the threads of `asyncio.to_thread` too; one that is blocked there is left behind.
        """
        self._stopping = True
        self.runner.cancel_all()
        try:
            self.loop.call_soon_threadsafe(self.loop.stop)
        except RuntimeError:
            return True
        if threading.current_thread() is not self._thread:
            until = time.monotonic() + timeout
            self._thread.join(timeout)
            self._blocking.join(until)
        return not self._thread.is_alive()

    def _main(self) -> None:
        loop = self.loop
        asyncio.set_event_loop(loop)
        while not self._stopping:
            try:
                loop.run_forever()
            except (SystemExit, KeyboardInterrupt):
                log.warning("code on the event loop of the async handlers raised SystemExit or KeyboardInterrupt; the loop goes on")
        try:
            self._finish()
        except BaseException:
            log.exception("the event loop of the async handlers ended badly")
        finally:
            self._blocking.shutdown(wait=False, cancel_futures=True)
            asyncio.set_event_loop(None)
            loop.close()

    def _finish(self) -> None:
        """End the tasks that are left, those of handlers' own making too."""
        tasks = asyncio.all_tasks(self.loop)
        for task in tasks:
            task.cancel()
        if tasks:
            self.loop.run_until_complete(asyncio.wait(tasks, timeout=1.0))
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
