"""What the machine says to whom, seen from one node."""

from __future__ import annotations

from random import Random

from reachmesh.membership import Membership, Record, State, preset
from reachmesh.membership.messages import Claim, Vote, decode_items, encode_items
from reachmesh.wire.control import Control


def record(number: int) -> Record:
    return Record(boot=bytes([number]) * 8, instance_id=f"n{number}", name=f"n{number}")


def linked(*numbers: int) -> Membership:
    """Node 1 at t=0, linked to these, who said hello."""
    node = Membership(record(1), preset("lan"), Random(1), now=0.0)
    node.tick(now=0.0)
    for number in numbers:
        peer = record(number)
        node.handle_link_up(peer.boot, now=0.0)
        node.handle_frame(peer.boot, Control.GOSSIP, encode_items([Claim(peer.boot, 2, State.HEALTHY, 1, peer.encode(), "")]), now=0.0)
    node.take_sends()
    return node


def told(node: Membership, boot: bytes) -> list[Claim | Vote]:
    """Gossip items sent to one boot."""
    return [item for to, kind, body in node.take_sends() if (to, kind) == (boot, Control.GOSSIP) for item in decode_items(body) or []]


def test_one_held_for_lost_who_speaks_is_told_so() -> None:
    """The next frame of a lost or suspected member is answered with what is said against it, at most five times a second."""
    node, peer, other = linked(2, 3), record(2), record(3)
    node.handle_frame(other.boot, Control.GOSSIP, encode_items([Vote(peer.boot, 2, other.boot, False)]), now=1.0)
    node.handle_life(peer.boot, now=1.0)
    assert told(node, peer.boot) == [Vote(peer.boot, 2, other.boot, False)]
    node.handle_life(peer.boot, now=1.1)
    assert not told(node, peer.boot)
    node.note_drained(now=12.0)
    node.tick(now=12.0)
    assert node.members[peer.boot].state is State.LOST
    node.take_sends()
    node.handle_life(peer.boot, now=13.0)
    claims = [item for item in told(node, peer.boot) if isinstance(item, Claim)]
    assert [(claim.boot, claim.incarnation, claim.state) for claim in claims] == [(peer.boot, 2, State.LOST)]


def test_a_goodbye_is_no_reason_to_suspect() -> None:
    """A link closed on purpose starts no dial for judgement; one that dropped does."""
    node, peer = linked(2, 3), record(2)
    node.handle_link_down(peer.boot, closed=True, now=1.0)
    assert not node.take_dials()
    node.handle_link_down(record(3).boot, now=1.0)
    assert node.take_dials() == [record(3).boot]
    node.handle_dial(record(3).boot, "refused", now=1.1)
    assert node.members[record(3).boot].suspected
    assert not node.members[peer.boot].suspected


def test_who_was_only_heard_of_is_not_verified() -> None:
    """A record learned second-hand is in the table, unverified and unannounced, until a handshake."""
    node, hearsay = linked(2), record(9)
    claim = Claim(hearsay.boot, 2, State.HEALTHY, 1, hearsay.encode(), "")
    node.handle_frame(record(2).boot, Control.GOSSIP, encode_items([claim]), now=1.0)
    assert not node.members[hearsay.boot].verified
    assert [event.member.record.name for event in node.take_events() if event.member] == ["n2"]
    node.handle_link_up(hearsay.boot, now=2.0)
    assert node.members[hearsay.boot].verified
    assert [(event.kind, event.member.record.name) for event in node.take_events() if event.member] == [("peer_joined", "n9")]


def test_a_suspicion_and_its_end_are_events() -> None:
    """Routing hears of both at once, with the flag in the event's copy of the member."""
    node, peer, other = linked(2, 3), record(2), record(3)
    node.take_events()
    node.handle_frame(other.boot, Control.GOSSIP, encode_items([Vote(peer.boot, 2, other.boot, False)]), now=1.0)
    node.handle_frame(peer.boot, Control.GOSSIP, encode_items([Claim(peer.boot, 3, State.HEALTHY, 1, None, "")]), now=1.1)
    events = [(event.kind, event.member.suspected) for event in node.take_events() if event.member]
    assert events == [("peer_suspected", True), ("peer_cleared", False)]


def test_a_frame_without_a_link_is_dropped() -> None:
    """Only linked boots are listened to."""
    node = linked()
    node.handle_frame(b"stranger", Control.PING, b"\x00\x00\x00\x01", now=1.0)
    assert node.dropped == 1
    assert not node.take_sends()


def test_a_node_that_left_says_nothing_more() -> None:
    """LEFT is final: told once to every link, and the machine never wakes again."""
    node = linked(2)
    node.leave(now=1.0)
    assert [item.state for item in told(node, record(2).boot) if isinstance(item, Claim)] == [State.LEFT]
    node.tick(now=100.0)
    assert not node.take_sends()
    assert node.state is State.LEFT
