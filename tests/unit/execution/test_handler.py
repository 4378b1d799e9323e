"""What the shape of a function says about it: kinds, roles of parameters, hints that are hard to resolve, listings."""

from __future__ import annotations

import functools
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from typing import TYPE_CHECKING, Any, Optional

import pytest

from reachmesh.errors import BadRequest, ConfigError
from tests.unit.execution.fake_jobs import Context, handler_of

if TYPE_CHECKING:
    from nowhere import Missing, Seq  # type: ignore[import-not-found]

    import reachmesh as rm


def plain(a: int) -> int:
    return a


async def coroutine() -> None: ...


def generator() -> Iterator[int]:
    yield 1


async def async_generator() -> AsyncIterator[int]:
    yield 1


def gives_iterator() -> Iterator[int]:
    return iter([1])


def gives_async_iterator() -> AsyncIterator[int]:
    return async_generator()


def gives_awaitable() -> Awaitable[None]:
    return coroutine()


def gives_list() -> list[int]:
    return [1]


def wrapped(fn: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(fn)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        return fn(*args, **kwargs)

    return wrapper


class Callable_:
    def __call__(self, a: int) -> int:
        return a

    async def method(self, a: int) -> int:
        return a

    @staticmethod
    def static(a: int) -> int:
        return a


class AsyncCallable:
    async def __call__(self) -> None: ...


@pytest.mark.parametrize(
    ("fn", "is_async", "streams"),
    [
        (plain, False, False),
        (coroutine, True, False),
        (generator, False, True),
        (async_generator, True, True),
        (gives_iterator, False, True),
        (gives_async_iterator, True, True),
        (gives_awaitable, True, False),
        (gives_list, False, False),
        (lambda: 1, False, False),
        (print, False, False),
        (Callable_(), False, False),
        (Callable_().method, True, False),
        (Callable_.static, False, False),
        (AsyncCallable(), True, False),
        (functools.partial(plain, a=1), False, False),
        (functools.partial(coroutine), True, False),
        (functools.partial(generator), False, True),
        (wrapped(plain), False, False),
        (wrapped(coroutine), True, False),
        (wrapped(generator), False, True),
        (wrapped(async_generator), True, True),
    ],
)
def test_the_kind_of_a_function_is_seen(fn: Callable[..., Any], is_async: bool, streams: bool) -> None:
    """Async or not and stream or not follow from the function, also behind partials, methods, objects and decorators."""
    handler = handler_of(fn)
    assert (handler.is_async, handler.streams) == (is_async, streams)


def test_a_context_is_found_by_its_hint() -> None:
    """The context's parameter is found wherever it stands, optional or annotated, and is no argument of the caller."""

    def first(ctx: Context, a: int) -> None: ...
    def last(a: int, *, c: Context) -> None: ...
    def optional(a: int, ctx: Context | None = None) -> None: ...
    def old_style(a: int, ctx: Optional[Context] = None) -> None: ...  # noqa: UP045
    def dotted(a: int, ctx: rm.Context) -> None: ...

    assert [handler_of(fn).context_param for fn in (first, last, optional, old_style, dotted)] == ["ctx", "c", "ctx", "ctx", "ctx"]
    handler = handler_of(first)
    assert handler.bind([1], {}) == ([], {"a": 1})
    with pytest.raises(BadRequest, match="ctx"):
        handler.bind([], {"a": 1, "ctx": 1})
    with pytest.raises(BadRequest, match="positional"):
        handler.bind([1, 2], {})


def test_an_input_stream_is_found_by_its_hint() -> None:
    """An Iterator or AsyncIterator parameter takes the caller's stream; its place is counted without the context."""

    def sync(ctx: Context, a: int, numbers: Iterator[int]) -> None: ...
    async def later(numbers: AsyncIterator[int]) -> None: ...
    def keyword(*, numbers: Iterator[int]) -> None: ...

    handler = handler_of(sync)
    assert (handler.input_param, handler.input_index, handler.input_async) == ("numbers", 1, False)
    assert handler.bind([1], {}) == ([], {"a": 1})
    assert handler.item(3) == 3
    with pytest.raises(BadRequest, match=r"item of numbers.*int.*str"):
        handler.item("3")
    assert handler_of(later).input_async is True
    assert (handler_of(keyword).input_param, handler_of(keyword).input_index) == ("numbers", None)


def test_two_contexts_or_input_streams_are_refused() -> None:
    """A function that asks for two contexts or two input streams is a ConfigError naming both parameters."""

    def contexts(one: Context, two: Context) -> None: ...
    def inputs(left: Iterator[int], right: Iterator[int]) -> None: ...

    with pytest.raises(ConfigError, match=r"one.*two"):
        handler_of(contexts)
    with pytest.raises(ConfigError, match=r"left.*right"):
        handler_of(inputs)


def test_hints_local_to_the_makers_function_are_resolved() -> None:
    """A textual hint may name what only the closure, or the registering code, can see."""

    class Local: ...

    def uses_closure(a: Local) -> type:
        return Local

    def uses_locals(a: Local) -> None: ...

    value = Local()
    assert handler_of(uses_closure).bind([value], {}) == ([], {"a": value})
    assert handler_of(uses_locals, localns=locals()).bind([value], {}) == ([], {"a": value})
    with pytest.raises(ConfigError, match=r"uses_locals.*Local.*'a'"):
        handler_of(uses_locals)


def test_a_hint_that_cannot_be_resolved_names_function_and_parameter() -> None:
    """What is imported for type checkers only is a ConfigError at registration, unless its text is a well-known name."""

    def missing(a: int, b: Missing) -> None: ...
    def nonsense(b: "no type at all") -> None: ...  # type: ignore[valid-type] # noqa: F722
    def number(b: 5) -> None: ...  # type: ignore[valid-type]
    def alias(b: Seq[int]) -> None: ...

    for fn in (missing, nonsense, number, alias):
        with pytest.raises(ConfigError, match=rf"{fn.__name__}.*'b'"):
            handler_of(fn)

    namespace: dict[str, Any] = {}
    exec("def known(a: 'Mapping[str, int]', it: 'Iterator[int]', ctx: 'Context'): ...", namespace)
    handler = handler_of(namespace["known"])
    assert (handler.input_param, handler.context_param) == ("it", "ctx")
    assert handler.bind([{"x": 1}], {}) == ([], {"a": {"x": 1}})


def test_an_unresolved_return_hint_is_shown_as_text() -> None:
    """A return hint only describes, so one that cannot be resolved does no harm."""

    def fn() -> Missing: ...

    assert handler_of(fn).describe()["returns"] == "Missing"


def test_what_is_no_function_is_refused() -> None:
    """Something that cannot be called is a ConfigError."""
    with pytest.raises(ConfigError):
        handler_of(5)  # type: ignore[arg-type]


def test_a_listing_is_plain_json() -> None:
    """describe() tells parameters, types, defaults, return, stream, input and the first line of the docstring, in plain JSON."""

    def fn(
        a: int, ctx: Context, words: Iterator[str], b: list[str] | None = None, c: Any = object, *rest: int, **more: str
    ) -> Iterator[int]:
        """Says hello.

        And more.
        """
        yield 1

    told = handler_of(fn).describe()
    assert json.loads(json.dumps(told)) == told
    assert told["params"][:2] == [
        {"name": "a", "type": "int", "required": True, "default": None},
        {"name": "b", "type": "list[str] | None", "required": False, "default": None},
    ]
    assert [param["name"] for param in told["params"]] == ["a", "b", "c", "*rest", "**more"]
    assert (told["returns"], told["streams"], told["input"], told["doc"]) == ("Iterator[int]", True, "words", "Says hello.")
