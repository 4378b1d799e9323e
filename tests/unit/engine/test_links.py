"""Links: who is dialled and when, the handshake and its refusals, which of two links is used, and how one ends."""

from __future__ import annotations

from typing import Any

import pytest

from reachmesh.calls.flags import REQUEST, STREAM
from reachmesh.calls.flows import Outflow
from reachmesh.engine.addresses import ADDRESSES_PER_BOOT, HINTED_BOOTS
from reachmesh.engine.link import GREETING_TIMEOUT, Phase
from reachmesh.engine.links import CONNECT_TIMEOUT, DEAD_AFTER, RETIRE_AFTER, STAGGER, LinkTable
from reachmesh.engine.outbound import BULK_PER_TURN
from reachmesh.wire.control import Control, Goodbye, Hello, Refuse, Welcome
from reachmesh.wire.frames import encode_control, encode_frame, split_batch
from reachmesh.wire.limits import LIMITS

ME, PEER, THIRD = b"b" * 8, b"a" * 8, b"c" * 8


def table(boot: bytes = ME, **options: Any) -> LinkTable:
    return LinkTable(boot, "me-h-1-x", "me", "default", **options)


def hello(boot: bytes = PEER, **fields: Any) -> bytes:
    known: dict[str, Any] = {"lo": 1, "hi": 1, "mesh": "default", "boot": boot, "instance": "peer-h-1-x", "name": "peer"}
    return Hello(**{**known, **fields}).encode()


def welcome(boot: bytes = PEER) -> bytes:
    return Welcome(v=1, boot=boot, instance="peer-h-1-x", name="peer").encode()


def said(links: LinkTable) -> list[tuple[int, int]]:
    """(link, control kind) of what is sent now; other frames count as 0."""
    return [
        (key, each.flags if each.frame_type == 4 else 0)
        for key, batch, parts in links.take_sends()
        for each in split_batch(batch, parts)[0]
    ]


def notes(links: LinkTable) -> list[tuple[str, int]]:
    return [(note.kind, note.key) for note in links.take_notes()]


def dialled(links: LinkTable, address: str = "10.0.0.1:1", boot: bytes = PEER, now: float = 0.0) -> int:
    """A link that was dialled and is up."""
    links.book.learn(boot, [address])
    assert links.want(boot, now)
    [(key, _)] = links.take_dials()
    links.handle_opened(key, now)
    links.handle_welcome(key, welcome(boot), now)
    return key


def accepted(links: LinkTable, key: int = -1, boot: bytes = PEER, now: float = 0.0) -> int:
    """A link that the peer dialled."""
    links.handle_hello(key, hello(boot), now)
    return key


def test_a_dialled_link_is_up_after_its_welcome() -> None:
    """Dial, HELLO when the connection stands, up with WELCOME: only then is it used."""
    links = table()
    links.book.learn(PEER, ["10.0.0.1:1"])
    assert links.want(PEER, 0.0)
    assert links.want(PEER, 0.0)
    [(key, address)] = links.take_dials()
    assert (key, address) == (1, "10.0.0.1:1")
    assert links.link_to(PEER) is None
    links.handle_opened(key, 0.1)
    assert said(links) == [(1, Control.HELLO)]
    links.handle_welcome(key, welcome(), 0.2)
    assert links.link_to(PEER) == 1
    assert notes(links) == [("up", 1)]
    assert links.get(1).boot == PEER  # type: ignore[union-attr]


def test_an_accepted_link_is_up_with_its_hello() -> None:
    """The greeted side answers WELCOME and may use the link at once."""
    links = table()
    accepted(links)
    assert said(links) == [(-1, Control.WELCOME)]
    assert links.link_to(PEER) == -1
    accepted(links)
    assert links.strays == 1


@pytest.mark.parametrize(
    ("greeting", "code"),
    [
        (b"\xff", "protocol"),
        (hello(mesh="other"), "mesh"),
        (hello(lo=2, hi=9), "version"),
        (hello(boot=ME), "self"),
        (hello(target=THIRD), "other"),
    ],
)
def test_who_does_not_belong_is_refused_and_dropped(greeting: bytes, code: str) -> None:
    """The refusal says why, leaves before the connection is closed, and nothing of it is kept."""
    links = table()
    links.handle_hello(-1, greeting, 0.0)
    [(key, batch, _)] = links.take_sends()
    [frame] = split_batch(batch)[0]
    refuse = Refuse.decode(bytes(frame.body))
    assert refuse is not None
    assert (key, frame.flags, refuse.code) == (-1, Control.REFUSE, code)
    assert links.next_timeout() <= 0.0
    links.tick(0.0)
    assert links.take_closes() == [-1]
    assert links.get(-1) is None
    assert links.link_to(PEER) is None
    assert [kind for kind, _ in notes(links)] == (["version_refused"] if code == "version" else [])


@pytest.mark.parametrize(("boot", "outcome"), [(THIRD, "other"), (ME, "other")])
def test_another_process_at_the_address_is_not_used(boot: bytes, outcome: str) -> None:
    """A WELCOME from any boot but the one meant ends the link: nothing was sent to it but the greeting."""
    links = table()
    links.book.learn(PEER, ["10.0.0.1:1"])
    links.want(PEER, 0.0)
    [(key, _)] = links.take_dials()
    links.handle_opened(key, 0.0)
    links.handle_welcome(key, welcome(boot), 0.0)
    assert links.take_closes() == [key]
    assert [(note.kind, note.boot, note.detail) for note in links.take_notes()] == [("dial_failed", PEER, outcome)]
    assert links.link_to(boot) in (None, 0)


@pytest.mark.parametrize(
    ("code", "outcome", "kinds"),
    [
        ("other", "other", ["dial_failed"]),
        ("mesh", "other", ["dial_failed"]),
        ("version", "silent", ["version_refused", "dial_failed"]),
        ("secret", "silent", ["refused", "dial_failed"]),
    ],
)
def test_a_refusal_ends_the_dial(code: str, outcome: str, kinds: list[str]) -> None:
    """What the other side says decides what is told: strangers quietly, versions and secrets with a note."""
    links = table()
    links.book.learn(PEER, ["10.0.0.1:1"])
    links.want(PEER, 0.0)
    [(key, _)] = links.take_dials()
    links.handle_opened(key, 0.0)
    links.handle_refuse(key, Refuse(code=code, message="no").encode(), 0.0)
    found = links.take_notes()
    assert [note.kind for note in found] == kinds
    assert found[-1].detail == outcome


def test_an_address_of_ones_own_is_not_dialled_again() -> None:
    """Who finds itself at an address remembers it."""
    links = table()
    links.handle_candidate("10.0.0.9:1", None, 0.0)
    [(key, _)] = links.take_dials()
    links.handle_opened(key, 0.0)
    links.handle_refuse(key, Refuse(code="self", message="you").encode(), 0.0)
    links.handle_candidate("10.0.0.9:1", None, 1.0)
    links.handle_candidate("10.0.0.9:1", ME, 1.0)
    assert links.take_dials() == []


def test_an_address_of_a_linked_peer_is_not_dialled_again() -> None:
    """A seed that is reported every few seconds makes no second connection to who dialled us."""
    links = table()
    accepted(links)
    links.book.learn(PEER, ["10.0.0.1:1"])
    links.handle_candidate("10.0.0.1:1", None, 1.0)
    links.handle_candidate("10.0.0.1:1", PEER, 1.0)
    assert links.take_dials() == []
    links.handle_candidate("10.0.0.2:1", None, 1.0)
    links.handle_candidate("10.0.0.2:1", None, 1.0)
    assert len(links.take_dials()) == 1


def test_links_by_an_address_that_is_gone_are_ended() -> None:
    """A host that loses one of two addresses ends the links that went by it, dialled or accepted, and no others."""
    links = table()
    links.book.own = frozenset({"10.0.5.7:9", "192.168.1.7:9"})
    by_gone, by_kept = dialled(links, "10.0.5.8:1", PEER), dialled(links, "192.168.1.8:1", THIRD)
    other = b"d" * 8
    links.book.learn(other, ["10.0.5.9:1"])
    accepted(links, -1, other)
    links.take_notes()
    links.handle_moved(["10.0.5.7:9", "192.168.1.7:9"], ["10.0.6.7:9", "192.168.1.7:9"], 1.0)
    assert notes(links) == [("down", by_gone), ("down", -1)]
    assert links.link_to(THIRD) == by_kept
    assert links.book.own == {"10.0.6.7:9", "192.168.1.7:9"}
    links.handle_candidate("10.0.5.7:9", None, 1.0)
    assert len(links.take_dials()) == 1  # somebody else may be there by now


def test_addresses_are_dialled_a_quarter_second_apart_nearest_first() -> None:
    """Same host, then same network, then the rest; a refused one makes the next come at once; the first that is up wins."""
    links = table()
    links.book.own = frozenset({"10.0.5.7:9"})
    links.book.learn(PEER, ["192.168.1.1:1", "10.0.5.8:1", "127.0.0.1:1", "10.0.9.8:1"])
    links.want(PEER, 0.0)
    assert links.take_dials() == [(1, "127.0.0.1:1")]
    assert links.next_timeout() == STAGGER
    links.handle_closed(1, "refused", 0.1)
    assert links.take_dials() == [(2, "10.0.5.8:1")]
    links.tick(0.1 + STAGGER)
    assert links.take_dials() == [(3, "10.0.9.8:1")]
    links.handle_opened(2, 0.4)
    links.handle_welcome(2, welcome(), 0.4)
    assert links.take_closes() == [3]
    links.tick(9.0)
    assert links.take_dials() == []


@pytest.mark.parametrize(
    ("ends", "outcome"),
    [(["silent", "refused"], "refused"), (["silent", "silent"], "silent"), (["mute", "refused"], "mute"), (["other", "mute"], "other")],
)
def test_a_failed_dial_tells_its_most_telling_outcome_once(ends: list[str], outcome: str) -> None:
    """When all addresses have failed: another boot, then a mute process, then a refused port, then silence."""
    links = table()
    links.book.learn(PEER, ["10.0.0.1:1", "10.0.0.2:1"])
    links.want(PEER, 0.0)
    now = 0.0
    for end in ends:
        [(key, _)] = links.take_dials()
        if end == "silent":
            now += CONNECT_TIMEOUT
            links._attempts[PEER].next_at = float("inf")
            links.tick(now)
        elif end == "refused":
            links.handle_closed(key, "refused", now)
        elif end == "mute":
            links.handle_opened(key, now)
            now += GREETING_TIMEOUT
            links._attempts[PEER].next_at = float("inf")
            links.tick(now)
        else:
            links.handle_opened(key, now)
            links.handle_welcome(key, welcome(THIRD), now)
    found = links.take_notes()
    assert [(note.kind, note.boot, note.detail) for note in found] == [("dial_failed", PEER, outcome)]
    assert links.next_timeout() == float("inf")


def test_both_sides_choose_the_same_of_two_links() -> None:
    """Each dialled the other: the link dialled by the smaller boot is used by both, and the other's dialler retires it."""
    small, large = table(PEER), table(ME)
    mine, theirs = dialled(small, boot=ME), accepted(small, boot=ME)
    other_mine, other_theirs = dialled(large), accepted(large)
    assert small.link_to(ME) == mine > 0
    assert large.link_to(PEER) == other_theirs < 0
    assert small.spare(100.0) == []
    assert large.spare(RETIRE_AFTER - 0.1) == []
    assert large.spare(RETIRE_AFTER) == [other_mine]
    large.take_sends()
    small.take_sends()
    large.retire(other_mine, 3.0)
    assert said(large) == [(other_mine, Control.GOODBYE)]
    small.handle_goodbye(theirs, Goodbye(reason="spare").encode(), 3.0)
    assert said(small) == [(theirs, Control.GOODBYE)]
    large.handle_goodbye(other_mine, Goodbye(reason="spare").encode(), 3.0)
    assert large.take_closes() == [other_mine]
    small.handle_closed(theirs, "disconnected", 3.0)
    assert (small.link_to(ME), large.link_to(PEER)) == (mine, other_theirs)


def test_a_dial_that_has_greeted_is_not_closed_for_another_link() -> None:
    """The other side may have taken it for its only link already."""
    links = table()
    links.book.learn(PEER, ["10.0.0.1:1"])
    links.want(PEER, 0.0)
    [(key, _)] = links.take_dials()
    links.handle_opened(key, 0.0)
    accepted(links)
    assert links.take_closes() == []
    links.handle_welcome(key, welcome(), 0.1)
    assert links.get(key).phase is Phase.UP  # type: ignore[union-attr]


def test_a_retiring_link_waits_for_its_calls() -> None:
    """After both goodbyes it stays as long as a call is open on it, and is closed soon after."""
    busy = {1: True}
    links = table(in_use=lambda key: busy.get(key, False))
    key = dialled(links)
    links.retire(key, 0.0)
    assert links.link_to(PEER) is None
    assert links.second_link(PEER) == key
    links.handle_goodbye(key, Goodbye(reason="spare").encode(), 0.1)
    for now in (5.0, 10.0, 60.0):
        links.tick(now)
        assert links.take_closes() == []
    busy.clear()
    assert links.next_timeout() < 61.0
    links.tick(links.next_timeout())
    assert links.take_closes() == [key]


def test_a_peer_whose_link_retires_can_be_dialled_again() -> None:
    """A retirement that hangs does not keep its address busy."""
    links = table()
    key = dialled(links)
    links.retire(key, 0.0)
    links.want(PEER, 0.1)
    [(second, _)] = links.take_dials()
    links.handle_opened(second, 0.2)
    links.handle_welcome(second, welcome(), 0.2)
    links.tick(60.0)
    assert links.take_closes() == [key]
    assert links.link_to(PEER) == second


def test_a_silent_observer_is_up_and_never_preferred() -> None:
    """It can be answered, and no call or gossip goes to it."""
    links = table()
    links.handle_hello(-1, hello(observer=True), 0.0)
    assert links.link_to(PEER) is None
    assert links.second_link(PEER) == -1
    assert [note.observer for note in links.take_notes()] == [True]


def test_a_stranger_without_a_greeting_is_told_to_greet() -> None:
    """Frames on a connection that never greeted are counted and answered with one refusal."""
    links = table()
    links.handle_unknown(-4)
    links.handle_unknown(-4)
    assert said(links) == [(-4, Control.REFUSE)]
    assert links.strays == 2


def test_what_was_queued_leaves_before_a_link_is_closed() -> None:
    """A last answer is sent although its link ends in the same turn; on a lost connection nothing is."""
    for lost in (False, True):
        links = table()
        key = accepted(links)
        links.take_sends()
        links.send(key, encode_control(Control.PING, b"last"))
        if lost:
            links.handle_closed(key, "disconnected", 0.0)
        else:
            links.close(key, "left", 0.0)
        assert said(links) == ([] if lost else [(key, Control.PING)])
        assert not links.busy
        assert notes(links)[-1] == ("down", key)


def test_what_a_stranger_can_make_grow_is_capped() -> None:
    """Addresses per boot and boots with hints have a limit; known boots may still learn."""
    links = table()
    for index in range(HINTED_BOOTS + 10):
        links.book.learn(index.to_bytes(8, "big"), ["10.0.0.1:1"])
    assert len(links.book) == HINTED_BOOTS
    for port in range(100):
        links.book.learn(bytes(8), [f"10.0.0.1:{port}"])
    assert len(links.book.of(bytes(8))) == ADDRESSES_PER_BOOT
    assert "10.0.0.1:99" in links.book.of(bytes(8))


class Flow:
    """A call with something to send."""

    def __init__(self, key: int, items: int, size: int) -> None:
        self.key, self.call_id, self.priority, self.closed = key, 1, 100, False
        self.trace_id, self.span_id = b"t" * 16, b"s" * 8
        self.outflow: Outflow | None = Outflow(LIMITS.chunk, window=1 << 30)
        for _ in range(items):
            self.outflow.put_item([bytes(size)])
        self.outflow.end()


def test_bulk_takes_turns_and_calls_go_first() -> None:
    """In one turn a link sends its calls, then a bounded share of bulk, one frame of each stream after the other."""
    links = table()
    key = accepted(links)
    links.take_sends()
    flows = [Flow(key, 60, 60_000) for _ in range(3)]
    for number, flow in enumerate(flows):
        flow.call_id = number
        links.flow(flow)
        links.flow(flow)
    links.send(key, encode_frame(REQUEST, 0, 2, 0, 0, 9, b"", b"", 0, b"", b""))
    turns = []
    while links.busy:
        links.take_ended()
        for _, batch, parts in links.take_sends():
            assert len(batch) + sum(map(len, parts)) <= BULK_PER_TURN + 3 * LIMITS.chunk
            turns.append([(each.frame_type, each.call_id) for each in split_batch(batch, parts)[0]])
    assert turns[0][:4] == [(REQUEST, 9), (STREAM, 0), (STREAM, 1), (STREAM, 2)]
    assert len(turns) > 5
    assert sum(len(turn) for turn in turns) == 3 * 60 + 1


def test_an_ended_flow_keeps_the_table_busy_until_it_is_told() -> None:
    """Whoever drives the engine goes on until the end of a stream has been told to its call."""
    links = table()
    key = accepted(links)
    links.take_sends()
    flow = Flow(key, 0, 0)
    links.flow(flow)
    links.take_sends()
    assert links.busy
    assert links.take_ended() == [flow]
    assert not links.busy


def test_a_flow_that_moved_to_another_link_leaves_the_first() -> None:
    """A body that is sent again elsewhere does not go on where it was begun."""
    links = table()
    first, second = accepted(links), accepted(links, -2, THIRD)
    links.take_sends()
    flow = Flow(first, 2, 100)
    links.flow(flow)
    flow.key, flow.outflow = second, Flow(second, 2, 100).outflow
    links.flow(flow)
    assert [key for key, _, _ in links.take_sends()] == [second]


def test_more_frames_than_a_batch_holds_leave_as_several() -> None:
    """Every batch keeps to the protocol's limits and takes along the parts of its own frames."""
    links = table()
    key = accepted(links)
    links.take_sends()
    for index in range(5_000):
        part = [bytes([index % 256])] if index % 2 else []
        links.send(key, encode_frame(REQUEST, 0, 2, 0, 0, index, b"", b"", 0, b"", b"", len(part)), part)
    got = []
    for _, batch, parts in links.take_sends():
        frames, fault = split_batch(batch, parts)
        assert fault is None
        got += [(each.call_id, [bytes(part) for part in each.parts]) for each in frames]
    assert got == [(index, [bytes([index % 256])] if index % 2 else []) for index in range(5_000)]


@pytest.mark.parametrize("outcome", ["up", "mute", "refused", "other", "silent"])
def test_a_probe_tells_whether_a_linked_peer_takes_connections(outcome: str) -> None:
    """One more connection beside the link: what comes of it is told, and the link stays what it was."""
    links = table()
    up = dialled(links)
    links.take_notes()
    assert links.probe(PEER, 1.0, 5.0)
    assert links.probe(PEER, 1.0, 5.0)
    [(key, address)] = links.take_dials()
    assert address == "10.0.0.1:1"
    if outcome == "refused":
        links.handle_closed(key, "refused", 5.1)
    elif outcome == "silent":
        links.tick(5.0 + CONNECT_TIMEOUT)
    else:
        links.handle_opened(key, 5.1)
        if outcome == "mute":
            links.tick(6.0)
            links.tick(6.1)
        else:
            links.handle_welcome(key, welcome(PEER if outcome == "up" else THIRD), 5.2)
    assert [(note.kind, note.boot, note.detail) for note in links.take_notes()] == [("probed", PEER, outcome)]
    assert links.link_to(PEER) == up
    assert links.get(key) is None
    links.handle_candidate("10.0.0.1:1", None, 9.0)
    assert links.take_dials() == []


def test_a_link_that_stays_mute_beside_an_answered_connection_is_ended() -> None:
    """A probe is answered, by another address of the boot: unless something has come over the link since the probe began, or does, it is dead."""
    links = table()
    for way in ("mute", "heard before", "heard after"):
        up = dialled(links)
        links.handle_candidate("10.1.0.1:1", PEER, 1.0)
        links.take_notes(), links.take_dials(), links.take_closes()
        assert links.probe(PEER, 1.0, 5.0)
        (same, first), (other, second) = links.take_dials()
        assert {first, second} == {"10.0.0.1:1", "10.1.0.1:1"}
        aside = other if first == "10.0.0.1:1" else same
        if way == "heard before":
            links.handle_heard([up])
        links.handle_opened(aside, 5.1)
        links.handle_welcome(aside, welcome(PEER), 5.2)
        if way == "heard after":
            links.handle_heard([up])
        links.tick(5.2 + DEAD_AFTER - 0.01)
        assert links.link_to(PEER) == up
        links.tick(5.2 + DEAD_AFTER)
        assert links.link_to(PEER) == (None if way == "mute" else up)
        notes = [(note.kind, note.key) for note in links.take_notes()]
        assert (("down", up) in notes) is (way == "mute")
        links.close(up, "left", 9.0)
        links.tick(30.0)


def test_only_good_news_of_an_address_aside_is_told() -> None:
    """Another address of the peer may lead to anybody: that nobody listens there says nothing."""
    links = table()
    dialled(links)
    links.handle_candidate("10.1.0.1:1", PEER, 1.0)
    links.take_notes(), links.take_dials()
    assert links.probe(PEER, 1.0, 5.0)
    aside = next(key for key, address in links.take_dials() if address == "10.1.0.1:1")
    links.handle_closed(aside, "refused", 5.1)
    assert links.take_notes() == []
