"""The two ends of one direction of one call: what waits for credit, and what was received and not yet consumed.

A request's body, an answer's body and the items of a stream all travel the same way: whatever is larger than a chunk is cut
into STREAM frames that spend credit, so nothing a peer sends can pile up here and a small call never waits behind a big body
for longer than the window takes to drain. Credit is counted in bytes of frame bodies and in whole items, as in HTTP/2
(RFC 9113 section 5.2) but per stream only: one unread stream never takes another's credit. How much of it there is the reader
decides (`window.py`): a little at first, more once it has shown how fast it takes.

Invariants a property test can name: bytes sent never exceed bytes granted by more than one small chunk; every byte received is
granted back exactly once, when its item is consumed, and beside that only what the window grew or shrank by; items leave `Inflow`
whole and in order.
"""

from __future__ import annotations

from bisect import bisect_right
from collections import deque
from collections.abc import Sequence
from itertools import accumulate
from typing import Any

from reachmesh.calls.flags import STREAM_ITEMS, STREAM_MORE
from reachmesh.calls.window import SHORT_HORIZON, Pace, Window
from reachmesh.wire.limits import LIMITS
from reachmesh.wire.transfer import Assembler, Cutter, Segment

Buffer = bytes | bytearray | memoryview
Piece = tuple[int, bytes, Sequence[Buffer]]
"""Flags, body and out-of-band parts of one STREAM frame."""

WINDOW_ITEMS = 64
"""Items a stream may have on the way before its reader has consumed any."""

WINDOW_BYTES = 256 * 1024
"""Bytes a stream or a large body may have on the way before anything is known of its reader."""

MOST_ITEMS = 4096
"""The same for the fastest reader. More costs memory when it stops all the same, fewer costs rate."""

MOST_BYTES = 4 * 1024 * 1024
"""The same in bytes."""

PATIENCE = 4
"""Windows that the reader of a stream takes before it gets a larger one. A body has no reader but the link, and needs half as many."""

FLAT_BYTES = 64 * 1024
"""Bodies up to this size travel inside their own request or answer; larger ones are cut and flow under credit."""

PART_BYTES = 16 * 1024
"""Bodies from this size on leave as a ZeroMQ part of their own instead of being copied into the batch."""

_OVERDRAWN = 2 * LIMITS.chunk
"""Bytes beyond its credit that a sender is forgiven: one frame, and framing."""

_BEGUN = MOST_BYTES
"""The same for a body, which begins with what the last one began with: credit for this one may say less."""

_FAST = WINDOW_BYTES * 3 // 2
"""Bytes: a first credit of more than these is not for bytes that have come, of which there are fewer."""

_TAIL = 64
"""A rest of less than this part of a chunk goes with what is before it: it is worth neither a frame nor waiting for credit."""


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


class _Run:
    """Small items in a row, each one MessagePack value; `at` of them have left."""

    __slots__ = ("at", "bodies")

    def __init__(self, bodies: list[Buffer]) -> None:
        self.bodies, self.at = bodies, 0


def placed(segments: Sequence[Buffer]) -> tuple[bool, Buffer, Sequence[Buffer]]:
    """Place a whole payload: whether it is too large for its own frame and has to flow; else what is in the frame, and its parts."""
    if not segments:
        return False, b"", ()
    body = segments[0]
    if len(segments) == 1 and len(body) < PART_BYTES:  # nearly all
        return False, body, ()
    if sum(map(len, segments)) > FLAT_BYTES:
        return True, b"", ()
    return (False, b"", segments) if len(segments) == 1 else (False, body, segments[1:])


class Gathered:
    """Items on their way to the engine from the thread that makes them: it appends, the engine takes all there are.

    The maker appends and then looks whether it has `asked` the engine to come; who takes clears that first. So either the maker sees
    that it has to ask again, or what it appended is taken: nothing is left lying, without a lock (list operations are atomic).

    Attributes:
        items: encoded: one small buffer, or the segments of an item that is big or has several.
        asked: whether the engine is on its way.
        mixed: whether an item with segments has been among them.
    """

    __slots__ = ("asked", "items", "mixed")

    def __init__(self) -> None:
        self.items: list[Buffer | list[Buffer]] = []
        self.asked = self.mixed = False

    def put(self, encoded: Buffer | list[Buffer]) -> None:
        """One more."""
        if type(encoded) is list:
            self.mixed = True
        self.items.append(encoded)

    def take(self) -> list[Any]:
        """All there are."""
        self.asked = False
        taken = self.items[:]
        del self.items[: len(taken)]
        return taken


class Outflow:
    """Sending end of one direction: queues payloads, cuts the big ones, spends credit.

    States: idle (nothing queued), ready (something queued and credit left), starved (queued, no credit). `pull` answers the next
    frame in ready and None otherwise. `ended` becomes true once everything queued before `end()` has been pulled.

    Args:
        chunk: largest frame body in bytes while little credit is there, and always of small items; also the amount by which credit
            in bytes may be overdrawn. With more credit, chunks are half of it, so that a fast link is not held up by small ones.
    """

    __slots__ = (
        "_ahead",
        "_cutter",
        "_ending",
        "_flags",
        "_pace",
        "_queue",
        "_small",
        "chunk",
        "credit_bytes",
        "credit_items",
        "granted_bytes",
        "granted_items",
        "is_listed",
    )

    def __init__(self, chunk: int, *, items: int = WINDOW_ITEMS, window: int = WINDOW_BYTES) -> None:
        self._small = self.chunk = chunk
        self.credit_items = self.granted_items = items
        self.credit_bytes = self.granted_bytes = window
        self.is_listed = False
        self._queue: deque[_Run | tuple[int, list[Buffer], int]] = deque()
        self._cutter: Cutter | None = None
        self._flags = 0
        self._ending = False
        self._pace: Pace | None = None
        self._ahead = 0

    @classmethod
    def of_body(cls, chunk: int, segments: list[Buffer], pace: Pace, now: float) -> Outflow:
        """One that carries nothing but a body: it begins with as much as the last one on this link, without waiting for credit."""
        flow = cls(chunk)
        flow._pace = pace
        flow._ahead = max(0, pace.open(now) - flow.credit_bytes)
        flow._add(flow._ahead)
        flow.put_body(segments)
        flow.end()
        return flow

    def put_items(self, bodies: list[Buffer]) -> None:
        """Queue encoded items of one segment each, in order. The list is taken over."""
        last = self._queue[-1] if self._queue else None
        if type(last) is _Run:
            last.bodies += bodies
        else:
            self._queue.append(_Run(bodies))

    def put_gathered(self, gathered: Gathered) -> None:
        """Queue what has been gathered."""
        items = gathered.take()
        if not gathered.mixed:
            return self.put_items(items)
        for item in items:
            self.put_item(item if type(item) is list else [item])
        return None

    def put_item(self, segments: list[Buffer]) -> None:
        """Queue one encoded item (its first segment is MessagePack, the others out-of-band buffers)."""
        if len(segments) == 1 and len(segments[0]) <= self._small:
            self.put_items(segments)
        else:
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
        return self._ending and not self._queue and self._cutter is None

    def grant(self, items: int, size: int) -> None:
        """The reader gave credit. More than the largest window is not taken: a reader that gives it away would fill our memory."""
        if self._pace is not None:
            self._begun(size)
        if self._ahead:
            taken = min(size, self._ahead)
            self._ahead -= taken
            size -= taken
        items = max(0, min(items, MOST_ITEMS - self.credit_items))
        self.credit_items += items
        self.granted_items += items
        self._add(max(0, min(size, MOST_BYTES - self.credit_bytes)))

    def _begun(self, size: int) -> None:
        """The first credit for a body tells what its reader knows of the link, if it is more than for the bytes that came."""
        assert self._pace is not None
        self._pace.offered(WINDOW_BYTES + min(size, MOST_BYTES - WINDOW_BYTES) if size > _FAST else 0)
        self._pace = None

    def _add(self, size: int) -> None:
        self.credit_bytes += size
        self.granted_bytes += size
        self.chunk = self._small if self.credit_bytes <= WINDOW_BYTES else min(self.credit_bytes // 2, LIMITS.large_chunk)

    def pull(self) -> Piece | None:
        """Take the next frame that the credit allows; None when there is none."""
        if self.credit_bytes <= 0:
            return None
        if self._cutter is not None:
            return self._pull_chunk(self._cutter, self._small // _TAIL)
        if not self._queue:
            return None
        head = self._queue[0]
        if isinstance(head, _Run):
            return self._pull_items(head) if self.credit_items > 0 else None
        flags, segments, size = head
        if flags:
            if self.credit_items <= 0:
                return None
            self.credit_items -= 1
        self._queue.popleft()
        if flags:
            segments = [b"\x91" + segments[0], *segments[1:]]
            if size < self._room() + self._small // _TAIL:
                self.credit_bytes -= size + 1
                return flags, *_placed(segments)
        self._flags, self._cutter = flags, Cutter(segments)
        return self._pull_chunk(self._cutter)

    def _room(self) -> int:
        """Bytes the next frame may have: a chunk, but beyond the credit only a small one."""
        return min(self.chunk, max(self.credit_bytes, self._small))

    def _pull_chunk(self, cutter: Cutter, tail: int = 0) -> Piece:
        before, room = cutter.left, self._room()
        chunk = cutter.take(before if before <= room + tail else room)
        self.credit_bytes -= before - cutter.left
        if cutter.left:
            return STREAM_MORE, *_placed(chunk)
        self._cutter = None
        return self._flags, *_placed(chunk)

    def _pull_items(self, run: _Run) -> Piece:
        """Small items that are ready together share one frame, as one MessagePack array."""
        at = run.at
        bodies = run.bodies[at : at + self.credit_items]
        total = sum(map(len, bodies))
        if total > self._small:
            bodies = bodies[: max(1, bisect_right(list(accumulate(map(len, bodies))), self._small))]
            total = sum(map(len, bodies))
        count = len(bodies)
        if at + count == len(run.bodies):
            self._queue.popleft()
        else:
            run.at = at + count
        header = array_header(count)
        self.credit_items -= count
        self.credit_bytes -= total + len(header)
        return STREAM_ITEMS, *packed(b"".join((header, *bodies)))


def _placed(segments: Sequence[Buffer]) -> tuple[bytes, Sequence[Buffer]]:
    """The segments of one frame: a first small one in it, all others as parts of their own."""
    first = segments[0]
    return (bytes(first), segments[1:]) if 0 < len(first) < PART_BYTES else (b"", segments)


class Batch:
    """A payload as it arrived, still encoded; `size` bytes of credit come back when it is consumed.

    Items: `segments` decode to a list of one or more. A body: to the value itself.
    """

    __slots__ = ("segments", "size")

    def __init__(self, segments: Sequence[Segment], size: int) -> None:
        self.segments = segments
        self.size = size


class Inflow:
    """Receiving end of one direction: joins chunks, counts what is held, says when credit is due.

    Args:
        limit: largest joined payload in bytes.
        pace: of the link it comes by.
        is_body: nothing but one body comes, which nobody has to read: the link alone sets its pace.
        items, window: what the sender was told it may have on the way.
    """

    __slots__ = ("_assembler", "_bytes", "_due_bytes", "_due_items", "_held", "_is_body", "_items", "_limit", "_pace", "_partial", "_room")

    def __init__(
        self,
        limit: int,
        pace: Pace,
        now: float,
        *,
        is_body: bool = False,
        items: int = WINDOW_ITEMS,
        window: int = WINDOW_BYTES,
    ) -> None:
        self._items = Window(items, MOST_ITEMS, PATIENCE, now)
        self._bytes = Window(window, MOST_BYTES, 2, now) if is_body else Window(window, MOST_BYTES, PATIENCE, now, SHORT_HORIZON)
        self._limit, self._pace, self._is_body = limit, pace, is_body
        self._assembler: Assembler | None = None
        self._held = self._partial = 0
        self._due_items = self._due_bytes = 0
        self._room = window
        if is_body and (known := pace.begin(now)) > window:
            self._grow(known - window)

    def handle_piece(self, flags: int, segments: Sequence[Buffer], now: float) -> tuple[Batch | None, str | None]:
        """Take the segments of one STREAM frame: `(batch, None)` when a payload is complete, `(None, fault)` when it is malformed."""
        size = sum(map(len, segments))
        self._room -= size
        if self._room < -(_BEGUN if self._is_body else _OVERDRAWN):
            return None, "more than the credit was sent"
        joined: Sequence[Segment] = segments
        if flags & STREAM_MORE or not flags & STREAM_ITEMS or self._assembler is not None:
            if self._assembler is None:
                self._assembler = Assembler(self._limit)
            for segment in segments:
                if fault := self._assembler.add(segment):
                    return None, fault
            if flags & STREAM_MORE:
                self._hold_partial(size, now)
                return None, None
            done = self._assembler.done()
            self._assembler = None
            if isinstance(done, str):
                return None, done
            joined = done
        self._held += size
        return Batch(joined, size), None

    def _hold_partial(self, size: int, now: float) -> None:
        """Chunks of an unfinished item are granted back at once while nothing finished waits, so that it can finish."""
        if self._held:
            self._partial += size
        else:
            self._take_bytes(size, now)

    def consumed(self, items: int, size: int, now: float) -> None:
        """The reader took `items` whole items out of frames of `size` bytes together."""
        if items:
            self._due_items += items + self._items.take(items, now)
        self._held -= size
        if self._held <= 0:
            size, self._partial = size + self._partial, 0
        self._take_bytes(size, now)

    def _take_bytes(self, size: int, now: float) -> None:
        self._due_bytes += size
        if change := self._bytes.take(size, now):
            self._bytes.size -= change
            self._grow(change)

    def _grow(self, change: int) -> None:
        """Make the window larger by what the link has left to lend, or smaller; what was granted already is not granted again."""
        change = self._pace.lend(change)
        self._bytes.size += change
        self._due_bytes += change

    def take_grant(self) -> tuple[int, int] | None:
        """Credit to give now, once it is worth a frame (half a window of either kind; a quarter of many bytes, not to let the link run dry)."""
        items, size = self._due_items, self._due_bytes
        share = 2 if self._bytes.size <= self._bytes.least else 4
        if items * 2 < self._items.size and size * share < self._bytes.size:
            return None
        items, size = max(0, items), max(0, size)
        self._due_items -= items
        self._due_bytes -= size
        self._room += size
        return items, size

    def close(self, now: float) -> None:
        """Nothing more comes: give back to the link what it lent. Safe to call twice."""
        if self._is_body and self._bytes.judged:
            self._pace.note(self._bytes.size, now)
        self._pace.lend(self._bytes.least - self._bytes.size)
        self._bytes.size = self._bytes.least
        self._bytes.judged = False
