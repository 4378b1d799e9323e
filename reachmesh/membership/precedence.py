"""Which of two statements about one member holds: one total function.

A claim is (incarnation, state). The higher incarnation wins, because only the owner raises it; within one incarnation the
higher state wins: working states < LOST < LEFT. So a loss is refuted by the owner with a higher incarnation, and nothing
else; two tables that merge take the same side whatever the order. Source: the SWIM paper, section 4.2, without its
separate suspect rank (suspicions are votes here, see `suspicion.py`).
"""

from __future__ import annotations

from .record import INCARNATION_LIMIT
from .states import State

JUMP_LIMIT = 2**20
"""Largest step of an incarnation or serial that is believed. A liar cannot push one to its end, the owner can still
answer, and no honest node takes a million steps unheard."""


def takes_precedence(new_incarnation: int, new_state: State, old_incarnation: int, old_state: State) -> bool:
    """Whether the new claim replaces the old one; irreflexive, total over distinct claims, transitive."""
    return (new_incarnation, new_state.rank) > (old_incarnation, old_state.rank)


def is_credible(new: int, known: int) -> bool:
    """Whether a stated incarnation or serial is within a believable step of the known one."""
    return 0 <= new <= min(known + JUMP_LIMIT, INCARNATION_LIMIT)
