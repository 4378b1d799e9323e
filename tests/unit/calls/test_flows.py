"""Credit and chunks between the two ends of one direction: nothing is lost, doubled, reordered or overdrawn."""

from __future__ import annotations

from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reachmesh.calls.flags import STREAM_ITEMS, STREAM_MORE
from reachmesh.calls.flows import WINDOW_BYTES, WINDOW_ITEMS, Batch, Inflow, Outflow
from reachmesh.wire.limits import LIMITS
from reachmesh.wire.values import dump, load

CHUNK = 1024
SLACK = 5
"""Bytes of array header in front of a full chunk of items."""

sizes = st.one_of(st.integers(0, 40), st.integers(0, 3 * CHUNK), st.integers(16_000, 20_000))


class Line:
    """Both ends of one direction, the wire between them, and a reader that holds what it got."""

    def __init__(self, items: int, window: int) -> None:
        self.out = Outflow(CHUNK, items=items, window=window)
        self.into = Inflow(LIMITS.message, items=items, window=window)
        self.wire: deque[tuple[int, list[Any]]] = deque()
        self.held: deque[Batch] = deque()
        self.sent = self.granted = 0
        self.read: list[Any] = []

    def pull(self) -> bool:
        piece = self.out.pull()
        if piece is None:
            return False
        flags, body, parts = piece
        self.wire.append((flags, [each for each in (body, *parts) if len(each)]))
        self.sent += len(body) + sum(map(len, parts))
        return True

    def arrive(self) -> bool:
        if not self.wire:
            return False
        batch, fault = self.into.handle_piece(*self.wire.popleft())
        assert fault is None
        if batch is not None:
            self.held.append(batch)
        self.grant()
        return True

    def consume(self) -> bool:
        if not self.held:
            return False
        batch = self.held.popleft()
        items = load([bytes(each) for each in batch.segments])
        self.read.extend(items)
        self.into.consumed(len(items), batch.size)
        self.grant()
        return True

    def grant(self) -> None:
        if (grant := self.into.take_grant()) is not None:
            self.granted += grant[1]
            self.out.grant(*grant)

    def drain(self) -> None:
        while self.pull() or self.arrive() or self.consume():
            pass


@given(
    st.lists(sizes, max_size=30),
    st.lists(st.sampled_from(["put", "pull", "arrive", "consume"]), max_size=120),
    st.integers(1, 8),
    st.sampled_from([CHUNK, 4 * CHUNK, WINDOW_BYTES]),
)
def test_items_arrive_whole_in_order_and_within_credit(lengths: list[int], steps: list[str], items: int, window: int) -> None:
    """Whatever the interleaving: items come whole and in order, credit is never overdrawn by more than a chunk, and all of it comes back."""
    line = Line(items, window)
    values = [bytes([index]) * length for index, length in enumerate(lengths)]
    waiting = deque(values)
    for step in steps:
        if step == "put" and waiting:
            line.out.put_item(dump(waiting.popleft()))
        elif step != "put":
            getattr(line, step)()
        assert line.sent <= window + line.granted + CHUNK + SLACK
        assert line.out.credit_items >= 0
    for value in waiting:
        line.out.put_item(dump(value))
    line.out.end()
    line.drain()
    assert line.out.ended
    assert line.read == values
    assert line.sent == line.granted + line.into._due_bytes  # every byte is granted back exactly once
    assert line.into._held == line.into._partial == 0
    assert line.out.credit_bytes == window + line.granted - line.sent


@given(st.integers(CHUNK + 1, 200_000), st.integers(0, 5))
def test_a_body_goes_before_the_items_of_its_stream(size: int, count: int) -> None:
    """The cut body of a request arrives complete before the first item put earlier or later."""
    line = Line(WINDOW_ITEMS, 4 * CHUNK)
    for index in range(count):
        line.out.put_item(dump(index))
    body = bytes(range(256)) * (size // 256 + 1)
    line.out.put_body([body])
    got: list[Any] = []
    while line.pull() or line.wire:
        flags, segments = line.wire.popleft()
        batch, fault = line.into.handle_piece(flags, segments)
        assert fault is None
        if batch is not None:
            got.append(b"".join(bytes(each) for each in batch.segments) if not got else load(batch.segments))
            line.into.consumed(0, batch.size)
        line.grant()
    assert got[0] == body
    assert [item for batch in got[1:] for item in batch] == list(range(count))


def test_an_unread_stream_stops_its_writer() -> None:
    """With nobody reading, at most the window of items or of bytes (and one chunk) leaves."""
    for item, most in ((1, WINDOW_ITEMS), (50_000, WINDOW_BYTES // 50_000 + 1)):
        out = Outflow(LIMITS.chunk)
        for _ in range(1000):
            out.put_item(dump(bytes(item)))
        left = 0
        while (piece := out.pull()) is not None:
            left += len(load([b"".join([piece[1], *map(bytes, piece[2])])])) if piece[0] == STREAM_ITEMS and not piece[2] else 1
        assert left <= most
        assert not out.ended


def test_an_item_larger_than_the_window_passes() -> None:
    """A single item may be many windows long: its chunks are granted while nothing finished waits."""
    line = Line(WINDOW_ITEMS, 4 * CHUNK)
    line.out.put_item(dump(bytes(100 * CHUNK)))
    line.out.put_item(dump(b"next"))
    line.drain()
    assert [len(item) for item in line.read] == [100 * CHUNK, 4]


def test_a_sender_that_ignores_its_credit_is_a_fault() -> None:
    """What is held for a reader is bounded whatever the sender does."""
    inflow = Inflow(LIMITS.message)
    piece = [b"\x91\xc0" + bytes(60_000)]
    for _ in range(1000):
        _, fault = inflow.handle_piece(STREAM_ITEMS, piece)
        if fault:
            break
    else:
        pytest.fail("60 MB were taken")


@pytest.mark.parametrize("pieces", [[(0, b"last")], [(STREAM_MORE, b"\xff" * 100)], [(STREAM_MORE, b"\0\0\0\1"), (STREAM_ITEMS, b"\0")]])
def test_malformed_chunks_are_a_fault(pieces: list[tuple[int, bytes]]) -> None:
    """A last chunk without a first one, a table that cannot be, a payload that ends too soon: a fault's text, never an exception."""
    inflow = Inflow(1 << 20)
    *before, last = pieces
    for flags, body in before:
        assert inflow.handle_piece(flags, [body]) == (None, None)
    batch, fault = inflow.handle_piece(last[0], [last[1]])
    assert batch is None
    assert fault


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=64)), max_size=20))
def test_any_pieces_are_taken_or_a_fault(pieces: list[tuple[int, bytes]]) -> None:
    """Totality: whatever a peer sends, the inflow answers."""
    inflow = Inflow(1 << 16)
    for flags, body in pieces:
        batch, fault = inflow.handle_piece(flags, [body])
        assert not (batch and fault)
        if fault:
            return
