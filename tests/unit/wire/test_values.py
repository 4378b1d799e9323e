"""Values: what comes back is what left, or it is refused with its path; any bytes are a value or a PayloadError."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import enum
import math
import subprocess
import sys
import time
import uuid
from collections.abc import Callable
from decimal import Decimal
from typing import Any, NamedTuple

import msgpack
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reachmesh.errors import PayloadError, PayloadTooLarge
from reachmesh.wire.frames import PayloadFormat
from reachmesh.wire.limits import LIMITS
from reachmesh.wire.values import dump, dump_arguments, dump_body, dump_json, load, load_arguments, load_body, load_json

offsets = st.integers(-86_399, 86_399).map(lambda seconds: dt.timezone(dt.timedelta(seconds=seconds)))
zones = st.one_of(st.none(), st.just(dt.UTC), offsets)
hashables = st.one_of(
    st.none(), st.booleans(), st.integers(), st.integers(-(2**200), 2**200), st.floats(), st.text(), st.binary(), st.uuids(),
    st.datetimes(timezones=zones), st.dates(), st.times(timezones=zones), st.timedeltas(), st.decimals(allow_nan=False),
)  # fmt: skip
keys = st.recursive(hashables, lambda inner: st.one_of(st.tuples(inner, inner), st.frozensets(inner, max_size=3)), max_leaves=4)
values = st.recursive(
    st.one_of(hashables, st.binary().map(bytearray)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=4), st.lists(inner, max_size=4).map(tuple), st.sets(keys, max_size=4), st.dictionaries(keys, inner, max_size=4)
    ),
    max_leaves=12,
)  # fmt: skip


class Colour(enum.Enum):
    RED = "red"
    PAIR = (1, 2)


class Level(enum.IntEnum):
    LOW = 1


class Text(str):
    __slots__ = ()


@dataclasses.dataclass(frozen=True)
class Point:
    x: Any
    y: Any = 0


class Named(NamedTuple):
    a: int
    b: int


def same(left: Any, right: Any) -> Any:
    """Equal, with the same types all the way down; NaN equals NaN and -0.0 differs from 0.0."""
    if type(left) is not type(right):
        return False
    if isinstance(left, dict):
        return len(left) == len(right) and all(same(a, b) for a, b in zip(left.items(), right.items(), strict=True))
    if isinstance(left, list | tuple):
        return len(left) == len(right) and all(map(same, left, right))
    if isinstance(left, set | frozenset):
        return len(left) == len(right) and all(map(same, sorted(left, key=repr), sorted(right, key=repr)))
    if isinstance(left, float):
        return repr(left) == repr(right)
    if isinstance(left, dt.datetime | dt.time):
        return left.isoformat() == right.isoformat()
    return bool(left == right)


def nested(depth: int) -> Any:
    value: Any = 1
    for _ in range(depth):
        value = [value]
    return value


def cycle() -> Any:
    value: dict[str, Any] = {}
    value["me"] = [value]
    return value


def bomb() -> Any:
    value: Any = ["x"] * 10
    for _ in range(30):
        value = [value] * 10
    return value


@settings(max_examples=150)
@given(values)
def test_values_come_back_in_the_type_they_left_in(value: Any) -> None:
    """Anything made of what may travel is the same after the way there and back."""
    assert same(load([bytes(segment) for segment in dump(value)]), value)


@pytest.mark.parametrize(
    "value",
    [
        -0.0, math.nan, math.inf, 2**64 - 1, 2**64, -(2**63), -(2**63) - 1, 10**4000, [1, True, 1.0], {1: "a", "1": "b"}, [None] * 100,
        [*range(100), 2**70], (1,) * 100, [[1, 2]] * 70_000, {index: [] for index in range(1000)}, {(1, (2, frozenset({3}))): 4},
        {uuid.UUID(int=index): index for index in range(1000)}, set(range(5000)), dt.datetime.max, dt.datetime.min, dt.timedelta.min,
        dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(seconds=-1))), Decimal("sNaN"), Decimal("-0"), Decimal("1E+400"),
        "a\0b", "\U0010ffff", "é" * 70_000, nested(128), {"a": nested(127)},
    ],
)  # fmt: skip
def test_awkward_values_come_back(value: Any) -> None:
    """The corners of every type survive."""
    got = load(dump(value))
    assert repr(got) == repr(value) if isinstance(value, Decimal) else same(got, value)


@pytest.mark.parametrize("size", [0, 255, 256, 16_383, 16_384, 65_537, 1_000_000])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_big_buffers_travel_beside_the_body_uncopied(kind: Callable[[bytes], Any], size: int) -> None:
    """From the threshold on a buffer is a segment of its own, a view of the sender's memory; below it is in the body."""
    data = kind(b"d" * size)
    segments = dump({"deep": [(data, 1)]})
    assert len(segments) == (2 if size >= LIMITS.inline else 1)
    if len(segments) == 2:
        beside = segments[1]
        assert beside is data or (isinstance(beside, memoryview) and beside.obj is data)
    assert same(load(segments), {"deep": [(data, 1)]})


def test_a_loaded_bytearray_never_shares_memory_with_its_sender() -> None:
    """Changing what was received leaves what was sent alone; a bytearray segment is taken over instead of copied."""
    sent = bytearray(b"s" * 20_000)
    segments = dump(sent)
    got = load(segments)
    got[0] = 0
    assert sent[0] == ord("s")
    received = bytearray(segments[1])
    assert load([segments[0], received]) is received


def test_enums_dataclasses_and_models_travel_as_plain_values() -> None:
    """They arrive as values and dicts, from which hints make them again."""
    import pydantic

    class Order(pydantic.BaseModel):
        sku: str
        colour: Colour = Colour.RED
        amount: int = pydantic.Field(default=1, alias="n")

    value = {"c": Colour.RED, "l": Level.LOW, "p": Point(1, Point((2,))), "o": [Order(sku="a", n=2)], Colour.PAIR: 1}
    expected = {"c": "red", "l": 1, "p": {"x": 1, "y": {"x": (2,), "y": 0}}, "o": [{"sku": "a", "colour": "red", "n": 2}], (1, 2): 1}
    assert same(load(dump(value)), expected)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"rows": [1, 2, 3, object()]}, "value.rows[3]"), ([object()], "value[0]"), (object(), "value"), ({"deep": {"f": len}}, "value.deep.f"),
        ({"a b": (1, 1j)}, "value['a b'][1]"), ({1: range(3)}, "value[1]"), (Point(Point(1, object())), "value.x.y"),
        ([1] * 50 + [Text("t")], "value[50]"), (["t"] * 50 + ["\ud800"], "value[50]"), ({"k": "\ud800"}, "value.k"), (Text("t"), "value"),
        (Named(1, 2), "value"), ([collections.OrderedDict()], "value[0]"), (collections.defaultdict(list), "value"),
        (collections.Counter("a"), "value"), ([memoryview(b"m")], "value[0]"), (msgpack.ExtType(1, b"\0"), "value"),
        ([msgpack.Timestamp(1)], "value[0]"), ([{1, Text("t")}], "value[0]{...}"), (Point, "value"), (cycle(), ""), (nested(129), ""), (nested(1000), ""),
        (nested(100_000), ""), ({"a": [nested(127)]}, "value.a[0]"), ({Colour.RED: 1, "red": 2}, "value"), ([{(Colour.RED,), ("red",)}], "value[0]"),
        (dt.datetime(2024, 1, 1, tzinfo=dt.timezone(dt.timedelta(microseconds=5))), "value"), ({Point(1): 1}, "value key of type Point"), ({Text("t"): 1}, "value key of type Text"), ([{"\ud800": 1}], "value[0] key '\\ud800'"),
    ],
)  # fmt: skip
def test_what_cannot_travel_is_refused_with_its_path(value: Any, path: str) -> None:
    """A PayloadError leads to the value, whatever it is, and nothing crashes or hangs."""
    with pytest.raises(PayloadError) as caught:
        dump(value)
    assert caught.value.path.startswith(path or "value")
    assert caught.value.path in str(caught.value)
    if path:
        assert caught.value.path == path or len(path) < 12


@pytest.mark.parametrize(
    "value", [b"x" * (LIMITS.message + 1), {"a": [b"x" * (LIMITS.message // 2 + 1)] * 2}, [b"x" * LIMITS.inline] * LIMITS.segments, bomb()],
    ids=["bytes", "sum", "count", "bomb"],
)  # fmt: skip
def test_too_much_is_refused_before_it_is_copied(value: Any) -> None:
    """Size, number of buffers, and number of elements are capped at the sender."""
    with pytest.raises(PayloadTooLarge):
        dump(value)


def test_errors_of_the_users_own_code_are_payload_errors() -> None:
    """A property or time zone that raises is named, not passed through."""

    class Broken(dt.tzinfo):
        def utcoffset(self, when: dt.datetime | None) -> dt.timedelta:
            raise RuntimeError("broken zone")

        dst = utcoffset

        def tzname(self, when: dt.datetime | None) -> str:
            return "broken"

    @dataclasses.dataclass
    class Half:
        x: int

    half = Half(1)
    del half.x
    for value in (dt.datetime(2024, 1, 1, tzinfo=Broken()), {"a": half}):
        with pytest.raises(PayloadError, match=r"broken zone|value\.a"):
            dump(value)


@pytest.mark.parametrize("key", [10**5000, "k" * 100_000, b"b" * 100_000, (1, "k" * 100_000)], ids=["digits", "text", "bytes", "tuple"])
def test_a_huge_key_is_shortened_in_the_path(key: Any) -> None:
    """The path stays readable, and making it never fails."""
    with pytest.raises(PayloadError) as caught:
        dump({key: {"x": object()}})
    assert caught.value.path.endswith("].x")
    assert len(caught.value.path) < 60


def test_arguments_name_the_argument() -> None:
    """Paths of a call begin with the argument's name, or its position."""
    assert load_arguments(PayloadFormat.MSGPACK, dump_arguments((1, "a"), {"b": [2]})) == ([1, "a"], {"b": [2]})
    for args, kwargs, path in (
        ((), {"value": {"rows": [1, len]}}, "value.rows[1]"),
        ((1, [len]), {}, "args[1][0]"),
        ((), {"t": "\ud800"}, "t"),
    ):
        with pytest.raises(PayloadError) as caught:
            dump_arguments(args, kwargs)
        assert caught.value.path == path
        assert str(caught.value).startswith(path)


@pytest.mark.parametrize("value", [1, [], [[], {}, 1], [{}, {}], [[], []], [[], {1: 2}], [(), {}]])
def test_other_arguments_than_a_list_and_a_map_are_refused(value: Any) -> None:
    """What is no [args, kwargs] never reaches a handler."""
    with pytest.raises(PayloadError):
        load_arguments(PayloadFormat.MSGPACK, dump(value))


@settings(max_examples=250)
@given(st.lists(st.binary(max_size=80), max_size=3))
@example([])
@example([b""])
@example([b"\x91" * 10_000])
@example([b"\x91" * 128 + b"\x90"])
@example([b"\xdd\xff\xff\xff\xff"])
@example([b"\xdf\x7f\xff\xff\xff"])
@example([b"\xc9\xff\xff\xff\xff\x02"])
@example([b"\xc6\xff\xff\xff\xff"])
@example([b"\xc0", b"left over"])
@example([b"\x92\xc7\x00\x0a\xc7\x00\x0a", b"used twice"])
@example([msgpack.packb(msgpack.ExtType(8, b"1E+999999999999999999999"))])
@example([msgpack.packb(msgpack.ExtType(3, b"9" * 64))])
@example([msgpack.packb(msgpack.ExtType(6, b"\x7f" + b"\xff" * 11))])
@example([b"\xc7\x0c\xff" + b"\xff" * 12])
def test_any_bytes_are_a_value_or_a_payload_error(segments: list[bytes]) -> None:
    """Reading raises nothing else."""
    try:
        load(segments)
    except PayloadError:
        pass


@given(values, st.data())
def test_damaged_values_never_raise_anything_else(value: Any, data: st.DataObject) -> None:
    """A good body with bytes changed is another value or a PayloadError."""
    body = bytearray(dump([value])[0])
    for _ in range(data.draw(st.integers(1, 4))):
        body[data.draw(st.integers(0, len(body) - 1))] = data.draw(st.integers(0, 255))
    try:
        load([bytes(body)])
    except PayloadError:
        pass


def test_a_small_message_cannot_become_a_huge_value() -> None:
    """Elements are counted: millions of empty containers are refused, and quickly."""
    body = b"\xdd" + (3_000_000).to_bytes(4) + b"\x90" * 3_000_000
    with pytest.raises(PayloadTooLarge):
        load([body])
    deep = b"\xdd" + (200).to_bytes(4) + (b"\x91" * 200 + b"\xc0") * 200
    with pytest.raises(PayloadError):
        load([deep])


def collide(count: int) -> Any:
    return [2**61 * index - index for index in range(8, count + 8)]


@pytest.mark.parametrize(
    "keys",
    [
        collide(30_000), [uuid.UUID(int=key) for key in collide(30_000)],
        [tuple(-1 - (number >> bit & 1) for bit in range(16)) for number in range(30_000)],
    ],
    ids=["integers", "uuids", "tuples"],
)  # fmt: skip
@pytest.mark.parametrize("make", ["map", "set"])
def test_keys_made_to_collide_are_refused_quickly(keys: list[Any], make: str) -> None:
    """A sender who chooses keys with one hash cannot hold the interpreter for minutes."""
    assert len({hash(key) for key in keys[:1000]}) == 1
    pieces = [bytes(dump(key)[0]) for key in keys]
    if make == "map":
        body = b"\xdf" + len(keys).to_bytes(4) + b"".join(piece + b"\xc0" for piece in pieces)
    else:
        body = b"\xdd" + (len(keys) + 1).to_bytes(4) + b"\xd4\x01\x01" + b"".join(pieces)
    before = time.process_time()
    with pytest.raises(PayloadError):
        load([body])
    assert time.process_time() - before < 4


numpy = pytest.importorskip("numpy")


@pytest.mark.parametrize(
    "array",
    [
        numpy.arange(12, dtype="float32").reshape(3, 4), numpy.zeros((0, 5), "int16"), numpy.asfortranarray(numpy.eye(3)), numpy.array(5), numpy.array([True]),
        numpy.array(["ab", "c"]), numpy.array([b"x"]), numpy.array(["2020-01-01"], "M8[ns]"), numpy.array([1], ">i4"), numpy.zeros(5000, "c16"),
        numpy.arange(60_000).reshape(100, -1), numpy.asfortranarray(numpy.arange(60_000).reshape(100, -1)), numpy.arange(60_000)[::-2],
        numpy.arange(60_000).reshape(10, 20, -1).transpose(1, 0, 2), numpy.frombuffer(bytes(20_000), "u1"),
    ],
    ids=lambda array: f"{array.dtype}{array.shape}",
)  # fmt: skip
@pytest.mark.parametrize("joined", [False, True])
def test_arrays_come_back_writable(array: Any, joined: bool) -> None:
    """Type, shape, order and content survive, and the receiver may write without reaching the sender's memory."""
    segments = dump({"a": [array]})
    assert len(segments) == (2 if array.nbytes >= LIMITS.inline else 1)
    got = load([segments[0], *(bytearray(each) if joined else each for each in segments[1:])])["a"][0]
    assert (got.dtype, got.shape, type(got)) == (array.dtype, array.shape, type(array))
    assert numpy.array_equal(got, array)
    assert got.flags.writeable
    assert not numpy.shares_memory(got, array)
    if array.flags.c_contiguous or array.flags.f_contiguous:
        assert got.flags.f_contiguous == array.flags.f_contiguous


def test_big_arrays_are_not_copied_on_either_side() -> None:
    """The segment is a view of the sender's array; the array is a view of the received bytearray."""
    array = numpy.asfortranarray(numpy.ones((300, 300)))
    segments = dump(array)
    view: Any = segments[1]
    assert numpy.shares_memory(numpy.frombuffer(view, "u1"), array)
    received = bytearray(view)
    assert numpy.shares_memory(load([segments[0], received]), numpy.frombuffer(received, "u1"))


@pytest.mark.parametrize(
    "scalar",
    [
        numpy.float64(1.5),
        numpy.int8(3),
        numpy.bool_(True),
        numpy.str_("abc"),
        numpy.str_(""),
        numpy.bytes_(b""),
        numpy.datetime64("2020-01-01"),
    ],
    ids=repr,
)
def test_numpy_scalars_come_back(scalar: Any) -> None:
    """They keep their type, also as keys."""
    for got in (load(dump([scalar]))[0], next(iter(load(dump({scalar: 1}))))):
        assert type(got) is type(scalar)
        assert got == scalar


@pytest.mark.parametrize(
    "value",
    [numpy.array([object()]), numpy.zeros(2, "i4,f4"), numpy.void(b"a"), numpy.ma.array([1]), numpy.rec.array([(1,)])],
    ids=["O", "V", "v", "ma", "rec"],
)
def test_arrays_that_would_lose_something_are_refused(value: Any) -> None:
    """Object, structured and void data and subclasses do not travel."""
    with pytest.raises(PayloadError, match=r"value\[0\]"):
        dump([value])


@pytest.mark.parametrize(
    "description",
    [
        ["|O", "C", [1], bytes(8)], ["<f8", "C", [2], bytes(8)], ["<f8", "K", [1], bytes(8)], ["<f8", "C", [-1], b""], ["<f8", "C", [2**62, 0, 2**62], b""],
        ["<f8", "C", [True], bytes(8)], ["<i4,<i4", "C", [1], bytes(8)], ["|V8", "C", [1], bytes(8)], ["<f8", "C", [1], None], ["<f8", "C", [1] * 65, bytes(8)],
        ["<U999999999", "C", [1], b""], ["<f8", "C", [1]], 5, ["|T16", "C", [1], bytes(16)],
    ],
    ids=repr,
)  # fmt: skip
def test_hostile_arrays_are_refused(description: Any) -> None:
    """A description that does not fit its bytes, or a type that is not on the list, is a PayloadError."""
    with pytest.raises(PayloadError):
        load([msgpack.packb([msgpack.ExtType(12, msgpack.packb(description))])])


def test_values_import_nothing_heavy() -> None:
    """Sending and receiving plain values loads neither numpy nor pydantic."""
    code = "import sys; from reachmesh.wire.values import *; load(dump((1, {2}))); sys.exit('numpy' in sys.modules or 'pydantic' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=60).returncode == 0


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=4), st.dictionaries(st.text(), inner, max_size=4)),
    max_leaves=10,
)


@given(json_values)
def test_json_values_come_back(value: Any) -> None:
    """JSON's own types survive JSON, with their types."""
    assert same(load_json(dump_json(value)), value)


@pytest.mark.parametrize(
    ("value", "path"),
    [
        ({"a": (1,)}, "value.a"), ({1: 2}, "value"), ([math.nan], "value[0]"), (b"b", "value"), (nested(129), "value"), (nested(100_000), "value"),
        (cycle(), "value"), ("\ud800", "value"), ({"a": {"\ud800": 1}}, "value.a"), pytest.param(10**5000, "value", id="digits"), ([{1}], "value[0]"),
        ({Colour.RED: 1, "red": 2}, "value"), (dt.date(2024, 1, 1), "value"), (Text("t"), "value"),
    ],
)  # fmt: skip
def test_what_json_would_change_is_refused(value: Any, path: str) -> None:
    """Nothing is turned into something else silently."""
    with pytest.raises(PayloadError) as caught:
        dump_json(value)
    assert caught.value.path.startswith(path)


@given(st.one_of(st.binary(max_size=60), st.text(alphabet='[]{}:,"\\u0123abcdtrue.eE-', max_size=60).map(str.encode)))
@example(b"[NaN]")
@example(b"[" * 100_000)
@example(b'{"a":' * 129 + b"1" + b"}" * 129)
@example(b'"\\ud800"')
@example(b"1" * 5000)
@example(b"1e999")
def test_any_json_is_a_value_or_a_payload_error(body: bytes) -> None:
    """Reading raises nothing else, and gives nothing that could not be sent."""
    try:
        value = load_json(body)
    except PayloadError:
        return
    assert same(load_json(dump_json(value)), value)


def test_json_text_with_much_punctuation_is_no_bomb() -> None:
    """Commas and brackets inside text do not count; millions of containers do."""
    text = '[,{"' * 3_000_000
    assert load_json(dump_json([text])) == [text]
    with pytest.raises(PayloadTooLarge):
        load_json(b"[" + b"[]," * 3_000_000 + b"1]")


def test_bodies_go_by_their_payload_format() -> None:
    """Raw is bytes as they are, JSON and MessagePack are values, and nothing else exists."""
    good: list[tuple[int, Any]] = [(PayloadFormat.RAW, b"raw"), (PayloadFormat.JSON, {"a": [1]}), (PayloadFormat.MSGPACK, (1,))]
    for payload_format, value in good:
        assert load_body(payload_format, dump_body(payload_format, value)) == value
    assert load_body(0, [bytearray(b"raw")]) == b"raw"
    bad_segments: list[tuple[int, list[bytes]]] = [(3, [b""]), (0, []), (0, [b"", b""]), (1, [b"1", b""]), (2, [])]
    for payload_format, segments in bad_segments:
        with pytest.raises(PayloadError):
            load_body(payload_format, segments)
    bad_values: list[tuple[int, Any]] = [(0, "text"), (3, 1), (1, b"")]
    for payload_format, value in bad_values:
        with pytest.raises(PayloadError):
            dump_body(payload_format, value)
