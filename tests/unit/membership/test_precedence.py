"""Which claim holds."""

from __future__ import annotations

import itertools

from hypothesis import given
from hypothesis import strategies as st

from reachmesh.membership.precedence import JUMP_LIMIT, is_credible, takes_precedence
from reachmesh.membership.record import INCARNATION_LIMIT
from reachmesh.membership.states import State

claims = st.tuples(st.integers(0, 5), st.sampled_from(State))


@given(claims, claims, claims)
def test_precedence_is_a_total_order(a: tuple[int, State], b: tuple[int, State], c: tuple[int, State]) -> None:
    """Of two different claims exactly one wins, and winning is transitive."""
    assert takes_precedence(*a, *b) + takes_precedence(*b, *a) == (a != b)
    if takes_precedence(*a, *b) and takes_precedence(*b, *c):
        assert takes_precedence(*a, *c)


@given(st.lists(claims, min_size=1, max_size=5))
def test_the_order_of_arrival_does_not_matter(arrived: list[tuple[int, State]]) -> None:
    """Tables that heard the same claims in any order hold the same one."""
    held = set()
    for order in itertools.permutations(arrived):
        best = order[0]
        for claim in order[1:]:
            if takes_precedence(*claim, *best):
                best = claim
        held.add(best)
    assert len(held) == 1


def test_a_loss_is_refuted_by_a_higher_incarnation_only() -> None:
    """LOST beats every working state of its incarnation, and the next incarnation beats LOST."""
    for state in State:
        if not state.gone:
            assert takes_precedence(3, State.LOST, 3, state)
            assert not takes_precedence(3, state, 3, State.LOST)
            assert takes_precedence(4, state, 3, State.LOST)


def test_only_believable_steps_are_believed() -> None:
    """The step limit and the end of the scale are inclusive; nothing below zero counts."""
    assert is_credible(5 + JUMP_LIMIT, 5)
    assert not is_credible(6 + JUMP_LIMIT, 5)
    assert is_credible(INCARNATION_LIMIT, INCARNATION_LIMIT - 1)
    assert not is_credible(INCARNATION_LIMIT + 1, INCARNATION_LIMIT)
    assert not is_credible(-1, 5)
