"""`node.reach("translate")`: one capability as a caller holds it, and the verbs on it."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import queue
from collections import deque
from collections.abc import Callable, ItemsView, KeysView, ValuesView
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

import msgspec

from reachmesh.calls.flags import REQUEST_ONEWAY, REQUEST_SENDS_STREAM, REQUEST_WANTS_STREAM
from reachmesh.calls.flows import Outflow
from reachmesh.calls.outgoing import OutgoingCall
from reachmesh.engine.providers import RESERVED
from reachmesh.errors import BlockingCallInLoop, ConfigError, NoProvider, PayloadError, ReachError, UsageError
from reachmesh.node.answers import Answers
from reachmesh.node.feeder import Feeder
from reachmesh.node.future import Accepted, CallFuture
from reachmesh.node.last_good import LAST_GOOD
from reachmesh.node.middleware import Exchange, Passage
from reachmesh.node.options import FOR_EVER, UNSET, Options
from reachmesh.node.served import CURRENT
from reachmesh.node.stream import Channel, Stream, StreamHandle
from reachmesh.routing import RouteRequest, choose
from reachmesh.routing.strategies import refused
from reachmesh.wire.frames import encode_request_meta
from reachmesh.wire.limits import LIMITS
from reachmesh.wire.values import dump_arguments, dump_body

if TYPE_CHECKING:
    from reachmesh.node.driver import Driver
    from reachmesh.node.node import ReachNode

_log = logging.getLogger("reachmesh")

S = TypeVar("S", bound=Stream)

_MSGPACK = 2
_PLAIN = frozenset({str, int, float, bool, bytes, list, dict, tuple, type(None)})
"""Types of most arguments, none of which is a stream."""

_all_plain = _PLAIN.issuperset

_STREAMED = (range, KeysView, ValuesView, ItemsView, deque)
"""Iterables without a wire form of their own: given as an argument they can only be meant as a stream."""


class Reach:
    """A capability and the options to call it with. Immutable, cheap, usable from any thread, as often as wanted.

    The arguments of every verb are the handler's own. An iterator, generator or async iterable among them is streamed to the
    handler's iterator parameter.
    """

    __slots__ = ("_asks", "_extras", "_metas", "_node", "_options", "_request", "capability")

    _feeder_type: ClassVar[type[Feeder]] = Feeder
    _handle_type: ClassVar[type[StreamHandle]] = StreamHandle

    def __init__(self, node: ReachNode, capability: str, options: Options, *, target: bytes | None = None) -> None:
        options.check()
        self.capability = capability
        self._extras = options.extras()
        encode_request_meta(bytes(8), capability, self._extras)  # what cannot travel is refused here, not in the engine
        self._node = node
        self._options = options
        self._asks = options.strategy is not None and not isinstance(options.strategy, str)
        self._metas: dict[bytes, bytes] = {}
        self._request = RouteRequest(
            capability=capability,
            version=options.version,
            tags=options.tags,
            target=options.target if target is None else target,
            session=options.session,
            strategy=None if self._asks else options.strategy,
            metadata=options.metadata,
            fail_fast=options.fallback is not UNSET,
        )

    def __repr__(self) -> str:
        return f"<Reach {self.capability!r} of {self._node.instance_id}>"

    def options(self, /, **changes: Any) -> Reach:
        """The same capability with some options changed; see `ReachNode.reach`.

        Raises:
            ConfigError: no such option, or a value that cannot be meant.
        """
        if unknown := [name for name in changes if name not in Options.__dataclass_fields__]:
            known = ", ".join(Options.__dataclass_fields__)
            raise ConfigError(f"no such option: {', '.join(unknown)}", hint=f"there are: {known}")
        return type(self)(self._node, self.capability, replace(self._options, **changes))

    # ---------------------------------------------------------------- verbs

    def call(self, /, *args: Any, **kwargs: Any) -> Any:
        """Call one provider and wait for its answer.

        Raises:
            ReachError: how the call ended, see `reachmesh.errors`.
            BlockingCallInLoop: on an event loop's thread; `await ....submit(...)` there.
        """
        if asyncio._get_running_loop() is not None:
            raise BlockingCallInLoop(
                "call() would block this thread's event loop", hint=f"use `await node.reach({self.capability!r}).submit(...)`"
            )
        return self.submit(*args, **kwargs).result()

    def submit(self, /, *args: Any, **kwargs: Any) -> CallFuture:
        """Start a call; the future can be waited for, awaited, called back and cancelled.

        Raises:
            PayloadError: an argument cannot travel; nothing was sent.
        """
        if self._node._middlewares and not self.capability.startswith(RESERVED):
            return self._submit_through(args, kwargs)
        return self._submit(args, kwargs)

    def _submit_through(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallFuture:
        """As `_submit`, with the node's middleware around it; what comes after the call runs in the callbacks' thread."""
        node, fallback = self._node, self._options.fallback
        outer = CallFuture(node._life.callbacks)
        if fallback is not UNSET:
            outer._fallback = fallback
        passage, reach = self._enter(args, kwargs)
        exchange = passage.exchange
        if reach is None:
            outer.set_result(exchange.answer)
            return outer
        try:
            inner = reach._submit(tuple(exchange.args), exchange.kwargs)
        except BaseException as error:
            outer.set_result(passage.leave(error))
            return outer
        outer._call, outer._driver = inner._call, inner._driver
        outer._on_cancel = partial(_cancel, inner)
        exchange.trace_id = inner.trace_id
        keep = self._keep_last_good(outer, dump_arguments(tuple(exchange.args), exchange.kwargs)) if fallback is LAST_GOOD else None

        def left(done: CallFuture) -> None:
            exchange.peer = done.instance_id
            try:
                error = done.exception(0)
                if error is None:
                    exchange.answer = done.result(0)
                answer = passage.leave(error)
            except BaseException as failure:
                outer.failed(failure)
            else:
                if keep is not None:
                    with contextlib.suppress(PayloadError):  # a middleware made something of it that does not travel
                        keep(_MSGPACK, dump_body(_MSGPACK, answer))
                outer.succeeded(answer)

        inner.add_done_callback(left)  # type: ignore[arg-type]
        return outer

    def _enter(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Passage, Reach | None]:
        """Into the middleware: the passage, and what to call with the exchange's arguments; None when one of them has answered."""
        exchange = Exchange("caller", self.capability, args, kwargs, metadata=self._options.metadata)
        passage = Passage(exchange)
        if not passage.enter(self._node._middlewares):
            return passage, None
        options = replace(self._options, fallback=UNSET, metadata=exchange.metadata or None)
        return passage, type(self)(self._node, self.capability, options)

    def _submit(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> CallFuture:
        node, options = self._node, self._options
        life = node._life
        future = CallFuture(life.callbacks)
        if options.fallback is not UNSET:
            future._fallback = options.fallback
        if options.reply_to is not None:
            future._convert = _accepted
        call, source = self._make(future, args, kwargs, 0)
        if self._options.fallback is LAST_GOOD:
            if source is not None:
                raise _no_last_good()
            future._keep = self._keep_last_good(future, call.body)
        future._call = call
        if (stopped := life.why_not()) is not None:
            stopped.trace_id = future.trace_id
            future.failed(stopped)
            return future
        driver = future._driver = life.driver
        if (loop := asyncio._get_running_loop()) is not None:
            driver.watch_from(loop)
        driver.post_call(driver.engine.caller.start, call)
        if source is not None:
            feeder = self._feeder_type(driver, call, lambda error: _fail_input(future, error))
            future._feeder = feeder
            feeder.feed(source)
        return future

    def stream(self, /, *args: Any, **kwargs: Any) -> Stream:
        """Start a streaming call; iterate what it gives. A plain handler's answer comes as the only item.

        Raises:
            PayloadError: an argument cannot travel; nothing was sent.
        """
        handle = self._handle_type(self._node._require())
        self._check_answerable()
        if self._node._middlewares:
            return self._open_through(handle, Stream, args, kwargs, REQUEST_WANTS_STREAM)
        call, source = self._make(handle, args, kwargs, REQUEST_WANTS_STREAM)
        stream = Stream(handle, self._idle_timeout(), self._fallback())
        self._open(handle, call, source)
        return stream

    def channel(self, /, *args: Any, **kwargs: Any) -> Channel:
        """Start a call whose handler takes a stream and yields one: `send` and `end`, iterate the answers.

        Raises:
            UsageError: an argument is a stream itself; give it to `stream()`.
            PayloadError: an argument cannot travel; nothing was sent.
        """
        if any(_is_stream(value) for value in (*args, *kwargs.values())):
            raise UsageError("what a channel sends is given to send()", hint="use stream() to stream an iterable in")
        handle = self._handle_type(self._node._require())
        self._check_answerable()
        if self._node._middlewares:
            return self._open_through(handle, Channel, args, kwargs, REQUEST_WANTS_STREAM | REQUEST_SENDS_STREAM)
        call, source = self._make(handle, args, kwargs, REQUEST_WANTS_STREAM | REQUEST_SENDS_STREAM)
        channel = Channel(handle, self._idle_timeout(), self._fallback())
        self._open(handle, call, source)
        return channel

    def notify(self, /, *args: Any, **kwargs: Any) -> None:
        """Have a provider run the handler, and neither wait nor learn how it went. Failures to send are logged.

        Raises:
            PayloadError: an argument cannot travel; nothing was sent.
        """
        node = self._node
        driver = node._require()
        if node._middlewares:
            passage, reach = self._enter(args, kwargs)
            if reach is not None:
                reach._notify(driver, tuple(passage.exchange.args), passage.exchange.kwargs)
                passage.leave(None)
            return
        self._notify(driver, args, kwargs)

    def _notify(self, driver: Driver, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        call, source = self._make(_Notified(self.capability), args, kwargs, REQUEST_ONEWAY)
        if source is not None:
            raise UsageError("notify() cannot stream into a handler", hint="use submit()")
        driver.post_call(driver.engine.caller.start, call)

    def all(self, /, *args: Any, **kwargs: Any) -> Answers:
        """Call every usable provider; iterate their answers as they come. One that fails gives an answer with `error`."""
        driver = self._node._require()
        request = self._request
        providers = driver.ask(lambda now: driver.engine.router.pick_all(request, now))
        answers: queue.SimpleQueue[tuple[str, CallFuture]] = queue.SimpleQueue()
        arrived = Answers(len(providers), answers)
        for provider in providers:
            future = self.options(target=provider.instance_id, retries=0, fallback=UNSET).submit(*args, **kwargs)
            future.add_done_callback(lambda done, who=provider.instance_id: arrived._put(who, done))  # type: ignore[misc]
        return arrived

    # ---------------------------------------------------------------- making a call

    def _check_answerable(self) -> None:
        if self._options.reply_to is not None or self._options.dedup_key is not None:
            raise UsageError("reply_to and dedup_key are for calls with one answer, not for streams", hint="use submit()")

    def _open_through(self, handle: StreamHandle, kind: type[S], args: tuple[Any, ...], kwargs: dict[str, Any], flags: int) -> S:
        """A stream with the node's middleware around it, which is left when the stream is over."""
        passage, reach = self._enter(args, kwargs)
        if reach is None:
            raise UsageError("a middleware answered in place of a stream", hint="let it raise, or yield")
        callbacks = self._node._life.callbacks

        def left(error: BaseException | None) -> None:
            with contextlib.suppress(ReachError):
                passage.leave(error)

        handle.on_end = lambda error: callbacks.put(left, error)
        call, source = reach._make(handle, tuple(passage.exchange.args), passage.exchange.kwargs, flags)
        stream = kind(handle, self._idle_timeout(), self._fallback())
        passage.exchange.trace_id = call.trace_id.hex()
        self._open(handle, call, source)
        return stream

    def _keep_last_good(self, future: CallFuture, arguments: list[Any]) -> Callable[[int, Any], None]:
        """Have the last good answer of the same call stand in for a failure; gives what keeps a good one."""
        store, age = self._node._last_good, self._node.config.last_good_age
        key = store.key(self._request, arguments)
        future._fallback = store.fallback(key)
        return partial(store.put, key, age)

    def _fallback(self) -> Callable[[ReachError], Any] | None:
        fallback = self._options.fallback
        if fallback is LAST_GOOD:
            raise _no_last_good()
        if fallback is UNSET:
            return None
        return fallback if callable(fallback) else lambda error: fallback

    def _idle_timeout(self) -> float | None:
        limit = self._options.idle_timeout
        return None if limit is None or limit > FOR_EVER else limit

    def _open(self, handle: StreamHandle, call: OutgoingCall, source: Any) -> None:
        driver = self._node._require()
        handle.call = call
        if (loop := asyncio._get_running_loop()) is not None:
            driver.watch_from(loop)
        if call.flags & REQUEST_SENDS_STREAM:
            handle.feeder = self._feeder_type(driver, call, handle.break_off)
        driver.post_call(driver.engine.caller.start, call)
        if source is not None:
            assert handle.feeder is not None
            handle.feeder.feed(source)

    def _make(self, handle: Any, args: tuple[Any, ...], kwargs: dict[str, Any], flags: int) -> tuple[OutgoingCall, Any]:
        """The call as the engine takes it, and the iterable to stream into it, if one was given."""
        options, node = self._options, self._node
        source = None
        if not _all_plain(map(type, kwargs.values())) or (args and not _all_plain(map(type, args))):
            args, kwargs, source = _without_source(args, kwargs)
            if source is not None:
                flags |= REQUEST_SENDS_STREAM
                if not hasattr(source, "__iter__") and asyncio._get_running_loop() is None:
                    raise UsageError("an async iterable can only be streamed from a running event loop")
        body = dump_arguments(args, kwargs)
        now = node._now()
        timeout = options.timeout
        if timeout is None and not flags & REQUEST_WANTS_STREAM:
            timeout = node._timeout_for(self.capability)
        deadline = None if timeout is None or timeout > FOR_EVER else now + timeout
        ids: bytes = node._life.rng.getrandbits(192).to_bytes(24, "big")
        trace, priority, depth, parent = ids[:16], options.priority, 0, None
        outer = CURRENT.get()
        if outer is not None and not (outer.call.closed and not outer.call.reason):  # else: a task that a handler left behind
            within = outer.call
            trace, depth = within.trace_id, within.depth + 1
            if priority is None:
                priority = within.priority
            if within.deadline is not None and (deadline is None or within.deadline < deadline):
                deadline = within.deadline
            if outer._driver is node._driver:
                parent = within
        if options.trace_id is not None:
            trace = bytes.fromhex(options.trace_id)
        request = self._request if priority is None or priority == 100 else msgspec.structs.replace(self._request, priority=priority)
        retries = node.config.retries if options.retries is None else options.retries
        call = OutgoingCall(
            handle,
            request,
            body,
            _MSGPACK,
            flags,
            self._extras,
            self._metas,
            deadline,
            depth,
            trace,
            ids[16:],
            retries,
            parent,
        )
        if flags & REQUEST_SENDS_STREAM:
            call.outflow = Outflow(LIMITS.chunk)
        if self._asks or (options.metadata and node.config.predicate is not None):
            self._ask_user(call, now)
        if options.shadow and source is None and node._life.why_not() is None:
            self._send_copy(call)
        return call, source

    def _ask_user(self, call: OutgoingCall, now: float) -> None:
        """Ask the user's own predicate and strategy about the candidates, outside the engine.

        The predicate holds for all attempts, the strategy for the first; later ones go by the default strategy among the others.
        """
        options, node = self._options, self._node
        if node._life.why_not() is not None:
            return
        driver, request = node._driver, call.request
        candidates = driver.ask(lambda now: driver.engine.router.candidates(request, now))
        predicate = node.config.predicate
        if predicate is not None and options.metadata and candidates:
            barred = refused(predicate, candidates, options.metadata)
            call.tried = tuple(barred)
            if len(barred) == len(candidates):
                call.error = NoProvider(f"the content predicate lets nobody have {self.capability!r}: {next(iter(barred.values()))}")
            candidates = [each for each in candidates if each.boot not in barred]
        if self._asks and candidates:
            call.prefer = choose(options.strategy, candidates, request).boot

    def _send_copy(self, call: OutgoingCall) -> None:
        """A one-way copy to an instance that is tagged to take shadow calls, if there is one; nobody hears how it went."""
        copy = call.twin()
        copy.handle = _IGNORED
        copy.request = msgspec.structs.replace(self._request, shadow=True, session=None, target=None)
        copy.flags, copy.metas = REQUEST_ONEWAY, {}
        driver = self._node._driver
        driver.post_call(driver.engine.caller.start, copy)


def _no_last_good() -> UsageError:
    return UsageError(
        "LAST_GOOD is for calls with one answer and arguments that are values, not for streams", hint="use submit() or call()"
    )


def _is_stream(value: Any) -> bool:
    return hasattr(value, "__next__") or hasattr(value, "__aiter__") or isinstance(value, _STREAMED)


def _without_source(args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any], Any]:
    """Take the iterable that is to be streamed, if there is one, out of the arguments; None keeps its place."""
    found: list[Any] = []

    def keep(value: Any) -> Any:
        if type(value) not in _PLAIN and _is_stream(value):
            found.append(value)
            return None
        return value

    args = tuple(keep(value) for value in args)
    kwargs = {name: keep(value) for name, value in kwargs.items()}
    if len(found) > 1:
        raise UsageError("only one argument of a call can be a stream")
    return args, kwargs, found[0] if found else None


def _fail_input(future: CallFuture, error: BaseException) -> None:
    """The user's iterable raised: the call ends with that, here and on the serving side."""
    future.failed(error)
    future.tell_cancelled()


def _cancel(future: CallFuture) -> None:
    future.cancel()


def _accepted(answer: Any) -> Accepted:
    """The acceptance of a `reply_to` call."""
    return Accepted(answer["task_id"])


class _Notified:
    """Where the outcome of a `notify` goes: into the log when it could not be sent."""

    __slots__ = ("_capability",)

    def __init__(self, capability: str) -> None:
        self._capability = capability

    def failed(self, error: ReachError) -> None:
        _log.warning("notify of %r was not delivered: %s", self._capability, error)

    def accepted(self) -> None:
        """It is on its way."""

    def answered(self, *_: Any) -> None:
        """One-way calls are not answered."""

    received = has_room = answered


class _Ignored(_Notified):
    """Where the outcome of a shadow copy goes: nowhere."""

    __slots__ = ()

    def failed(self, error: ReachError) -> None:
        """Nobody takes shadow calls, or it could not be sent."""


_IGNORED = _Ignored("")
