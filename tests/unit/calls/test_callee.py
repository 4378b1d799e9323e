"""The serving side over links that only take notes: who is refused, who runs, and what is answered, exactly once."""

from __future__ import annotations

from typing import Any

import pytest

from reachmesh.calls.admission import Rule
from reachmesh.calls.callee import Callee
from reachmesh.calls.flags import (
    REQUEST_MORE,
    REQUEST_ONEWAY,
    REQUEST_SENDS_STREAM,
    REQUEST_WANTS_STREAM,
    RESPONSE,
    RESPONSE_ERROR,
    STREAM,
    STREAM_CANCEL,
    STREAM_CREDIT,
    STREAM_END,
    STREAM_ITEMS,
    STREAM_MORE,
)
from reachmesh.calls.flows import MOST_BYTES, MOST_ITEMS
from reachmesh.calls.incoming import IncomingCall
from reachmesh.calls.ports import Kind
from reachmesh.calls.sending import CREDIT
from reachmesh.errors import Overloaded, RemoteError
from reachmesh.resilience.permits import PermitConfig
from reachmesh.resilience.pressure import PressureConfig
from reachmesh.wire.frames import Frame, decode_error, encode_request_meta
from reachmesh.wire.limits import LIMITS
from reachmesh.wire.transfer import Cutter
from reachmesh.wire.values import dump
from tests.unit.calls.fake_links import FakeLinks, frame, gathered, request

ME, LINK, CALLER = b"m" * 8, 7, ("app", "app-host-1-x")


class Side:
    """A callee, its links, and what it handed over."""

    def __init__(self) -> None:
        self.links = FakeLinks()
        self.deliveries: list[Any] = []
        self.ended: list[Any] = []
        self.callee = Callee(
            self.links,
            self.deliveries,
            LIMITS,
            boot=ME,
            instance_id="me",
            depth_limit=3,
            rule_of={"echo": Rule()}.get,
            ended=self.ended,
            permits=PermitConfig(),
            pressure=PressureConfig(),
        )

    def ask(self, sent: Frame, now: float = 0.0, link: int = LINK) -> None:
        self.callee.handle_request(link, b"c" * 8, CALLER, sent, now)

    def kinds(self) -> list[Kind]:
        return [kind for kind, _, _ in self.deliveries]

    def call(self) -> IncomingCall:
        found: IncomingCall = self.deliveries[0][1]
        return found

    def answers(self) -> list[Any]:
        """Errors and plain answers that were sent, in order."""
        frames = [sent for _, sent in self.links.take() if sent.frame_type == RESPONSE]
        return [decode_error(sent.body) if sent.flags & RESPONSE_ERROR else bytes(sent.body) for sent in frames]


@pytest.fixture
def side() -> Side:
    return Side()


@pytest.mark.parametrize(
    ("sent", "code"),
    [
        (request(1, boot=b"x" * 8), "peer_lost"),
        (request(1, depth=4), "loop_detected"),
        (request(1, "nothing"), "no_provider"),
        (request(1, remaining=0), "deadline_exceeded"),
        (frame(1, 0, 1, b"", meta=b"\xff\xff"), "protocol"),
        (frame(1, 0, 1, b"", meta=encode_request_meta(ME, "echo", {"v": "9"})), "version_mismatch"),
    ],
)
def test_what_cannot_run_is_refused_as_surely_not_executed(side: Side, sent: Frame, code: str) -> None:
    """Another boot, too deep, unknown, expired, unreadable, wrong version: one error with executed=no, and no handler hears of it."""
    side.ask(sent)
    [error] = side.answers()
    assert (error.code, error.executed) == (code, "no")
    assert not side.deliveries
    assert side.callee.open == 0


def test_a_call_is_delivered_and_answered_once(side: Side) -> None:
    """The answer goes to the link and id it came by; a second answer, or a failure after it, is nothing."""
    side.ask(request(5))
    side.ask(request(5), link=8)
    call = side.call()
    assert side.kinds() == [Kind.REQUEST, Kind.REQUEST]
    assert call.claim()
    side.callee.finish(call, 2, [b"\x01"], 1.0)
    side.callee.finish(call, 2, [b"\x02"], 1.0)
    side.callee.fail(call, RemoteError("late"), 1.0)
    assert [(key, sent.call_id, bytes(sent.body)) for key, sent in side.links.take()] == [(LINK, 5, b"\x01")]
    assert side.callee.open == 1
    assert len(side.ended) == 1


def test_a_used_id_is_refused_and_the_first_call_goes_on(side: Side) -> None:
    """A doubled request does not run twice."""
    side.ask(request(5))
    side.ask(request(5))
    assert side.kinds() == [Kind.REQUEST]
    assert [each.code for each in side.answers()] == ["protocol"]


def test_a_cancel_before_the_claim_means_it_never_runs(side: Side) -> None:
    """The ticket is taken by exactly one side."""
    side.ask(request(1))
    side.callee.handle_stream(LINK, frame(STREAM, STREAM_CANCEL, 1), 0.1)
    assert side.kinds() == [Kind.REQUEST, Kind.STOPPED]
    assert not side.call().claim()
    assert side.answers() == []
    assert side.callee.open == 0
    side.callee.handle_stream(LINK, frame(STREAM, STREAM_CANCEL, 1), 0.1)
    assert side.callee.strays == 1


@pytest.mark.parametrize(("claims", "executed"), [(False, "no"), (True, "maybe")])
def test_a_deadline_ends_a_call_on_this_side_too(side: Side, claims: bool, executed: str) -> None:
    """A call over its time is answered, its handler stopped, and whether it may have run is said truly."""
    side.ask(request(1, remaining=500), now=10.0)
    assert side.callee.next_timeout() == 10.5
    if claims:
        assert side.call().claim()
    side.callee.tick(10.4)
    assert side.kinds() == [Kind.REQUEST]
    side.callee.tick(10.5)
    assert side.kinds() == [Kind.REQUEST, Kind.STOPPED]
    [error] = side.answers()
    assert (error.code, error.executed) == ("deadline_exceeded", executed)
    assert not side.call().claim()
    side.callee.tick(99)
    assert len(side.ended) == 1


def test_a_lost_link_stops_its_calls_only(side: Side) -> None:
    """The caller's death reaches its handlers; nobody is answered."""
    side.ask(request(1))
    side.ask(request(1), link=8)
    side.callee.handle_link_down(LINK, "gone", 0.1)
    assert [(kind, call.key) for kind, call, _ in side.deliveries[2:]] == [(Kind.STOPPED, LINK)]
    assert side.answers() == []
    assert side.callee.open == 1


def test_a_stop_ends_every_call_once(side: Side) -> None:
    """`stop_all` answers each open call, with executed=no where the handler had not begun."""
    side.ask(request(1))
    side.ask(request(2))
    assert side.call().claim()
    side.callee.stop_all("closing", 0.1)
    side.callee.stop_all("closing", 0.1)
    assert [each.executed for each in side.answers()] == ["maybe", "no"]
    assert side.kinds().count(Kind.STOPPED) == 2
    assert len(side.ended) == 2


def test_a_drain_takes_only_calls_of_accepted_chains(side: Side) -> None:
    """While draining, new calls are refused and those that serve an accepted one still come in."""
    side.ask(request(1, trace_id=b"a" * 16))
    side.callee.drain(Overloaded("draining", code="draining", executed="no"))
    side.ask(request(2, trace_id=b"b" * 16))
    side.ask(request(3, trace_id=b"a" * 16))
    assert [each.code for each in side.answers()] == ["draining"]
    assert [call.call_id for _, call, _ in side.deliveries] == [1, 3]


def test_a_oneway_call_is_never_answered(side: Side) -> None:
    """Neither its result, its failure nor a refusal is sent."""
    for call_id in (1, 2):
        side.ask(request(call_id, flags=REQUEST_ONEWAY))
    side.ask(request(3, "nothing", flags=REQUEST_ONEWAY))
    side.callee.finish(side.call(), 2, [b"\x01"], 1.0)
    side.callee.fail(side.deliveries[1][1], RemoteError("no"), 1.0)
    assert side.links.take() == []
    assert side.callee.open == 0


def test_a_body_in_pieces_is_delivered_when_complete(side: Side) -> None:
    """The request is handed over once, with its whole body, and the credit for it goes back."""
    body = [b"\x92\x91" + dump(bytes(300_000))[0], *dump(bytes(300_000))[1:], b"\x80"]
    cutter, chunks = Cutter(body), []
    while cutter.left:
        chunks.append(b"".join(cutter.take(64 * 1024)))
    side.ask(request(1, flags=REQUEST_MORE, body=b""))
    for chunk in chunks[:-1]:
        side.callee.handle_stream(LINK, frame(STREAM, STREAM_MORE, 1, chunk), 0.0)
        assert not side.deliveries
    side.callee.handle_stream(LINK, frame(STREAM, 0, 1, chunks[-1]), 0.0)
    assert side.kinds() == [Kind.REQUEST]
    assert [bytes(each) for each in side.call().body.segments] == [bytes(each) for each in body]  # type: ignore[union-attr]
    credited = sum(CREDIT.unpack(sent.body)[1] for _, sent in side.links.take() if sent.flags & STREAM_CREDIT)
    assert credited >= sum(map(len, chunks)) - 256 * 1024


@pytest.mark.parametrize("flags", [0, REQUEST_WANTS_STREAM])
def test_a_malformed_body_is_answered(side: Side, flags: int) -> None:
    """Whatever shape of answer the caller waits for, it learns of it at once, and the call is over."""
    side.ask(request(1, flags=REQUEST_MORE | flags, body=b""))
    side.callee.handle_stream(LINK, frame(STREAM, STREAM_MORE, 1, b"\xff" * 64), 0.0)
    assert [(each.code, each.executed) for each in side.answers()] == [("bad_request", "no")]
    assert side.callee.open == 0
    assert not side.deliveries


def test_a_malformed_item_stops_the_handler(side: Side) -> None:
    """Half-way through its input a running handler is stopped, and the caller told that it may have run."""
    side.ask(request(1, flags=REQUEST_SENDS_STREAM))
    assert side.call().claim()
    side.callee.handle_stream(LINK, frame(STREAM, STREAM_MORE, 1, b"\xff" * 64), 0.0)
    assert [(each.code, each.executed) for each in side.answers()] == [("bad_request", "maybe")]
    assert side.kinds() == [Kind.REQUEST, Kind.STOPPED]


def test_items_and_their_end_follow_the_request(side: Side) -> None:
    """What the caller streams in is handed over in order; its credit comes back when the handler has taken it."""
    side.ask(request(1, flags=REQUEST_SENDS_STREAM))
    call = side.call()
    for item in range(64):
        side.callee.handle_stream(LINK, frame(STREAM, STREAM_ITEMS, 1, b"\x91" + bytes([item])), 0.0)
    side.callee.handle_stream(LINK, frame(STREAM, STREAM_END, 1), 0.0)
    assert side.kinds() == [Kind.REQUEST] + [Kind.INPUT] * 64 + [Kind.INPUT_END]
    assert side.links.take() == []
    for _, _, batch in side.deliveries[1:-1]:
        side.callee.consumed(call, 1, batch.size, 0.0)
    assert sum(CREDIT.unpack(sent.body)[0] for _, sent in side.links.take()) == 64


def test_the_final_frame_of_a_stream_follows_its_items(side: Side) -> None:
    """An answer stream ends with one RESPONSE after the last item, also when it ends with an error."""
    for call_id, error in ((1, None), (2, RemoteError("broke", executed="yes"))):
        side.ask(request(call_id, flags=REQUEST_WANTS_STREAM))
        call = side.deliveries[-1][1]
        for item in range(100):
            side.callee.put_items(call, gathered([bytes([item])]), 0.0)
        if error is None:
            side.callee.finish(call, 2, [], 0.0)
        else:
            side.callee.fail(call, error, 0.0)
        assert side.links.pump() == []
        assert side.callee.open == 1
        side.callee.handle_stream(LINK, frame(STREAM, STREAM_CREDIT, call_id, CREDIT.pack(64, 1000)), 0.0)
        for ended in side.links.pump():
            side.callee.handle_flow_ended(ended, 0.0)
            side.callee.handle_flow_ended(ended, 0.0)
        frames = [sent for _, sent in side.links.take()]
        assert [sent.frame_type for sent in frames] == [STREAM] * (len(frames) - 1) + [RESPONSE]
        assert bool(frames[-1].flags & RESPONSE_ERROR) is (error is not None)
        assert side.callee.open == 0


def test_credit_beyond_the_window_is_not_taken(side: Side) -> None:
    """A reader that gives credit away does not make this side send more than the largest window ahead."""
    side.ask(request(1, flags=REQUEST_WANTS_STREAM))
    for _ in range(50):
        side.callee.handle_stream(LINK, frame(STREAM, STREAM_CREDIT, 1, CREDIT.pack(0xFFFFFFFF, 0xFFFFFFFF)), 0.0)
    outflow = side.call().outflow
    assert outflow is not None
    assert (outflow.credit_items, outflow.granted_items) == (MOST_ITEMS, MOST_ITEMS)
    assert (outflow.credit_bytes, outflow.granted_bytes) == (MOST_BYTES, MOST_BYTES)


def test_children_are_handed_over_when_their_call_is_stopped(side: Side) -> None:
    """Calls made for a call that ends early are cancelled with it, in the order they were made."""
    side.ask(request(1))
    side.call().children = dict.fromkeys("abc")
    side.callee.handle_link_down(LINK, "gone", 0.0)
    assert [list(each.children or ()) for each in side.callee.take_stopped()] == [["a", "b", "c"]]
    assert side.callee.take_stopped() == []
