"""The future of one call: for threads, for event loops, and for whoever wants to be called back."""

from __future__ import annotations

import asyncio
import concurrent.futures
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from reachmesh.calls.flows import Batch
from reachmesh.calls.outgoing import OutgoingCall
from reachmesh.errors import BlockingCallInLoop, Cancelled, ReachError, UsageError, shown
from reachmesh.execution.pool import blocking
from reachmesh.node.callbacks import Callbacks
from reachmesh.node.driver import Driver
from reachmesh.node.rules import is_number
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

    __slots__ = ("_decoded", "_error", "_format", "_segments")

    def __init__(self, payload_format: int, segments: Sequence[Any]) -> None:
        self._format = payload_format
        self._segments: Sequence[Any] | None = segments
        self._error: ReachError | None = None

    def value(self) -> Any:
        segments = self._segments
        if segments is not None:
            try:
                self._decoded = load_body(self._format, segments)
            except ReachError as error:
                self._decoded, self._error = None, error
            self._segments = None
        if self._error is not None:
            raise self._error
        return self._decoded


_MADE_LATE: Mapping[str, Callable[[], Any]] = {
    "_condition": threading.Condition,
    "_waiters": list,
    "_done_callbacks": list,
    "_wakers": list,
}
"""Parts of a future that few ever need, and how they are made. `dict.setdefault` sees that there is one of each."""


class _NoFallback:
    def __repr__(self) -> str:
        return "..."


_NO_FALLBACK = _NoFallback()


class CallFuture(concurrent.futures.Future[Any]):
    """A `concurrent.futures.Future` that can also be awaited.

    On a loop: `await` it, or give it to `asyncio.gather`, `asyncio.wait_for`, `asyncio.shield` or `asyncio.ensure_future`. What wants a task
    or an asyncio future (`asyncio.wait`, `create_task`, a `TaskGroup`) takes `asyncio.ensure_future(future)`, or a coroutine that awaits it.

    `cancel()` reaches the handler; a cancelled future raises `Cancelled`, not `concurrent.futures.CancelledError`. Cancelling a
    task that awaits it cancels the call. Done-callbacks run in a thread of the node's, never in the engine's, one after the other: one that
    blocks holds up those of other futures and functions given to `node.on`, so hand long work to a thread of your own.

    Most futures are awaited or waited for by the thread that turns the engine, and never need the condition that makes up most of the
    cost of a standard one. So it is made when somebody first asks for it; whoever settles the future sets the state before it looks
    whether there is one, and whoever waits makes it before looking at the state, so one of the two sees the other.
    """

    _convert: Callable[[Any], Any] | None = None
    """Makes what the user gets of the decoded answer."""
    _state = "PENDING"
    _result: Any = None
    _exception: BaseException | None = None
    _nudged = False
    _on_cancel: Callable[[], None] | None = None
    _fallback: Any = _NO_FALLBACK
    _call: OutgoingCall | None = None
    _feeder: Any = None
    _driver: Driver | None = None
    _trace_id = ""

    _keep: Callable[[int, Any], None] | None = None
    """Takes a copy of a good answer."""

    _instead: tuple[Any, BaseException | None] | None = None
    """What the fallback made of the failure."""

    def __init__(self, callbacks: Callbacks) -> None:
        self._callbacks = callbacks

    if TYPE_CHECKING:
        _wakers: list[Waker]
    else:  # checkers see the plain attributes of the standard future

        def __getattr__(self, name: str) -> Any:
            """What a standard future makes at once, and this one when somebody asks."""
            make = _MADE_LATE.get(name)
            if make is None:
                raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
            return self.__dict__.setdefault(name, make())

    @property
    def trace_id(self) -> str:
        """Trace id of the call, 32 hex digits; it is in the serving node's log too."""
        call = self._call
        return self._trace_id if call is None else call.trace_id.hex()

    @property
    def instance_id(self) -> str:
        """Instance that answered, or was asked last; "" as long as none was."""
        provider = getattr(self._call, "provider", None)
        return provider.instance_id if provider is not None else ""

    # ---------------------------------------------------------------- from the driver

    def answered(self, payload_format: int, segments: Sequence[Any]) -> None:
        """The call ended well."""
        if self._keep is not None:
            self._keep(payload_format, segments)
        self._settle("FINISHED", _Reply(payload_format, segments), None)

    def succeeded(self, value: Any) -> None:
        """The call ended well, with this answer."""
        self._settle("FINISHED", value, None)

    def failed(self, error: BaseException) -> None:
        """The call ended badly."""
        self._settle("FINISHED", None, error)

    def accepted(self) -> None:
        """A one-way call is on its way."""
        self._settle("FINISHED", None, None)

    def set_result(self, result: Any) -> None:
        """As of a standard future."""
        if not self._settle("FINISHED", result, None):
            raise concurrent.futures.InvalidStateError(f"{self._state}: {self!r}")

    def set_exception(self, exception: BaseException | None) -> None:
        """As of a standard future."""
        if not self._settle("FINISHED", None, exception):
            raise concurrent.futures.InvalidStateError(f"{self._state}: {self!r}")

    def _settle(self, state: str, result: Any, error: BaseException | None) -> bool:
        """End it once; false for whoever comes second."""
        mine = [state]
        if self.__dict__.setdefault("_first", mine) is not mine:  # atomic: one of several threads gets its own list back
            return False
        self._result, self._exception = result, error
        self._state = state
        made = self.__dict__.get("_condition")
        if made is not None:
            with made:
                for waiter in self.__dict__.get("_waiters", ()):
                    if state != "FINISHED":
                        waiter.add_cancelled(self)
                    elif error is not None:
                        waiter.add_exception(self)
                    else:
                        waiter.add_result(self)
                made.notify_all()
        self._invoke_callbacks()
        return True

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
            if not self._nudged and self._state == "PENDING":
                self._condition.wait(timeout)
            self._nudged = False

    def _invoke_callbacks(self) -> None:
        if self._feeder is not None:
            self._feeder.close()
        parts = self.__dict__
        for waker in parts.get("_wakers", ()):
            waker.wake()
        for fn in parts.get("_done_callbacks", ()):
            self._callbacks.put(fn, self)

    # ---------------------------------------------------------------- for the user

    def done(self) -> bool:
        """Whether the call has ended. Takes no lock: the state is one reference, and only ever goes forward."""
        return self._state != "PENDING"

    def cancel(self) -> bool:
        """End the call; true unless it had ended before. The handler is told, wherever it runs."""
        if not self._settle("CANCELLED_AND_NOTIFIED", None, None):
            return self.cancelled()
        self.tell_cancelled()
        return True

    def tell_cancelled(self) -> None:
        """Have the engine end the call, here and on the serving side."""
        if self._on_cancel is not None:
            self._on_cancel()
        elif self._driver is not None and self._call is not None:
            self._driver.post(self._driver.engine.caller.cancel, self._call)

    def result(self, timeout: float | None = None) -> Any:
        """The answer, waiting for it if need be.

        Args:
            timeout: seconds to wait here; the call itself goes on after a `TimeoutError`.

        Raises:
            ReachError: how the call ended.
            TimeoutError: it has not ended yet.
            BlockingCallInLoop: on an event loop's thread, when it has not ended yet; await the future there.
            UsageError: `timeout` is no number.
        """
        if self._state == "PENDING" and not self._wait(timeout):
            raise TimeoutError
        if self._state != "FINISHED":
            raise Cancelled("the call was cancelled", trace_id=self.trace_id)
        error = self._exception
        if error is not None:
            if self._fallback is not _NO_FALLBACK and isinstance(error, ReachError):
                return self._fall_back(error)
            try:
                raise error
            finally:
                del error, self  # no circle through the traceback
        reply = self._result
        value = reply.value() if type(reply) is _Reply else reply
        return value if self._convert is None else self._convert(value)

    def _wait(self, timeout: float | None) -> bool:
        """Block until it is done; false when `timeout` seconds were not enough."""
        if timeout is not None and not (is_number(timeout) and timeout == timeout):
            raise UsageError(f"timeout must be a number of seconds, not {shown(timeout)}")
        _check_may_block(timeout)
        if timeout is not None and not timeout > 0:
            return False
        if timeout is not None and timeout > threading.TIMEOUT_MAX:
            timeout = None
        with blocking():
            if self._driver is not None:
                self._driver.attend(self, timeout)
            else:
                limit = None if timeout is None else time.monotonic() + timeout
                while self._state == "PENDING" and (limit is None or time.monotonic() < limit):
                    self.doze(None if limit is None else limit - time.monotonic())
        return self._state != "PENDING"

    def exception(self, timeout: float | None = None) -> BaseException | None:
        """The error the call ended with, or None; see `result`."""
        if self._state == "PENDING" and not self._wait(timeout):
            raise TimeoutError
        try:
            self.result(0)
        except BaseException as error:
            return error
        return None

    def _fall_back(self, error: ReachError) -> Any:
        """What stands in for the failure. A function is asked once, whoever asks for the result, and however often."""
        fallback = self._fallback
        if not callable(fallback):
            return fallback
        with self._condition:
            if self._instead is None:
                try:
                    self._instead = (fallback(error), None)
                except BaseException as failure:
                    self._instead = (None, failure)
            value, failed = self._instead
        if failed is not None:
            raise failed
        return value

    def __await__(self) -> Generator[Any, None, Any]:
        if self._state == "PENDING":
            waker = Waker()
            self._wakers.append(waker)
            if self._state == "PENDING":
                try:
                    yield from waker.future
                except asyncio.CancelledError:
                    self.cancel()
                    raise
        return self.result(0)


def _check_may_block(timeout: float | None) -> None:
    if timeout != 0 and asyncio._get_running_loop() is not None:
        raise BlockingCallInLoop("waiting for a result would block this thread's event loop", hint="await the future instead")
