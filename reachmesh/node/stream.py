"""Streams and channels as their user holds them."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

from reachmesh.calls.flows import Batch
from reachmesh.calls.outgoing import OutgoingCall
from reachmesh.errors import BlockingCallInLoop, Cancelled, DeadlineExceeded, Executed, ReachError, UsageError
from reachmesh.node.driver import Driver
from reachmesh.node.feeder import Feeder
from reachmesh.node.inputs import Input


class StreamHandle:
    """What the engine knows of a stream: where its items and its end go. Outlives the `Stream` its user may drop."""

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self.call: OutgoingCall | None = None
        self.input = Input(self._consumed)
        self.feeder: Feeder | None = None
        self.on_end: Callable[[BaseException | None], None] | None = None
        """Told once when the call has ended, within the engine's turn: it must only hand on."""

    def _consumed(self, items: int, size: int) -> None:
        self._driver.post(self._driver.engine.caller.consumed, self.call, items, size)

    def answered(self, payload_format: int, segments: Sequence[Any]) -> None:
        """The stream is complete."""
        self._end(None)

    def failed(self, error: BaseException) -> None:
        """The stream broke."""
        self._end(error)

    def accepted(self) -> None:
        """Only one-way calls are accepted."""

    def received(self, batch: Batch) -> None:
        """Items came."""
        self.input.put(batch)

    def has_room(self) -> None:
        """Credit came for what the caller sends."""
        if self.feeder is not None:
            self.feeder.has_room()

    def _end(self, error: BaseException | None) -> None:
        self.input.end(error)
        if self.feeder is not None:
            self.feeder.close()
        if self.on_end is not None:
            self.on_end(error)

    def break_off(self, error: BaseException) -> None:
        """What the caller streams in has failed: the reader gets that, the handler is cancelled."""
        self.input.end(error)
        self.cancel("its input failed")

    def check_process(self) -> None:
        """Raise UsageError in a forked child."""
        self._driver.check_process()

    def cancel(self, reason: str) -> None:
        """End the call from this side."""
        self.input.end(Cancelled(reason, executed="maybe"))
        if self.feeder is not None:
            self.feeder.close()
        if self.call is not None:
            self._driver.post(self._driver.engine.caller.cancel, self.call)


class Stream:
    """Items of one streaming call, as they come.

    Iterate it (`for` or `async for`); leaving the loop early, the end of a `with` block, `close()` and dropping the object all close
    the handler's generator on the other side; who reads on after a loop was left early gets a `UsageError`. Items arrive in order; an error comes after the items that came before it. What is
    unread is bounded by credit, so a slow reader slows the writer. One reader at a time.
    """

    def __init__(self, handle: StreamHandle, idle_timeout: float | None, fallback: Callable[[ReachError], Any] | None = None) -> None:
        self._handle = handle
        self._idle_timeout = idle_timeout
        self._fallback = fallback
        self._instead: Iterator[Any] | None = None
        self._closed = self._broken = self._left = False

    @property
    def instance_id(self) -> str:
        """The instance that streams, "" before one was picked."""
        call = self._handle.call
        return call.provider.instance_id if call is not None and call.provider is not None else ""

    @property
    def trace_id(self) -> str:
        """32 hex digits, the key into every log of the call."""
        return self._handle.call.trace_id.hex() if self._handle.call is not None else ""

    def next(self) -> Any:
        """The next item, waiting for it.

        Raises:
            StopIteration: the stream is complete.
            ReachError: it broke; `DeadlineExceeded` also when no item came within `idle_timeout`.
            BlockingCallInLoop: on an event loop's thread; use `async for` or `anext()`.
        """
        if self._closed:
            self._check_not_left()
            raise StopIteration
        if asyncio._get_running_loop() is not None:
            raise BlockingCallInLoop("reading a stream would block this thread's event loop", hint="use `async for`")
        if self._instead is not None:
            return next(self._instead)
        self._handle.check_process()
        try:
            item = self._handle.input.take(self._idle_timeout)
        except TimeoutError as error:
            item = self._fall_back(self._timed_out(error))
        except ReachError as error:
            item = self._fall_back(error)
        self._fallback = None
        return item

    async def anext(self) -> Any:
        """As `next`, on the running loop; StopAsyncIteration at the end. Cancelling it loses no item."""
        if self._closed:
            self._check_not_left()
            raise StopAsyncIteration
        if self._instead is not None:
            return self._next_instead()
        self._handle.check_process()
        try:
            item = await self._handle.input.atake(self._idle_timeout)
        except TimeoutError as error:
            item = self._fall_back(self._timed_out(error), True)
        except ReachError as error:
            item = self._fall_back(error, True)
        self._fallback = None
        return item

    def _fall_back(self, error: BaseException, is_async: bool = False) -> Any:
        """The first item of what takes the place of a stream that broke before its first item; the error where nothing does."""
        fallback, self._fallback = self._fallback, None
        if fallback is None or not isinstance(error, ReachError):
            self._broken = True
            raise error from None
        instead = fallback(error)
        items: Iterator[Any] = instead if hasattr(instead, "__next__") else iter((instead,))
        self._instead = items
        return self._next_instead() if is_async else next(items)

    def _next_instead(self) -> Any:
        assert self._instead is not None
        try:
            return next(self._instead)
        except StopIteration:
            raise StopAsyncIteration from None

    def _timed_out(self, error: TimeoutError) -> BaseException:
        if isinstance(error, ReachError):
            return error
        call = self._handle.call
        began: Executed = "yes" if call is not None and call.items_seen else "maybe"
        late = DeadlineExceeded(f"no item came within {self._idle_timeout:g} s", executed=began, trace_id=self.trace_id)
        self._handle.cancel("idle for too long")
        return late

    def close(self) -> None:
        """Stop the stream on both sides. Safe to call twice; returns at once."""
        if not self._closed:
            self._closed = True
            try:
                self._handle.check_process()
            except UsageError:  # a forked child drops what is the parent's
                return
            self._handle.cancel("the reader left")
            self._handle.input.drop()

    def leave(self) -> None:
        """A loop over it is over. If there was more, nobody can go on where it stopped, and who tries is told."""
        if not self._closed:
            self._left = self._instead is None and not self._broken and not self._handle.input.is_read()
            self.close()

    def _check_not_left(self) -> None:
        if self._left:
            raise UsageError(
                "this stream was left before its end, which closed it", hint="keep one iterator, or take single items with next()"
            )

    async def aclose(self) -> None:
        """The twin of `close` for `async with`."""
        self.close()

    def __iter__(self) -> Iterator[Any]:
        return _Reading(self)

    def __aiter__(self) -> AsyncIterator[Any]:
        return _Reading(self)

    def __next__(self) -> Any:
        return self.next()

    async def __anext__(self) -> Any:
        return await self.anext()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def __del__(self) -> None:
        if not getattr(self, "_closed", True):
            self.close()


class _Reading:
    """One loop over a stream: when the loop is left, this goes out of use and closes the stream."""

    __slots__ = ("_input", "_stream")

    def __init__(self, stream: Stream) -> None:
        self._stream = stream
        self._input = stream._handle.input

    def __iter__(self) -> Iterator[Any]:
        return self

    def __aiter__(self) -> AsyncIterator[Any]:
        return self

    def __next__(self) -> Any:
        for item in self._input.ready:
            return item
        return self._stream.next()

    async def __anext__(self) -> Any:
        for item in self._input.ready:
            return item
        return await self._stream.anext()

    def close(self) -> None:
        """Close the stream, as a generator's `close` would."""
        self._stream.close()

    def __del__(self) -> None:
        self._stream.leave()


class Channel(Stream):
    """A stream in both directions: `send` items to the handler's iterator parameter, iterate what it yields."""

    def _feeder(self) -> Feeder:
        if self._handle.feeder is None:
            raise UsageError("this channel sends nothing")
        return self._handle.feeder

    def send(self, item: Any) -> None:
        """Send one item; waits while the handler is behind by a full window.

        Raises:
            PayloadError: the item cannot travel; the channel goes on.
            Cancelled: the call is over.
        """
        self._feeder().send(item)

    async def asend(self, item: Any) -> None:
        """As `send`, on the running loop."""
        await self._feeder().asend(item)

    def end(self) -> None:
        """Nothing more will be sent: the handler's iterator ends. Safe to call twice."""
        self._feeder().end()
