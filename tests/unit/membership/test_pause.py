"""After a pause of its own a node reads before it judges."""

from __future__ import annotations

from random import Random

import pytest

from reachmesh.membership import Membership, Record, State, preset
from reachmesh.membership.messages import Claim, Vote, encode_items
from reachmesh.wire.control import Control


def record(number: int) -> Record:
    return Record(boot=bytes([number]) * 8, instance_id=f"n{number}", name=f"n{number}")


def accused() -> tuple[Membership, Record, Record]:
    """A node at t=10 that holds a suspicion that is ripe at t=20."""
    me, peer, other = record(1), record(2), record(3)
    node = Membership(me, preset("lan"), Random(1), now=0.0)
    node.tick(now=0.0)
    for known in (peer, other):
        node.handle_link_up(known.boot, now=0.0)
        claim = Claim(known.boot, 2, State.HEALTHY, 1, known.encode(), "")
        node.handle_frame(known.boot, Control.GOSSIP, encode_items([claim]), now=0.0)
    node.handle_frame(other.boot, Control.GOSSIP, encode_items([Vote(peer.boot, 2, other.boot, False)]), now=10.0)
    return node, peer, other


def test_a_ripe_suspicion_is_a_loss() -> None:
    """Without a pause the suspicion runs out in time."""
    node, peer, _ = accused()
    node.handle_life(peer.boot, now=10.0)
    now = 10.0
    while now < 20.2:
        node.note_turn(now=now)
        node.note_drained(now=now)
        node.tick(now=now)
        now = min(node.next_timeout(), now + 0.5)
    assert node.members[peer.boot].state is State.LOST


@pytest.mark.parametrize("refuted", [True, False])
def test_nobody_is_judged_between_a_pause_and_an_empty_socket(refuted: bool) -> None:
    """A suspicion that ran out while this node was away waits until what was sent meanwhile has been read."""
    node, peer, other = accused()
    node.tick(now=19.8)
    node.next_timeout()
    node.note_turn(now=120.0)
    node.tick(now=120.4)
    assert node.members[peer.boot].state is State.HEALTHY
    if refuted:
        claim = Claim(peer.boot, 3, State.HEALTHY, 1, None, "")
        node.handle_frame(other.boot, Control.GOSSIP, encode_items([claim]), now=120.5)
    for now in (120.5, 121.0, 131.0):
        node.note_drained(now=now)
        node.tick(now=now)
    assert node.members[peer.boot].state is (State.HEALTHY if refuted else State.LOST)


def test_a_claim_of_loss_from_before_the_pause_is_only_an_accusation() -> None:
    """Old news read after a pause takes nobody out."""
    node, peer, other = accused()
    node.tick(now=12.0)
    node.next_timeout()
    node.note_turn(now=120.0)
    claim = Claim(peer.boot, 2, State.LOST, 1, None, "")
    node.handle_frame(other.boot, Control.GOSSIP, encode_items([claim]), now=120.0)
    assert node.members[peer.boot].state is State.HEALTHY
    assert node.members[peer.boot].suspected


def test_votes_that_saw_it_die_wait_for_an_empty_socket_too() -> None:
    """Three who saw the port refuse make a loss at once, but not while this node reads what was said during its pause."""
    node, peer, other = accused()
    voters = [other, record(4), record(5)]
    for each in voters[1:]:
        node.handle_link_up(each.boot, now=10.0)
        claim = Claim(each.boot, 2, State.HEALTHY, 1, each.encode(), "")
        node.handle_frame(each.boot, Control.GOSSIP, encode_items([claim]), now=10.0)
    node.tick(now=10.0)
    node.next_timeout()
    node.note_turn(now=120.0)
    for each in voters:
        node.handle_frame(each.boot, Control.GOSSIP, encode_items([Vote(peer.boot, 2, each.boot, True)]), now=120.0)
    assert node.members[peer.boot].state is State.HEALTHY
    for now in (120.0, 120.2):
        node.note_drained(now=now)
        node.tick(now=now)
    assert node.members[peer.boot].state is State.LOST


def test_a_suspicion_starts_afresh_after_a_pause() -> None:
    """A node whose links died in its sleep gives the accused the full time again: the refutation may have gone with the links."""
    node, peer, _ = accused()
    node.note_turn(now=19.9)
    node.note_drained(now=19.9)
    node.tick(now=19.9)
    node.next_timeout()
    node.note_turn(now=41.0)
    for now in (41.0, 41.1, 42.0, 42.9):
        node.note_drained(now=now)
        node.tick(now=now)
        assert node.members[peer.boot].state is State.HEALTHY, now


def test_a_pause_too_short_to_notice_judges_nobody_either() -> None:
    """A suspicion that runs out within a short pause is judged a moment later, for the refutation may be waiting to be read."""
    node, peer, other = accused()
    now = 10.0
    while now < 20.0:
        node.note_turn(now=now)
        for boot in (other.boot, peer.boot):
            node.handle_life(boot, now=now)
        node.note_drained(now=now)
        node.tick(now=now)
        now = node.next_timeout()
    assert now < 20.05
    node.note_turn(now=20.1)
    node.tick(now=20.1)
    assert node.members[peer.boot].state is State.HEALTHY
    node.note_drained(now=20.1)
    node.tick(now=20.15)
    assert node.members[peer.boot].state is State.HEALTHY
    node.handle_frame(other.boot, Control.GOSSIP, encode_items([Claim(peer.boot, 3, State.HEALTHY, 1, None, "")]), now=20.15)
    node.tick(now=20.3)
    assert node.members[peer.boot].state is State.HEALTHY


def test_a_node_whose_turns_are_always_late_judges_all_the_same() -> None:
    """Listening first is no excuse for keeping a dead peer: with every turn late, a loss is a second later at most."""
    node, peer, _ = accused()
    now = 12.0
    while now < 21.5:
        node.note_turn(now=now)
        node.note_drained(now=now)
        node.tick(now=now)
        now = max(now + 0.01, min(node.next_timeout(), now + 0.5)) + 0.05
    assert node.members[peer.boot].state is State.LOST
