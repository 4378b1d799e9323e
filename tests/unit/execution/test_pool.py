"""The thread pool: reuse, limits, priorities, managed blocking, closing."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator

import pytest

from reachmesh.errors import Overloaded
from reachmesh.execution.job import Job
from reachmesh.execution.pool import PriorityQueue, ThreadPool, blocking
from reachmesh.execution.running import run_plain
from tests.support import eventually
from tests.unit.execution.fake_jobs import LIMIT, FakeJob


def run(job: Job) -> None:
    run_plain(job, lambda job, coroutine: coroutine.close())


class Gate:
    """Handlers that wait here count in `running` until it is opened."""

    def __init__(self) -> None:
        self.running = 0
        self._lock = threading.Lock()
        self._open = threading.Event()

    def wait(self) -> None:
        with self._lock:
            self.running += 1
        assert self._open.wait(LIMIT)
        with self._lock:
            self.running -= 1

    def open(self) -> None:
        self._open.set()


@pytest.fixture
def pools() -> Iterator[list[ThreadPool]]:
    """Pools to close after the test, whose threads must end."""
    made: list[ThreadPool] = []
    yield made
    for pool in made:
        pool.close()
        assert pool.join(time.monotonic() + LIMIT)


def small(pools: list[ThreadPool], limit: int = 2, hard_limit: int = 50, idle_seconds: float | None = 10.0) -> ThreadPool:
    pools.append(ThreadPool("test", run, limit, hard_limit, idle_seconds))
    return pools[-1]


def test_the_thread_that_went_idle_last_is_used_first(pools: list[ThreadPool]) -> None:
    """Jobs one after the other all run in one thread, whatever the limit."""
    pool = small(pools, limit=8)
    names = set()
    for _ in range(50):
        job = FakeJob(lambda: threading.current_thread().name)
        assert pool.put(job)
        names.add(job.value)
        eventually(lambda: pool.load() == (0, 0))
    assert names == {"reachmesh-test-1"}


def test_no_more_than_the_limit_run_at_once(pools: list[ThreadPool]) -> None:
    """With a limit of 2 five waiting jobs are 2 running and 3 queued, and all of them finish."""
    pool, gate = small(pools), Gate()
    jobs = [FakeJob(gate.wait) for _ in range(5)]
    for job in jobs:
        pool.put(job)
    eventually(lambda: gate.running == 2)
    assert pool.load() == (2, 3)
    gate.open()
    for job in jobs:
        assert job.value is None
    eventually(lambda: pool.load() == (0, 0))


def test_idle_threads_end(pools: list[ThreadPool]) -> None:
    """A thread without work ends after its idle time, and the next job gets a new one."""
    pool = small(pools, idle_seconds=0.02)
    first, second = FakeJob(threading.current_thread), FakeJob(threading.current_thread)
    pool.put(first)
    eventually(lambda: not first.value.is_alive())
    pool.put(second)
    assert second.value is not first.value


def test_jobs_at_the_edge_of_the_idle_time_are_not_lost(pools: list[ThreadPool]) -> None:
    """With an idle time as short as the pauses between jobs each job still runs once."""
    pool = small(pools, idle_seconds=0.0005)
    for pause in range(300):
        job = FakeJob(lambda: 1)
        pool.put(job)
        assert job.value == 1
        threading.Event().wait(0.0001 * (pause % 10))


def test_priorities_are_served_in_order() -> None:
    """High (0-50) before normal (51-150) before low (151-255); in order of arrival within a class."""
    queue = PriorityQueue()
    for priority in (151, 51, 50, 255, 150, 0):
        queue.push(FakeJob(print, priority=priority))
    order = [job.priority for _ in range(6) if (job := queue.pop()) is not None]
    assert order == [50, 0, 51, 150, 151, 255]
    assert queue.pop() is None


def test_lower_classes_get_a_small_share_under_a_flood() -> None:
    """Among 320 picks under an endless flood of high jobs, normal and low ones get 10 each."""
    queue = PriorityQueue()
    for _ in range(400):
        for priority in (0, 100, 200):
            queue.push(FakeJob(print, priority=priority))
    picked = [job.priority for _ in range(320) if (job := queue.pop()) is not None]
    assert (picked.count(0), picked.count(100), picked.count(200)) == (300, 10, 10)


def test_a_full_pool_that_calls_itself_does_not_deadlock(pools: list[ThreadPool]) -> None:
    """Handlers in a pool of 2 that call 10 deep into the same pool all finish, by 8 callers at once."""
    pool = small(pools, limit=2, hard_limit=200)

    def nested(depth: int) -> int:
        if depth == 0:
            return 0
        job = FakeJob(nested, depth - 1)
        pool.put(job)
        with blocking():
            job.wait()
        return int(job.value) + 1

    jobs = [FakeJob(nested, 10) for _ in range(8)]
    for job in jobs:
        pool.put(job)
    assert [job.value for job in jobs] == [10] * 8
    eventually(lambda: pool.load() == (0, 0))


def test_after_blocking_the_limit_holds_again(pools: list[ThreadPool]) -> None:
    """Threads added while others waited do not raise the number that run at once later."""
    pool, waiting, gate = small(pools, limit=2), Gate(), Gate()

    def wait() -> None:
        with blocking():
            waiting.wait()

    blocked = [FakeJob(wait) for _ in range(6)]
    for job in blocked:
        pool.put(job)
    eventually(lambda: waiting.running == 6)
    waiting.open()
    for job in blocked:
        job.wait()
    jobs = [FakeJob(gate.wait) for _ in range(6)]
    for job in jobs:
        pool.put(job)
    eventually(lambda: gate.running == 2 and pool.load() == (2, 4))
    gate.open()
    for job in jobs:
        job.wait()


def test_the_hard_limit_holds_for_waiting_threads_too(pools: list[ThreadPool]) -> None:
    """Threads that wait are bounded by the hard limit; what is queued then runs when one of them is done."""
    pool, gate = small(pools, limit=1, hard_limit=3), Gate()

    def wait() -> None:
        with blocking():
            gate.wait()

    jobs = [FakeJob(wait) for _ in range(5)]
    for job in jobs:
        pool.put(job)
    eventually(lambda: gate.running == 3)
    assert pool.load() == (3, 2)
    gate.open()
    for job in jobs:
        job.wait()


def test_blocking_elsewhere_does_nothing() -> None:
    """blocking() in a thread of no pool is allowed and nests."""
    with blocking(), blocking():
        pass


def test_closing_gives_the_queue_back_and_ends_the_threads() -> None:
    """close() returns the queued jobs, refuses new ones, lets running ones finish; then no thread is left."""
    pool, gate = ThreadPool("closing", run, 1, 1), Gate()
    running, queued = FakeJob(gate.wait), FakeJob(gate.wait)
    pool.put(running)
    pool.put(queued)
    eventually(lambda: gate.running == 1)
    assert pool.close() == [queued]
    assert pool.put(FakeJob(gate.wait)) is False
    assert pool.join(time.monotonic()) is False
    gate.open()
    assert running.value is None
    assert pool.join(time.monotonic() + LIMIT)
    eventually(lambda: not any("closing" in thread.name for thread in threading.enumerate()))


def test_a_system_out_of_threads_fails_the_job(monkeypatch: pytest.MonkeyPatch, pools: list[ThreadPool]) -> None:
    """When no thread can be started and none is there the job fails as Overloaded; with one there it waits for that."""
    pool, gate, start = small(pools), Gate(), threading.Thread.start

    def refuse(thread: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    job = FakeJob(gate.wait)
    pool.put(job)
    assert isinstance(job.error, Overloaded)
    monkeypatch.setattr(threading.Thread, "start", start)
    first, second = FakeJob(gate.wait), FakeJob(gate.wait)
    pool.put(first)
    monkeypatch.setattr(threading.Thread, "start", refuse)
    pool.put(second)
    gate.open()
    assert (first.value, second.value) == (None, None)


def test_a_crowd_of_short_jobs_is_run_by_few_threads(pools: list[ThreadPool]) -> None:
    """A thousand jobs that take no time, put one after the other, do not wake one thread each."""
    pool, seen = small(pools, limit=32), set()
    jobs = [FakeJob(lambda: seen.add(threading.current_thread().name)) for _ in range(1000)]
    for job in jobs:
        pool.put(job)
    for job in jobs:
        assert job.value is None
    assert len(seen) <= 8


def test_jobs_that_wait_get_a_thread_each(pools: list[ThreadPool]) -> None:
    """Threads call one another until every queued job runs, though only one is on its way at a time."""
    pool, gate = small(pools, limit=32), Gate()
    jobs = [FakeJob(gate.wait) for _ in range(32)]
    for job in jobs:
        pool.put(job)
    eventually(lambda: gate.running == 32)
    gate.open()
    for job in jobs:
        assert job.value is None
