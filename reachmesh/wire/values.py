"""Python values to payload segments and back.

A payload is a list of segments: the body (MessagePack, JSON or raw bytes) and then the buffers that travel beside it. What
comes back has the type it left in, or `dump` refuses it with the path to it; enums, dataclasses and pydantic models
travel as plain values, and the handler's hints make them again. Reading raises nothing but PayloadError, within
`Limits`; nothing is unpickled. The extension types are SPEC.md, section 8.

Plain values take a quick way through the packer in one step; everything else is walked (`writer.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgpack import Packer, unpackb

from reachmesh.errors import PayloadError, PayloadTooLarge
from reachmesh.wire import arrays
from reachmesh.wire.extensions import MARKS, TAME, WILD, Ext, Mark
from reachmesh.wire.frames import Buffer, PayloadFormat
from reachmesh.wire.json_values import dump_json, load_json
from reachmesh.wire.limits import LIMITS
from reachmesh.wire.transfer import Pieces, as_bytearray, as_bytes, as_writable
from reachmesh.wire.writer import CONTAINER_COST, SCALARS, NotPlain, Refused, Writer

__all__ = ["dump", "dump_arguments", "dump_body", "dump_json", "load", "load_arguments", "load_body", "load_json"]

_HEADERS = bytes([*range(0x80, 0xA0), *range(0xDC, 0xE0)])
_CONTAINERS = frozenset({list, dict, tuple, set, frozenset})
_all_scalars = SCALARS.issuperset
_all_text = frozenset({str}).issuperset
_COLLISIONS = 64
_SMALL = 512
_RAW, _JSON, _MSGPACK = int(PayloadFormat.RAW), int(PayloadFormat.JSON), int(PayloadFormat.MSGPACK)
_MARK_BYTES = bytes((0xD4, Ext.COLLECTION))


def dump(value: Any, root: str = "value") -> list[Buffer]:
    """`value` as segments: the MessagePack body, then buffers of `Limits.inline` bytes and more, uncopied.

    Buffers are views of the caller's memory (bytearrays, arrays): they must not change before they are sent.

    Args:
        value: anything SPEC.md section 8 lists, nested as one likes.
        root: name of `value` in paths; "" makes the keys of a dict the first step.

    Raises:
        PayloadError: something in it cannot travel; `path` leads to it.
        PayloadTooLarge: it passes `Limits.message`, `values` or `segments`.
    """
    kind = type(value)
    if (
        kind in SCALARS
        or (kind is bytes and len(value) < LIMITS.inline)
        or ((kind is list or kind is dict) and _plain_cost(value, kind, 1) >= 0)
    ):
        try:
            body: bytes = Packer(strict_types=True, buf_size=_SMALL).pack(value)
        except Exception:  # whatever it was, the careful way finds it again and names its path
            return _dump_carefully(value, root)
        if len(body) > LIMITS.message:
            raise PayloadTooLarge(f"a message of {len(body)} bytes, {LIMITS.message} are allowed", path=root)
        return [body]
    return _dump_carefully(value, root)


def dump_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Buffer]:
    """The arguments of a call as segments: the array [args, kwargs]. Paths begin with the argument: `text`, `args[0]`.

    Raises:
        PayloadError: as `dump`.
    """
    arguments = [list(args), kwargs if type(kwargs) is dict else dict(kwargs)]
    try:
        if _all_scalars(map(type, kwargs.values())) and _all_scalars(map(type, args)):
            # What most calls are: a few numbers and texts.
            try:
                body: bytes = Packer(strict_types=True, buf_size=_SMALL).pack(arguments)
            except Exception:  # whatever it was, `dump` finds it again and names its path
                return dump(arguments, "")
            if len(body) <= LIMITS.values:
                return [body]
        return dump(arguments, "")
    except PayloadError as error:
        path = "args" + error.path[3:] if error.path.startswith("[0]") else error.path[3:].lstrip(".")
        message = error.message.replace(error.path, path, 1) if error.path else error.message
        raise type(error)(message, path=path, hint=error.hint) from None


def load(segments: Sequence[Any]) -> Any:
    """The value in `segments`, as `dump` made them.

    A `bytearray` segment is taken over (by an array or bytearray in the value); any other is copied where the value could
    be written to. What came in pieces is joined here, once, into what the value wants. Every segment is used, once.

    Raises:
        PayloadError: malformed, or over `Limits`.
    """
    try:
        body = segments[0]
        if type(body) is Pieces:
            body = bytes(body)
            segments = [body, *segments[1:]]
        size = len(body)
        if len(segments) == 1 and size <= LIMITS.depth:
            # So short that neither depth nor counts can be passed.
            if type(body) is bytes and _MARK_BYTES in body:
                return _Reader(segments).read()
            try:
                return unpackb(body, strict_map_key=False, ext_hook=_tame, timestamp=3)
            except _WildError:
                return _Reader(segments).read()
        return _load_checked(segments, size)
    except PayloadError:
        raise
    except Exception as error:  # any bytes can come here, and msgpack, numpy and decimal raise dozens of kinds
        raise PayloadError(f"a malformed value came: {type(error).__name__}: {str(error)[:200]}") from None


def load_arguments(payload_format: int, segments: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
    """The arguments of a call. Raises PayloadError as `load_body`, and when they are not [args, kwargs]."""
    value = load(segments) if payload_format == _MSGPACK else load_body(payload_format, segments)
    if type(value) is list and len(value) == 2:
        args, kwargs = value
        if type(args) is list and type(kwargs) is dict and _all_text(map(type, kwargs)):
            return args, kwargs
    raise PayloadError("the arguments of a call are the array [args, kwargs]")


def dump_body(payload_format: int, value: Any, root: str = "value") -> list[Buffer]:
    """`value` as segments in the given format. RAW takes bytes, bytearray or memoryview, as they are.

    Raises:
        PayloadError: it cannot travel in this format.
    """
    if payload_format == _MSGPACK:
        return dump(value, root)
    if payload_format == _JSON:
        return [dump_json(value, root)]
    if payload_format == _RAW and isinstance(value, bytes | bytearray | memoryview):
        size = memoryview(value).nbytes
        if size > LIMITS.message:
            raise PayloadTooLarge(f"a message of {size} bytes, {LIMITS.message} are allowed", path=root)
        return [value.cast("B") if type(value) is memoryview else value]
    raise PayloadError(f"{root}: a {type(value).__qualname__} cannot travel in payload format {payload_format}", path=root)


def load_body(payload_format: int, segments: Sequence[Any]) -> Any:
    """The value in `segments`; RAW gives `bytes`. Raises PayloadError."""
    if payload_format == _MSGPACK:
        return load(segments)
    if payload_format not in (_RAW, _JSON) or len(segments) != 1:
        raise PayloadError(f"{len(segments)} segments in payload format {payload_format}")
    if payload_format == _JSON:
        return load_json(bytes(segments[0]) if type(segments[0]) is Pieces else segments[0])
    return as_bytes(segments[0])


def _plain_cost(value: Any, kind: type, level: int) -> int:
    """Cost of a list or dict that the packer can take as it is (see `Limits.values`), or -1."""
    cost = len(value) + CONTAINER_COST
    items: Any = value
    if kind is dict:
        if not _all_scalars(map(type, value)):
            return -1
        cost += len(value)
        items = value.values()
    if not _all_scalars(map(type, items)):
        for item in items:
            kind = type(item)
            if kind is dict or kind is list:
                below = _plain_cost(item, kind, level + 1) if level < LIMITS.depth else -1
                if below < 0:
                    return -1
                cost += below
            elif kind not in SCALARS and (kind is not bytes or len(item) >= LIMITS.inline):
                return -1
    return cost if cost <= LIMITS.values else -1


def _dump_carefully(value: Any, root: str) -> list[Buffer]:
    """Walk `value`; twice when something that looked plain was not."""
    for strict in (False, True):
        writer = Writer(strict=strict)
        try:
            writer.write(value)
            body = writer.body()
        except NotPlain:
            continue
        except Refused as refused:
            raise refused.error(root) from None
        except PayloadError:
            raise
        except Exception as error:  # properties, models and time zones are the user's own code
            raise PayloadError(f"{root or 'a value'} cannot travel: {type(error).__name__}: {error}", path=root) from error
        if len(body) + sum(map(len, writer.buffers)) > LIMITS.message:
            raise PayloadTooLarge(f"a message of more than {LIMITS.message} bytes", path=root)
        return [body, *writer.buffers]
    raise PayloadError(f"{root or 'a value'} changed while it was written", path=root)


def _load_checked(segments: Sequence[Any], size: int) -> Any:
    """Read something that may be big, deep, or made of several segments."""
    total = size if len(segments) == 1 else sum(map(len, segments))
    if total > LIMITS.message or len(segments) > LIMITS.segments:
        raise PayloadTooLarge(f"a message of {total} bytes in {len(segments)} segments")
    body = segments[0]
    # Every byte that could begin a container: an upper bound of their number, so of depth too, at memory speed.
    headers = size - len(bytes(body).translate(None, _HEADERS))
    if len(segments) == 1 and size + CONTAINER_COST * headers <= LIMITS.values:
        try:
            value = unpackb(body, strict_map_key=False, ext_hook=_tame, timestamp=3)
        except _WildError:
            value = _Reader(segments).read()
    else:
        value = _Reader(segments).read()
    if headers > LIMITS.depth and _deeper(value, LIMITS.depth):
        raise PayloadError(f"a value nested deeper than {LIMITS.depth} levels")
    return value


def _deeper(value: Any, limit: int) -> bool:
    """Whether containers are nested more than `limit` deep. Level by level, so without recursion."""
    layer = [value] if type(value) in _CONTAINERS else []
    for _ in range(limit):
        if not layer:
            return False
        layer = [item for each in layer for item in _children(each) if type(item) in _CONTAINERS]
    return bool(layer)


def _children(container: Any) -> Any:
    return [*container, *container.values()] if type(container) is dict else container


class _WildError(Exception):
    """An extension that the quick way does not read."""


def _tame(code: int, data: bytes) -> Any:
    reader = TAME.get(code)
    if reader is None:
        raise _WildError
    return reader(data)


class _Reader:
    """Reads one payload with every guard on: counts elements, and keys whose hashes a sender could have chosen."""

    def __init__(self, segments: Sequence[Any]) -> None:
        self._segments = segments
        self._used = 1
        self._marks = 0
        self._cost = 0

    def read(self) -> Any:
        value = unpackb(
            self._segments[0],
            strict_map_key=False,
            ext_hook=self._ext,
            list_hook=self._array,
            object_pairs_hook=self._map,
            timestamp=3,
        )
        if self._marks:
            raise ValueError("a mark that is not the first of its array")
        if self._used != len(self._segments):
            raise ValueError(f"{len(self._segments) - self._used} buffers that nothing refers to")
        return value

    def _ext(self, code: int, data: bytes) -> Any:
        reader = TAME.get(code) or WILD.get(code)
        if reader is not None:
            return reader(data)
        if code == Ext.COLLECTION:
            self._marks += 1
            return MARKS[data]
        if code == Ext.ARRAY:
            dtype, order, shape, inline = arrays.read_array(data)
            return arrays.make_array(dtype, order, shape, as_writable(self._next() if inline is None else inline))
        if code == Ext.SCALAR:
            return arrays.read_scalar(data)
        if data:
            raise ValueError(f"extension type {code} with {len(data)} bytes")
        if code == Ext.BYTES_BUFFER:
            return as_bytes(self._next())
        if code == Ext.BYTEARRAY_BUFFER:
            return as_bytearray(self._next())
        raise ValueError(f"extension type {code}")

    def _next(self) -> Any:
        if self._used >= len(self._segments):
            raise ValueError("a buffer that did not come")
        self._used += 1
        return self._segments[self._used - 1]

    def _count(self, size: int) -> None:
        self._cost += size + CONTAINER_COST
        if self._cost > LIMITS.values:
            raise PayloadTooLarge(f"a value of more than {LIMITS.values} elements")

    def _array(self, items: list[Any]) -> Any:
        self._count(len(items))
        if not items or type(items[0]) is not Mark:
            return items
        mark = items[0]
        self._marks -= 1
        del items[0]
        if mark.kind is not tuple:
            _check_hashes(items)
        return mark.make(items)

    def _map(self, pairs: list[tuple[Any, Any]]) -> dict[Any, Any]:
        self._count(2 * len(pairs))
        if len(pairs) > _COLLISIONS:
            _check_hashes([key for key, _ in pairs])
        return dict(pairs)


def _check_hashes(keys: list[Any]) -> None:
    """Refuse keys made to collide: thousands of them would hold the interpreter for minutes. O(n log n)."""
    if len(keys) <= _COLLISIONS:
        return
    hashes = sorted(map(hash, keys))
    if any(map(int.__eq__, hashes, hashes[_COLLISIONS:])):
        raise ValueError(f"more than {_COLLISIONS} keys with one hash")
