"""The log of calls: five minutes of counts, the last executions, all of it bounded."""

from __future__ import annotations

import pytest

from reachmesh.observe import calls
from reachmesh.observe.calls import CallLog, Execution, Stats

TRACE = bytes(range(16))


def ended(
    capability: str = "work", status: str = "ok", *, at: float, took: float = 0.02, made: bool = True, trace: bytes = TRACE
) -> Execution:
    return Execution(made, capability, status, at - took, None, at, trace, bytes(8), 0, "peer", 0)


def log_of(*executions: Execution) -> CallLog:
    log = CallLog(0.0, hidden="reachmesh.")
    log.take(executions)
    return log


def test_calls_are_counted_with_their_durations() -> None:
    """Counts, failures and percentiles of one capability are those of its calls and of no other's."""
    log = log_of(*(ended(at=10.0 + n, took=0.001 * (n + 1), status="ok" if n % 5 else "remote_error") for n in range(100)))
    log.take([ended("other", at=11.0, took=9.0)])
    stats = log.made.stats("work", 120.0)
    assert (stats.count, stats.failures) == (100, 20)
    assert (stats.p50_ms, stats.p90_ms, stats.p99_ms) == pytest.approx((50, 90, 99), rel=0.032)


@pytest.mark.parametrize(("status", "failures"), [("ok", 0), ("sent", 0), ("cancelled", 0), ("deadline_exceeded", 1), ("no_provider", 1)])
def test_what_counts_as_a_failure(status: str, failures: int) -> None:
    """Every error is a failure; a cancelled call and one that wants no answer are none."""
    assert log_of(ended(status=status, at=1.0)).made.stats("work", 2.0).failures == failures


def test_a_one_way_call_says_nothing_of_durations() -> None:
    """`notify` is counted and leaves the percentiles alone."""
    stats = log_of(ended(at=1.0, took=0.5), *(ended(status="sent", at=1.0, took=0.0) for _ in range(50))).made.stats("work", 2.0)
    assert stats.count == 51
    assert stats.p50_ms == pytest.approx(500, rel=0.032)


def test_both_sides_are_kept_apart() -> None:
    """What a node serves does not show in what it calls."""
    log = log_of(ended(at=1.0, made=False))
    assert log.made.stats("work", 2.0) == Stats(0, 0, 0.0, 0.0, 0.0)
    assert log.served.stats("work", 2.0).count == 1


def test_five_minutes_are_forgotten() -> None:
    """A call counts for five minutes to the slot, and its total for ever."""
    log = log_of(ended(at=1000.0))
    assert log.made.stats("work", 1290.0).count == 1
    assert log.made.stats("work", 1306.0).count == 0
    log.take(ended(at=1000.0 + 5.0 * n) for n in range(1, 500))
    assert log.made.stats("work", 3495.0).count == 60
    assert dict(log.made.windows())["work"].count == 500


def test_reserved_capabilities_leave_no_mark() -> None:
    """Looking at a node changes nothing of what one sees."""
    log = log_of(ended("reachmesh.status", at=1.0, made=False))
    assert log.served.recent(20) == []
    assert log.served.windows() == []
    assert log.served.rates(2.0).qps == 0


def test_rates_are_of_the_last_minute() -> None:
    """`rates` adds all capabilities of the last minute and forgets what was before."""
    log = log_of(*(ended(f"work{n % 3}", "ok" if n % 4 else "overloaded", at=100.0 + n * 0.1, took=0.1) for n in range(600)))
    rates = log.made.rates(160.0)
    assert rates.qps == pytest.approx(10, rel=0.1)
    assert rates.p95 == pytest.approx(0.1, rel=0.032)
    assert rates.fail_rate == pytest.approx(0.25, rel=0.05)
    idle = log.made.rates(400.0)
    assert (idle.qps, idle.p95, idle.fail_rate) == (0.0, None, 0.0)


def test_a_young_node_is_not_diluted() -> None:
    """A node of ten seconds divides by ten seconds."""
    assert log_of(*(ended(at=n * 0.1) for n in range(100))).made.rates(10.0).qps == pytest.approx(10)


def test_the_last_executions_and_those_of_a_trace() -> None:
    """`recent` gives the newest, the oldest of them first; `of_trace` those of one trace."""
    log = log_of(*(ended(f"n{n}", at=float(n), trace=bytes([n % 2]) * 16) for n in range(10)))
    assert [each.capability for each in log.made.recent(3)] == ["n7", "n8", "n9"]
    assert [each.capability for each in log.made.recent(100)] == [f"n{n}" for n in range(10)]
    assert [each.capability for each in log.made.of_trace(bytes([1]) * 16)] == ["n1", "n3", "n5", "n7", "n9"]


def test_everything_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten thousand names and calls keep no more than the caps, and none is lost from the rates."""
    monkeypatch.setattr(calls, "NAMES", 50)
    log = log_of(*(ended(f"name{n}", at=1.0) for n in range(calls.RECENT + 1000)))
    assert len(log.made.windows()) == 50
    assert len(log.made.recent(1_000_000)) == calls.RECENT
    assert log.made.rates(5.0).qps * 5.0 == calls.RECENT + 1000
    log.take([ended("fresh", at=1000.0)])
    assert "fresh" in dict(log.made.windows())
    assert len(log.made.windows()) == 50
