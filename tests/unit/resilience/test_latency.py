"""Promises of latency windows, averages, and the timeouts and hedges made of them."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reachmesh.resilience.deadline import TimeoutConfig, default_timeout, try_timeout
from reachmesh.resilience.hedge import HedgeConfig, hedge_delay
from reachmesh.resilience.latency import LatencyWindow, PeakEwma


def window(*latencies: float, now: float = 100.0) -> LatencyWindow:
    """A window with these samples."""
    made = LatencyWindow()
    for each in latencies:
        made.add(each, now)
    return made


@given(st.lists(st.floats(1e-5, 900.0), min_size=1, max_size=200), st.sampled_from([0.5, 0.9, 0.95, 0.99, 1.0]))
def test_percentiles_are_within_three_percent(latencies: list[float], share: float) -> None:
    """A percentile is within 3 % of the exact one, whatever the samples."""
    exact = sorted(latencies)[max(math.ceil(share * len(latencies)) - 1, 0)]
    found = window(*latencies).percentile(share, 100.0)
    assert found == pytest.approx(exact, rel=0.03)


def test_samples_leave_after_the_window() -> None:
    """What is older than five minutes is forgotten, slice by slice, and an empty window has no percentile."""
    made = window(1.0, now=10.0)
    made.add(2.0, 200.0)
    assert made.count == 2
    assert made.p50(320.0) == pytest.approx(2.0, rel=0.03)
    assert made.count == 1
    assert made.p99(600.0) is None
    assert window().p50(0.0) is None


def test_memory_is_bounded_and_nonsense_dropped() -> None:
    """A window holds counters, not samples; negative and undefined latencies are dropped, huge ones capped."""
    made = LatencyWindow()
    for n in range(20_000):
        made.add(n * 0.001, n * 0.1)
    assert sum(map(len, made._counts)) <= 10 * 380
    assert made.count <= 3_001
    made = window(-1.0, float("nan"), float("inf"))
    assert made.count <= 1


def test_percentiles_follow_new_samples() -> None:
    """A cached percentile is computed anew when the window has changed enough or a second has passed."""
    made = window(*[0.1] * 100)
    assert made.p99(100.0) == pytest.approx(0.1, rel=0.03)
    for _ in range(5):
        made.add(5.0, 100.0)
    assert made.p99(100.0) == pytest.approx(5.0, rel=0.03)


def test_peak_average_rises_at_once_and_falls_with_time() -> None:
    """A worse sample counts fully, a better one by age, and an old peak fades towards the prior, not to 0."""
    made = PeakEwma(5.0)
    assert made.read(0.3, 0.0) == 0.3
    made.observe(0.1, 0.0)
    made.observe(1.0, 0.0)
    assert made.value == 1.0
    assert made.read(0.1, 5.0) == pytest.approx(0.1 + 0.9 / math.e)
    assert made.read(0.1, 1000.0) == pytest.approx(0.1)
    made.observe(0.1, 5.0)
    assert made.value == pytest.approx(0.1 + 0.9 / math.e)


def test_default_timeout_is_three_seconds_then_measured() -> None:
    """3 s (or what is declared) until 20 samples, then P99 x 1.5, not under the floor."""
    config = TimeoutConfig()
    assert default_timeout(config, None, None, 0.0) == 3.0
    assert default_timeout(config, window(*[0.01] * 19), None, 100.0) == 3.0
    assert default_timeout(config, window(*[0.01] * 19), 30.0, 100.0) == 30.0
    assert default_timeout(config, window(*[2.0] * 20), 30.0, 100.0) == pytest.approx(3.0, rel=0.03)
    assert default_timeout(config, window(*[0.01] * 20), None, 100.0) == config.floor


def test_one_try_gets_half_the_time_at_most() -> None:
    """A try gets min(1.5 x P99, half the deadline)."""
    config = TimeoutConfig()
    assert try_timeout(config, None, 8.0, 0.0) == 4.0
    assert try_timeout(config, window(*[1.0] * 20), 10.0, 100.0) == pytest.approx(1.5, rel=0.03)
    assert try_timeout(config, window(*[1.0] * 20), 2.0, 100.0) == 1.0
    assert try_timeout(config, None, -1.0, 0.0) == 0.0


def test_hedges_are_for_idempotent_calls_after_p95() -> None:
    """A hedge goes after the P95 of enough calls, of idempotent capabilities only, and is off by default."""
    seen = window(*[0.1] * 95, *[2.0] * 5)
    on = HedgeConfig(enabled=True)
    assert hedge_delay(on, seen, idempotent=True, now=100.0) == pytest.approx(0.1, rel=0.03)
    assert hedge_delay(on, seen, idempotent=False, now=100.0) is None
    assert hedge_delay(HedgeConfig(), seen, idempotent=True, now=100.0) is None
    assert hedge_delay(on, window(*[0.1] * 19), idempotent=True, now=100.0) is None
    assert hedge_delay(on, window(*[0.0001] * 50), idempotent=True, now=100.0) == on.least
