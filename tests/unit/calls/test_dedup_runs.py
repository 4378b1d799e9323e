"""Requests with a dedup key through the whole serving side: one execution, whatever happens to those who wait for it."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from reachmesh.calls.admission import Rule
from reachmesh.calls.callee import Callee
from reachmesh.calls.flags import MSGPACK, REQUEST, RESPONSE, RESPONSE_ERROR, STREAM, STREAM_CANCEL
from reachmesh.calls.incoming import IncomingCall
from reachmesh.calls.ports import Kind
from reachmesh.errors import BadRequest, RemoteError
from reachmesh.resilience.dedup import DedupConfig
from reachmesh.resilience.permits import PermitConfig
from reachmesh.resilience.pressure import PressureConfig
from reachmesh.wire.frames import decode_error, encode_request_meta
from reachmesh.wire.limits import LIMITS
from tests.unit.calls.fake_links import FakeLinks, frame

ME, CALLER, TTL, KEYS = b"m" * 8, ("app", "app-host-1-x"), 20.0, 3
VERBS = ["ask", "ask", "ask", "begin", "begin", "begin", "finish", "finish", "fail", "refuse", "cancel", "drop", "pass"]
STEPS = st.lists(
    st.tuples(st.sampled_from(VERBS), st.integers(0, 11), st.sampled_from([0.0, 0.01, 0.3, 2.0, 9.0])), min_size=60, max_size=150
)


class Handlers:
    """What runs: the executions of each key with their begin and end, and the calls that wait to be begun."""

    def __init__(self) -> None:
        self.waiting: list[IncomingCall] = []
        self.running: list[IncomingCall] = []
        self.executions: dict[str, list[list[float]]] = {}

    def begin(self, call: IncomingCall, now: float) -> bool:
        if call.closed or (call.deadline is not None and call.deadline <= now) or not call.claim():
            return False
        call.started = now
        self.running.append(call)
        before = self.executions.setdefault(call.extras["d"], [])
        assert not before or now >= before[-1][1] + TTL, "a key ran again"
        before.append([now, float("inf")])
        return True

    def ended(self, call: IncomingCall, now: float) -> None:
        self.running.remove(call)
        self.executions[call.extras["d"]][-1][1] = now


@given(STEPS, st.integers(1, 2))
def test_a_key_runs_once_over_any_interleaving(steps: list[tuple[str, int, float]], limit: int) -> None:
    """Repetitions, ends, failures, refused arguments, cancels, lost links, deadlines and a full table in any order: a key never runs twice
    within its time, every request is answered at most once with its key's answer, and at the end nothing is open.
    """
    links, deliveries, ended, handlers = FakeLinks(), list[Any](), list[Any](), Handlers()
    rules = {"echo": Rule(max_concurrent=limit)}
    callee = Callee(
        links,
        deliveries,
        LIMITS,
        boot=ME,
        instance_id="me",
        depth_limit=3,
        rule_of=rules.get,
        ended=ended,
        permits=PermitConfig(wait=1.0, queue=4),
        pressure=PressureConfig(),
        dedup=DedupConfig(ttl=TTL, keys=KEYS),
    )
    now, asked, answered = 0.0, dict[tuple[int, int], str](), set[tuple[int, int]]()

    def settle() -> None:
        for kind, call, _ in deliveries:
            if kind is Kind.REQUEST:
                handlers.waiting.append(call)
        deliveries.clear()
        for link, sent in links.take():
            if sent.frame_type != RESPONSE:
                continue
            place = (link, sent.call_id)
            assert place in asked, "an answer nobody asked for"
            assert place not in answered, "answered twice"
            answered.add(place)
            if not sent.flags & RESPONSE_ERROR:
                assert bytes(sent.body) == asked[place].encode(), "another key's answer"
            elif (error := decode_error(sent.body)).code == "overloaded":
                assert error.executed == "no"

    for number, (verb, which, pause) in enumerate(steps):
        now += pause
        callee.tick(now)
        settle()
        link, key = which % 3, f"k{which % 5}"
        if verb == "ask":
            asked[link, number] = key
            meta = encode_request_meta(ME, "echo", {"d": key})
            remaining = 500 + 2000 * (which % 4)
            callee.handle_request(link, b"c" * 8, CALLER, frame(REQUEST, 0, number, b"\x92\x90\x80", meta=meta, remaining=remaining), now)
        elif verb == "begin" and handlers.waiting:
            call = handlers.waiting.pop(which % len(handlers.waiting))
            if handlers.begin(call, now):
                callee.admission.begun.append(None)
        elif verb == "refuse" and handlers.waiting:
            call = handlers.waiting.pop(which % len(handlers.waiting))
            if not call.closed and call.claim():
                callee.admission.begun.append(None)
                callee.fail(call, BadRequest("missing argument", executed="no"), now)
        elif verb in ("finish", "fail") and handlers.running:
            call = handlers.running[which % len(handlers.running)]
            handlers.ended(call, now)
            if verb == "finish":
                callee.finish(call, MSGPACK, [call.extras["d"].encode()], now)
            else:
                callee.fail(call, RemoteError("no"), now)
        elif verb == "cancel":
            open_ones = [place for place in asked if place not in answered]
            if open_ones:
                place = open_ones[which % len(open_ones)]
                callee.handle_stream(place[0], frame(STREAM, STREAM_CANCEL, place[1]), now)
        elif verb == "drop":
            callee.handle_link_down(link, "the caller is gone", now)
        settle()
        permits = callee.admission._permits.get("echo")
        assert permits is None or permits.holding <= limit
    now += 10
    callee.tick(now)
    settle()
    for call in list(handlers.running):
        handlers.ended(call, now)
        callee.finish(call, MSGPACK, [call.extras["d"].encode()], now)
    callee.tick(now + 10)
    settle()
    assert callee.open == 0
    permits = callee.admission._permits.get("echo")
    assert permits is None or (permits.holding, permits.waiting) == (0, 0)
