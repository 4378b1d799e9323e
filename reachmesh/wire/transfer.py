"""Payloads that do not fit one frame: cut in chunks on one side, put together on the other. SPEC.md, section 7.

A payload is a list of segments (`values.py`). In pieces it is one sequence of bytes: a table (number of segments, length of
each), then the segments. Big buffers are sliced, not copied, and each segment is written once at the receiver.

The receiver believes the table only as far as refusing goes: a table that announces too much is a fault at once, but memory
grows with the bytes that come, never ahead of them.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Any

from reachmesh.wire.limits import LIMITS

_COUNT = struct.Struct(">I")
_MERGED = 4096
"""Pieces up to this size are joined with their neighbours: copying them is cheaper than a frame."""


def payload_size(segments: Sequence[Any]) -> int:
    """Bytes of all segments together, without table."""
    return sum(memoryview(segment).nbytes for segment in segments)


def cut(segments: Sequence[Any], chunk: int = LIMITS.chunk) -> Iterator[bytes | memoryview]:
    """The payload as pieces of 1 to `chunk` bytes, in order; at least one.

    Pieces of big segments are views of them. `segments` is read while iterating and must not change meanwhile.
    """
    views = [memoryview(segment).cast("B") for segment in segments]
    pending: list[bytes | memoryview] = []
    room = chunk
    for piece in _pieces(_table(views), views, chunk):
        if pending and (len(piece) > room or len(piece) > _MERGED):
            yield pending[0] if len(pending) == 1 else b"".join(pending)
            pending, room = [], chunk
        if len(piece) > _MERGED or len(piece) == chunk:
            yield piece
            continue
        pending.append(piece)
        room -= len(piece)
    if pending:
        yield pending[0] if len(pending) == 1 else b"".join(pending)


def _table(views: Sequence[memoryview]) -> bytes:
    return _COUNT.pack(len(views)) + struct.pack(f">{len(views)}Q", *map(len, views))


def _pieces(table: bytes, views: Sequence[memoryview], chunk: int) -> Iterator[memoryview]:
    """Table and segments in slices of at most `chunk` bytes; empty segments have none."""
    for view in (memoryview(table), *views):
        for at in range(0, len(view), chunk):
            yield view[at : at + chunk]


class Assembler:
    """Puts one payload together.

    States: reading the table, then filling segments, then complete; or faulty, which is final. Invariants: memory held
    is at most the bytes received plus one eighth and 4 KiB; a payload is complete exactly when every announced byte came.

    Args:
        limit: bytes of all segments together that are accepted.
        segment_limit: number of segments that is accepted.
    """

    def __init__(self, limit: int = LIMITS.message, segment_limit: int = LIMITS.segments) -> None:
        self.fault: str | None = None
        self.received = 0
        self._limit = limit
        self._segment_limit = segment_limit
        self._head = bytearray()
        self._lengths: Sequence[int] | None = None
        self._segments: list[bytearray] = []
        self._missing = 0

    @property
    def complete(self) -> bool:
        """Whether every announced byte has come."""
        return self.fault is None and self._lengths is not None and len(self._segments) == len(self._lengths) and not self._missing

    def add(self, chunk: Any) -> str | None:
        """Take the next piece; the fault's text when the payload cannot be right, else None."""
        if self.fault is not None:
            return self.fault
        view = memoryview(chunk).cast("B")
        self.received += len(view)
        if self._lengths is None:
            view = self._read_table(view)
        if self._lengths is not None and self.fault is None:
            self._fill(view, self._lengths)
        return self.fault

    def done(self, chunk: Any = b"") -> list[Any] | str:
        """Take the last piece and give the segments, each a `bytearray`, or the text of the fault."""
        self.add(chunk)
        if self.fault is None and not self.complete:
            self._fail(f"a payload ended after {self.received} bytes, before it was complete")
        if self.fault is not None:
            return self.fault
        segments: list[Any] = list(self._segments)
        self._segments = []
        return segments

    def _read_table(self, view: memoryview) -> memoryview:
        """Take what belongs to the table, and give back the rest."""
        head = self._head
        for wanted in (4, None):
            if wanted is None:
                count = int.from_bytes(head[:4])
                if not 0 < count <= self._segment_limit:
                    self._fail(f"a payload of {count} segments, 1 to {self._segment_limit} are allowed")
                    return view
                wanted = 4 + 8 * count
            take = max(0, wanted - len(head))
            head += view[:take]
            view = view[take:]
            if len(head) < wanted:
                return view
        lengths = struct.unpack_from(f">{len(head) // 8}Q", head, 4)
        if sum(lengths) > self._limit:
            self._fail(f"a payload of {sum(lengths)} bytes, {self._limit} are allowed")
            return view
        self._head = bytearray()
        self._lengths = lengths
        self._open(lengths)
        return view

    def _open(self, lengths: Sequence[int]) -> None:
        """Begin the next segment that has bytes; empty ones are finished on the way."""
        while not self._missing and len(self._segments) < len(lengths):
            self._missing = lengths[len(self._segments)]
            self._segments.append(bytearray())

    def _fill(self, view: memoryview, lengths: Sequence[int]) -> None:
        while len(view):
            if not self._missing:
                self._fail(f"{len(view)} bytes after the end of a payload")
                return
            piece = view[: self._missing]
            self._segments[-1] += piece
            self._missing -= len(piece)
            view = view[len(piece) :]
            self._open(lengths)

    def _fail(self, text: str) -> None:
        self.fault = text
        self._segments, self._head = [], bytearray()
