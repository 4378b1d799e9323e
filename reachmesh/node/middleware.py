"""Middleware: code of the user's around every call, on the side that makes it and on the side that serves it, in one shape.

A middleware is a generator function that yields once. What comes before the `yield` runs before the call, what comes after it afterwards::

    def timed(call):
        began = time.perf_counter()
        try:
            yield
        finally:
            print(call.side, call.capability, time.perf_counter() - began)

    node.use(timed)

The call's failure is raised at the `yield`. `call.answer` holds the answer after it, and may be set to another. The same function serves
blocking callers, event loops, plain handlers and async ones: it runs where the call is made, or in the handler's thread or task, and
must not block. An object with methods `before(call)` or `after(call, error)`, or both, does as well.

Rules, in the order in which surprises happen: the first one used is the outermost. One that raises before its `yield` fails the call
with that, and the handler (or the sending) never happens; on the serving side a `ReachError` goes to the caller as it is. One that
returns before its `yield` answers in place of the call, with what it has set as `call.answer`. One that catches the failure and sets
`call.answer` replaces it by that answer; one that merely swallows it changes nothing, for a failure must not become None by an
oversight. A stream has no answer: the `yield` returns when it is over.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, Literal

from reachmesh.errors import ConfigError, UsageError, shown

Middleware = Callable[["Exchange"], Generator[None, None, Any]]
"""A generator function of one `Exchange` that yields once."""


class _Unset:
    def __repr__(self) -> str:
        return "<none yet>"


UNSET: Any = _Unset()


class Exchange:
    """One call as a middleware sees it.

    Attributes:
        side: "caller" or "handler".
        capability: what is called.
        args, kwargs: the arguments; may be changed before the `yield`.
        metadata: what travels with the call for handlers and middleware; may be changed on the caller's side before the `yield`.
        trace_id: 32 hex digits; "" on the caller's side before the call is made.
        peer: instance id of the caller on the serving side; of who answered on the caller's, after the `yield`.
        answer: the answer, after the `yield`.
    """

    __slots__ = ("answer", "args", "capability", "kwargs", "metadata", "peer", "side", "trace_id")

    def __init__(
        self,
        side: Literal["caller", "handler"],
        capability: str,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        *,
        metadata: Mapping[str, Any] | None = None,
        trace_id: str = "",
        peer: str = "",
    ) -> None:
        self.side, self.capability = side, capability
        self.args, self.kwargs = list(args), dict(kwargs)
        self.metadata: dict[str, Any] = dict(metadata or {})
        self.trace_id, self.peer = trace_id, peer
        self.answer: Any = UNSET

    def __repr__(self) -> str:
        return f"<Exchange {self.side} {self.capability!r}>"


class Passage:
    """The middlewares of one call that have been entered and not left; use it once, in one thread after another."""

    __slots__ = ("_entered", "exchange")

    def __init__(self, exchange: Exchange) -> None:
        self.exchange = exchange
        self._entered: list[Generator[None, None, Any]] = []

    def enter(self, middlewares: Sequence[Middleware]) -> bool:
        """Run all of them up to their `yield`. False = one has answered in place of the call, and `exchange.answer` is the answer.

        Raises:
            Exception: what one of them raised, after the outer ones were left with it.
        """
        for make in middlewares:
            try:
                each = make(self.exchange)
                next(each)
            except StopIteration:
                if self.exchange.answer is UNSET:
                    missing = UsageError(f"middleware {_name(make)} returned before its yield and set no answer", executed="no")
                    self.exchange.answer = self.leave(missing)
                else:
                    self.exchange.answer = self.leave(None)
                return False
            except BaseException as error:
                self.exchange.answer = self.leave(error)
                return False
            self._entered.append(each)
        return True

    def leave(self, error: BaseException | None) -> Any:
        """Run them from their `yield` to their end, the innermost first; gives the answer.

        Args:
            error: how the call failed, or None and `exchange.answer` is its answer.

        Raises:
            BaseException: the failure that is left at the end.
        """
        exchange = self.exchange
        while self._entered:
            each = self._entered.pop()
            if error is not None:
                exchange.answer = UNSET
            try:
                if error is None:
                    next(each)
                else:
                    each.throw(error)
            except StopIteration:
                if error is not None and exchange.answer is not UNSET:
                    error = None
            except BaseException as other:
                error = other
            else:
                each.close()
                error = UsageError("a middleware yields once; this one did it twice")
        if error is not None:
            raise error
        return None if exchange.answer is UNSET else exchange.answer


def as_middleware(given: Any) -> Middleware:
    """A generator function as it is; an object with `before` or `after` as one.

    Raises:
        ConfigError: it is neither.
    """
    if inspect.isgeneratorfunction(given) or inspect.isgeneratorfunction(getattr(given, "__call__", None)):  # noqa: B004
        return given  # type: ignore[no-any-return]
    before, after = getattr(given, "before", None), getattr(given, "after", None)
    if isinstance(given, type) or not (callable(before) or callable(after)):
        raise ConfigError(
            f"{shown(given)} is no middleware",
            hint="give a generator function that yields once, or an object with before(call) or after(call, error)",
        )

    def around(exchange: Exchange) -> Generator[None, None, None]:
        if before is not None:
            before(exchange)
        try:
            yield
        except BaseException as error:
            if after is not None:
                after(exchange, error)
            raise_unless_answered(exchange, error)
        else:
            if after is not None:
                after(exchange, None)

    return around


def raise_unless_answered(exchange: Exchange, error: BaseException) -> None:
    """A failure goes on unless `after` has set an answer in its place."""
    if exchange.answer is UNSET:
        raise error


def _name(middleware: Any) -> str:
    return str(getattr(middleware, "__qualname__", type(middleware).__name__))
