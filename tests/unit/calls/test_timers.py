"""Deadlines in order, and no memory for those that no longer matter."""

from __future__ import annotations

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from reachmesh.calls.timers import NEVER, Timers


@dataclass(eq=False)
class Owner:
    when: float
    closed: bool = False


@given(st.lists(st.tuples(st.integers(0, 50), st.booleans()), max_size=60), st.integers(0, 60))
def test_live_owners_come_due_in_order(made: list[tuple[int, bool]], now: int) -> None:
    """`due` gives exactly the open owners whose instant has come, earliest first; `next` the earliest of the rest."""
    timers = Timers()
    owners = [Owner(float(when)) for when, _ in made]
    for owner in owners:
        timers.add(owner.when, owner)
    for owner, (_, closes) in zip(owners, made, strict=True):
        if closes:
            owner.closed = True
            timers.forget()
    due = timers.due(float(now))
    alive = [owner for owner in owners if not owner.closed]
    assert due == sorted((owner for owner in alive if owner.when <= now), key=lambda owner: owner.when)
    assert timers.next() == min((owner.when for owner in alive if owner.when > now), default=NEVER)


def test_a_million_short_calls_cost_the_memory_of_the_open_ones() -> None:
    """Owners that close early are swept out long before their instant."""
    timers = Timers()
    for _ in range(100_000):
        owner = Owner(1e9)
        timers.add(owner.when, owner)
        owner.closed = True
        timers.forget()
    assert len(timers) < 2_000
    assert timers.next() == NEVER
