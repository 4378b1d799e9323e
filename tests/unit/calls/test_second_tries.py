"""Second requests of one call: the time of a try, and hedges."""

from __future__ import annotations

from typing import Any

import pytest

from reachmesh.calls.flags import REQUEST, REQUEST_RETRY, STREAM, STREAM_CANCEL, STREAM_CREDIT, STREAM_TO_CALLER
from reachmesh.calls.latencies import Latencies
from reachmesh.calls.ports import Kind
from reachmesh.calls.sending import CREDIT
from reachmesh.errors import DeadlineExceeded, RemoteError
from reachmesh.resilience.deadline import TimeoutConfig
from reachmesh.resilience.hedge import HedgeConfig
from tests.unit.calls.fake_links import answer, frame, refusal
from tests.unit.calls.test_caller import Side


def known(side: Side, seconds: float = 0.1) -> None:
    """Let the caller know how long the capability takes, and have made enough calls to afford retries."""
    for _ in range(30):
        side.caller.latencies.add("echo", seconds, 0.0)
        side.caller._throttle.note_call(0.0)


def requests(side: Side) -> list[tuple[int, int, int]]:
    """Link, call id and flags of the requests sent since the last look."""
    return [(key, sent.call_id, sent.flags) for key, sent in side.links.take() if sent.frame_type == REQUEST]


@pytest.mark.parametrize("winner", [0, 1])
def test_a_try_gets_its_share_of_the_time_and_another_instance_is_asked_then(winner: int) -> None:
    """An idempotent call not answered in 1.5 x P99 is sent elsewhere too, once, without back-off; the slow one's answer still counts."""
    side = Side("a", "b", idempotent=True)
    known(side, 0.4)
    call = side.start(deadline=10.0)
    ((first, call_id, _),) = requests(side)
    due = side.caller.next_timeout()
    assert 0.57 < due < 0.63
    side.caller.tick(due)
    ((second, other_id, flags),) = requests(side)
    assert first != second
    assert flags == REQUEST_RETRY
    won, lost = [(first, call_id), (second, other_id)][:: 1 - 2 * winner]
    side.caller.handle_response(won[0], answer(won[1]), due)
    assert [(key, sent.call_id, sent.flags) for key, sent in side.links.take()] == [(*lost, STREAM_CANCEL)]
    assert [each[0] for each in side.deliveries] == [Kind.ANSWER]
    assert [each["error"] for each in call.attempts] == ["deadline_exceeded"] * winner
    assert call.retries == 0
    assert side.caller.next_timeout() == float("inf")


@pytest.mark.parametrize(("instances", "idempotent", "retries"), [("a", True, 1), ("ab", False, 1), ("ab", True, 0)])
def test_a_try_goes_on_where_a_second_one_cannot_be(instances: str, idempotent: bool, retries: int) -> None:
    """With nobody else, without a retry left, or when it must not run twice, the whole deadline is waited for."""
    side = Side(*instances, idempotent=idempotent)
    known(side)
    side.start(deadline=10.0, retries=retries)
    ((key, call_id, _),) = requests(side)
    side.caller.tick(9.9)
    assert side.links.take() == []
    side.caller.handle_response(key, answer(call_id), 9.9)
    assert [each[0] for each in side.deliveries] == [Kind.ANSWER]


def hedging(*, deadline: float | None = 10.0, body: bytes = b"\x92\x90\x80") -> tuple[Side, Any, int, int]:
    """A call whose hedge is due and sent: the side, the call, and the ids of its two requests."""
    side = Side("a", "b", idempotent=True)
    side.caller.hedging = HedgeConfig(enabled=True)
    known(side)
    call = side.start(deadline=deadline, body=body)
    ((_, first, _),) = requests(side)
    side.caller.tick(side.caller.next_timeout())
    ((_, second, flags),) = requests(side)
    assert flags & REQUEST_RETRY
    return side, call, first, second


def link_of(side: Side, call_id: int) -> int:
    """The link an open request was sent by."""
    return side.caller._calls[call_id].key


@pytest.mark.parametrize("winner", [0, 1])
def test_the_first_answer_of_two_wins_and_the_other_is_cancelled(winner: int) -> None:
    """Whichever request is answered first, the call ends once with that answer, and the other instance is told to stop."""
    side, call, *ids = hedging()
    won, lost = ids[winner], ids[1 - winner]
    loser = link_of(side, lost)
    side.caller.handle_response(link_of(side, won), answer(won, b"\x01"), 1.0)
    assert [(key, sent.call_id, sent.flags) for key, sent in side.links.take()] == [(loser, lost, STREAM_CANCEL)]
    side.caller.handle_response(loser, answer(lost, b"\x02"), 1.0)
    ((kind, handle, (_, batch)),) = side.deliveries
    assert (kind, handle, bytes(batch[0])) == (Kind.ANSWER, "h", b"\x01")
    assert call.closed
    assert side.caller.open == 0
    assert len(side.ended) == 1


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_a_failure_counts_only_when_both_failed(order: tuple[int, int]) -> None:
    """One failing request leaves the call to the other; two failures are one error with both attempts in it."""
    side, _, *ids = hedging()
    first, second = (ids[each] for each in order)
    side.caller.handle_response(link_of(side, first), refusal(first, RemoteError("no", type_name="ValueError")), 1.0)
    assert side.deliveries == []
    side.caller.handle_response(link_of(side, second), refusal(second, RemoteError("no", type_name="ValueError")), 1.1)
    ((kind, _, error),) = side.deliveries
    assert kind is Kind.FAILED
    assert isinstance(error, RemoteError)
    assert {each["instance_id"] for each in error.attempts} == {"a", "b"}


def test_the_deadline_ends_both() -> None:
    """A hedged call over its deadline fails once, and both instances are told."""
    side, _, *ids = hedging(deadline=2.0)
    keys = {link_of(side, each) for each in ids}
    side.caller.tick(2.0)
    assert {key for key, sent in side.links.take() if sent.flags == STREAM_CANCEL} == keys
    ((kind, _, error),) = side.deliveries
    assert kind is Kind.FAILED
    assert isinstance(error, DeadlineExceeded)
    assert side.caller.open == 0


def test_the_default_timeout_follows_what_is_measured() -> None:
    """From twenty answers on it is P99 x 1.5 and at least the floor; hasty callers do not shorten it, and silence makes it unknown again."""
    latencies = Latencies(TimeoutConfig(floor=0.1))
    for _ in range(19):
        latencies.add("slow", 2.0, 1.0)
    assert latencies.timeouts == {}
    latencies.add("slow", 2.0, 1.0)
    assert latencies.timeouts["slow"] == pytest.approx(3.0, rel=0.05)
    for number in range(200):
        latencies.add_vain("slow", 0.001, 3.0 + number)
    assert latencies.timeouts["slow"] == pytest.approx(3.0, rel=0.05)
    latencies.forget_stale(400.0)
    assert latencies.timeouts == {}


def test_credit_for_the_second_request_is_nobodys_business() -> None:
    """A large body that flows to the second instance wakes no writer: nothing but the answer is delivered."""
    side, _, first, second = hedging(body=b"\xc6" + bytes(300_000))
    side.links.pump()
    side.caller.handle_stream(link_of(side, second), frame(STREAM, STREAM_CREDIT | STREAM_TO_CALLER, second, CREDIT.pack(1, 65536)), 1.0)
    assert side.deliveries == []
    side.caller.handle_response(link_of(side, first), answer(first), 1.0)
    assert [each[0] for each in side.deliveries] == [Kind.ANSWER]
