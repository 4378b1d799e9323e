"""The executor: every domain runs, answers, fails, streams and closes as the steps of a job say."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import pytest

from reachmesh.errors import BadRequest, Cancelled, ConfigError, NodeStopped, Overloaded
from reachmesh.execution.executor import Executor, resolve_domain
from reachmesh.execution.inline import InlineDomain, _usage
from tests.support import eventually
from tests.unit.execution.fake_jobs import LIMIT, Context, FakeJob, handler_of


class Base(BaseException):
    pass


def add(a: int, b: int = 1) -> int:
    return a + b


async def aadd(a: int, b: int = 1) -> int:
    await asyncio.sleep(0)
    return a + b


def fail(error: Any) -> None:
    raise error


async def afail(error: Any) -> None:
    raise error


def count(n: int) -> Iterator[int]:
    yield from range(n)


async def acount(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i


def here() -> threading.Thread:
    return threading.current_thread()


@pytest.fixture
def executor() -> Iterator[Executor]:
    """An executor with small pools; after the test it stops clean and leaves no thread behind."""
    before = set(threading.enumerate())
    executor = Executor(name="x", pool_threads=4, hard_limit=64)
    yield executor
    assert executor.stop(LIMIT)
    eventually(lambda: not [each for each in threading.enumerate() if each not in before and each.name.startswith("reachmesh")])


def run(executor: Executor, fn: Any, *args: Any, **options: Any) -> FakeJob:
    job = FakeJob(fn, *args, **options)
    executor.submit(job)
    job.wait()
    return job


@pytest.mark.parametrize(("fn", "domain"), [(add, "pool"), (add, "thread"), (add, "inline"), (aadd, "loop")])
def test_a_plain_answer_takes_the_steps_in_order(executor: Executor, fn: Callable[..., Any], domain: str) -> None:
    """begin, entered, left and finish come in order, in one thread, with the bound arguments; in every domain."""
    job = run(executor, fn, 2, b=3, domain=domain)
    assert job.value == 5
    assert job.steps == ["begin", "entered", "left", "finished"]
    assert len(set(job.threads)) == 1
    assert (job.threads[0] is threading.current_thread()) == (domain == "inline")


@pytest.mark.parametrize(
    "error", [ValueError("x"), SystemExit(0), KeyboardInterrupt(), Base(), StopIteration(1), GeneratorExit(), asyncio.CancelledError()]
)
@pytest.mark.parametrize(("fn", "domain"), [(fail, "pool"), (fail, "thread"), (fail, "inline"), (afail, "loop")])
def test_whatever_a_handler_raises_fails_its_job_only(
    executor: Executor, fn: Callable[..., Any], domain: str, error: BaseException
) -> None:
    """Any exception, SystemExit and bare BaseExceptions too, ends in fail(); the domain runs the next job."""
    job = run(executor, fn, error, domain=domain)
    changed = {StopIteration: RuntimeError, asyncio.CancelledError: Cancelled}.get(type(error))  # by coroutines, or by asyncio
    assert job.error is error or (changed is not None and isinstance(job.error, changed))
    assert job.steps == ["begin", "entered", "left", "failed"]
    assert run(executor, aadd if domain == "loop" else add, 1, domain=domain).value == 2


@pytest.mark.parametrize(
    ("fn", "domain"), [(add, "pool"), (add, "thread"), (add, "inline"), (aadd, "loop"), (count, "pool"), (acount, "loop")]
)
def test_arguments_that_do_not_fit_never_reach_the_handler(executor: Executor, fn: Callable[..., Any], domain: str) -> None:
    """What begin() raises ends in fail() without entering user code; begin() giving None ends the matter."""
    job = run(executor, fn, "x", domain=domain)
    assert isinstance(job.error, BadRequest)
    assert job.steps == ["begin", "failed"]
    refused = FakeJob(fn, 1, domain=domain)
    refused.refused = True
    executor.submit(refused)
    refused.wait()
    eventually(executor.idle)
    assert refused.steps == ["begin"]


@pytest.mark.parametrize(("fn", "domain"), [(count, "pool"), (count, "thread"), (count, "inline"), (acount, "loop")])
def test_a_stream_gives_its_items_and_ends(executor: Executor, fn: Callable[..., Any], domain: str) -> None:
    """A generator's items come in order, then finish(None), all in one thread that is not the submitter's."""
    job = run(executor, fn, 100, domain=domain)
    assert job.value is None
    assert job.items == list(range(100))
    assert job.steps == ["begin", "entered", "left", "finished"]
    assert len(set(job.threads)) == 1
    assert job.threads[0] is not threading.current_thread()


class Endless:
    """Generators that never end by themselves and note where they were closed."""

    def __init__(self) -> None:
        self.made = 0
        self.closed: list[Any] = []

    def sync(self) -> Iterator[int]:
        try:
            while True:
                self.made += 1
                yield self.made
        finally:
            self.closed.append(threading.current_thread())

    async def later(self) -> AsyncIterator[int]:
        task = asyncio.current_task()
        try:
            while True:
                self.made += 1
                yield self.made
        finally:
            await asyncio.sleep(0)
            self.closed.append(threading.current_thread() if asyncio.current_task() is task else "another task")


@pytest.mark.parametrize(("kind", "domain"), [("sync", "pool"), ("sync", "thread"), ("later", "loop")])
def test_a_stream_without_credit_waits_and_is_closed_where_it_ran(executor: Executor, kind: str, domain: str) -> None:
    """Not one item is made beyond the credit; when the reader leaves the generator is closed in its own thread or task, once."""
    source = Endless()
    job = FakeJob(getattr(source, kind), domain=domain, credit=3)
    executor.submit(job)
    assert job.waiting.wait(LIMIT)
    assert (job.items, source.made) == ([1, 2, 3], 3)
    job.grant()
    eventually(lambda: job.items == [1, 2, 3, 4] and job.waiting.is_set())
    job.cancel()
    assert isinstance(job.error, Cancelled)
    assert source.closed == [job.threads[0]]
    assert source.made == 4


def test_unread_streams_do_not_occupy_the_pool(executor: Executor) -> None:
    """With more unread streams than the pool has threads plain calls still run."""
    streams = [FakeJob(Endless().sync, credit=1) for _ in range(10)]
    for job in streams:
        executor.submit(job)
    for job in streams:
        assert job.waiting.wait(LIMIT)
    assert run(executor, add, 1).value == 2
    assert executor.load() == (10, 0)
    for job in streams:
        job.cancel()
        job.wait()


@pytest.mark.parametrize("domain", ["pool", "loop"])
def test_an_item_that_cannot_be_sent_closes_the_stream(executor: Executor, domain: str) -> None:
    """What emit() raises becomes the stream's error, after the generator has been closed."""
    source = Endless()
    job = FakeJob(source.sync if domain == "pool" else source.later, domain=domain)

    def refuse(item: Any) -> bool:
        raise ValueError("no")

    job.emit = refuse  # type: ignore[method-assign]
    executor.submit(job)
    assert isinstance(job.error, ValueError)
    assert len(source.closed) == 1


def test_a_thread_of_its_own_runs_one_at_a_time_in_order(executor: Executor) -> None:
    """Jobs of one "thread" capability share a thread, run in order and never together; another capability has its own."""
    handler, seen, busy = handler_of(lambda n: note(n)), [], threading.Lock()

    def note(n: int) -> threading.Thread:
        assert busy.acquire(blocking=False)
        seen.append(n)
        time.sleep(0.0005)
        busy.release()
        return threading.current_thread()

    jobs = [FakeJob(handler, n, domain="thread") for n in range(30)]
    for job in jobs:
        executor.submit(job)
    threads = {job.value for job in jobs}
    assert (len(threads), seen) == (1, list(range(30)))
    assert run(executor, here, domain="thread").value not in threads
    executor.release(handler)
    [thread] = threads
    eventually(lambda: not thread.is_alive())


@pytest.mark.parametrize(("seconds", "runs"), [(0.12, 1), (0.002, 3)])
def test_a_slow_inline_handler_moves_to_the_pool(executor: Executor, caplog: pytest.LogCaptureFixture, seconds: float, runs: int) -> None:
    """One run over 100 ms, or three over 1 ms, and an inline handler runs in the pool from then on, with one warning."""

    def slow() -> threading.Thread:
        time.sleep(seconds)
        return threading.current_thread()

    handler = handler_of(slow)
    with caplog.at_level(logging.WARNING):
        jobs = [run(executor, handler, domain="inline") for _ in range(runs + 2)]
    inline = [job.value is threading.current_thread() for job in jobs]
    assert inline[-2:] == [False, False]
    assert 1 <= inline.count(True) <= runs
    assert caplog.text.count("domain='pool'") == 1


@pytest.mark.parametrize(("quick_between", "stays"), [(30, True), (29, False)])
def test_rare_hiccups_do_not_move_an_inline_handler(monkeypatch: pytest.MonkeyPatch, quick_between: int, stays: bool) -> None:
    """Slow runs with thirty quick ones between them are forgiven; with fewer the third one is the last."""
    now = [0.0]
    monkeypatch.setattr("reachmesh.execution.inline.perf_counter", lambda: now[0])
    monkeypatch.setattr("reachmesh.execution.inline._usage", lambda: None)  # a system that does not tell
    domain, handler = InlineDomain(), handler_of(lambda seconds: now.__setitem__(0, now[0] + seconds))
    for seconds in ([0.002] + [0.0001] * quick_between) * 3:
        domain.run(FakeJob(handler, seconds), lambda job, coroutine: None)
    assert domain.allows(handler) is stays


@pytest.mark.skipif(_usage() is None, reason="this system does not tell what a thread has used")
def test_a_thread_that_was_put_aside_is_not_the_handlers_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a machine with too much to do runs take long in which the handler neither waits nor computes: it stays inline."""
    now = [0.0]
    monkeypatch.setattr("reachmesh.execution.inline.perf_counter", lambda: now[0])
    domain, handler = InlineDomain(), handler_of(lambda seconds: now.__setitem__(0, now[0] + seconds))
    for _ in range(20):
        domain.run(FakeJob(handler, 0.002), lambda job, coroutine: None)
    assert domain.allows(handler)


def test_a_plain_function_that_returns_a_coroutine_is_awaited(executor: Executor) -> None:
    """A lambda around an async function answers what the coroutine returns."""
    assert run(executor, lambda: aadd(1)).value == 2
    assert run(executor, lambda: aadd(2), domain="inline").value == 3


def test_a_plain_function_that_returns_a_generator_fails_clearly(executor: Executor) -> None:
    """A generator from a function that does not say so is a TypeError naming the remedy, not an unsendable answer."""
    assert "Iterator" in str(run(executor, lambda: (i for i in "ab")).error)

    def liar() -> Iterator[int]:
        return [1]  # type: ignore[return-value]

    async def aliar() -> AsyncIterator[int]:
        return [1]  # type: ignore[return-value]

    assert "returned list" in str(run(executor, liar).error)
    assert "returned list" in str(run(executor, aliar, domain="loop").error)


def test_an_answer_that_cannot_be_handed_over_is_a_failure(executor: Executor, caplog: pytest.LogCaptureFixture) -> None:
    """When finish() raises the job fails with what it raised, and the thread lives on."""
    job = FakeJob(add, 1)

    def refuse(value: Any) -> None:
        raise ValueError("unsendable")

    job.finish = refuse  # type: ignore[method-assign]
    executor.submit(job)
    assert str(job.error) == "unsendable"
    assert run(executor, add, 1).value == 2


def test_long_handlers_leave_the_short_pool(executor: Executor) -> None:
    """Declared long ones run in threads of their own pool, so that any number of them leaves short calls running."""
    handler, gate = handler_of(lambda: gate.wait(LIMIT)), threading.Event()
    handler.profile = "long"
    jobs = [FakeJob(handler) for _ in range(6)]
    for job in jobs:
        executor.submit(job)
    eventually(lambda: executor.load() == (4, 2))
    assert run(executor, add, 1).value == 2
    gate.set()
    for job in jobs:
        assert job.value is True
        assert "-long-" in job.threads[0].name


def test_a_measured_mean_moves_a_handler_to_another_pool(executor: Executor, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a declared profile the mean of the runs decides."""
    monkeypatch.setattr("reachmesh.execution.executor.MEDIUM_SECONDS", 0.01)
    handler = handler_of(lambda: time.sleep(0.02))
    first, second = run(executor, handler), run(executor, handler)
    assert ("-short-" in first.threads[0].name, "-medium-" in second.threads[0].name) == (True, True)


def test_stop_fails_what_is_queued_and_waits_for_what_runs() -> None:
    """stop() gives running jobs their time, fails queued and later ones with NodeStopped, and can be called again."""
    executor, gate = Executor(name="s", pool_threads=1), threading.Event()
    running, queued = FakeJob(lambda: gate.wait(LIMIT)), FakeJob(add, 1)
    for job in (running, queued):
        executor.submit(job)
    eventually(lambda: executor.load() == (1, 1))
    assert executor.stop(0) is False
    assert isinstance(queued.error, NodeStopped)
    assert queued.steps == ["failed"]
    gate.set()
    assert running.value is True
    assert executor.stop(LIMIT) is True
    for fn, domain in [(add, "pool"), (add, "thread"), (add, "inline"), (aadd, "loop"), (count, "pool")]:
        assert isinstance(run(executor, fn, 1, domain=domain).error, NodeStopped)


def test_stop_from_inside_a_handler_does_not_wait_for_itself() -> None:
    """A handler may stop the executor it runs in; its own answer still comes."""
    executor = Executor(name="s")
    assert run(executor, lambda: executor.stop(LIMIT)).value is True


def test_domains_are_checked_when_declared() -> None:
    """The natural domain follows from the function; an impossible one is a ConfigError with the remedy."""

    def with_context(ctx: Context) -> None: ...

    handlers: list[Callable[..., Any]] = [add, count, aadd, acount]
    assert [resolve_domain(handler_of(fn), None) for fn in handlers] == ["pool", "pool", "loop", "loop"]
    assert resolve_domain(handler_of(add), "inline") == "inline"
    wrong: list[tuple[Callable[..., Any], str]] = [
        (add, "nowhere"),
        (add, "loop"),
        (aadd, "pool"),
        (acount, "thread"),
        (aadd, "process"),
        (with_context, "process"),
    ]
    for fn, domain in wrong:
        with pytest.raises(ConfigError) as caught:
            resolve_domain(handler_of(fn), domain)
        assert caught.value.hint


def test_a_stream_without_a_thread_is_refused_and_does_not_wait() -> None:
    """Where as many plain generators run as may, waiting readers included, one more is Overloaded and surely did not start; later one may."""
    executor = Executor(name="few", hard_limit=3)
    running = [FakeJob(count, 5, credit=1) for _ in range(3)]
    for job in running:
        executor.submit(job)
        assert job.waiting.wait(LIMIT)
    refused = run(executor, count, 5)
    assert isinstance(refused.error, Overloaded)
    assert (refused.error.executed, refused.steps) == ("no", ["failed"])
    for job in running:
        job.cancel()
        job.wait()
    eventually(executor.idle)
    assert run(executor, count, 5).items == [0, 1, 2, 3, 4]
    assert executor.stop(LIMIT)
