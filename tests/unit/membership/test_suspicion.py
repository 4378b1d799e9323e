"""When votes make a loss."""

from __future__ import annotations

import pytest

from reachmesh.membership.config import preset
from reachmesh.membership.messages import Vote
from reachmesh.membership.suspicion import Suspicions

BOOT = b"accused!"
VOTERS = [bytes([number]) * 8 for number in range(5)]


@pytest.mark.parametrize(
    ("votes", "dead", "living", "seconds"),
    [
        (1, 0, 10, 10.0),
        (2, 0, 10, 10.0),
        (3, 0, 10, 2.0),
        (5, 0, 10, 2.0),
        (3, 3, 10, 0.0),
        (3, 2, 10, 2.0),
        (1, 1, 10, 10.0),
        (1, 0, 2, 2.0),
        (1, 1, 2, 0.0),
        (2, 0, 3, 2.0),
        (1, 0, 3, 10.0),
    ],
)
def test_the_table_of_votes(votes: int, dead: int, living: int, seconds: float) -> None:
    """Seconds from the first vote to the loss under the `lan` figures, by votes, votes that saw it die, and living nodes."""
    suspicions = Suspicions(preset("lan"))
    for index, voter in enumerate(VOTERS[:votes]):
        assert suspicions.add(Vote(BOOT, 1, voter, index < dead), 100.0) is (index < 3)
    assert suspicions.next_due(living) == 100.0 + seconds
    assert not suspicions.decided(living, 100.0 + seconds - 0.01)
    assert [boot for boot, _ in suspicions.decided(living, 100.0 + seconds)] == [BOOT]


def test_votes_that_saw_it_die_are_heard_after_enough_that_did_not() -> None:
    """Three ordinary votes do not shut out the three that decide at once; a seventh vote is not kept."""
    suspicions = Suspicions(preset("lan"))
    others = [bytes([number]) * 8 for number in range(20, 24)]
    assert all(suspicions.add(Vote(BOOT, 1, voter, False), 0.0) for voter in VOTERS[:3])
    assert [suspicions.add(Vote(BOOT, 1, voter, True), 0.1) for voter in others] == [True, True, True, False]
    assert suspicions.next_due(10) == 0.0


def test_a_voter_counts_once_and_an_older_incarnation_not_at_all() -> None:
    """Repeated and outdated votes say nothing new; a newer incarnation starts over."""
    suspicions = Suspicions(preset("lan"))
    assert suspicions.add(Vote(BOOT, 2, VOTERS[0], False), 0.0)
    assert not suspicions.add(Vote(BOOT, 2, VOTERS[0], False), 1.0)
    assert suspicions.add(Vote(BOOT, 2, VOTERS[0], True), 1.0)
    assert not suspicions.add(Vote(BOOT, 1, VOTERS[1], False), 1.0)
    assert suspicions.add(Vote(BOOT, 3, VOTERS[1], False), 5.0)
    assert suspicions.votes(BOOT) == [Vote(BOOT, 3, VOTERS[1], False)]
    assert suspicions.clear(BOOT)
    assert not suspicions.votes(BOOT)
