"""The book of what multicast told: what is reported when, and how much a forger can put in."""

from __future__ import annotations

import struct
from itertools import pairwise

from reachmesh.discovery.dns import Heard
from reachmesh.discovery.heard import MAX_ADDRESSES, MAX_PEERS, NEW_BURST, NEW_RATE, PeerBook

OWN, OTHER = b"own-boot", b"other-bo"
ADDRESS = "10.0.0.2:7000"


def heard(boot: bytes = OTHER, *addresses: str, mesh: str = "mark", ttl: int = 4500) -> Heard:
    return Heard(boot, addresses or (ADDRESS,), mesh, ttl)


def book() -> PeerBook:
    return PeerBook("mark", OWN, now=0.0)


def test_a_new_node_is_reported_at_once() -> None:
    """The first announcement of a node yields each of its addresses."""
    assert book().handle_heard(heard(OTHER, "10.0.0.2:1", "10.1.0.2:1"), 0.0) == [(OTHER, "10.0.0.2:1"), (OTHER, "10.1.0.2:1")]


def test_oneself_and_other_meshes_are_not_reported() -> None:
    """Neither the node itself nor a node of another mesh gets into the book."""
    it = book()
    assert it.handle_heard(heard(OWN), 0.0) == []
    assert it.handle_heard(heard(mesh="another"), 0.0) == []
    assert len(it) == 0


def test_a_node_heard_again_is_reported_once_a_second_at_most() -> None:
    """Repeated announcements repeat the report, but not more than once a second."""
    it = book()
    reports = [bool(it.handle_heard(heard(), now / 10)) for now in range(25)]
    assert [index for index, each in enumerate(reports) if each] == [0, 10, 20]


def test_a_silent_node_is_reported_again_at_growing_intervals() -> None:
    """A node that is not heard again is reported after 5 s, then 10 s, 20 s and so on up to 300 s apart."""
    it = book()
    it.handle_heard(heard(), 0.0)
    times = [now for now in range(1500) if it.handle_refresh(float(now))]
    assert times[:5] == [5, 15, 35, 75, 155]
    assert all(later - earlier <= 300 for earlier, later in pairwise(times))


def test_a_goodbye_and_the_end_of_its_time_remove_a_node() -> None:
    """A node that says goodbye, or whose records are over, is forgotten and reported no more."""
    it = book()
    it.handle_heard(heard(), 0.0)
    assert it.handle_heard(heard(ttl=0), 1.0) == []
    assert len(it) == 0
    it.handle_heard(heard(ttl=120), 2.0)
    assert it.handle_refresh(122.5) == []
    assert len(it) == 0


def test_a_second_interface_adds_its_address() -> None:
    """A node heard on two networks has both addresses; hearing either again drops neither."""
    it = book()
    it.handle_heard(heard(OTHER, "10.0.0.2:1"), 0.0)
    assert it.handle_heard(heard(OTHER, "10.1.0.2:1"), 0.1) == [(OTHER, "10.1.0.2:1")]
    assert it.handle_heard(heard(OTHER, "10.0.0.2:1"), 0.2) == []
    assert set(it.handle_refresh(6.0)) == {(OTHER, "10.0.0.2:1"), (OTHER, "10.1.0.2:1")}


def test_a_forger_is_believed_at_a_bounded_rate() -> None:
    """Of 100,000 spoofed nodes in ten seconds no more are reported than burst and rate allow, and the book stays within its caps."""
    it, reported = book(), 0
    for each in range(100_000):
        reported += len(it.handle_heard(heard(struct.pack(">Q", each)), each / 10_000))
    assert reported <= NEW_BURST + 10 * NEW_RATE
    assert it.dropped == 100_000 - reported
    assert len(it) <= MAX_PEERS


def test_the_book_is_full_at_its_cap() -> None:
    """After the cap the nodes unheard for longest make room."""
    it = book()
    for each in range(2 * MAX_PEERS):
        it.handle_heard(heard(struct.pack(">Q", each)), float(each))
    assert len(it) == MAX_PEERS
    assert it.boots()[-1] == struct.pack(">Q", 2 * MAX_PEERS - 1)


def test_addresses_of_one_node_are_capped() -> None:
    """A node that is said to be everywhere keeps the addresses heard last."""
    it = book()
    for each in range(100):
        it.handle_heard(heard(OTHER, f"10.0.0.{each}:1"), float(each))
    again = it.handle_refresh(200.0)
    assert len(again) == MAX_ADDRESSES
    assert (OTHER, "10.0.0.99:1") in again
