"""Percentiles out of logarithmic buckets."""

from __future__ import annotations

from collections import Counter
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from reachmesh.observe.histogram import bucket_of, percentile, seconds_of

DURATIONS = st.floats(min_value=1e-6, max_value=1e6)


def test_a_worked_value() -> None:
    """20 ms fall into the bucket that the docstring names."""
    assert bucket_of(0.020) == 228


@given(DURATIONS)
def test_a_value_comes_back_within_its_promise(seconds: float) -> None:
    """The middle of a bucket is within 3.2 % of what fell into it."""
    assert abs(seconds_of(bucket_of(seconds)) - seconds) <= 0.032 * seconds


@given(DURATIONS, DURATIONS)
def test_buckets_keep_the_order(one: float, other: float) -> None:
    """A longer duration is in no lower bucket."""
    low, high = sorted((one, other))
    assert bucket_of(low) <= bucket_of(high)


@given(st.lists(DURATIONS, min_size=1, max_size=200), st.floats(min_value=0.01, max_value=1.0))
def test_percentiles_are_those_of_the_list(durations: list[float], share: float) -> None:
    """A percentile is the nearest-rank one of the sorted list, within a bucket."""
    exact = sorted(durations)[max(1, ceil(share * len(durations))) - 1]
    assert abs(percentile(Counter(map(bucket_of, durations)), share) - exact) <= 0.032 * exact


def test_what_is_out_of_range_is_kept_in_it() -> None:
    """Nothing, less than a microsecond and a million years are no errors."""
    assert percentile({}, 0.5) == 0.0
    assert bucket_of(0.0) == bucket_of(-1.0) == bucket_of(1e-9) == 0
    assert seconds_of(0) == 0.0
    assert bucket_of(1e30) == bucket_of(1e12)
