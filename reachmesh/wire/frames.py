"""Frames: the unit of the protocol, and batches: how frames share one ZeroMQ part.

In the data path this is the first thing bytes meet and the last thing they leave. `split_batch` is total: any bytes give
frames and, at the first thing that is wrong, a fault's text; it never raises for what a peer sent. Encoding raises
`struct.error` for local misuse (a number that does not fit its field). The layout is SPEC.md, sections 2 to 5.

A batch whose tail is bad still delivers the frames before the fault: they were whole, and their calls wait for them.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from enum import IntEnum, IntFlag
from typing import Any, NamedTuple

import msgpack

from reachmesh.errors import BY_CODE, MESSAGE_LIMIT, Executed, Overloaded, PayloadError, ProtocolError, ReachError, RemoteError
from reachmesh.wire.limits import LIMITS

Buffer = bytes | bytearray | memoryview
"""What the wire takes and gives: anything with bytes in it."""

VERSION = 1
NO_DEADLINE = 0xFFFFFFFF
"""`remaining_ms` of a call without deadline, and of an answer that does not know its run time."""


class FrameType(IntEnum):
    """What a frame is, the first thing a receiver branches on."""

    REQUEST = 1
    RESPONSE = 2
    STREAM = 3
    CONTROL = 4


class PayloadFormat(IntEnum):
    """How a body is to be read."""

    RAW = 0
    JSON = 1
    MSGPACK = 2


class RequestFlag(IntFlag):
    """Flags of a REQUEST."""

    MORE = 1
    WANTS_STREAM = 2
    SENDS_STREAM = 4
    ONEWAY = 8
    RETRY = 16


class ResponseFlag(IntFlag):
    """Flags of a RESPONSE."""

    MORE = 1
    ERROR = 2


class StreamFlag(IntFlag):
    """Flags of a STREAM frame; none of ITEMS to ERROR means a chunk of a payload sent in pieces."""

    MORE = 1
    ITEMS = 2
    END = 4
    CREDIT = 8
    CANCEL = 16
    ERROR = 32
    TO_CALLER = 128


class Frame(NamedTuple):
    """One decoded frame. `meta`, `body` and `parts` are what came; nothing inside them has been looked at.

    `flags` of a CONTROL frame is its kind, and its other fields are zero. `priority` of a RESPONSE is the server's
    backpressure level. A body of `Limits.inline` bytes or more is a view into the batch, a smaller one is a copy.
    """

    frame_type: int
    flags: int
    payload_format: int
    priority: int
    depth: int
    call_id: int
    trace_id: bytes
    span_id: bytes
    remaining_ms: int
    meta: bytes
    body: bytes | memoryview
    parts: Sequence[Any]


class RequestMeta(NamedTuple):
    """What a REQUEST says beside its arguments: which process it means, what it asks of it, and rarer things."""

    boot: bytes
    capability: str
    extras: Mapping[str, Any] | None


_HEADER = struct.Struct(">2sBBBBBBQ16s8sIHH")
_PREFIXED = struct.Struct(">I3sBBBBBQ16s8sIHH")
_LENGTH = struct.Struct(">I")
HEADER_SIZE = _HEADER.size
CONTROL_HEADER_SIZE = 8
_MAGIC = b"RM"
_START = _MAGIC + bytes([VERSION])
_CONTROL_START = _START + bytes([FrameType.CONTROL])
_NO_TRACE, _NO_SPAN = bytes(16), bytes(8)


def _legal() -> bytes:
    """A table with 1 at [frame_type * 256 + flags] for each legal pair, so that the hot path checks both in one look-up."""
    table = bytearray(65536)
    for flags in range(32):
        table[FrameType.REQUEST << 8 | flags] = 1
    for flags in range(4):
        table[FrameType.RESPONSE << 8 | flags] = 1
    for meaning in (0, StreamFlag.MORE, StreamFlag.ITEMS, StreamFlag.END, StreamFlag.CREDIT, StreamFlag.CANCEL, StreamFlag.ERROR):
        table[FrameType.STREAM << 8 | meaning] = table[FrameType.STREAM << 8 | StreamFlag.TO_CALLER | meaning] = 1
    return bytes(table)


_LEGAL = _legal()
_new, _unpack = tuple.__new__, _PREFIXED.unpack_from
_FRAMES, _PARTS, _INLINE = LIMITS.frames_per_batch, LIMITS.parts_per_batch, LIMITS.inline


def encode_frame(
    frame_type: int,
    flags: int,
    payload_format: int,
    priority: int,
    depth: int,
    call_id: int,
    trace_id: bytes,
    span_id: bytes,
    remaining_ms: int,
    meta: bytes,
    body: Buffer,
    part_count: int = 0,
    _pack: Any = _HEADER.pack,
) -> bytes:
    """A REQUEST, RESPONSE or STREAM frame as bytes; `part_count` out-of-band parts travel behind its batch.

    The body is copied: give what is bigger than `Limits.inline` as parts. `trace_id` is 16 and `span_id` 8 bytes; shorter
    ones are padded with zeros.

    Raises:
        struct.error: a number does not fit its field.
    """
    header: bytes = _pack(
        b"RM", 1, frame_type, flags, payload_format, priority, depth, call_id, trace_id, span_id, remaining_ms, len(meta), part_count
    )
    return header + meta + body


def encode_control(kind: int, body: bytes) -> bytes:
    """A CONTROL frame: 8 bytes of header and the body, so that a heartbeat stays under 64 bytes."""
    return _CONTROL_START + bytes((kind, 0, 0, 0)) + body


def join_batch(frames: Sequence[bytes]) -> bytes:
    """Frames as one part: each with its length before it. Order is kept. Cost: one copy."""
    if len(frames) == 1:
        frame = frames[0]
        return _LENGTH.pack(len(frame)) + frame
    pack = _LENGTH.pack
    pieces: list[bytes] = []
    for frame in frames:
        pieces.append(pack(len(frame)))
        pieces.append(frame)
    return b"".join(pieces)


def split_batch(batch: bytes, parts: Sequence[Any] = ()) -> tuple[list[Frame], str | None]:
    """Take a received batch apart; total.

    Args:
        batch: one ZeroMQ part. Anything but `bytes` is copied into one first.
        parts: the out-of-band parts received behind it, in order.

    Returns:
        The frames up to the first fault, and the fault's text or None. A frame whose parts are missing is not delivered.
    """
    if type(batch) is not bytes:
        batch = bytes(batch)
    frames: list[Frame] = []
    at, end, taken, given, room = 0, len(batch), 0, len(parts), _FRAMES
    if given > _PARTS:
        return frames, f"{given} parts behind one batch, {_PARTS} are allowed"
    while at < end:
        room -= 1
        if room < 0:
            return frames, f"more than {_FRAMES} frames in one batch"
        meta_at = at + 52
        if meta_at > end or batch[at + 7] == 4:
            # A control frame, or something too short for another one: rare, so it may cost a call.
            at = _take_short(batch, at, frames)
            if at < 0:
                return frames, _short_fault(batch, end)
            continue
        size, start, frame_type, flags, payload_format, priority, depth, call_id, trace_id, span_id, remaining_ms, meta_len, count = (
            _unpack(batch, at)
        )
        at += 4 + size
        body_at = meta_at + meta_len
        if start != _START or at > end or body_at > at or payload_format > 2 or not _LEGAL[frame_type << 8 | flags]:
            return frames, _fault(size, start, frame_type, flags, payload_format, meta_len)
        if count:
            taken += count
            if taken > given:
                return frames, f"parts missing: {taken} announced, {given} came"
            own: Sequence[Any] = parts[taken - count : taken]
        else:
            own = ()
        meta = batch[meta_at:body_at] if meta_len else b""
        body = batch[body_at:at] if at - body_at < _INLINE else memoryview(batch)[body_at:at]
        frames.append(
            _new(Frame, (frame_type, flags, payload_format, priority, depth, call_id, trace_id, span_id, remaining_ms, meta, body, own))
        )
    if taken != given:
        return frames, f"{given - taken} parts left over"
    return frames, None


def _take_short(batch: bytes, at: int, frames: list[Frame]) -> int:
    """Append the control frame at `at` and return where the next one starts, or -1 when there is none."""
    begin = at + 4
    if begin + CONTROL_HEADER_SIZE > len(batch):
        return -1
    next_at = begin + int.from_bytes(batch[at:begin])
    body_at = begin + CONTROL_HEADER_SIZE
    if not body_at <= next_at <= len(batch) or batch[begin : begin + 4] != _CONTROL_START or batch[begin + 5 : body_at] != b"\0\0\0":
        return -1
    frames.append(Frame(4, batch[begin + 4], 0, 0, 0, 0, _NO_TRACE, _NO_SPAN, 0, b"", batch[body_at:next_at], ()))
    return next_at


def _short_fault(batch: bytes, end: int) -> str:
    """What to say when `_take_short` found nothing it could take."""
    return f"truncated or malformed frame in a batch of {end} bytes that begins {batch[:12].hex()}"


def _fault(size: int, start: bytes, frame_type: int, flags: int, payload_format: int, meta_len: int) -> str:
    """What is wrong with a header that is not right."""
    if start[:2] != _MAGIC:
        return f"no magic: a frame begins {start.hex()}"
    if start != _START:
        return f"frame of protocol version {start[2]}, this link speaks {VERSION}"
    if payload_format > 2 or not _LEGAL[frame_type << 8 | flags]:
        return f"frame type {frame_type} with flags {flags} and payload format {payload_format} does not exist"
    return f"a frame of {size} bytes with {meta_len} of meta does not fit"


_EXTRAS_SCALARS = ("v", "s", "d", "r", "c", "k")


def encode_request_meta(boot: bytes, capability: str, extras: Mapping[str, Any] | None) -> bytes:
    """The meta section of a REQUEST: [boot, capability, extras].

    Args:
        boot: 8 bytes, the process that is meant; any other refuses the request.
        capability: 1 to `Limits.name` bytes of UTF-8.
        extras: rare things under short keys (SPEC.md, section 3), or None. An empty map is sent as nil.

    Raises:
        PayloadError: something in it cannot travel, or the section passes `Limits.meta`.
    """
    try:
        meta: bytes = msgpack.packb([boot, capability, dict(extras) if extras else None])
    except (TypeError, ValueError, OverflowError) as error:
        raise PayloadError(f"the request's metadata cannot travel: {error}", path="metadata") from None
    if len(meta) > LIMITS.meta:
        raise PayloadError(f"the request's metadata takes {len(meta)} bytes, {LIMITS.meta} are allowed", path="metadata")
    if extras and decode_request_meta(meta) is None:
        raise PayloadError("the request's metadata is malformed", path="metadata")
    if len(boot) != 8 or not 0 < len(capability.encode()) <= LIMITS.name:
        raise PayloadError(f"a boot id has 8 bytes and a capability's name 1 to {LIMITS.name}", path="capability")
    return meta


def decode_request_meta(meta: bytes) -> RequestMeta | None:
    """Read the meta section; None when it is malformed. Known extras have their types; unknown ones are kept unread."""
    try:
        fields = msgpack.unpackb(meta, ext_hook=_no_ext, timestamp=3)
        boot, capability, extras = fields
    except Exception:  # any bytes can come here, and msgpack raises a dozen kinds
        return None
    if type(boot) is not bytes or len(boot) != 8 or type(capability) is not str or not 0 < len(capability.encode()) <= LIMITS.name:
        return None
    if extras is None:
        return RequestMeta(boot, capability, None)
    if type(extras) is not dict or not _legal_extras(extras):
        return None
    return RequestMeta(boot, capability, extras)


def _legal_extras(extras: dict[Any, Any]) -> bool:
    """Whether keys are text and the known ones carry what the specification says."""
    if any(type(key) is not str for key in extras):
        return False
    for key in _EXTRAS_SCALARS:
        if key in extras and type(extras[key]) not in (str, bytes, int):
            return False
    metadata, window, attempt = extras.get("m"), extras.get("w"), extras.get("n")
    if "m" in extras and (type(metadata) is not dict or any(type(key) is not str for key in metadata)):
        return False
    if "w" in extras and not (type(window) is list and len(window) == 2 and all(type(each) is int and each >= 0 for each in window)):
        return False
    return "n" not in extras or (type(attempt) is int and attempt >= 0)


def _no_ext(code: int, _data: bytes) -> Any:
    raise ValueError(f"extension type {code} where none belongs")


def encode_error(error: ReachError) -> bytes:
    """The body of an error answer; total: texts are cut to their limits and what cannot be encoded is replaced."""
    own = next(each for each in type(error).__mro__ if each in _KINDS)
    fields = {
        "code": _text(error.code, LIMITS.name),
        "kind": _KINDS[own],
        "type": _text(getattr(error, "type_name", ""), LIMITS.text),
        "message": _text(error.message, MESSAGE_LIMIT),
        "executed": error.executed,
        "retryable": bool(error.retryable),
        "hint": _text(error.hint, LIMITS.text),
        "retry_after": float(getattr(error, "retry_after", 0.0)),
        "path": _text(getattr(error, "path", ""), LIMITS.text),
    }
    packed: bytes = msgpack.packb(fields, unicode_errors="replace")
    return packed


def decode_error(body: Buffer) -> ReachError:
    """The error that an answer carries; total: a malformed body gives a ProtocolError that says so.

    Unknown keys are ignored and missing ones take the class's default, so that later versions may add some.
    """
    try:
        if len(body) > _ERROR_BYTES:
            raise ValueError("too long")
        fields = msgpack.unpackb(body, ext_hook=_no_ext)
        if type(fields) is not dict:
            raise ValueError("not a map")
        kind = BY_CODE.get(_field(fields, "kind", str, "")) or BY_CODE.get(_field(fields, "code", str, ""), ReachError)
        executed = _field(fields, "executed", str, kind.default_executed)
        known: dict[str, Any] = {
            "code": _field(fields, "code", str, kind.default_code),
            "executed": executed if executed in _EXECUTED else "maybe",
            "retryable": _field(fields, "retryable", bool, kind.default_retryable),
            "hint": _field(fields, "hint", str, ""),
        }
        if issubclass(kind, RemoteError):
            known["type_name"] = _field(fields, "type", str, "Exception")
        elif issubclass(kind, Overloaded):
            known["retry_after"] = max(0.0, _field(fields, "retry_after", float, 0.0))
        elif issubclass(kind, PayloadError):
            known["path"] = _field(fields, "path", str, "")
        return kind(_field(fields, "message", str, ""), **known)
    except Exception:  # any bytes can come here, and msgpack raises a dozen kinds
        return ProtocolError("the other side sent an error that cannot be read", executed="maybe")


_KINDS: dict[type, str] = {kind: code for code, kind in BY_CODE.items()}
_ERROR_BYTES = 4 * (MESSAGE_LIMIT + 4 * LIMITS.text)
_CUT = " ... (cut)"
_EXECUTED: tuple[Executed, ...] = ("no", "maybe", "yes")


def _text(value: object, limit: int) -> str:
    """`value` as text of at most `limit` characters; a cut says so."""
    text = value if isinstance(value, str) else str(value)
    return text if len(text) <= limit else text[: limit - len(_CUT)] + _CUT


def _field(fields: dict[Any, Any], key: str, kind: type, default: Any) -> Any:
    """`fields[key]` when it has the type, `default` when it is missing; ValueError when it is something else."""
    value = fields.get(key, default)
    if type(value) is not kind:
        raise ValueError(f"{key} is not {kind.__name__}")
    return value
