"""Credit and chunks between the two ends of one direction: nothing is lost, doubled, reordered or overdrawn."""

from __future__ import annotations

import queue
import sys
import threading
from collections import deque
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reachmesh.calls.flags import STREAM_ITEMS, STREAM_MORE
from reachmesh.calls.flows import MOST_BYTES, MOST_ITEMS, WINDOW_BYTES, WINDOW_ITEMS, Batch, Gathered, Inflow, Outflow
from reachmesh.calls.window import HORIZON, Pace, Window
from reachmesh.wire.limits import LIMITS
from reachmesh.wire.values import dump, load

CHUNK = 1024
SLACK = 5
"""Bytes of array header in front of a full chunk of items."""

sizes = st.one_of(st.integers(0, 40), st.integers(0, 3 * CHUNK), st.integers(16_000, 20_000))


class Line:
    """Both ends of one direction, the wire between them, and a reader that holds what it got."""

    def __init__(self, items: int, window: int, *, is_body: bool = False, pace: Pace | None = None) -> None:
        self.now = 0.0
        self.pace = pace or Pace()
        self.out = Outflow(CHUNK, items=items, window=window)
        self.into = Inflow(LIMITS.message, self.pace, self.now, is_body=is_body, items=items, window=window)
        self.wire: deque[tuple[int, list[Any]]] = deque()
        self.held: deque[Batch] = deque()
        self.sent = self.granted = self.granted_items = self.sent_items = 0
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
        batch, fault = self.into.handle_piece(*self.wire.popleft(), self.now)
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
        self.into.consumed(len(items), batch.size, self.now)
        self.grant()
        return True

    def grant(self) -> None:
        if (grant := self.into.take_grant()) is not None:
            assert min(grant) >= 0
            self.granted_items += grant[0]
            self.granted += grant[1]
            self.out.grant(*grant)

    def wait(self) -> bool:
        self.now += 0.003
        return True

    def drain(self) -> None:
        while self.pull() or self.arrive() or self.consume():
            pass


@given(
    st.lists(sizes, max_size=30),
    st.lists(st.sampled_from(["put", "pull", "arrive", "consume", "wait"]), max_size=120),
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
        assert window <= line.into._bytes.size <= max(window, MOST_BYTES)
        assert items <= line.into._items.size <= MOST_ITEMS
    for value in waiting:
        line.out.put_item(dump(value))
    line.out.end()
    line.drain()
    assert line.out.ended
    assert line.read == values
    # Every byte and item is granted back exactly once, and beside that what the windows grew by.
    grown, more = line.into._bytes.size - window, line.into._items.size - items
    assert line.sent + grown == line.granted + line.into._due_bytes
    assert len(values) + more == line.granted_items + line.into._due_items
    line.into.close(line.now)
    assert line.pace.lend(0) == line.pace._lent == 0
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
        batch, fault = line.into.handle_piece(flags, segments, 0.0)
        assert fault is None
        if batch is not None:
            got.append(b"".join(bytes(each) for each in batch.segments) if not got else load(batch.segments))
            line.into.consumed(0, batch.size, 0.0)
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
    for flags in (STREAM_ITEMS, STREAM_MORE):
        inflow = Inflow(LIMITS.message, Pace(), 0.0)
        piece = [(1).to_bytes(4) + (10**8).to_bytes(8) + bytes(60_000)]
        inflow.handle_piece(STREAM_ITEMS, [b"\x91\xc0"], 0.0)  # held by its reader: from here on nothing comes back
        taken = 0
        while inflow.handle_piece(flags, piece, 0.0)[1] is None:
            taken += len(piece[0])
        assert taken <= WINDOW_BYTES + 2 * LIMITS.chunk


@given(st.integers(LIMITS.chunk - 40, 5 * LIMITS.chunk), st.integers(0, 3 * LIMITS.large_chunk), st.integers(1, 3))
def test_a_body_arrives_whatever_credit_was_there(size: int, credit: int, segments: int) -> None:
    """A body is joined from as many chunks as the credit made of it: with much credit a large one leaves as one chunk, first and last."""
    sent, pace = Outflow(LIMITS.chunk), Pace()
    pace.note(WINDOW_BYTES + credit, 0.0)  # what the body before it ended with
    into = Inflow(LIMITS.message, pace, 0.0, is_body=True)
    sent.grant(*(into.take_grant() or (0, 0)))
    body: list[bytes | bytearray | memoryview] = [bytes([number]) * (size // segments) for number in range(segments)]
    sent.put_body(body)
    sent.end()
    batch = None
    while not sent.ended:
        piece = sent.pull()
        if piece is None:
            sent.grant(*(into.take_grant() or (0, 0)))
            continue
        flags, first, parts = piece
        batch, fault = into.handle_piece(flags, [each for each in (first, *parts) if len(each)], 0.0)
        assert fault is None
        assert (batch is None) == bool(flags & STREAM_MORE)
    assert batch is not None
    assert [bytes(each) for each in batch.segments] == body


def carry(size: int, sender: Pace, receiver: Pace, now: float) -> tuple[int, int]:
    """A body over a link, its credit coming only when nothing more can be sent: what it began with, and how often it waited."""
    sent = Outflow.of_body(LIMITS.chunk, [bytes(size)], sender, now)
    into = Inflow(LIMITS.message, receiver, now, is_body=True)
    began, waits, batch = sent.credit_bytes, 0, None
    while batch is None:
        now += 1e-6
        piece = sent.pull()
        if piece is None:
            waits += 1
            while grant := into.take_grant():
                sent.grant(*grant)
            continue
        flags, first, parts = piece
        batch, fault = into.handle_piece(flags, [each for each in (first, *parts) if len(each)], now)
        assert fault is None
    if grant := into.take_grant():
        sent.grant(*grant)
    into.close(now)
    assert len(bytes(batch.segments[0])) == size
    return began, waits


def test_a_body_on_a_link_known_to_be_fast_is_sent_without_waiting_for_credit() -> None:
    """The second big body within five seconds begins with what the first was given; after a pause it begins small again."""
    sender, receiver = Pace(), Pace()
    assert carry(40 * MOST_BYTES, sender, receiver, 0.0)[0] == WINDOW_BYTES
    assert carry(MOST_BYTES, sender, receiver, 1.0)[0] == WINDOW_BYTES  # the first was given much when it was known, late
    assert carry(MOST_BYTES - 100, sender, receiver, 2.0) == (MOST_BYTES, 0)
    assert carry(40 * MOST_BYTES, sender, receiver, 20.0)[0] == WINDOW_BYTES


def test_a_reader_that_gives_little_is_not_run_over() -> None:
    """Credit for what has been taken, and no more, says that the link is slow or not known: bodies begin small."""
    pace = Pace()
    for now in (0.0, 1.0, 2.0):
        flow = Outflow.of_body(LIMITS.chunk, [bytes(MOST_BYTES)], pace, now)
        assert flow.credit_bytes == WINDOW_BYTES
        flow.grant(0, WINDOW_BYTES // 2)


def test_bodies_sent_ahead_of_their_credit_are_few() -> None:
    """A fast link may have become slow: until some body's credit says how fast it is now, only so many more begin large."""
    pace = Pace()
    pace.open(0.0)
    pace.offered(MOST_BYTES)
    began = [Outflow.of_body(LIMITS.chunk, [bytes(MOST_BYTES)], pace, 1.0).credit_bytes for _ in range(20)]
    assert began == [MOST_BYTES] * Pace.UNCONFIRMED + [WINDOW_BYTES] * (20 - Pace.UNCONFIRMED)


@given(st.integers(LIMITS.chunk, 6 * MOST_BYTES), st.integers(0, 2 * MOST_BYTES), st.integers(0, 2 * MOST_BYTES))
def test_a_body_sent_ahead_arrives_whatever_its_reader_knows(size: int, offered: int, known: int) -> None:
    """Sender and receiver may remember different speeds of a link: nothing is refused, nothing is lost, and credit is not counted twice."""
    sender, receiver = Pace(), Pace()
    sender.open(0.0)
    sender.offered(min(offered, MOST_BYTES))
    receiver.note(min(known, MOST_BYTES), 0.0)
    carry(size, sender, receiver, 1.0)


def test_a_body_of_a_window_is_not_held_up_by_its_last_bytes() -> None:
    """256 KiB and the few bytes that say how long it is leave without waiting for credit."""
    assert carry(WINDOW_BYTES, Pace(), Pace(), 0.0) == (WINDOW_BYTES, 0)


@pytest.mark.parametrize("pieces", [[(0, b"last")], [(STREAM_MORE, b"\xff" * 100)], [(STREAM_MORE, b"\0\0\0\1"), (STREAM_ITEMS, b"\0")]])
def test_malformed_chunks_are_a_fault(pieces: list[tuple[int, bytes]]) -> None:
    """A chunk without a table, a table that cannot be, a payload that ends too soon: a fault's text, never an exception."""
    inflow = Inflow(1 << 20, Pace(), 0.0)
    *before, last = pieces
    for flags, body in before:
        assert inflow.handle_piece(flags, [body], 0.0) == (None, None)
    batch, fault = inflow.handle_piece(last[0], [last[1]], 0.0)
    assert batch is None
    assert fault


@given(st.lists(st.tuples(st.integers(0, 255), st.binary(max_size=64)), max_size=20))
def test_any_pieces_are_taken_or_a_fault(pieces: list[tuple[int, bytes]]) -> None:
    """Totality: whatever a peer sends, the inflow answers."""
    inflow = Inflow(1 << 16, Pace(), 0.0)
    for flags, body in pieces:
        batch, fault = inflow.handle_piece(flags, [body], 0.0)
        assert not (batch and fault)
        if fault:
            return


class Reader(Line):
    """A stream of small items that is read at so many a second."""

    def read_for(self, seconds: float, rate: float) -> None:
        end, step, budget = self.now + seconds, 0.0002, 0.0
        while self.now < end:
            while len(self.out._queue) < 1 or len(self.out._queue[0].bodies) < 10_000:  # type: ignore[union-attr]
                self.out.put_items([b"\xc0"] * 10_000)
            while self.pull() or self.arrive():
                pass
            self.now += step
            budget = min(budget + rate * step, 2 * rate * step + 1)
            while budget >= 1 and self.held:
                budget -= len(load([bytes(each) for each in self.held[0].segments]))
                self.consume()


def test_a_reader_that_keeps_up_gets_more_and_one_that_does_not_gets_the_least() -> None:
    """Items: 64 for a slow reader, what it takes in `HORIZON` for a fast one, and 64 again when it slows."""
    line = Reader(WINDOW_ITEMS, WINDOW_BYTES)
    line.read_for(1.0, 5_000)
    assert line.into._items.size == WINDOW_ITEMS
    line.read_for(1.0, 1_000_000)
    assert line.into._items.size == MOST_ITEMS
    line.read_for(3.0, 5_000)
    assert line.into._items.size == WINDOW_ITEMS
    before = len(line.read)
    while line.pull() or line.arrive():
        pass
    on_the_way = sum(len(load([bytes(each) for each in batch.segments])) for batch in line.held)
    assert len(line.read) == before
    assert on_the_way <= WINDOW_ITEMS


def test_a_reader_that_takes_a_little_and_stops_is_not_trusted() -> None:
    """Whoever reads 190 items as fast as can be and then stops is sent 64 more at most; after thousands, 4,096."""
    for read, most in ((1, 64), (190, 64), (500, 128), (100_000, MOST_ITEMS)):
        line = Line(WINDOW_ITEMS, WINDOW_BYTES)
        line.out.put_items([b"\xc0"] * (read + 10_000))
        while len(line.read) < read:
            line.now += 1e-5
            assert line.pull() or line.arrive() or line.consume()
        while line.pull() or line.arrive():
            pass
        unread = sum(len(load([bytes(each) for each in batch.segments])) for batch in line.held)
        assert unread <= most


@given(st.lists(st.tuples(st.integers(0, 10_000_000), st.floats(0, 0.05)), max_size=60), st.integers(1, 8))
def test_a_window_keeps_its_bounds_and_holds_no_more_than_its_horizon(steps: list[tuple[int, float]], patience: int) -> None:
    """It never leaves its bounds, never more than doubles, and grows only as far as what was taken in time."""
    window, now = Window(1000, 500_000, patience, 0.0), 0.0
    for amount, wait in steps:
        now += wait
        before, since = window.size, window._since
        taken = window._taken + amount
        change = window.take(amount, now)
        assert window.size == before + change
        assert 1000 <= window.size <= min(500_000, 2 * before)
        if change > 0:
            assert taken >= patience * before
            assert window.size <= max(1000, taken / max(now - since, 1e-6) * HORIZON)


def test_a_slow_link_that_delivers_in_bursts_keeps_the_least() -> None:
    """10 MiB/s, held up for a tenth of a second now and then and then delivering at once all that was on the way: 256 KiB still."""
    for patience in (2, 4):
        window = Window(WINDOW_BYTES, MOST_BYTES, patience, 0.0)
        now, owed = 0.0, 0
        for step in range(2000):
            now += 0.0064
            owed += 65536
            if step % 20 < 16:
                window.take(min(owed, WINDOW_BYTES), now)
                owed = 0
            assert window.size == WINDOW_BYTES


def test_the_next_big_body_of_a_fast_link_begins_with_what_the_last_one_had() -> None:
    """Bodies one after another on one link: the second has its window from the start, unless the first is long ago."""
    pace = Pace()
    body = bytes(40 * MOST_BYTES)
    started = []
    for now in (0.0, 1.0, 100.0):
        line = Line(WINDOW_ITEMS, WINDOW_BYTES, is_body=True, pace=pace)
        line.into = Inflow(LIMITS.message, pace, now, is_body=True)
        line.now = now
        line.grant()
        started.append(line.out.credit_bytes)
        line.out.put_body([body])
        while line.pull() or line.arrive():
            line.now += 1e-7
        line.into.close(line.now)
    assert started == [WINDOW_BYTES, MOST_BYTES, WINDOW_BYTES]


def test_what_a_peer_gets_beyond_the_least_is_bounded_whatever_it_opens() -> None:
    """Twenty fast bodies at once on one link: together no more than `Pace.LENT` beyond what each has by right."""
    pace = Pace()
    inflows = [Inflow(LIMITS.message, pace, 0.0, is_body=True) for _ in range(20)]
    for inflow in inflows:
        inflow.handle_piece(STREAM_MORE, [(1).to_bytes(4) + (200_000_000).to_bytes(8)], 0.0)
    for step in range(10):
        for inflow in inflows:
            _, size = inflow.take_grant() or (0, WINDOW_BYTES if step == 0 else 0)
            assert inflow.handle_piece(STREAM_MORE, [bytes(size)], step * 1e-4) == (None, None)
    beyond = sum(inflow._bytes.size - WINDOW_BYTES for inflow in inflows)
    assert 0 < beyond <= Pace.LENT
    for inflow in inflows:
        inflow.close(1.0)
    assert pace._lent == 0


def test_chunks_are_small_until_the_credit_is_large() -> None:
    """With the credit that everybody gets a chunk has 64 KiB; with more it is half of it, up to 1 MiB."""
    out = Outflow(LIMITS.chunk)
    out.put_body([bytes(20 * MOST_BYTES)])
    sizes = []
    for grant in (0, WINDOW_BYTES, MOST_BYTES, 0):
        out.grant(0, grant)
        while (piece := out.pull()) is not None:
            sizes.append(len(piece[1]) + sum(map(len, piece[2])))
    assert sizes[:4] == [LIMITS.chunk] * 4
    assert max(sizes) == LIMITS.large_chunk
    assert sum(sizes) <= WINDOW_BYTES * 2 + MOST_BYTES + LIMITS.chunk


def test_gathered_items_leave_in_order_whatever_their_size() -> None:
    """Small items, big ones and ones with buffers, put one by one while others take: each comes once, in the order of putting."""
    line, gathered = Line(WINDOW_ITEMS, WINDOW_BYTES), Gathered()
    values = [bytes([index]) * size for index, size in enumerate((1, 50_000, 3, 4, 20_000, 300_000, 0, 5))]
    for index, value in enumerate(values):
        segments = dump(value)
        gathered.put(segments[0] if len(segments) == 1 else segments)
        if index in (0, 3, 7):
            line.out.put_gathered(gathered)
    line.drain()
    assert line.read == values


def test_nothing_that_is_gathered_is_left_lying() -> None:
    """One thread appends and asks, another takes when asked, without a lock: all is taken, once and in order."""
    gathered, asks, got = Gathered(), queue.SimpleQueue[bool](), list[Any]()

    def take() -> None:
        while asks.get():
            got.extend(gathered.take())

    taker = threading.Thread(target=take)
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        taker.start()
        for index in range(50_000):
            gathered.put(index)  # type: ignore[arg-type]
            if not gathered.asked:
                gathered.asked = True
                asks.put(True)
        asks.put(False)
        taker.join(20)
    finally:
        sys.setswitchinterval(interval)
    assert got == list(range(50_000))
