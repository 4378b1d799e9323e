"""The future of one call: for threads, for event loops, and for whoever wants to be called back."""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
from collections.abc import Callable, Generator
from typing import Any

from reachmesh.calls.flows import Batch
from reachmesh.errors import BlockingCallInLoop, Cancelled, ReachError
from reachmesh.execution.pool import blocking
from reachmesh.node.callbacks import Callbacks
from reachmesh.node.driver import Driver
from reachmesh.node.wakers import Waker
from reachmesh.wire.values import load_body


class Accepted:
    """What a `reply_to` call gives at once: the work is on its way and can be asked for by `task_id`."""

    __slots__ = ("task_id",)

    def __init__(self, task_id: str) -> None:
        self.task_id = task_id

    def __repr__(self) -> str:
        return f"Accepted(task_id={self.task_id!r})"


class _Reply:
    """An answer as it came; decoded by whoever asks for it first, in that thread."""

    __slots__ = ("_decoded", "_error", "_segments", "payload_format")

    def __init__(self, payload_format: int, batch: Batch) -> None:
        self.payload_format = payload_format
        self._segments: Any = batch.segments
        self._decoded: Any = None
        self._error: ReachError | None = None

    def value(self) -> Any:
        segments = self._segments
        if segments is not None:
            try:
                self._decoded = load_body(self.payload_format, segments)
            except ReachError as error:
                self._error = error
            self._segments = None
        if self._error is not None:
            raise self._error
        return self._decoded


class CallFuture(concurrent.futures.Future[Any]):
    """A `concurrent.futures.Future` that can also be awaited.

    `cancel()` reaches the handler; a cancelled future raises `Cancelled`, not `concurrent.futures.CancelledError`. Cancelling a
    task that awaits it cancels the call. Done-callbacks run in a thread of the node's, never in the engine's.
    """

    _convert: Callable[[Any], Any] | None = None
    """Makes what the user gets of the decoded answer."""

    def __init__(self, callbacks: Callbacks, trace_id: str) -> None:
        super().__init__()
        self._callbacks = callbacks
        self._wakers: list[Waker] = []
        self._nudged = False
        self._on_cancel: Callable[[], None] | None = None
        self._fallback: Any = _NO_FALLBACK
        self._call: Any = None
        self._feeder: Any = None
        self._driver: Driver | None = None
        self.trace_id = trace_id

    @property
    def instance_id(self) -> str:
        """Instance that answered, or was asked last; "" as long as none was."""
        provider = getattr(self._call, "provider", None)
        return provider.instance_id if provider is not None else ""

    # ---------------------------------------------------------------- from the driver

    def answered(self, payload_format: int, batch: Batch) -> None:
        """The call ended well."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.set_result(_Reply(payload_format, batch))

    def succeeded(self, value: Any) -> None:
        """The call ended well, with this answer."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.set_result(value)

    def failed(self, error: BaseException) -> None:
        """The call ended badly."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.set_exception(error)

    def accepted(self) -> None:
        """A one-way call is on its way."""
        with contextlib.suppress(concurrent.futures.InvalidStateError):
            self.set_result(None)

    def received(self, batch: Batch) -> None:
        """Items for a call that wanted one answer: not ours, the server refuses such calls."""

    def has_room(self) -> None:
        """Credit came for the stream that the call sends."""
        if self._feeder is not None:
            self._feeder.has_room()

    def nudge(self) -> None:
        """Have the thread that waits here look around."""
        with self._condition:
            self._nudged = True
            self._condition.notify_all()

    def doze(self, timeout: float | None) -> None:
        """Sleep until the answer is here, a nudge, or `timeout` seconds are over."""
        with self._condition:
            if not self._nudged and not self.done():
                self._condition.wait(timeout)
            self._nudged = False

    def done(self) -> bool:
        """Whether the call has ended. Takes no lock: the state is one reference, and only ever goes forward."""
        return self._state != "PENDING"

    def _invoke_callbacks(self) -> None:
        if self._feeder is not None:
            self._feeder.close()
        wakers, self._wakers = self._wakers, []
        for waker in wakers:
            waker.wake()
        if self._done_callbacks:  # type: ignore[attr-defined]
            self._callbacks.put(super()._invoke_callbacks)  # type: ignore[misc]

    # ---------------------------------------------------------------- for the user

    def cancel(self) -> bool:
        """End the call; true unless it had ended before. The handler is told, wherever it runs."""
        if not super().cancel():
            return False
        if self._on_cancel is not None:
            self._on_cancel()
        return True

    def result(self, timeout: float | None = None) -> Any:
        """The answer, waiting for it if need be.

        Args:
            timeout: seconds to wait here; the call itself goes on after a `TimeoutError`.

        Raises:
            ReachError: how the call ended.
            TimeoutError: it has not ended yet.
            BlockingCallInLoop: on an event loop's thread, when it has not ended yet; await the future there.
        """
        if not self.done():
            _check_may_block(timeout)
            if self._driver is not None and timeout != 0:
                with blocking():
                    self._driver.attend(self, timeout)
                timeout = 0
        try:
            reply = super().result(timeout)
        except concurrent.futures.CancelledError:
            raise Cancelled("the call was cancelled", trace_id=self.trace_id) from None
        except ReachError as error:
            if self._fallback is _NO_FALLBACK:
                raise
            return self._fall_back(error)
        value = reply.value() if type(reply) is _Reply else reply
        return value if self._convert is None else self._convert(value)

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error the call ended with, or None; see `result`."""
        try:
            self.result(timeout)
        except TimeoutError as error:
            if not isinstance(error, ReachError) and not self.done():
                raise
            return error
        except BlockingCallInLoop:
            raise
        except BaseException as error:
            return error
        return None

    def _fall_back(self, error: ReachError) -> Any:
        fallback = self._fallback
        return fallback(error) if callable(fallback) else fallback

    def __await__(self) -> Generator[Any, None, Any]:
        if not self.done():
            waker = Waker()
            self._wakers.append(waker)
            if not self.done():
                try:
                    yield from waker.future
                except asyncio.CancelledError:
                    self.cancel()
                    raise
        return self.result(0)


def _check_may_block(timeout: float | None) -> None:
    if timeout != 0 and asyncio._get_running_loop() is not None:
        raise BlockingCallInLoop("waiting for a result would block this thread's event loop", hint="await the future instead")


class _NoFallback:
    def __repr__(self) -> str:
        return "..."


_NO_FALLBACK = _NoFallback()
