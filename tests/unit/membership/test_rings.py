"""Rings: the same for everybody, cheap to keep."""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from reachmesh.membership.rings import Rings, SortedRings, ring_key

ME = b"me\x00\x00\x00\x00\x00\x00"


@settings(max_examples=60)
@given(st.lists(st.tuples(st.booleans(), st.integers(0, 30)), max_size=60))
def test_kept_neighbours_are_those_of_a_full_sort(changes: list[tuple[bool, int]]) -> None:
    """After any joins and losses the neighbours equal the ones computed from scratch."""
    rings = Rings(ME, 4)
    living: dict[bytes, None] = {}
    for joins, number in changes:
        boot = number.to_bytes(8, "big")
        if joins and boot not in living:
            living[boot] = None
            rings.add(boot)
        elif not joins and boot in living:
            del living[boot]
            rings.remove(boot, living)
    if living:
        successors, predecessors = SortedRings([ME, *living], 4).neighbours(ME)
        assert set(rings.observers) == set(successors)
        assert set(rings.observed) == set(predecessors)
    else:
        assert not rings.observers
        assert not rings.observed


def test_rings_differ_from_each_other() -> None:
    """Eight rings give a node about sixteen different neighbours, so that no accident takes all observers at once."""
    rng = Random(1)
    boots = [rng.randbytes(8) for _ in range(500)]
    everybody = SortedRings(boots, 8)
    counts = [len({*successors, *predecessors}) for successors, predecessors in map(everybody.neighbours, boots)]
    assert sum(counts) / len(counts) > 15


@given(st.binary(min_size=8, max_size=8), st.binary(min_size=8, max_size=8))
def test_no_two_boots_share_a_place(one: bytes, other: bytes) -> None:
    """The mix is bijective."""
    assert (ring_key(3, one) == ring_key(3, other)) == (one == other)
