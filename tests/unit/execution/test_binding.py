"""Arguments under hints: what fits, what is converted, what is refused and how the refusal reads."""

from __future__ import annotations

import dataclasses
import datetime as dt
import enum
import uuid
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from decimal import Decimal
from typing import Annotated, Any, Generic, Literal, NamedTuple, NewType, NotRequired, Protocol, TypedDict, TypeVar

import msgspec
import pytest

from reachmesh.errors import BadRequest
from tests.unit.execution.fake_jobs import Context, handler_of

T = TypeVar("T")
N = TypeVar("N", int, str)
UserId = NewType("UserId", int)


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


@dataclasses.dataclass
class Point:
    x: int
    y: int = 0
    norm: float = dataclasses.field(init=False, default=0.0)
    scale: dataclasses.InitVar[int] = 1

    def __post_init__(self, scale: int) -> None:
        if self.x < 0:
            raise ValueError("x is negative")
        self.norm = abs(self.x * scale)


@dataclasses.dataclass
class Tree:
    value: int
    children: list[Tree] = dataclasses.field(default_factory=list)


@dataclasses.dataclass
class Box(Generic[T]):
    content: T


class Movie(TypedDict):
    title: str
    year: NotRequired[int]


class Pair(NamedTuple):
    left: int
    right: str = "r"


class Packed(msgspec.Struct):
    n: int


class Talks(Protocol):
    def talk(self) -> str: ...


class Custom: ...


CUSTOM = Custom()
ID = uuid.UUID(int=7)
DAY = dt.date(2024, 2, 29)
AT = dt.datetime(2024, 5, 6, 7, 8, 9, tzinfo=dt.UTC)


def one(hint: Any, value: Any) -> Any:
    """What a handler with one parameter of this hint is given for `value`."""

    def fn(a): ...  # type: ignore[no-untyped-def]

    fn.__annotations__ = {"a": hint}
    _, kwargs = handler_of(fn).bind([], {"a": value})
    return kwargs["a"]


FITS: list[tuple[Any, Any, Any]] = [
    (int, 1, 1), (float, 1, 1.0), (float, 1.5, 1.5), (bool, True, True), (str, "x", "x"), (None, None, None), (Any, CUSTOM, CUSTOM),
    (object, 1, 1), (bytes, b"x", b"x"), (bytes, bytearray(b"x"), b"x"), (bytearray, b"x", bytearray(b"x")),
    (list, [1, "x"], [1, "x"]), (list, (1,), [1]), (list[int], [1, 2], [1, 2]), (list[float], [1, 2.5], [1.0, 2.5]),
    (tuple[int, str], [1, "x"], (1, "x")), (tuple[int, ...], [1, 2], (1, 2)), (tuple[()], [], ()), (tuple, [1], (1,)),
    (set[int], [1, 2], {1, 2}), (frozenset[int], {1}, frozenset({1})), (Sequence[int], (1, 2), (1, 2)), (Sequence[float], (1,), (1.0,)),
    (dict[str, float], {"a": 1}, {"a": 1.0}), (dict[int, str], {1: "x"}, {1: "x"}), (Mapping[str, int], {"a": 1}, {"a": 1}),
    (int | None, None, None), (int | str, "x", "x"), (float | int, 1, 1), (int | list[Point] | None, [{"x": 1}], [Point(1)]),
    (Point | Movie, {"title": "t"}, {"title": "t"}), (Literal["a", 1], 1, 1), (Literal[Colour.RED], "red", Colour.RED),
    (Colour, "red", Colour.RED), (Colour, (1, 2), Colour.PAIR), (Level, 1, Level.LOW),
    (Point, {"x": 1, "y": 2, "norm": 5.0}, Point(1, 2)), (Point, {"x": 1, "scale": 3}, Point(1, scale=3)),
    (Tree, {"value": 1, "children": [{"value": 2}]}, Tree(1, [Tree(2)])), (Box[int], {"content": 1}, Box(1)),
    (Movie, {"title": "t", "year": 1}, {"title": "t", "year": 1}), (Pair, [1, "x"], Pair(1, "x")), (Pair, {"left": 1}, Pair(1)),
    (Packed, {"n": 1}, Packed(1)), (Annotated[int, msgspec.Meta(ge=1)], 1, 1), (UserId, 1, 1), (N, "x", "x"), (T, CUSTOM, CUSTOM),
    (Custom, CUSTOM, CUSTOM), (Talks, CUSTOM, CUSTOM), (uuid.UUID, ID, ID), (uuid.UUID, str(ID), ID), (dt.date, "2024-02-29", DAY),
    (dt.datetime, "2024-05-06T07:08:09Z", AT), (dt.timedelta, "PT1S", dt.timedelta(seconds=1)), (Decimal, "0.10", Decimal("0.10")),
    (Decimal, 3, Decimal(3)), (dict[str, list[int] | None], {"a": [1], "b": None}, {"a": [1], "b": None}),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "value", "expected"), FITS)
def test_what_fits_a_hint_arrives_in_its_type(hint: Any, value: Any, expected: Any) -> None:
    """A value that fits, or that has one obvious form in the hint's type, arrives as that type."""
    got = one(hint, value)
    assert got == expected
    assert type(got) is type(expected)


MISFITS: list[tuple[Any, Any, str]] = [
    (int, True, "expects int, got bool"), (int, 1.0, "expects int, got float"), (int, "1", "got str"), (int, None, "got None"), (bool, 1, "got int"),
    (float, True, "got bool"), (float, 10**400, "too large"), (str, b"x", "got bytes"), (bytes, "x", "expects bytes, got str"),
    (None, 1, "expects None"), (list[int], [1, "x"], r"'a\[1\]' expects int"), (list[int], {1}, r"expects list\[int\], got set"),
    (list[list[int]], [[1], ["x"]], r"'a\[1\]\[0\]'"), (tuple[int, str], [1], "1 items"), (tuple[int, str], [1, 2], r"'a\[1\]' expects str"),
    (set[int], [[1]], r"'a\[0\]'"), (set, [[1]], "unhashable"), (dict[str, int], {"k": "x"}, r"\['k'\]' expects int"), (dict[str, int], {1: 1}, "expects str"),
    (Sequence[str], "abc", "got str"), (int | None, "x", "expects int, got str"), (int | str, 1.5, r"expects int \| str, got float"),
    (Literal["a", 1], True, "True"), (Literal["a"], "b", "'b'"), (Colour, "blue", "red.*'blue'"), (Colour, {"a": []}, "Colour"), (Level, True, "bool"),
    (Point, {}, "missing field 'x'"), (Point, {"x": 1, "z": 1}, "unknown field 'z'"), (Point, {"x": "1"}, "'a.x' expects int"), (Point, 5, "expects Point"),
    (Point, {"x": -1}, "x is negative"), (Tree, {"value": 1, "children": [{"value": "x"}]}, r"'a\.children\[0\]\.value' expects int"),
    (Movie, {"year": 1}, "missing field 'title'"), (Movie, {"title": "t", "stars": 1}, "unknown field 'stars'"), (Pair, [1, "x", 3], "3 items"),
    (Pair, ["x"], "'a.left' expects int"), (Packed, {"n": "x"}, "Packed"), (Annotated[int, msgspec.Meta(ge=1)], 0, ">= 1"), (Custom, 5, "expects Custom"),
    (uuid.UUID, "x", "UUID"), (dt.date, "yesterday", "'yesterday'"), (dt.date, AT, "got datetime"), (dt.datetime, 5, "got int"), (Decimal, True, "got bool"), (N, 1.5, "got float"),
    (OrderedDict, {"a": 1}, "OrderedDict"), (Callable[[], int], 5, "Callable"), (int | list[Point], [{"x": "1"}], r"'a\[0\]\.x' expects int"),
]  # fmt: skip


@pytest.mark.parametrize(("hint", "value", "words"), MISFITS)
def test_what_does_not_fit_is_a_bad_request_with_the_way_to_it(hint: Any, value: Any, words: str) -> None:
    """An ill-typed argument is a BadRequest that names the argument, the path inside it, what is expected and what is there."""
    with pytest.raises(BadRequest, match=words) as caught:
        one(hint, value)
    assert "argument 'a" in str(caught.value)
    assert caught.value.executed == "no"


def test_missing_unknown_and_double_arguments_are_named() -> None:
    """Each way of calling a function wrongly is a BadRequest naming the argument; a right call gets everything by name."""

    def fn(a: int, b: str = "x", *, c: float = 0) -> None: ...

    handler = handler_of(fn)
    assert handler.bind([1], {"c": 2}) == ([], {"a": 1, "c": 2.0})
    assert handler.bind([1, "y"], {}) == ([], {"a": 1, "b": "y"})
    wrong: list[tuple[list[Any], dict[Any, Any], str]] = [
        ([], {}, "missing argument 'a'"),
        ([1], {"a": 1}, "'a' is given twice"),
        ([1], {"bb": 1}, "unknown argument 'bb'; it takes a, b, c"),
        ([1, "x", 2], {}, "takes 2 positional arguments, got 3"),
        ([1], {5: 1}, "unknown argument 5"),
        ([1], {"b": None}, "'b' expects str, got None"),
    ]
    for args, kwargs, words in wrong:
        with pytest.raises(BadRequest, match=words):
            handler.bind(args, kwargs)


def test_none_is_fine_where_it_is_the_default() -> None:
    """`a: int = None`, as much old code has it, takes None."""

    def fn(a: int = None) -> None: ...  # type: ignore[assignment] # noqa: RUF013

    assert handler_of(fn).bind([], {"a": None}) == ([], {"a": None})


def place(a: int, ctx: Context, /, b: int = 2, *rest: int, c: int = 3, **more: str) -> tuple[Any, ...]:
    return a, ctx, b, rest, c, more


@pytest.mark.parametrize(
    ("args", "kwargs", "result"),
    [
        ([1], {}, (1, "C", 2, (), 3, {})),
        ([], {"a": 1, "b": 5, "c": 6}, (1, "C", 5, (), 6, {})),
        ([1, 5, 6, 7], {"c": 8, "z": "more"}, (1, "C", 5, (6, 7), 8, {"z": "more"})),
    ],
)
def test_parameters_by_place_and_variable_ones_are_filled(args: list[Any], kwargs: dict[str, Any], result: tuple[Any, ...]) -> None:
    """Positional-only, `*args` and `**kwargs` parameters work, the context among them, and binding twice changes nothing."""
    handler = handler_of(place)
    bound = handler.bind(*handler.bind(args, kwargs))
    assert handler.fn(*bound[0], **bound[1], ctx="C") == result


def test_variable_parameters_are_checked_too() -> None:
    """The hints of `*args` and `**kwargs` hold for each of their values."""
    handler = handler_of(place)
    with pytest.raises(BadRequest, match=r"rest\[1\].*int.*str"):
        handler.bind([1, 2, 3, "x"], {})
    with pytest.raises(BadRequest, match="'z' expects str"):
        handler.bind([1], {"z": 1})


def test_a_function_without_signature_gets_what_is_sent() -> None:
    """A builtin that does not tell its signature is not checked."""
    assert handler_of(dict).bind([1], {"a": 2}) in (([1], {"a": 2}), ([], {"a": 2}))
    assert handler_of(max).bind([1, 2], {}) == ([1, 2], {})


def test_a_remote_handler_is_checked_but_not_converted() -> None:
    """For a handler in another process bind() refuses what does not fit and passes the rest on as it came."""

    def fn(p: Point) -> None: ...

    handler = handler_of(fn)
    handler.remote = True
    assert handler.bind([{"x": 1}], {}) == ([{"x": 1}], {})
    assert handler.convert([{"x": 1}], {}) == ([], {"p": Point(1)})
    with pytest.raises(BadRequest, match=r"p\.x"):
        handler.bind([{"x": "1"}], {})


def test_pydantic_models_validate_by_their_own_rules() -> None:
    """A parameter hinted with a pydantic model is validated by it; the path of its first complaint is told."""
    pydantic = pytest.importorskip("pydantic")

    class Item(pydantic.BaseModel):  # type: ignore[name-defined,misc]
        sku: str

    class Order(pydantic.BaseModel):  # type: ignore[name-defined,misc]
        items: list[Item]
        amount: int = 1

    assert one(Order, {"items": [{"sku": "a"}], "amount": 3}) == Order(items=[Item(sku="a")], amount=3)
    assert one(list[Item], [{"sku": "a"}]) == [Item(sku="a")]
    with pytest.raises(BadRequest, match=r"'a\.items\[0\]\.sku'"):
        one(Order, {"items": [{}]})


def test_numpy_arrays_are_told_by_their_class() -> None:
    """An ndarray fits ndarray and NDArray hints, a list does not."""
    numpy = pytest.importorskip("numpy")
    from numpy.typing import NDArray

    array = numpy.arange(3)
    assert one(numpy.ndarray, array) is array
    assert one(NDArray[Any], array) is array
    with pytest.raises(BadRequest, match="ndarray"):
        one(numpy.ndarray, [1, 2])
