"""The calling side over links that only take notes: what is sent where, which answers count, what is tried again, and one end for each call."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reachmesh.calls.caller import Caller
from reachmesh.calls.flags import (
    REQUEST,
    REQUEST_MORE,
    REQUEST_ONEWAY,
    REQUEST_RETRY,
    REQUEST_WANTS_STREAM,
    STREAM,
    STREAM_CANCEL,
    STREAM_CREDIT,
    STREAM_ITEMS,
    STREAM_MORE,
    STREAM_TO_CALLER,
)
from reachmesh.calls.incoming import IncomingCall
from reachmesh.calls.outgoing import OutgoingCall
from reachmesh.calls.ports import Kind
from reachmesh.calls.sending import CREDIT
from reachmesh.errors import Cancelled, LoopDetected, NodeStopped, Overloaded, PeerLost, RemoteError, SemanticError
from reachmesh.resilience.retry import RetryPolicy, RetryThrottle
from reachmesh.routing import Provider, Router, RouteRequest, RoutingConfig
from reachmesh.wire.frames import decode_request_meta
from reachmesh.wire.limits import LIMITS
from tests.unit.calls.fake_links import FakeLinks, answer, frame, refusal

LINKS = {"a": 1, "b": 2, "c": 3, "d": 4, "e": 5}


class Side:
    """A caller, its links to instances a, b, ..., and what it handed over."""

    def __init__(self, *instances: str, up: bool = True, idempotent: bool = False) -> None:
        self.links = FakeLinks(**{each: LINKS[each] for each in instances} if up else {})
        self.links.known = {each.encode() * 8 for each in instances}
        self.router = Router(RoutingConfig(warmup=0.0), random.Random(1), zone=None, host="h", now=0.0)
        for each in instances:
            self.offer(each, idempotent)
        self.deliveries: list[Any] = []
        self.ended: list[Any] = []
        self.caller = Caller(
            self.links,
            self.router,
            self.deliveries,
            LIMITS,
            random.Random(2),
            policy=RetryPolicy(),
            throttle=RetryThrottle(),
            depth_limit=3,
            grace_until=1.5,
            ended=self.ended,
            hidden=lambda request, exclude: None,
        )

    def offer(self, name: str, idempotent: bool = False) -> None:
        provider = Provider(boot=name.encode() * 8, instance_id=name, name=name, capability="echo", idempotent=idempotent)
        self.router.put(provider.boot, [provider], 0.0)

    def start(self, handle: str = "h", *, now: float = 0.0, flags: int = 0, body: bytes = b"\x92\x90\x80", **fields: Any) -> OutgoingCall:
        call = OutgoingCall(
            handle,
            RouteRequest(capability="echo"),
            body=[body],
            payload_format=2,
            flags=flags,
            extras=None,
            metas={},
            deadline=fields.get("deadline"),
            depth=fields.get("depth", 0),
            trace_id=b"t" * 16,
            span_id=b"s" * 8,
            retries=fields.get("retries", 1),
            parent=fields.get("parent"),
        )
        self.caller.start(call, now)
        return call

    def kinds(self) -> list[Kind]:
        return [kind for kind, _, _ in self.deliveries]

    def error(self) -> Any:
        [(kind, _, error)] = self.deliveries
        assert kind is Kind.FAILED
        return error

    def sent(self) -> list[tuple[int, int, int]]:
        """(link, frame type, flags) of what left since the last look."""
        return [(key, each.frame_type, each.flags) for key, each in self.links.take()]


def test_a_request_names_the_boot_it_is_meant_for() -> None:
    """It leaves over the link to the picked instance, with the time that is left."""
    side = Side("a")
    side.start(deadline=2.0, now=0.5)
    [(key, sent)] = side.links.take()
    meta = decode_request_meta(sent.meta)
    assert meta is not None
    assert (key, sent.frame_type, sent.remaining_ms, meta.boot, meta.capability) == (1, REQUEST, 1500, b"a" * 8, "echo")


def test_late_doubled_and_foreign_answers_count_for_nothing() -> None:
    """Only the open attempt's answer by the link of its request ends a call; all others are strays."""
    side = Side("a", "b")
    call = side.start(deadline=1.0)
    other = 3 - call.key
    side.caller.handle_response(other, answer(call.call_id), 0.1)
    side.caller.handle_response(call.key, answer(call.call_id + 1), 0.1)
    assert side.deliveries == []
    side.caller.handle_response(call.key, answer(call.call_id, b"\x01"), 0.1)
    side.caller.handle_response(call.key, answer(call.call_id, b"\x02"), 0.1)
    late = side.start("late", deadline=1.0)
    side.caller.tick(1.0)
    side.caller.handle_response(late.key, answer(late.call_id), 1.1)
    assert side.kinds() == [Kind.ANSWER, Kind.FAILED]
    assert side.caller.strays == 4
    assert side.caller.open == 0


def test_a_deadline_ends_a_call_and_tells_the_server() -> None:
    """At the instant, not before: DeadlineExceeded, and a cancel for the handler."""
    side = Side("a")
    side.start(deadline=1.0)
    assert side.caller.next_timeout() == 1.0
    side.caller.tick(0.999)
    assert not side.deliveries
    side.caller.tick(1.0)
    assert (side.error().code, side.error().executed) == ("deadline_exceeded", "maybe")
    assert side.sent() == [(1, REQUEST, 0), (1, STREAM, STREAM_CANCEL)]


@pytest.mark.parametrize("when", ["parked", "dialing", "sent", "waiting to retry"])
def test_a_cancel_ends_a_call_in_every_state(when: str) -> None:
    """Parked, dialing, sent or between two attempts: one Cancelled, honest about execution, and nothing is sent for it later."""
    side = Side(*(() if when == "parked" else ("a", "b")), up=when != "dialing", idempotent=True)
    call = side.start()
    if when == "waiting to retry":
        side.caller.handle_link_down(call.key, "dropped", 0.1)
    side.caller.cancel(call, 0.2)
    side.caller.cancel(call, 0.2)
    assert (side.error().code, side.error().executed) == ("cancelled", "no" if when in ("parked", "dialing") else "maybe")
    side.sent()
    side.offer("c")
    side.links.up |= {b"a" * 8: 1, b"b" * 8: 2, b"c" * 8: 3}
    side.caller.handle_change(0.3)
    side.caller.handle_link_up(b"a" * 8, 0.3)
    side.caller.handle_link_up(b"b" * 8, 0.3)
    side.caller.tick(99)
    assert side.sent() == []
    assert len(side.deliveries) == len(side.ended) == 1


def test_what_surely_did_not_run_goes_elsewhere_at_once() -> None:
    """A refusal with executed=no is tried on another instance in the same turn, marked as a retry, once."""
    side = Side("a", "b", "c")
    call = side.start()
    first = call.key
    side.caller.handle_response(first, refusal(call.call_id, Overloaded("full")), 0.1)
    assert call.key != first
    side.caller.handle_response(call.key, refusal(call.call_id, Overloaded("full")), 0.1)
    assert [flags for _, _, flags in side.sent()] == [0, REQUEST_RETRY]
    assert side.error().code == "overloaded"
    assert [each["executed"] for each in side.error().attempts] == ["no", "no"]


@pytest.mark.parametrize(
    ("error", "idempotent", "again"),
    [
        (PeerLost("x", executed="maybe"), False, False),
        (PeerLost("x", executed="maybe"), True, True),
        (RemoteError("x"), True, False),
        (SemanticError("x"), True, False),
        (Overloaded("x"), False, True),
    ],
)
def test_only_what_may_be_retried_is(error: Any, idempotent: bool, again: bool) -> None:
    """What may have run is sent again only if idempotent, what a handler answered never."""
    side = Side("a", "b", idempotent=idempotent)
    call = side.start()
    side.caller.handle_response(call.key, refusal(call.call_id, error), 0.1)
    side.caller.tick(5.0)
    assert len(side.sent()) == (2 if again else 1)
    assert side.kinds() == ([] if again else [Kind.FAILED])


def test_a_retry_that_surely_did_not_run_does_not_hide_the_first_attempt() -> None:
    """The error of a call says "maybe" when any of its attempts may have run."""
    side = Side("a", "b", idempotent=True)
    call = side.start()
    side.caller.handle_link_down(call.key, "dropped", 0.1)
    side.caller.tick(5.0)
    side.caller.handle_response(call.key, refusal(call.call_id, Overloaded("full")), 5.1)
    assert (side.error().code, side.error().executed) == ("overloaded", "maybe")


def test_no_retry_below_a_retry_after_items_or_beyond_the_deadline() -> None:
    """Retries do not multiply in a chain, a stream that gave items is not begun again, and no back-off outlasts the deadline."""
    side = Side("a", "b", idempotent=True)
    parent = type("Parent", (), {"closed": False, "flags": REQUEST_RETRY, "children": {}})()
    below = side.start("below", parent=parent)
    side.caller.handle_link_down(below.key, "x", 0.1)
    stream = side.start("stream", flags=REQUEST_WANTS_STREAM)
    side.caller.handle_stream(stream.key, frame(STREAM, STREAM_ITEMS | STREAM_TO_CALLER, stream.call_id, b"\x91\x01"), 0.1)
    side.caller.handle_link_down(stream.key, "x", 0.1)
    late = side.start("late", deadline=0.5)
    side.caller.handle_link_down(late.key, "x", 0.1)
    assert [(kind, handle) for kind, handle, _ in side.deliveries if kind is Kind.FAILED] == [
        (Kind.FAILED, "below"),
        (Kind.FAILED, "stream"),
        (Kind.FAILED, "late"),
    ]
    assert parent.children == {}


def test_calls_wait_for_their_link_and_are_sent_when_it_is_up() -> None:
    """A picked instance without a link is dialled once; what waits leaves in order, or goes elsewhere when it cannot be reached."""
    side = Side("a", up=False)
    calls = [side.start(f"h{n}") for n in range(3)]
    assert side.sent() == []
    assert side.caller.next_timeout() == float("inf")
    side.links.up[b"a" * 8] = 1
    side.caller.handle_link_up(b"a" * 8, 0.1)
    assert [sent.call_id for _, sent in side.links.take()] == [call.call_id for call in calls]


def test_an_unreachable_instance_costs_no_retry() -> None:
    """While nothing was sent, others are tried; when all fail the error says executed=no and what was tried."""
    side = Side("a", "b", "c", up=False)
    call = side.start(retries=0)
    for _ in range(3):
        side.caller.handle_dial_failed(call.boot, "refused", 0.1)
    assert (side.error().code, side.error().executed) == ("peer_lost", "no")
    assert sorted(each["instance_id"] for each in side.error().attempts) == ["a", "b", "c"]


def test_parked_calls_wait_for_the_grace_and_not_longer() -> None:
    """In the grace a call waits for a provider; it is sent when one appears, and fails at the end of the grace otherwise."""
    side = Side()
    side.start("served")
    assert side.caller.next_timeout() == 1.5
    side.offer("a")
    side.links.up[b"a" * 8] = 1
    side.caller.handle_change(0.5)
    assert len(side.sent()) == 1
    hopeless = Side()
    hopeless.start()
    hopeless.caller.tick(1.49)
    assert not hopeless.deliveries
    hopeless.caller.tick(1.5)
    assert hopeless.error().code == "no_provider"
    hopeless.start("late", now=2.0)
    assert hopeless.kinds() == [Kind.FAILED, Kind.FAILED]


def test_a_stop_ends_calls_in_every_state_once() -> None:
    """Sent, dialing, parked and between attempts: each gets the error once, with a copy of its own, and later ones at once."""
    side = Side("a", "b", idempotent=True)
    waiting = side.start("waiting")
    side.caller.handle_link_down(waiting.key, "x", 0.1)
    side.start("sent")
    del side.links.up[b"a" * 8], side.links.up[b"b" * 8]
    side.start("dialing")
    side.router.remove(b"a" * 8, 0.1)
    side.router.remove(b"b" * 8, 0.1)
    side.start("parked", now=0.2)
    side.caller.stop(NodeStopped("bye", executed="maybe"), 0.3)
    side.caller.stop(NodeStopped("bye", executed="maybe"), 0.3)
    side.start("later", now=0.4)
    assert sorted(handle for _, handle, _ in side.deliveries) == ["dialing", "later", "parked", "sent", "waiting"]
    assert len({id(error) for _, _, error in side.deliveries}) == 5
    side.caller.tick(99)
    assert len(side.deliveries) == 5


def test_a_big_body_follows_its_request_and_starts_afresh_on_a_retry() -> None:
    """Chunks leave under credit; a second attempt sends the whole body again, on its own link alone."""
    side = Side("a", "b")
    call = side.start(body=bytes(300_000))
    first, first_id = call.key, call.call_id
    side.links.pump()
    assert side.sent()[0] == (first, REQUEST, REQUEST_MORE)
    side.caller.handle_stream(first, frame(STREAM, STREAM_CREDIT | STREAM_TO_CALLER, first_id, CREDIT.pack(0, 100_000)), 0.1)
    side.caller.handle_response(first, refusal(first_id, Overloaded("full")), 0.1)
    side.links.pump()
    frames = side.links.take()
    assert {(key, sent.call_id) for key, sent in frames} == {(call.key, call.call_id)}
    assert call.key != first
    assert frames[0][1].flags == REQUEST_MORE | REQUEST_RETRY
    assert sum(len(sent.body) + sum(map(len, sent.parts)) for _, sent in frames if sent.frame_type == STREAM) >= 256 * 1024


def test_a_big_answer_is_joined_and_its_announcement_counts_once() -> None:
    """The answer is delivered when all of it is here; credit for it goes back meanwhile."""
    side = Side("a")
    call = side.start()
    side.caller.handle_response(1, answer(call.call_id, b"", flags=1), 0.1)
    side.caller.handle_response(1, answer(call.call_id, b"\x01"), 0.1)
    assert side.caller.strays == 1
    size = 400_000
    body = b"\0\0\0\1" + size.to_bytes(8, "big") + bytes(size)
    pieces = [body[at : at + 60_000] for at in range(0, len(body), 60_000)]
    for piece in pieces:
        more = STREAM_MORE if piece is not pieces[-1] else 0
        side.caller.handle_stream(1, frame(STREAM, more | STREAM_TO_CALLER, call.call_id, piece), 0.1)
    [(kind, _, (_, batch))] = side.deliveries
    assert kind is Kind.ANSWER
    assert sum(map(len, batch)) == size
    assert any(flags == STREAM_CREDIT for _, _, flags in side.sent())


def test_a_malformed_answer_ends_the_call() -> None:
    """A server that sends rubbish costs its own call only, and is told to stop."""
    side = Side("a")
    call = side.start(flags=REQUEST_WANTS_STREAM)
    side.caller.handle_stream(1, frame(STREAM, STREAM_MORE | STREAM_TO_CALLER, call.call_id, b"\xff" * 64), 0.1)
    assert side.error().code == "protocol"
    assert side.sent()[-1] == (1, STREAM, STREAM_CANCEL)


def test_a_oneway_call_is_accepted_when_it_has_left() -> None:
    """Small ones at once, big ones with their last chunk; no answer is expected and no cancel sent."""
    side = Side("a")
    side.start("small", flags=REQUEST_ONEWAY)
    big = side.start("big", flags=REQUEST_ONEWAY, body=bytes(400_000))
    assert side.kinds() == [Kind.ACCEPTED]
    side.links.pump()
    side.caller.handle_stream(1, frame(STREAM, STREAM_CREDIT | STREAM_TO_CALLER, big.call_id, CREDIT.pack(0, 256 * 1024)), 0.1)
    for ended in side.links.pump():
        side.caller.handle_flow_ended(ended, 0.1)
    assert side.kinds()[-1] is Kind.ACCEPTED
    assert side.caller.open == 0


@pytest.mark.parametrize("ending", ["its parent is closed", "the node has stopped", "it is too deep"])
def test_the_first_call_of_a_handler_ends_however_it_cannot_be_made(ending: str) -> None:
    """A nested call that is refused before its parent has had any other ends once, and leaves nothing with the parent."""
    side = Side("a")
    parent = IncomingCall(1, 1, b"b" * 8, ("app", "app-1"), "outer", {}, 0, 2, 100, 0, b"t" * 16, b"s" * 8, None, 0.0)
    if ending == "its parent is closed":
        parent.closed = True
    elif ending == "the node has stopped":
        side.caller.stop(NodeStopped("stopped"), 0.0)
    side.start("first", parent=parent, depth=99 if ending == "it is too deep" else 1)
    kind = {"its parent is closed": Cancelled, "the node has stopped": NodeStopped, "it is too deep": LoopDetected}[ending]
    assert isinstance(side.error(), kind)
    assert not parent.children


def test_a_fault_in_the_middle_of_an_end_still_tells_whoever_waits() -> None:
    """A call whose ending fails half-way in our own code ends once all the same, and not twice when it had been told."""

    class Unsettled(dict[Any, None]):
        def pop(self, *_: Any) -> None:
            raise RuntimeError("a mistake of ours")

    side = Side("a")
    parent = IncomingCall(1, 1, b"b" * 8, ("app", "app-1"), "outer", {}, 0, 2, 100, 0, b"t" * 16, b"s" * 8, None, 0.0)
    parent.children = Unsettled()
    call = side.start("inner", parent=parent)
    with pytest.raises(RuntimeError):
        side.caller.cancel(call, 0.1)
    for _ in range(2):
        side.caller.break_off(call, RemoteError("a mistake of ours"), 0.1)
    assert isinstance(side.error(), RemoteError)


@given(st.lists(st.tuples(st.sampled_from(["start", "answer", "error", "down", "cancel", "tick", "late"]), st.integers(0, 9)), max_size=60))
def test_every_call_ends_exactly_once(steps: list[tuple[str, int]]) -> None:
    """Whatever comes in whatever order, each call gets one end and the tables are empty afterwards."""
    side = Side("a", "b", "c", idempotent=True)
    calls: list[OutgoingCall] = []
    past: list[tuple[int, int]] = []
    now = 0.0
    for step, number in steps:
        now += 0.05
        call = calls[-1 - number % len(calls)] if calls else None
        if call is not None and call.sent_at is not None:
            past.append((call.key, call.call_id))
        if step == "start":
            calls.append(side.start(f"h{len(calls)}", now=now, deadline=now + 0.1 * (number + 1), retries=number % 3))
        elif call is None:
            continue
        elif step == "answer":
            side.caller.handle_response(call.key, answer(call.call_id), now)
        elif step == "error":
            error = [Overloaded("x"), RemoteError("x"), PeerLost("x", executed="maybe")][number % 3]
            side.caller.handle_response(call.key, refusal(call.call_id, error), now)
        elif step == "down":
            side.caller.handle_link_down(1 + number % 3, "x", now)
        elif step == "cancel":
            side.caller.cancel(call, now)
        elif step == "tick":
            side.caller.tick(now)
        elif past:
            side.caller.handle_response(*past[number % len(past)][:1], answer(past[number % len(past)][1]), now)
    side.caller.tick(now + 100)
    assert sorted(handle for _, handle, _ in side.deliveries) == sorted(f"h{number}" for number in range(len(calls)))
    assert all(call.closed for call in calls)
    assert side.caller.open == 0
    assert not side.caller._by_link
    assert len(side.ended) == len(calls)
