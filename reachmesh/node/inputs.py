"""Items that arrive while somebody reads them: the receiving end of a stream, for threads and for event loops alike."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from typing import Any

from reachmesh.calls.flows import WINDOW_BYTES, WINDOW_ITEMS, Batch
from reachmesh.errors import ReachError, UsageError
from reachmesh.execution.pool import blocking
from reachmesh.node.wakers import Waker
from reachmesh.wire.values import load

_END = object()

_WORTH_ITEMS, _WORTH_BYTES = WINDOW_ITEMS // 2, WINDOW_BYTES // 2
"""Credit that is given back while more is here to be read; the engine would not pass on less."""


class Input:
    """A queue of received batches, read item by item by one reader.

    Args:
        consumed: told how many items and credit bytes were taken, so that the sender gets new credit.
        convert: applied to each item.

    `ready` gives the items that are here and decoded; whoever finds it empty asks `take` or `atake`, which also give back the credit
    of what was read. Writers (`put`, `end`) may be in any thread and never block. The reader is one thread or one task at a time.
    """

    def __init__(self, consumed: Callable[[int, int], None] | None, convert: Callable[[Any], Any] | None = None) -> None:
        self._consumed = consumed
        self._convert = convert
        self._lock = threading.RLock()  # a stream that the garbage collector drops ends its input, in whatever this thread is doing
        self._filled = threading.Condition(self._lock)
        self._batches: deque[Batch] = deque()
        self.ready: Iterator[Any] = iter(())
        self._count = self._size = 0
        self._owed_items = self._owed_bytes = 0
        self._ended = False
        self._error: BaseException | None = None
        self._waker: Waker | None = None
        self._waiting = False

    @classmethod
    def of(cls, items: Iterable[Any], convert: Callable[[Any], Any] | None) -> Input:
        """An input whose items are all there."""
        made = cls(None, convert)
        made.ready, made._ended = iter(items) if convert is None else map(convert, items), True
        return made

    # ---------------------------------------------------------------- the writing side

    def put(self, batch: Batch) -> None:
        """A batch has arrived."""
        with self._lock:
            self._batches.append(batch)
            self._notify()

    def end(self, error: BaseException | None) -> None:
        """Nothing more comes: the reader gets what is there, then the end or `error`. The first end counts."""
        with self._lock:
            if not self._ended:
                self._ended, self._error = True, error
            self._notify()

    def drop(self) -> None:
        """Forget what has not been read."""
        with self._lock:
            self._batches.clear()
            self.ready = iter(())

    @property
    def ended(self) -> bool:
        """Whether the end has come (there may be items left to read)."""
        return self._ended

    def is_read(self) -> bool:
        """Whether the stream is complete and everything was read. To be asked by who will read no more: it may take an item."""
        with self._lock:
            return self._ended and self._error is None and not self._batches and next(self.ready, _END) is _END

    def _notify(self) -> None:
        self._filled.notify_all()
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.wake()

    # ---------------------------------------------------------------- the reading side

    def take(self, timeout: float | None = None) -> Any:
        """The next item, waiting for it in this thread.

        Raises:
            StopIteration: the stream is complete.
            TimeoutError: nothing came within `timeout` seconds.
            ReachError: how the stream ended.
        """
        item = self._take_ready()
        if item is not _END:
            return item
        limit = None if timeout is None else time.monotonic() + timeout
        with blocking():
            while True:
                with self._lock:
                    self._check_alone()
                    while not self._batches and not self._ended:
                        left = None if limit is None else limit - time.monotonic()
                        if left is not None and left <= 0:
                            raise TimeoutError
                        self._waiting = True
                        try:
                            self._filled.wait(left)
                        finally:
                            self._waiting = False
                item = self._take_ready()
                if item is not _END:
                    return item
                if self._at_end():
                    self._raise_end()

    async def atake(self, timeout: float | None = None) -> Any:
        """The next item, waiting for it on the running loop; as `take`, but StopAsyncIteration at the end. Cancelling loses nothing."""
        item = self._take_ready()
        if item is not _END:
            return item
        loop = asyncio.get_running_loop()
        limit = None if timeout is None else loop.time() + timeout
        while True:
            waker: Waker | None = None
            with self._lock:
                if not self._batches and not self._ended:
                    self._check_alone()
                    waker = self._waker = Waker()
            if waker is not None:
                if limit is None:
                    await waker.future
                else:
                    await asyncio.wait_for(waker.future, max(0.0, limit - loop.time()))
            item = self._take_ready()
            if item is not _END:
                return item
            if self._at_end():
                if self._error is None:
                    raise StopAsyncIteration
                raise self._error

    def _check_alone(self) -> None:
        """With the lock held: a stream has one reader, and a second one waiting beside it would take its wake-ups."""
        if self._waiting or (self._waker is not None and not self._waker.future.done()):
            raise UsageError("somebody else is reading this stream", hint="read it in one place and hand the items on")

    def _take_ready(self) -> Any:
        """An item that is here, or _END."""
        item = next(self.ready, _END)
        while item is _END:
            with self._lock:
                batch = self._batches.popleft() if self._batches else None
            self._account(batch is None)
            if batch is None:
                return _END
            self._open(batch)
            item = next(self.ready, _END)
        return item

    def _open(self, batch: Batch) -> None:
        try:
            items = load(batch.segments)
        except ReachError as error:
            self.end(error)
            items = []
        if not isinstance(items, list):
            items = []
        self.ready = iter(items) if self._convert is None else map(self._convert, items)
        self._count, self._size = len(items), batch.size

    def _account(self, is_last: bool) -> None:
        """The last batch has been read: its credit goes back, once it is worth it or nothing else is here."""
        self._owed_items += self._count
        self._owed_bytes += self._size
        self._count = self._size = 0
        if is_last or self._owed_bytes >= _WORTH_BYTES or self._owed_items >= _WORTH_ITEMS:
            items, size = self._owed_items, self._owed_bytes
            if size and self._consumed is not None:
                self._owed_items = self._owed_bytes = 0
                self._consumed(items, size)

    def _at_end(self) -> bool:
        return self._ended and not self._batches

    def _raise_end(self) -> None:
        if self._error is None:
            raise StopIteration
        raise self._error

    def iter(self) -> Iterator[Any]:
        """The items as an iterator for a handler."""
        while True:
            yield from self.ready
            try:
                item = self.take()
            except StopIteration:
                return
            yield item

    async def aiter(self) -> AsyncIterator[Any]:
        """The items as an async iterator for a handler."""
        while True:
            for item in self.ready:
                yield item
            try:
                item = await self.atake()
            except StopAsyncIteration:
                return
            yield item
