"""Durations as counts in logarithmic buckets: a percentile of any number of them costs the memory of a few dozen integers.

Sixteen buckets an octave (as in HdrHistogram with five significant bits), from 1 us to about 13 days. A value given back is the middle
of its bucket, so it is within 3.2 % of the true one.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import ceil, frexp

_UNIT = 1e-6
_PER_OCTAVE = 16
_OCTAVES = 40


def bucket_of(seconds: float) -> int:
    """Bucket of a duration; 0 for everything under 1 us. `bucket_of(0.020)` is 228."""
    if seconds < _UNIT:
        return 0
    fraction, exponent = frexp(seconds / _UNIT)
    if exponent > _OCTAVES:
        return _OCTAVES * _PER_OCTAVE
    return (exponent - 1) * _PER_OCTAVE + int((fraction - 0.5) * (2 * _PER_OCTAVE)) + 1


def seconds_of(bucket: int) -> float:
    """Middle of a bucket in seconds."""
    if bucket <= 0:
        return 0.0
    octave, step = divmod(bucket - 1, _PER_OCTAVE)
    return float((0.5 + (step + 0.5) / (2 * _PER_OCTAVE)) * 2.0 ** (octave + 1) * _UNIT)


def percentile(counts: Mapping[int, int], share: float) -> float:
    """The nearest-rank percentile in seconds; 0.0 of nothing.

    Args:
        counts: how many durations fell into each bucket.
        share: 0 to 1, e.g. 0.95.
    """
    total = sum(counts.values())
    if not total:
        return 0.0
    rank = max(1, ceil(share * total))
    seen = 0
    for bucket in sorted(counts):
        seen += counts[bucket]
        if seen >= rank:
            return seconds_of(bucket)
    return seconds_of(max(counts))
