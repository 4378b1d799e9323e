"""Payloads in pieces."""

from __future__ import annotations

import tracemalloc
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reachmesh.wire.limits import LIMITS
from reachmesh.wire.transfer import Assembler, Cutter, as_bytes, payload_size

segment = st.one_of(st.binary(max_size=40), st.integers(0, 9000).map(lambda size: b"z" * size))


def cut(segments: list[Any], chunk: int = LIMITS.chunk) -> list[Any]:
    """All buffers of a payload, cut in chunks of one size."""
    cutter = Cutter(segments)
    buffers = []
    while cutter.left:
        before = cutter.left
        taken = cutter.take(chunk)
        assert 1 <= sum(map(len, taken)) == before - cutter.left <= chunk
        buffers += taken
    return buffers


def done(assembler: Assembler, last: Any = b"") -> list[bytes]:
    joined = assembler.done(last)
    assert isinstance(joined, list), joined
    return [as_bytes(each) for each in joined]


def head(*lengths: int) -> bytes:
    return len(lengths).to_bytes(4) + b"".join(length.to_bytes(8) for length in lengths)


@given(st.lists(segment, min_size=1, max_size=6), st.integers(500, 9000))
def test_segments_come_back_whatever_the_chunk(segments: list[bytes], chunk: int) -> None:
    """Every cut is within the chunk, none is empty, and together they give the segments."""
    pieces = cut(segments, chunk)
    assert pieces
    assert all(pieces)
    assembler = Assembler()
    for piece in pieces[:-1]:
        assert assembler.add(piece) is None
        assert not assembler.complete or piece is pieces[-1]
    assert done(assembler, pieces[-1]) == segments


@given(st.lists(segment, min_size=1, max_size=4), st.lists(st.integers(1, 200), min_size=1, max_size=50))
def test_any_other_cut_is_understood(segments: list[bytes], sizes: list[int]) -> None:
    """The receiver does not care where the sequence was cut."""
    sequence = b"".join(cut(segments))
    assembler = Assembler()
    for size in sizes:
        assert assembler.add(sequence[:size]) is None
        sequence = sequence[size:]
    assert done(assembler, sequence) == segments


@given(st.lists(st.binary(max_size=60), max_size=5))
def test_any_pieces_give_segments_or_a_fault(pieces: list[bytes]) -> None:
    """Nothing raises; what does not come out is a fault."""
    assembler = Assembler()
    for piece in pieces:
        assembler.add(piece)
    joined = assembler.done()
    assert joined == assembler.fault or (assembler.fault is None and isinstance(joined, list))


@pytest.mark.parametrize(
    "sequence",
    [
        b"", b"\0", head(), head(1) + b"ab", head(2) + b"a", head(LIMITS.message, 1), head(2**64 - 1), (LIMITS.segments + 1).to_bytes(4),
        b"\xff" * 4, head(1)[:-1],
    ],
)  # fmt: skip
def test_what_cannot_be_right_is_a_fault(sequence: bytes) -> None:
    """Too much, too little, too many: a fault, and it is final."""
    assembler = Assembler()
    assembler.add(sequence)
    assert assembler.done() == assembler.fault
    assert assembler.fault
    assert assembler.add(b"more") == assembler.fault


def test_a_table_does_not_allocate() -> None:
    """A peer that announces 256 MiB and sends nothing costs nothing."""
    assembler = Assembler()
    tracemalloc.start()
    try:
        assert assembler.add(head(LIMITS.message - 10, 10) + b"x") is None
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 100_000


def test_big_segments_are_not_copied_to_be_sent() -> None:
    """The pieces of a big buffer are views of it."""
    big = bytearray(1_000_000)
    pieces = cut([b"body", big])
    views = [piece for piece in pieces if isinstance(piece, memoryview) and piece.obj is big]
    assert sum(map(len, views)) >= 990_000
    assert payload_size([b"body", big]) == 1_000_004
