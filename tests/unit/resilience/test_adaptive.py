from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reachmesh.resilience.adaptive import AdaptiveConfig, AdaptiveLimit

CONFIG = AdaptiveConfig()


def serve(limit: AdaptiveLimit, *, cores: float, work: float, callers: int, seconds: int, start: float = 0.0) -> float:
    """Play a service that shares `cores` among its calls, with `callers` that ask again at once; gives the mean limit of the last half."""
    step, now, seen = work / 10, start, list[int]()
    running: list[list[float]] = []
    while now < start + seconds:
        while len(running) < min(limit.limit, callers):
            running.append([work, now])
        speed, holding = min(1.0, cores / len(running)), len(running)
        now += step
        for call in running:
            call[0] -= step * speed
        for call in [each for each in running if each[0] <= 1e-9]:
            limit.ended(now - call[1], holding, now)
        running = [each for each in running if each[0] > 1e-9]
        if now > start + seconds / 2:
            seen.append(limit.limit)
    return sum(seen) / len(seen)


def test_calls_that_do_not_slow_each_other_get_as_many_permits_as_they_ask_for() -> None:
    """A service that waits for others (capacity without end) is asked by 100 at once: nobody is held back for long."""
    assert serve(AdaptiveLimit(), cores=1e9, work=0.1, callers=100, seconds=20) >= 100


def test_calls_that_only_wait_for_each_other_are_not_let_in() -> None:
    """Two cores, 0.05 s a call, 200 callers: far fewer than 200 run at once, and the cores stay busy."""
    limit = AdaptiveLimit()
    assert 2 < serve(limit, cores=2, work=0.05, callers=200, seconds=240) <= 20


def test_a_service_that_became_slower_by_itself_keeps_its_permits() -> None:
    """A handler takes three times as long from now on: after the memory of the fast time it has the permits its callers ask for."""
    limit = AdaptiveLimit()
    serve(limit, cores=1e9, work=0.1, callers=60, seconds=20)
    assert serve(limit, cores=1e9, work=0.3, callers=60, seconds=240, start=20.0) >= 54


def test_what_was_not_asked_for_teaches_nothing() -> None:
    """Three callers on a limit of 16: it neither grows nor shrinks."""
    assert serve(AdaptiveLimit(), cores=2, work=0.05, callers=3, seconds=60) == CONFIG.start


@given(st.lists(st.tuples(st.floats(0, 100), st.integers(0, 2000), st.floats(0, 5)), max_size=300))
def test_the_limit_stays_in_its_bounds_and_moves_once_a_period(ends: list[tuple[float, int, float]]) -> None:
    """Whatever ends when: least <= limit <= most, and two changes are a period apart."""
    limit, now, changed = AdaptiveLimit(), 0.0, -10.0
    for took, holding, passed in ends:
        now += passed
        before = limit.limit
        if limit.ended(took, holding, now):
            assert now - changed >= CONFIG.period
            changed = now
        else:
            assert limit.limit == before
        assert CONFIG.least <= limit.limit <= CONFIG.most
