"""The receiving end of a stream: items in order, and credit for what was read given back, neither too late nor too often."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reachmesh.calls.flows import WINDOW_BYTES, WINDOW_ITEMS, Batch
from reachmesh.node.inputs import Input
from reachmesh.wire.values import dump


def batch(items: list[Any], size: int) -> Batch:
    return Batch(dump(items), size)


@given(st.lists(st.tuples(st.integers(1, 50), st.integers(1, 100_000)), max_size=30), st.lists(st.integers(1, 60), max_size=30))
def test_credit_is_given_back_for_all_that_was_read(batches: list[tuple[int, int]], reads: list[int]) -> None:
    """Whatever comes in whatever batches: read in order, all credit given back when nothing is left, and less than half a window kept back."""
    given_back: list[tuple[int, int]] = []
    source = Input(lambda items, size: given_back.append((items, size)))
    total = 0
    for count, size in batches:
        source.put(batch(list(range(total, total + count)), size))
        total += count
    source.end(None)
    got: list[int] = []
    finished = [0, 0]
    for many in reads:
        for _ in range(min(many, total - len(got))):
            got.append(source.take())
        finished = [0, 0]
        seen = 0
        for count, size in batches:  # batches that were read before the one that is being read
            seen += count
            if seen < len(got):
                finished[0] += count
                finished[1] += size
        assert finished[0] - sum(items for items, _ in given_back) < WINDOW_ITEMS // 2
        assert finished[1] - sum(size for _, size in given_back) < WINDOW_BYTES // 2
    got.extend(source.iter())
    assert got == list(range(total))
    assert [sum(each) for each in zip(*given_back, strict=True)] == ([total, sum(size for _, size in batches)] if total else [])


def test_ready_items_are_those_of_the_batch_at_hand() -> None:
    """What is decoded can be read without asking; what is read so is accounted for by whoever asks next."""
    given_back: list[tuple[int, int]] = []
    source = Input(lambda items, size: given_back.append((items, size)), lambda item: item + 1)
    source.put(batch([1, 2, 3], 10))
    assert source.take() == 2
    assert list(source.ready) == [3, 4]
    assert given_back == []
    source.end(None)
    with pytest.raises(StopIteration):
        source.take()
    assert given_back == [(3, 10)]
