"""The future of a call keeps the promises of `concurrent.futures` and `asyncio` without their cost."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
from collections.abc import Iterator

import pytest

from reachmesh import Cancelled, NoProvider
from reachmesh.node.callbacks import Callbacks
from reachmesh.node.future import CallFuture


@pytest.fixture
def callbacks() -> Iterator[Callbacks]:
    made = Callbacks("test")
    yield made
    made.close()


def test_it_ends_once(callbacks: Callbacks) -> None:
    """The first end counts, whoever brings it; later ones are refused or ignored."""
    future = CallFuture(callbacks)
    future.succeeded(1)
    future.failed(NoProvider("late"))
    assert not future.cancel()
    assert future.result(0) == 1
    with pytest.raises(concurrent.futures.InvalidStateError):
        future.set_result(2)


def test_a_race_of_ends_has_one_winner(callbacks: Callbacks) -> None:
    """Of many threads that settle one future at the same moment exactly one wins, and everybody sees its outcome."""
    for _ in range(200):
        future, start = CallFuture(callbacks), threading.Barrier(3)
        won: list[int] = []

        def settle(number: int, future: CallFuture = future, start: threading.Barrier = start, won: list[int] = won) -> None:
            start.wait()
            if future._settle("FINISHED", number, None):
                won.append(number)

        threads = [threading.Thread(target=settle, args=(number,)) for number in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert won == [future.result(0)]


def test_a_waiting_thread_is_woken(callbacks: Callbacks) -> None:
    """`result()` in one thread returns when another settles, however the two meet."""
    for _ in range(200):
        future = CallFuture(callbacks)
        got: list[object] = []
        thread = threading.Thread(target=lambda future=future, got=got: got.append(future.result(10)))
        thread.start()
        future.succeeded("x")
        thread.join(10)
        assert got == ["x"]


def test_the_standard_helpers_work(callbacks: Callbacks) -> None:
    """`concurrent.futures.wait` and `as_completed` take it, cancelled ones too."""
    done, failed, cancelled = (CallFuture(callbacks) for _ in range(3))
    waiting = concurrent.futures.as_completed([done, failed, cancelled], timeout=10)
    threading.Timer(0.05, lambda: (done.succeeded(1), failed.failed(NoProvider("no")), cancelled.cancel())).start()  # type: ignore[func-returns-value]
    assert set(waiting) == {done, failed, cancelled}
    assert not concurrent.futures.wait([done, failed, cancelled], timeout=10).not_done
    assert isinstance(failed.exception(0), NoProvider)
    with pytest.raises(Cancelled):
        cancelled.result(0)
    assert cancelled.cancelled()


def test_a_timeout_leaves_it_open(callbacks: Callbacks) -> None:
    """`result(timeout)` gives up in time and the call goes on."""
    future = CallFuture(callbacks)
    with pytest.raises(TimeoutError):
        future.result(0.02)
    with pytest.raises(TimeoutError):
        future.exception(0)
    assert not future.done()
    future.succeeded(2)
    assert future.result(0) == 2


def test_callbacks_run_once_in_their_own_thread(callbacks: Callbacks) -> None:
    """A done-callback runs once, away from the thread that settles; one added afterwards runs too."""
    future, seen, both = CallFuture(callbacks), [], threading.Semaphore(0)

    def note(done: object) -> None:
        seen.append((done, threading.current_thread()))
        both.release()

    future.add_done_callback(note)
    future.succeeded(3)
    assert both.acquire(timeout=10)
    future.add_done_callback(note)
    assert both.acquire(timeout=10)
    assert [done for done, _ in seen] == [future, future]
    assert seen[0][1] is not threading.current_thread()


def test_awaiting_it(callbacks: Callbacks) -> None:
    """It can be awaited by several tasks, settled from another thread; cancelling one of them cancels the call."""

    async def main() -> None:
        future = CallFuture(callbacks)

        async def wait() -> object:
            return await future

        tasks = [asyncio.create_task(wait()) for _ in range(3)]
        await asyncio.sleep(0)
        threading.Thread(target=future.succeeded, args=(4,)).start()
        assert await asyncio.gather(*tasks) == [4, 4, 4]
        lost = CallFuture(callbacks)

        async def wait_lost() -> object:
            return await lost

        task = asyncio.create_task(wait_lost())
        await asyncio.sleep(0)
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert lost.cancelled()

    asyncio.run(main())


def test_what_asyncio_takes_is_what_the_documentation_says(callbacks: Callbacks) -> None:
    """`gather`, `wait_for`, `shield` and `ensure_future` take a future of a call; `wait` and a task group take the task made of it."""

    async def main() -> None:
        def later(value: int) -> CallFuture:
            future = CallFuture(callbacks)
            threading.Timer(0.01, future.succeeded, (value,)).start()
            return future

        async def awaited(future: CallFuture) -> int:
            return int(await future)

        first, second = await asyncio.gather(later(1), later(2))
        assert (first, second) == (1, 2)
        assert await asyncio.wait_for(later(3), 5) == 3
        assert await asyncio.shield(later(4)) == 4
        done, _ = await asyncio.wait([asyncio.ensure_future(later(5))], timeout=5)
        assert [each.result() for each in done] == [5]
        async with asyncio.TaskGroup() as group:
            task = group.create_task(awaited(later(6)))
        assert task.result() == 6

    asyncio.run(main())
