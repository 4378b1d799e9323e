"""Frame types and flags as plain integers: arithmetic on the wire's IntFlag members costs a microsecond each time."""

from __future__ import annotations

from reachmesh.wire.frames import FrameType, PayloadFormat, RequestFlag, ResponseFlag, StreamFlag

REQUEST = int(FrameType.REQUEST)
RESPONSE = int(FrameType.RESPONSE)
STREAM = int(FrameType.STREAM)
CONTROL = int(FrameType.CONTROL)

MSGPACK = int(PayloadFormat.MSGPACK)

REQUEST_MORE = int(RequestFlag.MORE)
REQUEST_WANTS_STREAM = int(RequestFlag.WANTS_STREAM)
REQUEST_SENDS_STREAM = int(RequestFlag.SENDS_STREAM)
REQUEST_ONEWAY = int(RequestFlag.ONEWAY)
REQUEST_RETRY = int(RequestFlag.RETRY)

RESPONSE_MORE = int(ResponseFlag.MORE)
RESPONSE_ERROR = int(ResponseFlag.ERROR)

STREAM_MORE = int(StreamFlag.MORE)
STREAM_ITEMS = int(StreamFlag.ITEMS)
STREAM_END = int(StreamFlag.END)
STREAM_CREDIT = int(StreamFlag.CREDIT)
STREAM_CANCEL = int(StreamFlag.CANCEL)
STREAM_ERROR = int(StreamFlag.ERROR)
STREAM_TO_CALLER = int(StreamFlag.TO_CALLER)
