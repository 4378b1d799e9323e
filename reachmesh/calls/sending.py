"""The frames of a call: what each of its sides says, as bytes. Where a field comes from is written down once, here."""

from __future__ import annotations

import struct
from collections.abc import Sequence

from reachmesh.calls.flags import MSGPACK, REQUEST, REQUEST_MORE, REQUEST_RETRY, RESPONSE, RESPONSE_ERROR, RESPONSE_MORE, STREAM
from reachmesh.calls.flows import Buffer, placed
from reachmesh.calls.incoming import IncomingCall
from reachmesh.calls.outgoing import OutgoingCall
from reachmesh.calls.ports import Flowing
from reachmesh.errors import ReachError
from reachmesh.wire.frames import NO_DEADLINE, Frame, encode_error, encode_frame, encode_request_meta

CREDIT = struct.Struct(">II")
"""Body of a CREDIT frame: items, bytes."""

_METAS = 256
"""Encoded metas kept by the calls of one `Reach`: one for each instance it reached."""

Sent = tuple[bytes, Sequence[Buffer], bool]
"""A frame, its out-of-band parts, and whether its body is too large for it and has to follow."""


def request_frame(call: OutgoingCall, call_id: int, now: float) -> Sent:
    """The REQUEST of an attempt to the instance that was picked."""
    meta = call.metas.get(call.boot)
    if meta is None:
        if len(call.metas) >= _METAS:
            call.metas.clear()
        meta = call.metas[call.boot] = encode_request_meta(call.boot, call.request.capability, call.extras)
    flags, deadline = call.flags, call.deadline
    if call.attempts:
        flags |= REQUEST_RETRY
    large, body, parts = placed(call.body)
    if large:
        flags |= REQUEST_MORE
    frame = encode_frame(
        REQUEST,
        flags,
        call.payload_format,
        call.priority,
        call.depth,
        call_id,
        call.trace_id,
        call.span_id,
        NO_DEADLINE if deadline is None else milliseconds(deadline - now),
        meta,
        body,
        len(parts),
    )
    return frame, parts, large


def response_frame(call: IncomingCall, flags: int, payload_format: int, segments: Sequence[Buffer], level: int, now: float) -> Sent:
    """The RESPONSE, with the backpressure `level` and the time that the handler took."""
    large, body, parts = placed(segments)
    if large:
        flags |= RESPONSE_MORE
    frame = encode_frame(
        RESPONSE,
        flags,
        payload_format,
        level,
        call.depth,
        call.call_id,
        call.trace_id,
        call.span_id,
        NO_DEADLINE if call.started is None else milliseconds(now - call.started),
        b"",
        body,
        len(parts),
    )
    return frame, parts, large


def refusal_frame(request: Frame, error: ReachError, level: int) -> bytes:
    """The RESPONSE to a request that was not taken in."""
    _, _, _, _, depth, call_id, trace_id, span_id, *_ = request
    body = encode_error(error)
    return encode_frame(RESPONSE, RESPONSE_ERROR, MSGPACK, level, depth, call_id, trace_id, span_id, NO_DEADLINE, b"", body, 0)


def stream_frame(call: Flowing, flags: int, body: bytes = b"", part_count: int = 0) -> bytes:
    """A STREAM frame of an open call."""
    return encode_frame(
        STREAM, flags, MSGPACK, call.priority, 0, call.call_id, call.trace_id, call.span_id, NO_DEADLINE, b"", body, part_count
    )


def milliseconds(seconds: float) -> int:
    """Seconds as the header has them: whole milliseconds, not negative, and never the word for no deadline."""
    return max(0, min(int(seconds * 1000), NO_DEADLINE - 1))
