"""What `all()` gives: the answers of every provider, in the order they come, for threads and for loops."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import AsyncIterator, Callable, Iterator
from functools import partial
from typing import Any

from reachmesh.errors import BlockingCallInLoop, ReachError
from reachmesh.node.future import CallFuture
from reachmesh.node.wakers import call_soon


class Answer:
    """One provider's part of `all()`: `value`, or `error` when it failed."""

    __slots__ = ("error", "instance_id", "value")

    def __init__(self, instance_id: str, value: Any, error: ReachError | None) -> None:
        self.instance_id, self.value, self.error = instance_id, value, error

    def __repr__(self) -> str:
        outcome = f"value={self.value!r}" if self.error is None else f"error={self.error!r}"
        return f"Answer(instance_id={self.instance_id!r}, {outcome})"


class Answers:
    """Iterator, sync and async, over the answers of `all()`, in the order they come."""

    def __init__(self, count: int, arrived: queue.SimpleQueue[tuple[str, CallFuture]]) -> None:
        self._left = count
        self._arrived = arrived
        self._on_arrival: Callable[[], None] | None = None

    def _put(self, instance_id: str, future: CallFuture) -> None:
        self._arrived.put((instance_id, future))
        if (wake := self._on_arrival) is not None:
            wake()

    def __iter__(self) -> Iterator[Answer]:
        return self

    def __aiter__(self) -> AsyncIterator[Answer]:
        return self

    def __next__(self) -> Answer:
        if self._left <= 0:
            raise StopIteration
        if asyncio._get_running_loop() is not None and self._arrived.empty():
            raise BlockingCallInLoop("waiting for answers would block this thread's event loop", hint="use `async for`")
        return self._take(*self._arrived.get())

    async def __anext__(self) -> Answer:
        if self._left <= 0:
            raise StopAsyncIteration
        loop = asyncio.get_running_loop()
        while True:
            event = asyncio.Event()
            self._on_arrival = partial(call_soon, loop, event.set)
            try:
                arrived = self._arrived.get_nowait()
            except queue.Empty:
                await event.wait()
                continue
            return self._take(*arrived)

    def _take(self, instance_id: str, future: CallFuture) -> Answer:
        self._left -= 1
        error = future.exception(0)
        if error is None:
            return Answer(instance_id, future.result(0), None)
        if not isinstance(error, ReachError):
            raise error
        return Answer(instance_id, None, error)
