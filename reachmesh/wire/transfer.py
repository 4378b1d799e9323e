"""Payloads that do not fit one frame: cut in chunks on one side, put together on the other. SPEC.md, section 7.

A payload is a list of segments (`values.py`). In pieces it is one sequence of bytes: a table (number of segments, length of
each), then the segments. Big buffers are sliced, not copied, and what comes of them is copied once, from where the socket put it to
where it stays.

The receiver believes the table only as far as refusing goes: a table that announces too much is a fault at once, but memory
grows with the bytes that come, never ahead of them.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from io import BytesIO
from typing import Any

from reachmesh.wire.limits import LIMITS

_COUNT = struct.Struct(">I")
_MERGED = 4096
"""Pieces up to this size are joined with their neighbours: copying them is cheaper than a part."""


def payload_size(segments: Sequence[Any]) -> int:
    """Bytes of all segments together, without table."""
    return sum(memoryview(segment).nbytes for segment in segments)


class Cutter:
    """Cuts a payload; the sizes are its caller's choice. `left`: bytes that have not been taken yet.

    What is taken are views of the segments, which must not change meanwhile; small pieces are joined with their neighbours.
    """

    __slots__ = ("_views", "left")

    def __init__(self, segments: Sequence[Any]) -> None:
        views = [memoryview(segment).cast("B") for segment in segments]
        self._views = [memoryview(_table(views)), *(view for view in views if view)]
        self._views.reverse()
        self.left = sum(map(len, self._views))

    def take(self, size: int) -> list[bytes | memoryview]:
        """The next piece: 1 to `size` bytes, in one or more buffers. Call it while something is left."""
        taken: list[bytes | memoryview] = []
        small: list[memoryview] = []
        views = self._views
        while size and views:
            view = views[-1]
            if len(view) <= size:
                views.pop()
            else:
                view, views[-1] = view[:size], view[size:]
            size -= len(view)
            self.left -= len(view)
            if len(view) <= _MERGED:
                small.append(view)
                continue
            if small:
                taken.append(b"".join(small))
                small = []
            taken.append(view)
        if small:
            taken.append(b"".join(small))
        return taken


def _table(views: Sequence[memoryview]) -> bytes:
    return _COUNT.pack(len(views)) + struct.pack(f">{len(views)}Q", *map(len, views))


class Pieces:
    """A segment that comes in pieces: each is copied once, behind the one before, while the next is on its way.

    What grows is the buffer of a BytesIO, which becomes the `bytes` of the whole, or a view to be written to, without another copy.
    """

    __slots__ = ("_file", "_length")

    def __init__(self) -> None:
        self._file = BytesIO()
        self._length = 0

    def add(self, piece: memoryview) -> None:
        """Append."""
        self._length += self._file.write(piece)

    def __len__(self) -> int:
        return self._length

    def __bytes__(self) -> bytes:
        return self._file.getvalue()

    def view(self) -> memoryview:
        """The bytes, to be written to. Nothing can be added while the view lives."""
        return self._file.getbuffer()


Segment = bytes | bytearray | memoryview | Pieces
"""One segment as it arrived."""


def as_bytes(segment: Segment) -> bytes:
    """A segment as bytes; copied unless it is that already."""
    return segment if type(segment) is bytes else bytes(segment)


def as_writable(segment: Segment) -> bytearray | memoryview:
    """A segment to be written to; copied unless it is nobody else's."""
    if type(segment) is Pieces:
        return segment.view()
    return segment if type(segment) is bytearray else bytearray(segment)  # type: ignore[arg-type]  # Pieces has __bytes__


def as_bytearray(segment: Segment) -> bytearray:
    """A segment as a bytearray; copied unless it is nobody else's."""
    writable = as_writable(segment)
    return writable if type(writable) is bytearray else bytearray(writable)


class Assembler:
    """Puts one payload together.

    States: reading the table, then filling segments, then complete; or faulty, which is final. Invariants: memory held
    is at most the bytes received plus one eighth; a payload is complete exactly when every announced byte came.

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
        self._segments: list[Pieces] = []
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
        """Take the last piece and give the segments, or the text of the fault."""
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
            self._segments.append(Pieces())

    def _fill(self, view: memoryview, lengths: Sequence[int]) -> None:
        while len(view):
            if not self._missing:
                self._fail(f"{len(view)} bytes after the end of a payload")
                return
            piece = view[: self._missing]
            self._segments[-1].add(piece)
            self._missing -= len(piece)
            view = view[len(piece) :]
            self._open(lengths)

    def _fail(self, text: str) -> None:
        self.fault = text
        self._segments, self._head = [], bytearray()
