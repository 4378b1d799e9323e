"""The two ends of one direction of one call: what waits for credit, and what was received and not yet consumed.

A request's body, an answer's body and the items of a stream all travel the same way: whatever is larger than a chunk is cut
into STREAM frames that spend credit, so nothing a peer sends can pile up here and a small call never waits behind a big body
for longer than the window takes to drain. Credit is counted in bytes of frame bodies and in whole items, as in HTTP/2
(RFC 9113 section 5.2) but per stream only: one unread stream never takes another's credit.

Invariants a property test can name: bytes sent never exceed bytes granted by more than one chunk; every byte received is
granted back exactly once, when its item is consumed; items leave `Inflow` whole and in order.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from typing import Any

from reachmesh.calls.flags import STREAM_ITEMS, STREAM_MORE
from reachmesh.wire.transfer import Assembler, cut

Buffer = bytes | bytearray | memoryview
Piece = tuple[int, bytes, Sequence[Buffer]]
"""Flags, body and out-of-band parts of one STREAM frame."""

WINDOW_ITEMS = 64
"""Items a stream may have on the way before its reader has consumed any."""

WINDOW_BYTES = 256 * 1024
"""Bytes a stream or a large body may have on the way."""

PART_BYTES = 16 * 1024
"""Bodies from this size on leave as a ZeroMQ part of their own instead of being copied into the batch."""


def array_header(count: int) -> bytes:
    """MessagePack header of an array of `count` elements (1, 3 or 5 bytes)."""
    if count < 16:
        return bytes((0x90 | count,))
    if count < 65536:
        return b"\xdc" + count.to_bytes(2, "big")
    return b"\xdd" + count.to_bytes(4, "big")


def packed(body: Buffer) -> tuple[bytes, Sequence[Buffer]]:
    """Place one segment: small ones in the frame, larger ones as a part of their own (not copied)."""
    return (bytes(body), ()) if len(body) < PART_BYTES else (b"", (body,))


class Outflow:
    """Sending end of one direction: queues payloads, cuts the big ones, spends credit.

    States: idle (nothing queued), ready (something queued and credit left), starved (queued, no credit). `pull` answers the next
    frame in ready and None otherwise. `ended` becomes true once everything queued before `end()` has been pulled.

    Args:
        chunk: largest frame body in bytes; also the amount by which credit in bytes may be overdrawn.
    """

    __slots__ = (
        "_chunks",
        "_ending",
        "_next",
        "_queue",
        "chunk",
        "credit_bytes",
        "credit_items",
        "granted_bytes",
        "granted_items",
        "is_listed",
        "items",
        "window",
    )

    def __init__(self, chunk: int, *, items: int = WINDOW_ITEMS, window: int = WINDOW_BYTES) -> None:
        self.chunk, self.items, self.window = chunk, items, window
        self.credit_items = self.granted_items = items
        self.credit_bytes = self.granted_bytes = window
        self.is_listed = False
        self._queue: deque[tuple[int, list[Buffer], int]] = deque()
        self._chunks: Iterator[Buffer] | None = None
        self._next: Buffer | None = None
        self._ending = False

    def put_item(self, segments: list[Buffer]) -> None:
        """Queue one encoded item (its first segment is MessagePack, the others out-of-band buffers)."""
        self._queue.append((STREAM_ITEMS, segments, sum(map(len, segments))))

    def put_body(self, segments: list[Buffer]) -> None:
        """Queue the body of a request or an answer that is too large for its own frame; it goes before all items."""
        self._queue.appendleft((0, segments, sum(map(len, segments))))

    def end(self) -> None:
        """Nothing more will be put."""
        self._ending = True

    @property
    def ended(self) -> bool:
        """Whether all that was put before `end()` has left."""
        return self._ending and not self._queue and self._chunks is None

    def grant(self, items: int, size: int) -> None:
        """The reader gave back credit. More than a full window is not taken: a reader that gives it away would fill our memory."""
        items = min(items, self.items - self.credit_items)
        size = min(size, self.window - self.credit_bytes)
        self.credit_items += items
        self.credit_bytes += size
        self.granted_items += items
        self.granted_bytes += size

    def pull(self) -> Piece | None:
        """Take the next frame that the credit allows; None when there is none."""
        if self._chunks is not None:
            return self._pull_chunk()
        if not self._queue or self.credit_bytes <= 0:
            return None
        flags, segments, size = self._queue[0]
        if flags and self.credit_items <= 0:
            return None
        if flags and size <= self.chunk:
            return self._pull_items() if len(segments) == 1 else self._pull_item()
        self._queue.popleft()
        if flags:
            self.credit_items -= 1
            segments = [b"\x91" + bytes(segments[0]), *segments[1:]]
        self._chunks = iter(cut(segments, self.chunk))
        self._next = next(self._chunks)
        self._queue.appendleft((flags, [], 0))
        return self._pull_chunk()

    def _pull_chunk(self) -> Piece | None:
        assert self._chunks is not None
        assert self._next is not None
        if self.credit_bytes <= 0:
            return None
        chunk, self._next = self._next, next(self._chunks, None)
        self.credit_bytes -= len(chunk)
        if self._next is not None:
            return STREAM_MORE, *packed(chunk)
        self._chunks = None
        flags, _, _ = self._queue.popleft()
        return flags, *packed(chunk)

    def _pull_item(self) -> Piece:
        """One item with buffers of its own that fits a chunk leaves uncut."""
        _, segments, size = self._queue.popleft()
        self.credit_items -= 1
        self.credit_bytes -= size + 1
        return STREAM_ITEMS, b"\x91" + bytes(segments[0]), segments[1:]

    def _pull_items(self) -> Piece:
        """Small items that are ready together share one frame, as one MessagePack array."""
        bodies: list[Any] = []
        total = 0
        queue = self._queue
        while queue and self.credit_items > 0 and total < self.credit_bytes:
            _, segments, size = queue[0]
            if len(segments) != 1 or (bodies and total + size > self.chunk):
                break
            queue.popleft()
            bodies.append(segments[0])
            total += size
            self.credit_items -= 1
        header = array_header(len(bodies))
        self.credit_bytes -= total + len(header)
        return STREAM_ITEMS, *packed(b"".join((header, *bodies)))


class Batch:
    """A payload as it arrived, still encoded; `size` bytes of credit come back when it is consumed.

    Items: `segments` decode to a list of one or more. A body: to the value itself.
    """

    __slots__ = ("segments", "size")

    def __init__(self, segments: list[Buffer], size: int) -> None:
        self.segments = segments
        self.size = size


class Inflow:
    """Receiving end of one direction: joins chunks, counts what is held, says when credit is due.

    Args:
        limit: largest joined payload in bytes.
        items, window: what the sender was told it may have on the way.
    """

    __slots__ = ("_assembler", "_due_bytes", "_due_items", "_held", "_limit", "_partial", "_size", "items", "window")

    def __init__(self, limit: int, *, items: int = WINDOW_ITEMS, window: int = WINDOW_BYTES) -> None:
        self.items, self.window = items, window
        self._limit = limit
        self._assembler: Assembler | None = None
        self._size = 0
        self._held = self._partial = 0
        self._due_items = self._due_bytes = 0

    def handle_piece(self, flags: int, segments: Sequence[Buffer]) -> tuple[Batch | None, str | None]:
        """Take the segments of one STREAM frame: `(batch, None)` when a payload is complete, `(None, fault)` when it is malformed."""
        size = sum(map(len, segments))
        if flags & STREAM_MORE or self._assembler is not None:
            if self._assembler is None:
                self._assembler = Assembler(self._limit)
            for segment in segments:
                if fault := self._assembler.add(segment):
                    return None, fault
            if flags & STREAM_MORE:
                self._hold_partial(size)
                return None, None
            joined = self._assembler.done()
            self._assembler = None
            if isinstance(joined, str):
                return None, joined
            segments = joined
        elif not flags & STREAM_ITEMS:
            return None, "a last chunk without a first one"
        self._held += size
        if self._held - size + self._partial > 2 * self.window + (1 << 20):
            return None, "more than the credit was sent"
        return Batch(list(segments), size), None

    def _hold_partial(self, size: int) -> None:
        """Chunks of an unfinished item are granted back at once while nothing finished waits, so that it can finish."""
        if self._held:
            self._partial += size
        else:
            self._due_bytes += size

    def consumed(self, items: int, size: int) -> None:
        """The reader took `items` whole items out of frames of `size` bytes together."""
        self._due_items += items
        self._due_bytes += size
        self._held -= size
        if self._held <= 0:
            self._due_bytes += self._partial
            self._partial = 0

    def take_grant(self) -> tuple[int, int] | None:
        """Credit to give back now, once it is worth a frame (half a window of either kind)."""
        if self._due_items * 2 < self.items and self._due_bytes * 2 < self.window:
            return None
        grant = self._due_items, self._due_bytes
        self._due_items = self._due_bytes = 0
        return grant
