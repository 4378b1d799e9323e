"""Packets of the service type: what is said, what is read, and that no bytes whatever are trouble."""

from __future__ import annotations

import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st
from zeroconf import DNSIncoming, DNSText  # type: ignore[attr-defined]

from reachmesh.discovery.dns import MARKER, NOTHING, SERVICE, build_answer, build_query, mesh_mark, read_packet
from reachmesh.discovery.source import Announcement

BOOT = bytes(range(0xA0, 0xA8))
BOOTS = st.binary(min_size=8, max_size=8)


def announcement(boot: bytes = BOOT, **changes: object) -> Announcement:
    fields: dict[str, object] = {
        "mesh": "office",
        "instance_id": "writer-host-12-ab",
        "boot": boot,
        "name": "writer",
        "addresses": ("10.0.0.1:7000",),
        "local_address": "127.0.0.1:7000",
        "protocol": (1, 3),
        "incarnation": 4,
    }
    return Announcement(**(fields | changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(("address", "heard"), [("10.0.0.1", "10.0.0.1:7000"), ("fd00::1", "[fd00::1]:7000")])
def test_an_answer_is_read_back(address: str, heard: str) -> None:
    """What one node announces is what another hears: boot, address, port and mesh."""
    packet = read_packet(build_answer(announcement(), address, 7000))
    (one,) = packet.heard
    assert (one.boot, one.addresses, one.mesh, one.ttl) == (BOOT, (heard,), mesh_mark("office"), 4500)
    assert not packet.asked


def test_a_goodbye_has_no_time_left() -> None:
    """A node that goes says so by a time to live of zero."""
    (one,) = read_packet(build_answer(announcement(), "10.0.0.1", 7000, goodbye=True)).heard
    assert (one.boot, one.ttl) == (BOOT, 0)


def test_an_answer_holds_what_the_text_record_promises_and_no_text_of_the_user() -> None:
    """The TXT record has id, port, incarnation, protocol range and the mesh's mark; neither the mesh's name nor the node's is a label."""
    data = build_answer(announcement(mesh="secret-project", name="N"), "10.0.0.1", 7000)
    (text,) = (each for each in DNSIncoming(data).answers() if isinstance(each, DNSText))
    assert text.text == b"\x14id=writer-host-12-ab\x09port=7000\x05inc=4\x09proto=1-3\x15mesh=" + mesh_mark("secret-project").encode()
    assert b"secret-project" not in data
    assert len(data) < 300


def test_a_query_asks_and_names_who_is_known() -> None:
    """A query asks for the service type and lists known nodes, as many as fit one packet, the first ones first."""
    boots = [struct.pack(">Q", each) for each in range(500)]
    data = build_query(boots)
    packet = read_packet(data)
    assert packet.asked
    assert not packet.asked_for
    assert packet.known == frozenset(boots[:40])
    assert len(data) <= 1400


def test_a_question_for_one_node_is_for_that_node() -> None:
    """A question by instance name is an order to the node of that name alone."""
    question = b"\x00" * 4 + b"\0\1" + b"\0" * 6 + b"\x10" + BOOT.hex().encode() + MARKER + b"\x04_tcp\x05local\x00\x00\x21\x00\x01"
    packet = read_packet(question)
    assert packet.asked
    assert packet.asked_for == {BOOT}


@pytest.mark.parametrize("address", ["127.0.0.1", "0.0.0.0", "224.0.0.251", "255.255.255.255", "::1", "::", "fe80::1"])
def test_an_address_nobody_else_can_use_is_not_heard(address: str) -> None:
    """A loopback, wildcard, multicast or link-local address in an announcement is left out, and with it a node that has no other."""
    assert read_packet(build_answer(announcement(), address, 7000)).heard == ()


def test_letters_of_any_case_are_the_same_name() -> None:
    """DNS names are compared without regard to case."""
    data = (
        build_answer(announcement(), "10.0.0.1", 7000)
        .replace(b"_reachmesh", b"_ReachMesh")
        .replace(BOOT.hex().encode(), BOOT.hex().upper().encode())
    )
    assert [each.boot for each in read_packet(data).heard] == [BOOT]


def test_a_service_of_another_kind_is_nothing() -> None:
    """Packets about other services, instances with names that are no boot id, and ports of zero say nothing to us."""
    assert read_packet(build_answer(announcement(), "10.0.0.1", 7000).replace(b"_reachmesh", b"_printing_")) == NOTHING
    assert read_packet(build_answer(announcement(), "10.0.0.1", 7000).replace(BOOT.hex().encode(), b"not-a-boot-id-xx")).heard == ()
    assert read_packet(build_answer(announcement(), "10.0.0.1", 0)).heard == ()


@given(BOOTS, st.integers(1, 65535), st.ip_addresses(v=4), st.text(max_size=400))
def test_every_answer_is_parsed_whole(boot: bytes, port: int, address: object, text: str) -> None:
    """Whatever the node is called, its answer has five well-formed records."""
    data = build_answer(announcement(boot, instance_id=text), str(address), port)
    incoming = DNSIncoming(data)
    assert incoming.valid
    assert len(incoming.answers()) == 5


@given(st.binary(max_size=600))
def test_any_bytes_are_read_without_an_error(data: bytes) -> None:
    """No packet raises, whatever is in it."""
    read_packet(data)
    read_packet(data + MARKER)
    read_packet(struct.pack(">6H", 0, 0x8400, 1, 2, 3, 4) + data + MARKER)


@given(st.data())
def test_a_damaged_packet_is_read_without_an_error(data: st.DataObject) -> None:
    """A packet of ours with bytes changed, cut or repeated raises nothing and yields few nodes."""
    packet = bytearray(build_answer(announcement(), "10.0.0.1", 7000))
    for at, value in data.draw(st.lists(st.tuples(st.integers(0, len(packet) - 1), st.integers(0, 255)), max_size=12)):
        packet[at] = value
    cut = data.draw(st.integers(0, len(packet)))
    for each in (bytes(packet), bytes(packet[:cut]), bytes(packet[:cut] + packet)):
        assert len(read_packet(each).heard) <= 64


def test_a_crowded_packet_yields_a_bounded_number_of_nodes() -> None:
    """A packet stuffed with announcements yields 64 nodes at most."""
    service, text = b"\xc0\x0c", b"\x15mesh=" + mesh_mark("office").encode()
    crowded = struct.pack(">6H", 0, 0x8400, 1, 100 * 3 + 1, 0, 0) + MARKER + b"\x04_tcp\x05local\0" + struct.pack(">HH", 12, 1)
    host = b"\x01h" + struct.pack(">H", 0xC000 | crowded.index(b"\x05local"))
    for each in range(100):
        instance = b"\x10" + struct.pack(">Q", each).hex().encode() + service
        for name, kind, data in ((service, 12, instance), (instance, 33, struct.pack(">HHH", 0, 0, 7000) + host), (instance, 16, text)):
            crowded += name + struct.pack(">HHIH", kind, 1, 120, len(data)) + data
    crowded += host + struct.pack(">HHIH", 1, 1, 120, 4) + bytes([10, 0, 0, 1])
    heard = read_packet(crowded).heard
    assert len(heard) == 64
    assert {each.addresses for each in heard} == {("10.0.0.1:7000",)}


def test_the_service_name_is_what_the_requirements_say() -> None:
    """Nodes announce themselves as `_reachmesh._tcp` in the local domain."""
    assert SERVICE == "_reachmesh._tcp.local."
    assert read_packet(build_query()).asked
