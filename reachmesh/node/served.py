"""One served call as a job: claims it, decodes and binds its arguments, and carries answers, items and errors back."""

from __future__ import annotations

import asyncio
import logging
import threading
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextvars import ContextVar, Token
from typing import Any, ClassVar

from reachmesh.calls.flags import REQUEST_SENDS_STREAM, REQUEST_WANTS_STREAM
from reachmesh.calls.incoming import TAKEN, IncomingCall
from reachmesh.errors import (
    MESSAGE_LIMIT,
    BadRequest,
    Cancelled,
    Executed,
    LoopDetected,
    Overloaded,
    PayloadError,
    ReachError,
    RemoteError,
    SemanticError,
    WorkerCrashed,
    shortened,
)
from reachmesh.execution.executor import Executor
from reachmesh.execution.handler import Handler
from reachmesh.execution.job import UnsendableAnswer
from reachmesh.execution.pool import blocking
from reachmesh.node.capability import Served
from reachmesh.node.context import Context
from reachmesh.node.driver import Driver
from reachmesh.node.inputs import Input
from reachmesh.node.middleware import Exchange, Middleware, Passage
from reachmesh.node.outlet import Outlet
from reachmesh.node.wakers import Waker
from reachmesh.observe.stacks import log_failure
from reachmesh.wire.values import dump_body, load_arguments

_log = logging.getLogger("reachmesh.handler")

CURRENT: ContextVar[ServedCall | None] = ContextVar("reachmesh_current_call", default=None)
"""The call in whose handler this code runs; calls made there inherit its deadline, priority, trace and cancellation."""

_PASSED_ON = (SemanticError, Overloaded, BadRequest, LoopDetected, WorkerCrashed, UnsendableAnswer)
"""Errors of ours that mean the same to the caller when a handler raises them."""


class ServedCall:
    """A `Job` (see `execution.job`) over one `IncomingCall`."""

    __slots__ = (
        "_driver",
        "_executor",
        "_input",
        "_outlet",
        "_passage",
        "_refused",
        "_room",
        "_waker",
        "call",
        "domain",
        "handler",
        "middlewares",
        "priority",
        "reply",
    )

    _input_type: ClassVar[type[Input]] = Input

    def __init__(self, call: IncomingCall, served: Served, driver: Driver, executor: Executor) -> None:
        self.call, self._driver, self._executor = call, driver, executor
        self.handler: Handler = served.handler
        self.domain = served.domain
        self.priority = call.priority
        self._input: Input | None = None
        if call.flags & REQUEST_SENDS_STREAM:
            self._input = self._input_type(
                lambda items, size: driver.post(driver.engine.callee.consumed, call, items, size), self.handler.item
            )
        self._outlet: Outlet | None = None
        self._room: threading.Event | None = None
        self._waker: Waker | None = None
        self._refused: PayloadError | None = None
        self.reply: Callable[[Any], None] | None = None
        self.middlewares: Sequence[Middleware] = ()
        self._passage: Passage | None = None

    # ---------------------------------------------------------------- what the executor asks

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more."""
        return self.call.closed

    def begin(self) -> tuple[list[Any], dict[str, Any]] | None:
        """Claim the call and prepare the arguments; what does not fit is answered here."""
        call = self.call
        driver = self._driver
        now = driver.now()
        if call.closed or (call.deadline is not None and call.deadline <= now) or not call.claim():
            return None
        driver.engine.callee.admission.begun.append(None)
        if self.handler.is_async and (loop := asyncio._get_running_loop()) is not None:
            driver.watch_from(loop)
        try:
            arguments = self._bind()
        except ReachError as error:
            error.executed = "no"
            self._end(error)
            return None
        except _AnsweredError as answered:
            call.started = now
            self.finish(answered.answer)
            return None
        call.started = now
        return arguments

    def _bind(self) -> tuple[list[Any], dict[str, Any]]:
        call, handler = self.call, self.handler
        assert call.body is not None
        if handler.streams and not call.flags & REQUEST_WANTS_STREAM:
            raise BadRequest(f"{handler.name} answers with a stream", hint="use stream() or channel()")
        try:
            args, kwargs = load_arguments(call.payload_format, call.body.segments)
        except PayloadError as error:
            raise BadRequest(f"{handler.name}: the arguments could not be read: {error}") from None
        call.body = TAKEN
        name, given = handler.input_param, self._input
        if given is not None:
            if name is None:
                raise BadRequest(
                    f"{handler.name} takes no stream from its caller",
                    hint="pass list(...) to give it a list, or hint its parameter Iterator[...] to stream into it",
                )
            if name not in kwargs and len(args) <= (handler.input_index or 0):
                kwargs[name] = None
        args, kwargs = handler.bind(args, kwargs)
        if self.middlewares:
            args, kwargs = self._enter(args, kwargs)
        if name is not None:
            kwargs[name] = self._take_input(kwargs.get(name))
        if handler.context_param is not None:
            kwargs[handler.context_param] = Context(call, self._driver.now)
        return args, kwargs

    def _take_input(self, inline: Any) -> Any:
        """The iterator of the input parameter, over what the caller streams or over a list it gave."""
        handler, given = self.handler, self._input
        if given is None and inline is None:
            raise BadRequest(f"{handler.name}: missing argument {handler.input_param!r}", hint="pass an iterable, or use channel()")
        if given is not None and inline is not None:
            raise BadRequest(f"{handler.name}: argument {handler.input_param!r} is given twice, as a value and as a stream")
        source = self._input = given if given is not None else _inline(handler, inline)
        return source.aiter() if handler.input_async else source.iter()

    def _enter(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Take the arguments through the node's middleware."""
        call = self.call
        trace, metadata = call.trace_id.hex(), call.extras.get("m")
        exchange = Exchange("handler", call.capability, args, kwargs, metadata=metadata, trace_id=trace, peer=call.caller[1])
        passage = Passage(exchange)
        token = self.entered()
        try:
            if not passage.enter(self.middlewares):
                raise _AnsweredError(exchange.answer)
        finally:
            self.left(token)
        self._passage = passage
        return exchange.args, exchange.kwargs

    def _leave(self, value: Any, error: BaseException | None) -> Any:
        """Take the outcome back through it; gives the answer or raises what is left of the error."""
        passage, self._passage = self._passage, None
        assert passage is not None
        if error is None and not self.handler.streams:
            passage.exchange.answer = value
        token = self.entered()
        try:
            return passage.leave(error)
        finally:
            self.left(token)

    def entered(self) -> Token[ServedCall | None]:
        """User code begins in this thread or task."""
        return CURRENT.set(self)

    def left(self, token: Token[ServedCall | None]) -> None:
        """User code has ended."""
        try:
            CURRENT.reset(token)
        except ValueError:  # an async generator may be closed in another context
            return

    def finish(self, value: Any) -> None:
        """The handler returned."""
        if self._passage is not None:
            try:
                value = self._leave(value, None)
            except BaseException as error:
                return self._end(self._translate(error))
        call, driver = self.call, self._driver
        callee = driver.engine.callee
        if self._refused is not None:
            return self._end(self._refused)
        if call.outflow is not None:
            if not self.handler.streams:
                self.emit(value)
            if self._refused is not None:
                return self._end(self._refused)
            driver.post(callee.finish, call, call.payload_format, [])
            return None
        try:
            segments = dump_body(call.payload_format, value)
        except PayloadError as error:
            error.executed = "yes"
            return self._end(error)
        reply = None if call.closed else self.reply
        driver.post_answer(callee.finish, call, call.payload_format, segments)
        if reply is not None:
            reply(value)
        return None

    def fail(self, exc: BaseException) -> None:
        """The handler raised, or could not be run."""
        if self._refused is not None:
            exc = self._refused
        if self._passage is not None:
            try:
                value = self._leave(None, exc)
            except BaseException as error:
                exc = error
            else:
                self._refused = None
                return self.finish(value)
        refused = self._refused
        return self._end(refused if refused is not None and exc is refused else self._translate(exc))

    def _end(self, error: ReachError) -> None:
        self._driver.post(self._driver.engine.callee.fail, self.call, error)

    def _translate(self, exc: BaseException) -> ReachError:
        """What the caller is told: the type's name and the message; the stack stays here, in the log, under the trace id."""
        trace = self.call.trace_id.hex()
        if isinstance(exc, asyncio.CancelledError) or (isinstance(exc, Cancelled) and self.call.closed):
            return Cancelled(f"{self.handler.name} was cancelled: {self.call.reason or 'by itself'}", executed="yes")
        if isinstance(exc, _PASSED_ON):
            if self.call.started is not None and not isinstance(exc, WorkerCrashed):
                exc.executed = "yes"
            if exc.trace_id:  # of a call made here: what could be tried again was, one level is enough or a chain multiplies
                exc.retryable = False
            return exc
        if isinstance(exc, ReachError) and self.call.started is None:
            return exc
        log_failure(_log, exc, "[%s] %s failed", trace, self.handler.name, extra={"trace_id": trace})
        executed: Executed = "no" if self.call.started is None else "yes"
        if isinstance(exc, RemoteError):  # of a call made here: told as it was where it was raised, however many nodes are between
            return RemoteError(exc.message, type_name=exc.type_name, hint=exc.hint, executed=executed)
        return RemoteError(_message(exc), type_name=type(exc).__name__, executed=executed)

    # ---------------------------------------------------------------- streams

    def emit(self, item: Any) -> bool:
        """Send one item; false when the credit is used up with it (or it cannot travel: then the stream ends with that error)."""
        outlet = self._outlet
        if outlet is None:
            outlet = self._outlet = Outlet(self._driver, self._driver.engine.callee.put_items, self.call)
        if self.call.closed:
            return False
        try:
            return outlet.put(item)
        except PayloadError as error:
            error.executed = "yes"
            self._refused = error
            return False

    def _has_credit(self) -> bool:
        return self._outlet is not None and self._outlet.has_credit()

    def wait_room(self) -> bool:
        """Wait for credit in the handler's thread; false when the stream is over."""
        self._driver.flush()
        event = self._room
        if event is None:
            event = self._room = threading.Event()
        with blocking():
            while not self.call.closed and self._refused is None:
                event.clear()
                if self._has_credit():
                    return True
                if self.call.closed:
                    break
                event.wait()
        return False

    def room(self) -> Awaitable[bool]:
        """Wait for credit in the handler's task; false when the stream is over."""
        return self._wait_room()

    async def _wait_room(self) -> bool:
        self._driver.flush()
        while not self.call.closed and self._refused is None:
            waker = self._waker = Waker()
            if self._has_credit():
                return True
            if self.call.closed:
                break
            await waker.future
        return False

    # ---------------------------------------------------------------- what the engine tells

    def has_room(self) -> None:
        """Credit came."""
        if self._room is not None:
            self._room.set()
        waker, self._waker = self._waker, None
        if waker is not None:
            waker.wake()

    def stopped(self, reason: str) -> None:
        """Nobody waits for the answer any more."""
        if self._input is not None:
            self._input.end(Cancelled(f"the call is over: {reason}", executed="yes"))
        self.has_room()
        self._executor.cancel(self)

    def received(self, batch: Any) -> None:
        """Items of the caller's stream."""
        if self._input is not None:
            self._input.put(batch)

    def input_ended(self) -> None:
        """The caller's stream is complete."""
        if self._input is not None:
            self._input.end(None)


class _AnsweredError(Exception):
    """A middleware has answered in place of the handler."""

    def __init__(self, answer: Any) -> None:
        super().__init__()
        self.answer = answer


def _inline(handler: Handler, items: Any) -> Input:
    """The caller's stream when it came as a list among the arguments."""
    if not isinstance(items, Iterable) or isinstance(items, str | bytes | Mapping):
        raise BadRequest(f"{handler.name}: argument {handler.input_param!r} expects a stream or a list, got {type(items).__name__}")
    return Input.of(items, handler.item)


def _message(exc: BaseException) -> str:
    """The text of any exception, even one whose `__str__` fails; long ones are cut."""
    try:
        text = str(exc)
    except BaseException as error:
        return f"(its text could not be made: {type(error).__name__})"
    return shortened(text, MESSAGE_LIMIT)
