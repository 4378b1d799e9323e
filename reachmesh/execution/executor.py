"""Where handlers run: each job goes to the domain its capability asks for.

Place in the data path: the node submits accepted requests here; nothing here knows peers, frames or deadlines. `submit`
never blocks and never raises.

========  =========================================  =====================================================
domain    plain handlers                             generators
========  =========================================  =====================================================
pool      one of three pools: short (< 0.5 s),       a thread of its own from an elastic set, so that an unread
          medium (< 5 s), long; by the declared      stream never occupies the pool
          profile, else by the measured mean
thread    one thread for the capability, in order    the same thread
loop      async only: a task of the user's loop      a task
          while it runs, else of our own loop
inline    in place, until caught being slow          as in pool
process   a worker process (`process.py`)            a worker process, item by item
========  =========================================  =====================================================

Three pools, because a handler that takes minutes would otherwise fill the pool that serves the ones that take none.
"""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine
from time import perf_counter
from typing import Any, Protocol

from reachmesh.errors import ConfigError, NodeStopped, Overloaded
from reachmesh.execution.handler import Handler
from reachmesh.execution.inline import InlineDomain
from reachmesh.execution.job import Job
from reachmesh.execution.loops import LoopRunner, OwnLoop
from reachmesh.execution.pool import ThreadPool, blocking
from reachmesh.execution.running import failed, run_plain, run_stream

DOMAINS = ("pool", "thread", "loop", "inline", "process")

PROFILES = ("short", "medium", "long")

MEDIUM_SECONDS = 0.5
"""A handler whose runs take this long on average belongs to the medium pool."""

LONG_SECONDS = 5.0
"""And this long to the long one."""

_SMOOTHING = 0.2
_LOOP_END_SECONDS = 0.5


class Processes(Protocol):
    """What the executor needs of the process domain (`process.ProcessDomain`)."""

    def put(self, job: Job) -> bool:
        """Run the job in a worker process; False = closed."""
        ...

    def load(self) -> tuple[int, int]:
        """Running and queued jobs."""
        ...

    def close(self) -> list[Job]:
        """Take no more; gives back what has not been started."""
        ...

    def join(self, deadline: float) -> bool:
        """Wait for the running ones until `deadline` (monotonic), then end all workers."""
        ...


def resolve_domain(handler: Handler, domain: str | None) -> str:
    """The domain a handler runs in; None = the natural one.

    Raises:
        ConfigError: there is no such domain, or the handler cannot run in it.
    """
    if domain is None:
        return "loop" if handler.is_async else "pool"
    if domain not in DOMAINS:
        raise ConfigError(f"{handler.name}: there is no domain {domain!r}", hint=f"one of {', '.join(DOMAINS)}")
    if handler.is_async and domain != "loop":
        raise ConfigError(f"{handler.name} is async and runs on the event loop", hint="leave domain out, or make it a plain def")
    if domain == "loop" and not handler.is_async:
        raise ConfigError(f"{handler.name} is a plain def and would block the event loop", hint="leave domain out, or make it async")
    if domain == "process" and (handler.context_param or handler.input_param):
        name = handler.context_param or handler.input_param
        raise ConfigError(f"{handler.name}: parameter {name!r} cannot be filled in another process", hint="use domain='thread' or 'pool'")
    return domain


class Executor:
    """Runs jobs in their domains.

    Args:
        name: part of the threads' names (`reachmesh-<name>-...`).
        pool_threads: most threads that run at once in each of the three pools. Fewer: blocking handlers queue up; more: memory
            (about 100 KiB each) and switching.
        hard_limit: most threads in each set, those that wait for nested calls and those of streams included.
        loop: the user's event loop, as for `use_loop`.
        processes: the process domain, when a capability asks for it.
    """

    def __init__(
        self,
        *,
        name: str,
        pool_threads: int = 32,
        hard_limit: int = 1024,
        loop: asyncio.AbstractEventLoop | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.name = name
        self.processes = processes
        self._lock = threading.Lock()
        self._stopped = False
        self._pools = {each: ThreadPool(f"{name}-{each}", self._run_timed, pool_threads, hard_limit) for each in PROFILES}
        self._short = self._pools["short"]
        self._streams = ThreadPool(f"{name}-stream", run_stream, hard_limit, hard_limit)
        self._own_threads: dict[Handler, ThreadPool] = {}
        self._inline = InlineDomain()
        self._seconds: dict[Handler, float] = {}
        self._user_loop: LoopRunner | None = LoopRunner(loop) if loop is not None else None
        self._own_loop: OwnLoop | None = None
        self._old_loops: list[LoopRunner] = []

    def submit(self, job: Job) -> None:
        """Hand a job to its domain; after `stop` it fails with `NodeStopped`."""
        handler, domain = job.handler, job.domain
        if handler.is_async:
            self._put_on_loop(job, None)
            return
        if domain == "thread":
            taken = self._own_thread(handler).put(job)
        elif domain == "process":
            taken = self._put_in_process(job)
        elif handler.streams:
            if self._streams.full:  # streams may last for ever: one that waited for another would wait in silence
                failed(
                    job,
                    Overloaded(f"{self._streams.hard_limit} streams of plain generators run here already", executed="no", retry_after=1.0),
                )
                return
            taken = self._streams.put(job)
        elif domain == "inline" and self._inline.allows(handler) and not self._stopped:
            self._inline.run(job, self._put_on_loop)
            return
        else:
            taken = self._pool_of(handler).put(job)
        if not taken:
            failed(job, _stopped())

    def cancel(self, job: Job) -> None:
        """Cancel the task of an async job. Other domains poll `job.cancelled`."""
        for runner in self._runners():
            if runner.cancel(job):
                return

    def use_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Run async handlers on this loop from now on; None = on our own. Call it before a loop ends, too.

        What had not got a task on the loop before moves along; its running tasks stay there.
        """
        with self._lock:
            before, self._user_loop = self._user_loop, LoopRunner(loop) if loop is not None else None
            self._old_loops = [each for each in self._old_loops if each.load() != (0, 0)]
            if before is not None:
                self._old_loops.append(before)
        if before is not None:
            for job, coroutine in before.retire():
                self._put_on_loop(job, coroutine)

    def runs_on(self, loop: asyncio.AbstractEventLoop | None) -> bool:
        """Whether async handlers run on this loop."""
        return loop is not None and self._user_loop is not None and self._user_loop.loop is loop

    def release(self, handler: Handler) -> None:
        """The handler's capability is gone: its own thread ends after its job, and what was measured is forgotten."""
        with self._lock:
            own = self._own_threads.pop(handler, None)
        self._seconds.pop(handler, None)
        self._inline.forget(handler)
        if own is not None:
            for job in own.close():
                failed(job, _stopped())

    @staticmethod
    def blocking() -> blocking:
        """A context manager to put around a blocking wait for another call; cheap and harmless in any thread."""
        return blocking()

    def load(self) -> tuple[int, int]:
        """Jobs that run and jobs that wait for a thread, all domains together (inline ones not counted)."""
        loads = [each.load() for each in self._thread_sets()]
        loads += [each.load() for each in self._runners()]
        if self.processes is not None:
            loads.append(self.processes.load())
        return sum(running for running, _ in loads), sum(queued for _, queued in loads)

    def lag(self, now: float) -> float:
        """Seconds by which the event loop that runs async handlers is late, the worst of several."""
        return max((each.lag(now) for each in self._runners()), default=0.0)

    def idle(self) -> bool:
        """Whether nothing runs and nothing waits."""
        return self.load() == (0, 0)

    def stop(self, timeout: float) -> bool:
        """Fail what is queued with `NodeStopped`, give running jobs `timeout` seconds, then cancel the async ones.

        Safe to call again, and from inside a handler (whose own job is then not waited for). Plain handlers that do not end
        are left behind in their daemon threads.

        Returns:
            True when everything ended in time.
        """
        deadline = time.monotonic() + timeout
        with self._lock:
            self._stopped = True
        sets, runners = self._thread_sets(), self._runners()
        for job in [job for each in sets for job in each.close()]:
            failed(job, _stopped())
        for job in self.processes.close() if self.processes is not None else ():
            failed(job, _stopped())
        for job, coroutine in [entry for each in runners for entry in each.retire()]:
            if coroutine is not None:
                coroutine.close()
            failed(job, _stopped())
        clean = True
        for pool in sets:
            clean = pool.join(deadline) and clean
        if self.processes is not None:
            clean = self.processes.join(deadline) and clean
        for each in runners:
            clean = each.wait(deadline - time.monotonic()) and clean
            each.cancel_all()
        if self._own_loop is not None:
            clean = self._own_loop.stop(_LOOP_END_SECONDS) and clean
        return clean

    def _pool_of(self, handler: Handler) -> ThreadPool:
        if handler.profile is not None:
            return self._pools.get(handler.profile, self._short)
        seconds = self._seconds.get(handler, 0.0)
        if seconds < MEDIUM_SECONDS:
            return self._short
        return self._pools["medium" if seconds < LONG_SECONDS else "long"]

    def _run_timed(self, job: Job) -> None:
        handler = job.handler
        if handler.profile is not None:
            run_plain(job, self._put_on_loop)
            return
        started = perf_counter()
        run_plain(job, self._put_on_loop)
        took = perf_counter() - started
        before = self._seconds.get(handler)
        self._seconds[handler] = took if before is None else before + _SMOOTHING * (took - before)

    def _run_any(self, job: Job) -> None:
        if job.handler.streams:
            run_stream(job)
        else:
            run_plain(job, self._put_on_loop)

    def _own_thread(self, handler: Handler) -> ThreadPool:
        own = self._own_threads.get(handler)
        if own is None:
            with self._lock:
                own = self._own_threads.get(handler)
                if own is None:
                    own = ThreadPool(f"{self.name}-{handler.name}", self._run_any, 1, 1, idle_seconds=None)
                    if self._stopped:
                        own.close()
                    self._own_threads[handler] = own
        return own

    def _put_in_process(self, job: Job) -> bool:
        if self.processes is None:
            failed(job, ConfigError(f"{job.handler.name}: this node has no process domain"))
            return True
        return self.processes.put(job)

    def _put_on_loop(self, job: Job, coroutine: Coroutine[Any, Any, Any] | None) -> None:
        user = self._user_loop
        if user is not None and user.loop.is_running() and not self._stopped and user.put(job, coroutine):
            return
        with self._lock:
            if self._own_loop is None and not self._stopped:
                self._own_loop = OwnLoop(self.name)
            own = self._own_loop
        if own is None or self._stopped or not own.runner.put(job, coroutine):
            if coroutine is not None:
                coroutine.close()
            failed(job, _stopped())

    def _thread_sets(self) -> list[ThreadPool]:
        with self._lock:
            return [*self._pools.values(), self._streams, *self._own_threads.values()]

    def _runners(self) -> list[LoopRunner]:
        with self._lock:
            own = [self._own_loop.runner] if self._own_loop is not None else []
            user = [self._user_loop] if self._user_loop is not None else []
            return [*user, *own, *self._old_loops]


def _stopped() -> NodeStopped:
    return NodeStopped("the node is stopping", executed="no")
