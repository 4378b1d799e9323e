"""Permits and watermark between the callee and the handlers."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reachmesh.calls.admission import Admission, Rule
from reachmesh.calls.incoming import IncomingCall
from reachmesh.calls.meter import Meter
from reachmesh.calls.ports import Delivery, Kind
from reachmesh.errors import Backpressure, QuotaExceeded
from reachmesh.resilience.permits import PermitConfig
from reachmesh.resilience.pressure import PressureConfig

RULES = {"two": Rule(max_concurrent=2), "free": Rule()}


def made(number: int, capability: str = "two", priority: int = 100) -> IncomingCall:
    """A complete request."""
    return IncomingCall(
        1,
        number,
        boot=b"b" * 8,
        caller=("app", "app-1"),
        capability=capability,
        extras={},
        flags=0,
        payload_format=2,
        priority=priority,
        depth=0,
        trace_id=b"t" * 16,
        span_id=b"s" * 8,
        deadline=None,
        now=0.0,
    )


def admission(deliveries: list[Delivery], *, watermark: int = 8) -> Admission:
    """One with small figures."""
    pressure = PressureConfig(watermark=watermark, normal=2 * watermark, high=4 * watermark)
    return Admission(deliveries, permits=PermitConfig(queue=4), pressure=pressure)


@given(
    st.lists(st.tuples(st.sampled_from(["new", "begin", "end", "give up", "late"]), st.integers(0, 20), st.floats(0, 0.15)), max_size=120)
)
def test_no_permit_is_lost_whatever_ends_a_call(steps: list[tuple[str, int, float]]) -> None:
    """Over any interleaving of arrivals, begins, ends, cancels and late waits: never more than two at once, and at the end all permits are free."""
    deliveries: list[Delivery] = []
    gate, now, running, waiting = admission(deliveries), 0.0, [], []
    delivered: list[IncomingCall] = []
    for number, (verb, which, pause) in enumerate(steps):
        now += pause
        if verb == "new":
            call = made(number, priority=which * 12)
            if gate.admit(call, RULES[call.capability], now) is None and not call.delivered:
                waiting.append(call)
        elif verb == "begin" and delivered:
            call = delivered.pop(which % len(delivered))
            assert call.claim()
            gate.begun.append(None)
            running.append(call)
        elif verb == "end" and running:
            gate.ran(running.pop(which % len(running)), now)
        elif verb == "give up" and (open_calls := delivered + waiting):
            call = open_calls[which % len(open_calls)]
            (delivered if call in delivered else waiting).remove(call)
            assert call.claim()
            gate.never_ran(call, now)
        elif verb == "late":
            for call, error in gate.late(now):
                assert isinstance(error, QuotaExceeded)
                assert error.executed == "no"
                waiting.remove(call)
        for kind, call, _ in deliveries:
            assert kind is Kind.REQUEST
            delivered.append(call)
            if call in waiting:
                waiting.remove(call)
        deliveries.clear()
        assert len(delivered) + len(running) <= 2
        assert gate.queued == len(delivered) + len(waiting)
        assert not waiting or len(delivered) + len(running) == 2
    for call in running:
        gate.ran(call, now)
    for call in [*delivered, *waiting, *(each[1] for each in deliveries)]:
        if call.claim():
            gate.never_ran(call, now)
    while deliveries:
        _, call, _ = deliveries.pop()
        if call.claim():
            gate.never_ran(call, now)
    assert gate.queued == 0
    assert [gate.admit(made(1000 + n), RULES["two"], now) for n in range(2)] == [None, None]
    assert len(deliveries) == 2


def test_over_the_watermark_low_priority_is_refused_and_the_level_rises() -> None:
    """With many calls waiting, low priority is turned away first, then normal, then all; the level goes from 0 to 255."""
    deliveries: list[Delivery] = []
    gate = admission(deliveries)
    levels = []
    for number in range(32):
        refused = [isinstance(gate.turned_away(made(0, "free", priority)), Backpressure) for priority in (10, 100, 200)]
        assert refused == [False, number >= 16, number >= 8]
        levels.append(gate.level())
        gate.admit(made(number, "free"), RULES["free"], 0.0)
    assert isinstance(gate.turned_away(made(0, "free", 10)), Backpressure)
    assert levels == sorted(levels)
    assert (levels[8], levels[16]) == (0, 255)
    gate.begun.extend([None] * 32)
    assert (gate.queued, gate.level(), gate.pressed) == (0, 0, False)


def test_a_capability_is_full_at_nine_tenths_and_has_room_at_three_quarters() -> None:
    """`full` names the capability while its permits are taken, and not a moment longer than it takes to have room again."""
    gate = admission([])
    calls = [made(n) for n in range(2)]
    gate.admit(calls[0], RULES["two"], 0.0)
    assert gate.full() == ""
    gate.admit(calls[1], RULES["two"], 0.0)
    assert gate.full() == "two"
    gate.ran(calls[0], 0.1)
    assert gate.full() == ""


def test_the_meter_forgets_after_ten_seconds() -> None:
    """Rate, failures and run times are those of the last ten seconds."""
    meter = Meter()
    for number in range(20):
        meter.add(0.1 * (number + 1), number % 2 == 0, 100.0)
    qps, rate, p95 = meter.read(100.5)
    assert (qps, rate, p95) == (2.0, 0.5, 2.0)
    assert meter.read(109.9)[0] == 2.0
    assert meter.read(110.1) == (0.0, 0.0, 0.0)
