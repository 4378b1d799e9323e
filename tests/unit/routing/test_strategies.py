"""Promises of the strategies, alone and under simulated load."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from typing import Any

import pytest

from reachmesh.errors import ConfigError
from reachmesh.routing import Candidate, NoPick, Outcome, Provider, Router, RouteRequest, RoutingConfig, check_strategy, choose
from reachmesh.routing.strategies import refused


def world(latencies: list[float], *, weights: list[float] | None = None, **settings: Any) -> Router:
    """A router with one instance per latency."""
    made = Router(RoutingConfig(**settings), random.Random(3), zone=None, host="h", now=0.0)
    for n in range(len(latencies)):
        weight = weights[n] if weights else 1.0
        made.put(bytes([n]), [Provider(boot=bytes([n]), instance_id=f"i{n}", name="w", capability="c", host="h", weight=weight)], 0.0)
    return made


def simulate(
    made: Router, latencies: list[float], *, rate: float, calls: int, strategy: str, failing: frozenset[int] = frozenset()
) -> tuple[Counter[int], list[float]]:
    """Open load of `rate` calls/s, Poisson; latencies are exponential around each instance's mean. Answers shares and latencies."""
    rng, request = random.Random(7), RouteRequest(capability="c", strategy=strategy)
    ends: list[tuple[float, int, float]] = []
    shares: Counter[int] = Counter()
    seen: list[float] = []
    now = 10.0
    for _ in range(calls):
        now += rng.expovariate(rate)
        while ends and ends[0][0] <= now:
            end, n, took = heapq.heappop(ends)
            made.finished(bytes([n]), "c", Outcome.FAILED if n in failing else Outcome.OK, took, 0, end)
        picked = made.pick(request, now)
        assert not isinstance(picked, NoPick)
        n = picked.boot[0]
        made.started(picked.boot, "c", now)
        took = latencies[n] * rng.uniform(0.5, 1.5)
        shares[n] += 1
        seen.append(took)
        heapq.heappush(ends, (now + took, n, took))
    return shares, seen


def p99(values: list[float]) -> float:
    """99 of 100 are at most this."""
    return sorted(values)[int(len(values) * 0.99)]


def test_p2c_hides_one_slow_instance_of_ten() -> None:
    """With one of ten instances 10x slower, the P99 under p2c is within 1.2x of the nine healthy ones'."""
    slow, healthy = [0.02] * 9 + [0.2], [0.02] * 9
    _, with_slow = simulate(world(slow), slow, rate=300, calls=12_000, strategy="p2c")
    _, without = simulate(world(healthy), healthy, rate=300, calls=12_000, strategy="p2c")
    assert p99(with_slow) <= 1.2 * p99(without)


def test_p2c_does_not_herd_on_a_fresh_instance() -> None:
    """An instance nothing is known of gets about its share of a burst, not all of it."""
    made = world([0.05] * 4)
    simulate(made, [0.05] * 4, rate=100, calls=500, strategy="p2c")
    made.put(b"\x09", [Provider(boot=b"\x09", instance_id="i9", name="w", capability="c", host="h")], 20.0)
    burst: Counter[str] = Counter()
    for _ in range(100):
        picked = made.pick(RouteRequest(capability="c"), 20.0)
        assert not isinstance(picked, NoPick)
        made.started(picked.boot, "c", 20.0)
        burst[picked.instance_id] += 1
    assert 10 <= burst["i9"] <= 35


@pytest.mark.parametrize("strategy", ["p2c", "weighted_random", "least_outstanding"])
def test_failing_fast_does_not_attract(strategy: str) -> None:
    """An instance that fails at once gets less than its share, although its latency looks great (its breaker left out)."""
    from reachmesh.resilience.breaker import BreakerConfig

    calm = BreakerConfig(consecutive=10**9, min_calls=10**9)
    shares, _ = simulate(
        world([0.0, 0.05, 0.05], breaker=calm), [0.0005, 0.05, 0.05], rate=50, calls=3000, strategy=strategy, failing=frozenset({0})
    )
    assert shares[0] < 3000 / 3 * 0.5


def test_weighted_random_follows_declared_weights() -> None:
    """Weight 4 gets about four times the calls of weight 1."""
    shares, _ = simulate(world([0.01, 0.01], weights=[4.0, 1.0]), [0.01, 0.01], rate=50, calls=3000, strategy="weighted_random")
    assert 3.0 < shares[0] / shares[1] < 5.5


def test_weighted_random_prefers_measured_speed() -> None:
    """Of equal weights the faster instance gets more."""
    shares, _ = simulate(world([0.02, 0.2]), [0.02, 0.2], rate=20, calls=2000, strategy="weighted_random")
    assert shares[0] > 2 * shares[1] > 0


def test_round_robin_is_even_with_comings_and_goings() -> None:
    """Every instance gets the same number of calls, also around one that left and another that joined."""
    made = world([0.01] * 4)
    request = RouteRequest(capability="c", strategy="round_robin")

    def turns(calls: int) -> Counter[str]:
        picked = [made.pick(request, 1.0) for _ in range(calls)]
        return Counter(each.instance_id for each in picked if not isinstance(each, NoPick))

    assert set(turns(40).values()) == {10}
    made.remove(b"\x01", 1.0)
    assert set(turns(30).values()) == {10}
    made.put(b"\x07", [Provider(boot=b"\x07", instance_id="i7", name="w", capability="c", host="h")], 1.0)
    counts = turns(40)
    assert max(counts.values()) - min(counts.values()) <= 1


def test_least_outstanding_takes_the_idle_one() -> None:
    """The instance with the fewest calls out for its weight is taken."""
    made = world([0.01] * 3)
    for n in (0, 0, 1):
        made.started(bytes([n]), "c", 1.0)
    picked = made.pick(RouteRequest(capability="c", strategy="least_outstanding"), 1.0)
    assert not isinstance(picked, NoPick)
    assert picked.instance_id == "i2"


def test_primary_backup_moves_only_when_it_must() -> None:
    """Everything goes to one instance until it is gone, then to the next; a newcomer of equal weight changes nothing."""
    made = world([0.01] * 3)
    request = RouteRequest(capability="c", strategy="primary_backup")

    def primaries() -> set[str]:
        picked = [made.pick(request, 1.0) for _ in range(20)]
        return {each.instance_id for each in picked if not isinstance(each, NoPick)}

    assert primaries() == {"i0"}
    made.remove(b"\x00", 1.0)
    assert primaries() == {"i1"}
    made.put(b"\x00", [Provider(boot=b"\x00", instance_id="i0", name="w", capability="c", host="h")], 1.0)
    assert primaries() == {"i1"}
    made.put(b"\x02", [Provider(boot=b"\x02", instance_id="i2", name="w", capability="c", host="h", weight=2.0)], 1.0)
    assert primaries() == {"i2"}


def candidates(count: int) -> list[Candidate]:
    """Candidates as a user's strategy sees them."""
    made = world([0.01] * count)
    return made.candidates(RouteRequest(capability="c"), 1.0)


def test_a_users_strategy_may_answer_candidate_or_id() -> None:
    """A strategy of one's own answers a candidate or its instance id; anything else is an error that says so."""

    class Last:
        def pick(self, candidates: list[Candidate], request: RouteRequest) -> object:
            return candidates[-1] if request.session is None else request.session

    seen = candidates(3)
    assert choose(Last(), seen, RouteRequest(capability="c")).instance_id == "i2"
    assert choose(Last(), seen, RouteRequest(capability="c", session="i1")).instance_id == "i1"
    with pytest.raises(ConfigError, match="not one of its candidates"):
        choose(Last(), seen, RouteRequest(capability="c", session="elsewhere"))


def test_a_users_strategy_that_raises_is_named() -> None:
    """A strategy that raises becomes a ConfigError with its name and its own error."""

    class Broken:
        def pick(self, candidates: list[Candidate], request: RouteRequest) -> Candidate:
            raise KeyError("no such key")

    with pytest.raises(ConfigError, match="Broken raised KeyError"):
        choose(Broken(), candidates(2), RouteRequest(capability="c"))


def test_a_predicate_that_raises_refuses_that_candidate() -> None:
    """Candidates that a content predicate refuses or fails on are left out, each with its reason."""

    def predicate(candidate: Candidate, metadata: Any) -> bool:
        return bool(1 // (candidate.boot[0] - 1)) if metadata["check"] else True

    reasons = refused(predicate, candidates(3), {"check": True})
    assert "ZeroDivisionError" in reasons[b"\x01"]
    assert b"\x02" not in reasons
    assert refused(predicate, candidates(3), {"check": False}) == {}


@pytest.mark.parametrize("bad", ["fastest", 7, object(), Counter])
def test_bad_strategies_are_refused_early(bad: object) -> None:
    """A strategy option that cannot work is a ConfigError before any call."""
    with pytest.raises(ConfigError):
        check_strategy(bad)
