"""Async handlers: on the user's loop while it runs, else on our own; cancellation and the ends of loops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator

import pytest

from reachmesh.errors import Cancelled
from reachmesh.execution.executor import Executor
from tests.support import eventually
from tests.unit.execution.fake_jobs import LIMIT, FakeJob


async def loop_here() -> tuple[asyncio.AbstractEventLoop, threading.Thread]:
    return asyncio.get_running_loop(), threading.current_thread()


class Sleeper:
    """A handler that sleeps until it is cancelled, and notes that."""

    def __init__(self) -> None:
        self.started = threading.Event()
        self.cancelled = threading.Event()

    async def sleep(self) -> None:
        self.started.set()
        try:
            await asyncio.sleep(LIMIT)
        except asyncio.CancelledError:
            self.cancelled.set()
            raise

    async def stream(self) -> AsyncIterator[int]:
        yield 1
        await self.sleep()


@pytest.fixture
def executor() -> Iterator[Executor]:
    executor = Executor(name="l")
    yield executor
    assert executor.stop(LIMIT)


async def ended(job: FakeJob) -> None:
    """Wait for a job's end without blocking the loop."""
    await asyncio.to_thread(job.wait)


def test_async_handlers_share_our_own_loop(executor: Executor) -> None:
    """Without a user's loop all async handlers run side by side in one thread of ours."""
    meet = asyncio.Barrier(100)

    async def together() -> str:
        async with asyncio.timeout(LIMIT):
            await meet.wait()
        return threading.current_thread().name

    jobs = [FakeJob(together, domain="loop") for _ in range(100)]
    for job in jobs:
        executor.submit(job)
    assert {job.value for job in jobs} == {"reachmesh-l-loop"}


def test_async_handlers_run_on_the_users_loop_while_it_runs(executor: Executor) -> None:
    """After use_loop() they run there, submitted from the loop or from any thread; afterwards on ours again."""

    async def main() -> None:
        loop = asyncio.get_running_loop()
        executor.use_loop(loop)
        jobs = [FakeJob(loop_here, domain="loop") for _ in range(3)]
        executor.submit(jobs[0])
        await asyncio.to_thread(executor.submit, jobs[1])
        executor.submit(jobs[2])
        for job in jobs:
            await ended(job)
            assert job.value == (loop, threading.current_thread())
        executor.use_loop(None)

    asyncio.run(main())
    job = FakeJob(loop_here, domain="loop")
    executor.submit(job)
    assert job.value[1].name == "reachmesh-l-loop"


def test_a_users_loop_that_has_ended_is_not_used(executor: Executor) -> None:
    """A loop that is closed without a word is noticed; new async calls go to our own."""

    async def main() -> None:
        executor.use_loop(asyncio.get_running_loop())

    asyncio.run(main())
    job = FakeJob(loop_here, domain="loop")
    executor.submit(job)
    assert job.value[1].name == "reachmesh-l-loop"


def test_the_end_of_the_users_loop_ends_its_handlers(executor: Executor) -> None:
    """asyncio.run() cancels our tasks with its own: each job fails, none is left hanging."""
    sleeper = Sleeper()
    job, late = FakeJob(sleeper.sleep, domain="loop"), FakeJob(sleeper.sleep, domain="loop")

    async def main() -> None:
        executor.use_loop(asyncio.get_running_loop())
        executor.submit(job)
        assert await asyncio.to_thread(sleeper.started.wait, LIMIT)
        executor.submit(late)

    asyncio.run(main())
    assert isinstance(job.error, asyncio.CancelledError)
    assert isinstance(late.error, (asyncio.CancelledError, Cancelled))
    assert executor.idle()


def test_a_task_cancelled_before_its_first_step_ends_its_job(executor: Executor) -> None:
    """Submitted and cancelled within one turn of the loop, the job fails with executed=no and its handler never starts."""
    sleeper = Sleeper()
    job = FakeJob(sleeper.sleep, domain="loop")

    async def main() -> None:
        executor.use_loop(asyncio.get_running_loop())
        executor.submit(job)
        executor.cancel(job)
        await ended(job)
        executor.use_loop(None)

    asyncio.run(main())
    assert isinstance(job.error, Cancelled)
    assert job.error.executed == "no"
    assert not sleeper.started.is_set()


@pytest.mark.parametrize("kind", ["sleep", "stream"])
def test_cancel_reaches_the_task(executor: Executor, kind: str) -> None:
    """cancel() from another thread raises CancelledError inside the handler, also inside an async generator."""
    sleeper = Sleeper()
    job = FakeJob(getattr(sleeper, kind), domain="loop")
    executor.submit(job)
    assert sleeper.started.wait(LIMIT)
    executor.cancel(job)
    assert isinstance(job.error, asyncio.CancelledError)
    assert sleeper.cancelled.is_set()
    executor.cancel(job)
    assert len(job.outcomes) == 1


def test_many_cancels_leave_nothing_running(executor: Executor) -> None:
    """Two thousand jobs cancelled at any moment each end once, and none runs on."""
    sleeper = Sleeper()
    jobs = [FakeJob(sleeper.sleep, domain="loop") for _ in range(2000)]
    for number, job in enumerate(jobs):
        executor.submit(job)
        if number % 3:
            executor.cancel(jobs[number // 2])
    for job in jobs:
        job.cancelled = True
        executor.cancel(job)
    for job in jobs:
        job.wait()
    eventually(executor.idle)
    assert all(len(job.outcomes) <= 1 for job in jobs)


def test_own_tasks_of_a_handler_cannot_end_our_loop(executor: Executor, caplog: pytest.LogCaptureFixture) -> None:
    """A task that a handler started and that raises SystemExit does not take the loop down."""

    async def quit_later() -> None:
        raise SystemExit(3)

    async def start_it() -> asyncio.Task[None]:
        return asyncio.get_running_loop().create_task(quit_later())

    first, second = FakeJob(start_it, domain="loop"), FakeJob(loop_here, domain="loop")
    executor.submit(first)
    task = first.value
    eventually(task.done)
    assert isinstance(task.exception(), SystemExit)
    executor.submit(second)
    assert second.value[1].name == "reachmesh-l-loop"


def test_stop_cancels_what_still_runs_on_the_loop() -> None:
    """stop() gives async handlers their time, then cancels them; the loop's thread ends."""
    executor, sleeper = Executor(name="l"), Sleeper()
    job = FakeJob(sleeper.sleep, domain="loop")
    executor.submit(job)
    assert sleeper.started.wait(LIMIT)
    [thread] = [each for each in threading.enumerate() if each.name == "reachmesh-l-loop"]
    assert executor.stop(0.05) is False
    assert isinstance(job.error, asyncio.CancelledError)
    eventually(lambda: not thread.is_alive())


def test_a_generator_that_never_waits_leaves_the_loop_to_others(executor: Executor) -> None:
    """Items without end and without an await, read as fast as they come: a call on the same loop is answered meanwhile."""

    async def pour() -> AsyncIterator[int]:
        while True:
            yield 1

    async def ping() -> str:
        return "pong"

    bulk, call = FakeJob(pour, domain="loop"), FakeJob(ping, domain="loop")
    executor.submit(bulk)
    eventually(lambda: bool(bulk.items))
    executor.submit(call)
    assert call.value == "pong"
    assert not bulk.over
    bulk.cancel()
    bulk.wait()
