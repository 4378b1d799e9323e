"""A handler as the mesh sees it: the shape of a plain function is its contract.

Place in the data path: `inspect_handler` runs once, when a capability is declared; `Handler.bind` runs for each request
in the thread that will run the handler, and turns decoded arguments into the ones the function asks for.

What the shape says: `return` is one answer, `yield` a stream, a parameter hinted `Iterator` or `AsyncIterator` the
caller's stream, a parameter hinted with the context type the call's `Context`. A plain function whose return hint is an
iterator streams too, and one whose return hint is an awaitable is async. The own kind of the outermost function decides,
so a decorator that collects a generator into a list makes a plain handler of it if it says so in its return hint.

Never guesses: a missing, unknown or ill-typed argument is a `BadRequest` that names it, a hint that cannot be resolved a
`ConfigError` at declaration.
"""

from __future__ import annotations

import collections.abc as abc
import functools
import inspect
import json
import typing
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import msgspec

from reachmesh.errors import BadRequest, ConfigError, shortened, shown
from reachmesh.execution.conversion import Compiler, exact_type
from reachmesh.execution.fitting import Convert, Misfit, describe_hint, is_union, passes
from reachmesh.execution.hints import HintResolver, annotation_text, innermost, signature

_EMPTY = inspect.Parameter.empty
_POSITIONAL = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
_SYNC_STREAMS = (abc.Iterator, abc.Generator)
_ASYNC_STREAMS = (abc.AsyncIterator, abc.AsyncGenerator, abc.AsyncIterable)
_AWAITABLES = (abc.Awaitable, abc.Coroutine)


class _Param(msgspec.Struct):
    """One caller-visible parameter."""

    name: str
    hint: Any
    convert: Convert
    exact: type | None
    required: bool
    default: Any
    may_be_none: bool


class Handler:
    """One handler, inspected. Made by `inspect_handler`; compared by identity.

    Attributes:
        fn: what to call with the result of `bind`, the context and input parameters added by name.
        original: the callable as it was given.
        name: its name, for messages.
        is_async: it runs on an event loop (coroutine function or async generator).
        streams: it yields items instead of returning an answer.
        context_param: name of the parameter that takes the context, or None.
        input_param: name of the parameter that takes the caller's stream, or None.
        input_index: its place among the parameters a caller sees, or None.
        input_async: it wants an async iterator.
        remote: it runs in another process (set by `process.ProcessDomain.register`).
        profile: declared length of its runs: "short", "medium" or "long"; None = measured by the executor.
    """

    __slots__ = (
        "_keyword_rest",
        "_params",
        "_positional",
        "_required",
        "_rest",
        "_returns",
        "_signed",
        "context_param",
        "doc",
        "fn",
        "input_async",
        "input_index",
        "input_item",
        "input_param",
        "is_async",
        "name",
        "original",
        "profile",
        "remote",
        "streams",
    )

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        self.fn = fn
        self.original = fn
        self.name = name
        self.is_async = False
        self.streams = False
        self.context_param: str | None = None
        self.input_param: str | None = None
        self.input_index: int | None = None
        self.input_async = False
        self.input_item: Convert = passes
        self.profile: str | None = None
        self.remote = False
        self.doc = ""
        self._signed = False
        self._params: dict[str, _Param] = {}
        self._positional: tuple[str, ...] = ()
        self._required: frozenset[str] = frozenset()
        self._rest: _Param | None = None
        self._keyword_rest: _Param | None = None
        self._returns = ""

    def __repr__(self) -> str:
        return f"<Handler {self.name}>"

    def bind(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """What `convert` gives; but a handler that runs in another process is only checked here, and converted there.

        Raises:
            BadRequest: as `convert`.
        """
        if self.remote:
            self.convert(list(args), dict(kwargs))
            return args, kwargs
        return self.convert(args, kwargs)

    def convert(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any]]:
        """Turn decoded arguments into those of the function.

        Args:
            args: positional arguments. A value at the place of the input parameter is passed on as it is.
            kwargs: arguments by name; may be changed and given back.

        Returns:
            Positional and named arguments; the caller adds `context_param` and `input_param` to the named ones.

        Raises:
            BadRequest: an argument is missing, unknown, given twice or does not fit; the message names it.
        """
        if not self._signed:
            return args, kwargs
        rest: list[Any] = []
        if args:
            args, kwargs, rest = self._name_positional(args, kwargs)
        params = self._params
        for name, value in kwargs.items():
            param = params.get(name)
            if param is None:
                if name == self.input_param:
                    continue
                param = self._extra(name)
            if type(value) is not param.exact:
                kwargs[name] = self._fit(param, name, value)
        if not self._required <= kwargs.keys():
            missing = [name for name in params if name in self._required and name not in kwargs]
            raise BadRequest(f"{self.name}: missing argument {', '.join(map(repr, missing))}")
        if not rest:
            return [], kwargs
        param = self._rest
        assert param is not None
        tail = [self._fit(param, f"{param.name}[{index}]", value) for index, value in enumerate(rest)]
        return [kwargs.pop(name) for name in self._positional if name != self.input_param] + tail, kwargs

    def item(self, value: Any) -> Any:
        """One item of the caller's stream in the type its hint says (`Iterator[Point]`).

        Raises:
            BadRequest: it does not fit.
        """
        try:
            return self.input_item(value)
        except Misfit as misfit:
            raise self._refusal(f"item of {self.input_param}", misfit) from None

    def describe(self) -> dict[str, Any]:
        """What a listing shows: `params` (name, type, required, default), `returns`, `streams`, `input`, `doc`; plain JSON."""
        params = [_describe_param(param) for param in self._params.values()]
        params += [
            {"name": mark + extra.name, "type": describe_hint(extra.hint), "required": False, "default": None}
            for mark, extra in (("*", self._rest), ("**", self._keyword_rest))
            if extra is not None
        ]
        return {"params": params, "returns": self._returns, "streams": self.streams, "input": self.input_param, "doc": self.doc}

    def _name_positional(self, args: list[Any], kwargs: dict[str, Any]) -> tuple[list[Any], dict[str, Any], list[Any]]:
        names = self._positional
        if len(args) > len(names) and self._rest is None:
            raise BadRequest(f"{self.name}: takes {len(names)} positional arguments, got {len(args)}")
        for name, value in zip(names, args, strict=False):
            if name in kwargs:
                raise BadRequest(f"{self.name}: argument {shown(name)} is given twice")
            kwargs[name] = value
        return args, kwargs, args[len(names) :]

    def _extra(self, name: Any) -> _Param:
        """The `**kwargs` parameter, for an argument no other parameter names."""
        if name == self.context_param:
            raise BadRequest(f"{self.name}: argument {name!r} is filled by the node, not by the caller")
        if self._keyword_rest is None or not isinstance(name, str):
            near = f"; it takes {', '.join(self._params)}" if self._params else "; it takes none"
            raise BadRequest(f"{self.name}: unknown argument {shown(name)}{near}")
        return self._keyword_rest

    def _fit(self, param: _Param, name: str, value: Any) -> Any:
        if value is None and param.may_be_none:
            return None
        try:
            return param.convert(value)
        except Misfit as misfit:
            raise self._refusal(name, misfit) from None

    def _refusal(self, name: str, misfit: Misfit) -> BadRequest:
        return BadRequest(f"{self.name}: argument '{name}{shortened(misfit.path, 200)}' expects {misfit.expected}, got {misfit.problem}")


def inspect_handler(fn: Callable[..., Any], *, context_type: type, localns: Mapping[str, Any] | None = None) -> Handler:
    """Read the contract off a function.

    Args:
        fn: a function, generator, coroutine function, async generator, lambda, method, partial or callable object.
        context_type: the class whose hint asks for the context.
        localns: names local to the registering code, to resolve textual hints with.

    Raises:
        ConfigError: a hint cannot be resolved, or the parameters ask for two contexts or two input streams.
    """
    name = getattr(fn, "__name__", None) or getattr(getattr(fn, "func", None), "__name__", None) or type(fn).__name__
    handler = Handler(fn, name)
    handler.doc = _first_line(innermost(fn) if not isinstance(fn, functools.partial) else fn.func)
    signed = signature(fn)
    resolver = HintResolver(fn, context_type, localns)
    returns = _read_returns(handler, signed, resolver)
    _read_kind(handler, fn, returns)
    if signed is not None:
        handler._signed = True
        _read_params(handler, signed, resolver)
    return handler


def _read_returns(handler: Handler, signed: inspect.Signature | None, resolver: HintResolver) -> Any:
    """The return hint; it is shown and shapes the handler, so one that cannot be resolved is kept as text."""
    if signed is None or signed.return_annotation is _EMPTY:
        return None
    try:
        hint = resolver.resolve(signed.return_annotation)
    except Exception:
        handler._returns = annotation_text(signed.return_annotation)
        return None
    handler._returns = describe_hint(hint)
    return hint


def _read_kind(handler: Handler, fn: Callable[..., Any], returns: Any) -> None:
    """Async or not, stream or not: by the function itself, else by its return hint, else by what it wraps."""
    outer: Any = fn
    while isinstance(outer, functools.partial):
        outer = outer.func
    if not inspect.isroutine(outer) and not isinstance(outer, type):
        outer = type(outer).__call__
    origin = typing.get_origin(returns) or returns
    inner = innermost(fn)
    if inspect.iscoroutinefunction(outer):
        handler.is_async, handler.streams = True, origin in _ASYNC_STREAMS
    elif inspect.isasyncgenfunction(outer):
        handler.is_async, handler.streams = True, True
    elif inspect.isgeneratorfunction(outer):
        handler.streams = True
    elif inspect.iscoroutinefunction(inner):
        handler.is_async, handler.streams = True, origin in _ASYNC_STREAMS
    elif origin in _ASYNC_STREAMS or inspect.isasyncgenfunction(inner):
        handler.is_async, handler.streams = True, True
    elif origin in _SYNC_STREAMS or inspect.isgeneratorfunction(inner):
        handler.streams = True
    elif origin in _AWAITABLES:
        handler.is_async = True


def _read_params(handler: Handler, signed: inspect.Signature, resolver: HintResolver) -> None:
    compiler = Compiler(resolver.of_class)
    positional: list[str] = []
    visible = 0
    for parameter in signed.parameters.values():
        hint, input_item = _role(handler, parameter, resolver)
        if hint is resolver.context_type:
            _only_one(handler, handler.context_param, parameter.name, "context")
            handler.context_param = parameter.name
            continue
        is_positional = parameter.kind in _POSITIONAL
        if is_positional:
            positional.append(parameter.name)
        visible += 1
        if input_item is not None:
            _only_one(handler, handler.input_param, parameter.name, "input stream")
            handler.input_param = parameter.name
            handler.input_index = visible - 1 if is_positional else None
            handler.input_item = _compile(handler, parameter, compiler, input_item[0])
            continue
        param = _param(handler, parameter, hint, compiler)
        if parameter.kind is parameter.VAR_POSITIONAL:
            handler._rest = param
        elif parameter.kind is parameter.VAR_KEYWORD:
            handler._keyword_rest = param
        else:
            handler._params[parameter.name] = param
    handler._positional = tuple(positional)
    handler._required = frozenset(param.name for param in handler._params.values() if param.required)
    if handler._rest is not None or any(each.kind is each.POSITIONAL_ONLY for each in signed.parameters.values()):
        handler.fn = _by_place(handler.fn, signed.parameters.values())


def _role(handler: Handler, parameter: inspect.Parameter, resolver: HintResolver) -> tuple[Any, tuple[Any] | None]:
    """The parameter's hint (the context type itself for a context), and for an input stream its item's hint in a tuple."""
    if parameter.annotation is _EMPTY:
        return Any, None
    try:
        hint = resolver.resolve(parameter.annotation)
    except Exception as error:
        raise ConfigError(
            f"{handler.name}: the hint {annotation_text(parameter.annotation)!r} of parameter {parameter.name!r} cannot be resolved: {error}",
            hint="import what it names where the function is defined, outside `if TYPE_CHECKING`",
        ) from None
    bare = typing.get_args(hint)[0] if typing.get_origin(hint) is typing.Annotated else hint
    arms = [arm for arm in typing.get_args(bare) if arm is not type(None)] if is_union(bare) else [bare]
    only = arms[0] if len(arms) == 1 else None
    if isinstance(only, type) and only is resolver.context_type:
        return resolver.context_type, None
    origin = typing.get_origin(only) or only
    if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD) and origin in (*_SYNC_STREAMS, *_ASYNC_STREAMS):
        handler.input_async = origin in _ASYNC_STREAMS
        return hint, ((typing.get_args(only) or (Any,))[0],)
    return hint, None


def _only_one(handler: Handler, taken: str | None, name: str, what: str) -> None:
    if taken is not None:
        raise ConfigError(f"{handler.name}: parameters {taken!r} and {name!r} both ask for the {what}; one can have it")


def _compile(handler: Handler, parameter: inspect.Parameter, compiler: Compiler, hint: Any) -> Convert:
    try:
        return compiler.compile(hint)
    except Exception as error:
        text = annotation_text(parameter.annotation)
        raise ConfigError(f"{handler.name}: the hint {text!r} of parameter {parameter.name!r} cannot be used: {error}") from None


def _param(handler: Handler, parameter: inspect.Parameter, hint: Any, compiler: Compiler) -> _Param:
    variable = parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD)
    return _Param(
        name=parameter.name,
        hint=hint,
        convert=_compile(handler, parameter, compiler, hint),
        exact=exact_type(hint),
        required=parameter.default is _EMPTY and not variable,
        default=parameter.default,
        may_be_none=parameter.default is None,
    )


def _by_place(fn: Callable[..., Any], parameters: Iterable[inspect.Parameter]) -> Callable[..., Any]:
    """`fn` for callers who give every parameter by name, those it takes by place only too.

    Positional arguments come either not at all, or as the whole list (without those given by name) before `*args`.
    """
    places = [(each.name, each.default, each.kind is each.POSITIONAL_ONLY) for each in parameters if each.kind in _POSITIONAL]

    @functools.wraps(fn)
    def call(*args: Any, **kwargs: Any) -> Any:
        given = iter(args)
        if args:
            placed = [kwargs.pop(name) if name in kwargs else next(given) for name, _, _ in places]
            return fn(*placed, *given, **kwargs)
        placed = []
        for name, default, only in places:
            if not only:
                break
            placed.append(kwargs.pop(name, default))
        return fn(*placed, **kwargs)

    return call


def _describe_param(param: _Param) -> dict[str, Any]:
    default: Any = None
    if not param.required:
        try:
            default = json.loads(json.dumps(param.default, allow_nan=False))
        except (TypeError, ValueError):
            default = repr(param.default)[:200]
    return {"name": param.name, "type": describe_hint(param.hint), "required": param.required, "default": default}


def _first_line(fn: Any) -> str:
    doc = getattr(fn, "__doc__", None)
    return doc.strip().partition("\n")[0].strip() if isinstance(doc, str) else ""
