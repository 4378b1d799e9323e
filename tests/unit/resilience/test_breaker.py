"""Promises of the circuit breaker of one key."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reachmesh.resilience.breaker import Breaker, BreakerConfig, BreakerState

OUTCOMES = st.lists(st.tuples(st.booleans(), st.floats(0.0, 5.0)), max_size=120)


def opened(now: float = 0.0, **figures: float) -> Breaker:
    """A breaker that five failures in a row have opened."""
    made = Breaker(BreakerConfig(**figures))  # type: ignore[arg-type]
    for n in range(5):
        assert made.failed(now, now) == (n == 4)
    made.open(now, ejecting=True)
    return made


def test_five_in_a_row_open_and_one_success_starts_over() -> None:
    """Five failures in a row ask to open; a success between them starts the count anew."""
    made = Breaker(BreakerConfig())
    assert [made.failed(0.0, 0.0) for _ in range(4)] == [False] * 4
    made.succeeded(0.0, 0.0)
    assert [made.failed(0.0, 0.0) for _ in range(5)] == [False] * 4 + [True]


def test_half_of_twenty_calls_open() -> None:
    """With failures never in a row, half of at least twenty calls in the window ask to open, and not before."""
    made = Breaker(BreakerConfig())
    asked = []
    for n in range(12):
        made.succeeded(0.0, n * 0.1)
        asked.append(made.failed(0.0, n * 0.1))
    assert asked == [False] * 9 + [True] * 3


def test_the_window_forgets() -> None:
    """Failures older than the window do not count."""
    made = Breaker(BreakerConfig(consecutive=1000))
    for _ in range(19):
        assert not made.failed(0.0, 1.0)
    assert not made.failed(0.0, 35.0)
    assert not any(made.failed(0.0, 36.0) for _ in range(18))
    assert made.failed(0.0, 36.0)


@given(OUTCOMES)
def test_never_asks_to_open_under_its_minimum(outcomes: list[tuple[bool, float]]) -> None:
    """Whatever comes, it asks to open only with five failures in a row or half of twenty calls of the last 30 s failed."""
    made, now = Breaker(BreakerConfig()), 0.0
    seen: list[tuple[float, bool]] = []
    for good, pause in outcomes:
        now += pause
        seen.append((now, good))
        if good:
            made.succeeded(now, now)
            continue
        recent = [ok for at, ok in seen if at > now - 30.0]
        streak = len(seen) >= 5 and not any(ok for _, ok in seen[-5:])
        if made.failed(now, now):
            assert streak or (len(recent) >= 20 and recent.count(False) >= 10)
        else:
            assert not streak


def test_it_is_half_open_after_five_seconds_doubling_to_sixty() -> None:
    """Openings in a row last 5, 10, 20, 40, 60, 60 s; closing starts over at 5 s."""
    made, now, lasted = opened(), 0.0, []
    for _ in range(6):
        lasted.append(made.until - now)
        made.refresh(made.until - 0.001)
        assert made.state is BreakerState.OPEN
        now = made.until
        made.refresh(now)
        assert made.failed(now, now)
        made.open(now, ejecting=True)
    assert lasted == [5.0, 10.0, 20.0, 40.0, 60.0, 60.0]
    now = made.until
    made.refresh(now)
    assert [made.succeeded(now, now) for _ in range(3)] == [False, False, True]
    for _ in range(5):
        made.failed(now, now)
    made.open(now, ejecting=True)
    assert made.until - now == 5.0


def test_half_open_lets_one_probe_through() -> None:
    """While a probe is out no other goes; its end, or the longest opening, frees the place."""
    made = opened()
    assert not made.wants_probe(6.0)
    made.refresh(6.0)
    assert made.wants_probe(6.0)
    made.started(6.0)
    assert not made.wants_probe(60.0)
    assert made.wants_probe(66.0)
    made.succeeded(6.0, 6.5)
    assert made.wants_probe(6.5)
    made.started(6.5)
    made.ignored(6.5)
    assert made.wants_probe(6.6)


def test_calls_of_before_do_not_decide_a_probe() -> None:
    """An outcome of a call that began before the half-open phase neither closes nor opens."""
    made = opened()
    made.refresh(6.0)
    made.started(6.0)
    assert not made.failed(2.0, 6.1)
    assert not any(made.succeeded(2.0, 6.1) for _ in range(5))
    made.ignored(2.0)
    assert not made.wants_probe(6.2)
    assert made.failed(6.0, 6.3)


def test_outcomes_of_late_calls_do_not_lengthen_an_opening() -> None:
    """While open nothing that comes in changes anything."""
    made = opened()
    assert not made.failed(0.0, 1.0)
    assert not made.succeeded(0.0, 1.0)
    assert made.until == 5.0


def test_next_change_is_the_moment_something_may_happen() -> None:
    """`next_change` is the end of an opening or of a probe's time, and never in the past."""
    made = Breaker(BreakerConfig())
    assert made.next_change(0.0) == float("inf")
    made = opened()
    assert made.next_change(0.0) == 5.0
    made.refresh(5.0)
    assert made.next_change(5.0) == float("inf")
    made.started(5.0)
    assert made.next_change(5.0) == 65.0
    assert made.next_change(70.0) == float("inf")


def test_describe_can_be_read() -> None:
    """Each state has a phrase, held breakers say so."""
    made = opened()
    assert made.describe(1.0) == "open for another 4.0 s"
    made.release()
    assert "held" in made.describe(1.0)
    made.refresh(5.0)
    assert made.describe(5.0).startswith("half-open, 0 of 3 good probes")
    assert Breaker(BreakerConfig()).describe(0.0) == "closed"
