"""Threads that run jobs: elastic, last idle first, aware of the ones that merely wait.

Place in the data path: the executor queues a job here; an idle thread is woken through a lock of its own (the cheapest
hand-over Python has), the one that went idle last first, so that its caches are warm and the others may end. One thread at a
time is on its way, and calls the next when it is there and finds more: a crowd of short jobs is then run by the few threads that
come, instead of waking one thread each that fights the others for the interpreter.

**Managed blocking.** A handler that waits for a nested call tells so (`blocking`), and while it waits its thread does
not count against `limit`: the pool starts another for what is queued. A full pool whose handlers call each other thus
never deadlocks. `hard_limit` bounds the threads in all. Threads over `limit` end when their job does.

**Priorities.** Three queues, strict order, but every 16th pick looks at them in another order, so that lower classes get
about 6 % under a flood of higher ones.

Invariants: a job is queued only while `limit` threads run, `hard_limit` threads are there, or one is on its way; each job given to
`put` is run once, failed once, or given back by `close`.
"""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections import deque
from collections.abc import Callable

from reachmesh.errors import Overloaded
from reachmesh.execution.job import Job
from reachmesh.execution.running import failed

log = logging.getLogger("reachmesh.execution")

HIGH_BELOW = 51
"""Priorities 0-50 are high."""

LOW_FROM = 151
"""Priorities 151-255 are low."""

_FAIR_EVERY = 16

_local = threading.local()


class PriorityQueue:
    """Jobs in three classes; not locked."""

    __slots__ = ("_high", "_low", "_normal", "_picks")

    def __init__(self) -> None:
        self._high: deque[Job] = deque()
        self._normal: deque[Job] = deque()
        self._low: deque[Job] = deque()
        self._picks = 0

    def __len__(self) -> int:
        return len(self._high) + len(self._normal) + len(self._low)

    def push(self, job: Job) -> None:
        """Queue a job behind those of its class."""
        priority = job.priority
        (self._high if priority < HIGH_BELOW else self._normal if priority < LOW_FROM else self._low).append(job)

    def pop(self) -> Job | None:
        """The next job to run, or None."""
        high, normal, low = self._high, self._normal, self._low
        if not (normal or low):
            return high.popleft() if high else None
        self._picks += 1
        if self._picks % _FAIR_EVERY:
            order = (high, normal, low)
        elif self._picks % (2 * _FAIR_EVERY):
            order = (normal, low, high)
        else:
            order = (low, normal, high)
        for queue in order:
            if queue:
                return queue.popleft()
        return None

    def take_all(self) -> list[Job]:
        """Everything, in order of priority; the queue is empty afterwards."""
        jobs = [*self._high, *self._normal, *self._low]
        self._high.clear()
        self._normal.clear()
        self._low.clear()
        return jobs


class ThreadPool:
    """Runs jobs in threads.

    Args:
        name: threads are called `reachmesh-<name>-<n>`.
        run: runs one job; must not raise.
        limit: most threads that run (and do not wait in `blocking`) at once, >= 1.
        hard_limit: most threads at all, those that wait included.
        idle_seconds: how long an unused thread stays; None = until `close`. Short: threads (60-100 us each) are made again
            after every pause; long: memory of threads a burst has left behind.
    """

    def __init__(self, name: str, run: Callable[[Job], None], limit: int, hard_limit: int, idle_seconds: float | None = 10.0) -> None:
        self.name = name
        self.limit = limit
        self.hard_limit = max(limit, hard_limit)
        self._run = run
        self._idle_seconds = -1.0 if idle_seconds is None else idle_seconds
        self._lock = threading.Lock()
        self._queue = PriorityQueue()
        self._idle: list[_Worker] = []
        self._threads: set[_Worker] = set()
        self._blocked = 0
        self._coming = False
        self._closed = False
        self._numbers = itertools.count(1)

    def put(self, job: Job) -> bool:
        """Run the job as soon as may be; never blocks. False = the pool is closed."""
        with self._lock:
            if self._closed:
                return False
            self._queue.push(job)
            worker = self._call_one()
        if worker is not None:
            self._start(worker)
        return True

    def load(self) -> tuple[int, int]:
        """Jobs that run, and jobs that wait."""
        with self._lock:
            return len(self._threads) - len(self._idle), len(self._queue)

    @property
    def full(self) -> bool:
        """Whether one more job would have to wait for one that runs."""
        with self._lock:
            return len(self._threads) - len(self._idle) + len(self._queue) >= self.hard_limit

    def close(self) -> list[Job]:
        """Take no more jobs, end the idle threads; running jobs go on. Gives back the queued jobs."""
        with self._lock:
            self._closed = True
            jobs = self._queue.take_all()
            idle, self._idle = self._idle, []
            for worker in idle:
                worker.wake.release()
        return jobs

    def join(self, deadline: float) -> bool:
        """Wait until all threads but the calling one have ended or `deadline` (monotonic) is there; True = all ended."""
        mine = threading.current_thread()
        with self._lock:
            threads = [worker for worker in self._threads if worker is not mine]
        for worker in threads:
            worker.join(max(0.0, deadline - time.monotonic()))
        return not any(worker.is_alive() for worker in threads)

    def _call_one(self) -> _Worker | None:
        """See that a thread comes for what is queued: wake one, or give a new one to start. Under the lock."""
        idle, threads = self._idle, len(self._threads)
        if self._coming or not self._queue or threads - len(idle) - self._blocked >= self.limit:
            return None
        if idle:
            self._coming = True
            idle.pop().wake.release()
        elif threads < self.hard_limit:
            self._coming = True
            worker = _Worker(self, f"reachmesh-{self.name}-{next(self._numbers)}")
            self._threads.add(worker)
            return worker
        return None

    def _start(self, worker: _Worker) -> None:
        """Start a thread (outside the lock: it takes up to 100 us). When the system refuses, what is queued waits for another."""
        try:
            worker.start()
        except RuntimeError:
            with self._lock:
                self._coming = False
                self._threads.discard(worker)
                others = len(self._threads)
                jobs = [] if others else self._queue.take_all()
                if self._idle:
                    self._call_one()
            log.warning("the system gives no more threads; %s goes on with %d", self.name, others)
            for job in jobs:
                failed(job, Overloaded("the system gives no more threads", executed="no"))

    def _arrive(self) -> Job | None:
        """The thread that was called is there: what it runs, unless others have run it meanwhile."""
        with self._lock:
            self._coming = False
            job = self._queue.pop()
            following = self._call_one()
        if following is not None:
            self._start(following)
        return job

    def _next(self, worker: _Worker) -> Job | None:
        """What a thread that is done runs next; None = it is among the idle now, or is to end (`worker.ends`)."""
        with self._lock:
            if len(self._threads) - len(self._idle) - self._blocked <= self.limit:
                job = self._queue.pop()
                if job is not None:
                    return job
            if self._closed:
                self._threads.discard(worker)
                worker.ends = True
            else:
                self._idle.append(worker)
            return None

    def _leave_idle(self, worker: _Worker) -> bool:
        """End a thread that has been idle for long; False = it has just been given a job, or the pool has woken it."""
        with self._lock:
            if worker not in self._idle:
                return False
            self._idle.remove(worker)
            self._threads.discard(worker)
            return True

    def _wait_begins(self) -> None:
        """A thread of this pool is about to wait for another call; somebody else may run what is queued."""
        with self._lock:
            self._blocked += 1
            worker = self._call_one()
        if worker is not None:
            self._start(worker)

    def _wait_ends(self) -> None:
        with self._lock:
            self._blocked -= 1


class _Worker(threading.Thread):
    """One thread of a pool, made when something is queued."""

    def __init__(self, pool: ThreadPool, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self.pool = pool
        self.ends = False
        self.wake = threading.Lock()
        self.wake.acquire()

    def run(self) -> None:
        pool = self.pool
        _local.pool = pool
        run, following, arrive = pool._run, pool._next, pool._arrive
        wait, seconds = self.wake.acquire, pool._idle_seconds
        job = arrive()
        while True:
            if job is not None:
                run(job)
            job = following(self)
            if job is not None:
                continue
            if self.ends:
                return
            if not wait(True, seconds):
                if pool._leave_idle(self):
                    return
                wait()
            job = arrive()


class blocking:
    """Around a wait for another call: the pool of the calling thread, if it has one, may use another thread meanwhile."""

    __slots__ = ("_pool",)

    def __enter__(self) -> None:
        pool: ThreadPool | None = getattr(_local, "pool", None)
        self._pool = pool
        if pool is not None:
            _local.pool = None
            pool._wait_begins()

    def __exit__(self, *exc: object) -> None:
        pool = self._pool
        if pool is not None:
            _local.pool = pool
            pool._wait_ends()
