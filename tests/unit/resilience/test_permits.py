"""Promises of permits, priority queues, the limiter and the queue's own pressure."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reachmesh.resilience.limiter import UNLIMITED, Limiter, LimiterConfig
from reachmesh.resilience.permits import Grant, PermitConfig, Permits, auto_limit
from reachmesh.resilience.pressure import PressureConfig, admits, level
from reachmesh.resilience.priorities import PriorityQueues

VERBS = ["acquire", "acquire", "acquire", "release", "cancel", "expire", "resize", "take"]
STEPS = st.lists(
    st.tuples(st.sampled_from(VERBS), st.integers(0, 5), st.integers(0, 255), st.floats(0.0, 0.15)),
    min_size=20,
    max_size=80,
)


@given(STEPS, st.integers(1, 3), st.integers(0, 4))
def test_permits_are_conserved(steps: list[tuple[str, int, int, float]], limit: int, queue: int) -> None:
    """Over any interleaving of finish, fail, cancel, timeout and resize no permit is lost, doubled or idle beside a waiting call."""
    permits, now = Permits(limit, PermitConfig(queue=queue)), 0.0
    asked: set[object] = set()
    told: set[object] = set()
    highest = limit
    for verb, ticket, priority, pause in steps:
        now += pause
        if verb == "acquire":
            grant = permits.acquire(ticket, now, priority)
            if grant is Grant.GRANTED:
                asked.discard(ticket)
                told.add(ticket)
            elif grant is Grant.QUEUED:
                asked.add(ticket)
            else:
                assert permits.holding >= limit
                assert ticket not in asked | told
        elif verb in ("release", "cancel"):
            if verb == "cancel" or ticket in told:
                (permits.release if verb == "release" else permits.cancel)(ticket, now)
                asked.discard(ticket)
                told.discard(ticket)
        elif verb == "expire":
            late = set(permits.expire(now))
            assert late <= asked
            asked -= late
        elif verb == "resize":
            limit = 1 + ticket % 3
            highest = max(highest, limit)
            permits.resize(limit, now)
        else:
            granted = permits.take_granted()
            assert len(set(granted)) == len(granted)
            assert set(granted) <= asked | told
            asked -= set(granted)
            told |= set(granted)
        assert permits.holding + permits.waiting == len(asked | told)
        assert len(told) <= permits.holding <= highest
        assert permits.waiting == 0 or permits.holding >= limit
        assert permits.waiting <= queue
    for each in range(6):
        permits.cancel(each, now)
    assert permits.take_granted() == []
    assert [permits.acquire(n, now) for n in range(100, 100 + limit)] == [Grant.GRANTED] * limit


def test_a_wait_ends_after_200_ms() -> None:
    """Who gets no permit within 200 ms is handed out as refused, exactly then; an instant wait is no line at all."""
    permits = Permits(1)
    assert permits.acquire("a", 0.0) is Grant.GRANTED
    assert permits.acquire("b", 0.05) is Grant.QUEUED
    assert permits.next_timeout() == 0.25
    assert permits.expire(0.24) == []
    assert permits.expire(0.25) == ["b"]
    assert permits.next_timeout() == float("inf")
    permits.release("a", 0.3)
    assert permits.take_granted() == []
    assert Permits(1, PermitConfig(wait=0.0)).acquire("a", 0.0) is Grant.GRANTED


def test_a_free_permit_goes_to_the_most_important_first() -> None:
    """Of those who wait, high priority gets the next permit, and first come first served within a class."""
    permits = Permits(1)
    permits.acquire("holder", 0.0)
    for ticket, priority in (("low", 200), ("normal", 100), ("high", 10), ("high too", 20)):
        permits.acquire(ticket, 0.0, priority)
    order = []
    held = "holder"
    for _ in range(4):
        permits.release(held, 0.1)
        (held,) = permits.take_granted()  # type: ignore[assignment]
        order.append(held)
    assert order == ["high", "high too", "normal", "low"]


def test_releasing_twice_gives_back_once() -> None:
    """A second release, or one of a stranger, gives no permit away."""
    permits = Permits(1)
    permits.acquire("a", 0.0)
    permits.release("a", 0.0)
    permits.release("a", 0.0)
    before = permits.retry_after()
    permits.release("stranger", 1000.0)
    assert permits.retry_after() == before
    assert permits.acquire("b", 0.0) is Grant.GRANTED
    assert permits.acquire("c", 0.0) is Grant.QUEUED


def test_retry_after_follows_what_calls_take() -> None:
    """`retry_after` grows with hold time and line, and is never 0."""
    permits = Permits(1)
    assert permits.retry_after() > 0
    permits.acquire("a", 0.0)
    permits.release("a", 4.0)
    permits.acquire("b", 4.0)
    permits.acquire("c", 4.0)
    assert permits.retry_after() == pytest.approx(8.0)


def test_auto_limit_is_littles_law() -> None:
    """The automatic limit is target rate times latency, rounded up, at least 1."""
    assert [auto_limit(50, 0.1), auto_limit(10, 0.25), auto_limit(1, 0.001)] == [5, 3, 1]


@given(st.lists(st.integers(0, 255), min_size=1, max_size=80))
def test_queues_lose_nothing_and_keep_order_in_a_class(priorities: list[int]) -> None:
    """Everything pushed is popped once, in order of arrival within its class."""
    queues: PriorityQueues[int] = PriorityQueues()
    for n, priority in enumerate(priorities):
        queues.push(n, priority)
    assert len(queues) == sum(queues.waiting(kind) for kind in range(3)) == len(priorities)
    popped = [queues.pop() for _ in priorities]
    assert sorted(popped) == list(range(len(priorities)))
    for low, high in ((0, 50), (51, 150), (151, 255)):
        kind = [n for n in popped if low <= priorities[n] <= high]
        assert kind == sorted(kind)
    with pytest.raises(IndexError):
        queues.pop()


def test_high_goes_first_but_low_does_not_starve() -> None:
    """With high calls coming for ever, the lower classes still get a small share."""
    queues: PriorityQueues[str] = PriorityQueues()
    for n in range(20):
        queues.push(f"low{n}", 200)
        queues.push(f"normal{n}", 100)
    order = []
    for n in range(100):
        queues.push(f"high{n}", 0)
        order.append(queues.pop())
    assert order[:8] == [f"high{n}" for n in range(8)]
    assert 5 <= sum(each.startswith("low") for each in order) <= 13
    assert 5 <= sum(each.startswith("normal") for each in order) <= 13


def test_a_waiting_item_can_leave() -> None:
    """A removed item is never popped; removing it again, or pushing one twice, changes nothing."""
    queues: PriorityQueues[str] = PriorityQueues()
    queues.push("a", 100)
    queues.push("b", 100)
    queues.push("a", 0)
    assert list(queues) == ["a", "b"]
    assert queues.remove("a")
    assert not queues.remove("a")
    assert "a" not in queues
    assert queues.pop() == "b"


def test_the_limiter_obeys_levels_and_recovers() -> None:
    """A level shrinks the window once per burst, never under the floor; calm answers widen it, and it vanishes after the storm."""
    limiter = Limiter(LimiterConfig())
    assert limiter.observe(0, 100, 0.0) == UNLIMITED
    first = limiter.observe(255, 39, 1.0)
    assert first == 20.0
    assert limiter.observe(255, 39, 1.05) == first
    assert limiter.observe(51, 39, 1.2) == pytest.approx(18.0)
    for n in range(50):
        limiter.observe(255, 3, 2.0 + n)
    assert limiter.window == 4.0
    before = limiter.window
    for _ in range(10):
        limiter.observe(0, 3, 52.0)
    assert before < limiter.window < 8.0
    assert limiter.observe(0, 3, 62.0) == UNLIMITED


def test_the_limiter_leaves_room_for_the_declared_concurrency() -> None:
    """The floor is at least what the instance says it runs at once, so obeying never idles it."""
    limiter = Limiter(LimiterConfig(), concurrency=16)
    for n in range(20):
        limiter.observe(255, 20, float(n))
    assert limiter.window == 16.0


def test_a_full_queue_refuses_the_unimportant_first() -> None:
    """Low is refused from the watermark, normal much later, high last, so that the queue is bounded; the level tells before."""
    config = PressureConfig(watermark=10, normal=40, high=160)
    assert [admits(config, 200, n) for n in (9, 10)] == [True, False]
    assert [admits(config, 100, n) for n in (39, 40)] == [True, False]
    assert [admits(config, 10, n) for n in (159, 160)] == [True, False]
    assert [level(config, n) for n in (0, 10, 25, 40, 1000)] == [0, 0, 127, 255, 255]
    levels = [level(config, n) for n in range(50)]
    assert levels == sorted(levels)
    assert level(config, 11) > 0
