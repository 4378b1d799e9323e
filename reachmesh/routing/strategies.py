"""Strategies: which of several usable instances takes a call.

A built-in one sees the router's own entries, which are already filtered: usable, with room, near enough, and past the draw of the
warm-up ramp. A user's strategy is any object with `pick(candidates, request)`; it runs in the caller, never inside the engine,
through `choose`. The same holds for the content predicate, through `refused`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from reachmesh.errors import ConfigError, shown
from reachmesh.routing.config import Predicate
from reachmesh.routing.entry import Entry
from reachmesh.routing.model import Candidate, RouteRequest

LATENCY_FLOOR = 0.0005
"""Seconds added to every latency before two are compared: differences far below it are noise, not speed."""


class Strategy(Protocol):
    """What a user's strategy has to be."""

    def pick(self, candidates: Sequence[Candidate], request: RouteRequest) -> Candidate:
        """Answer one of the candidates (never empty)."""


class BuiltIn(Protocol):
    """What the router asks of its own strategies; `prior` is the capability's average latency, `current` its last primary."""

    def pick(self, pool: Sequence[Entry], prior: float, now: float) -> Entry:
        """Answer one of the pool (never empty)."""


def cost(entry: Entry, prior: float, now: float) -> float:
    """Peak-EWMA latency x (outstanding + 1) / weight; lower is better."""
    load = (entry.latency.read(prior, now) + LATENCY_FLOOR) * (entry.outstanding + 1) / entry.ease
    return load / entry.success(now) if entry.failing else load


class PowerOfTwo:
    """`p2c`: of two at random the lighter one. Close to the best choice without its herd (Mitzenmacher 2001)."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random

    def pick(self, pool: Sequence[Entry], prior: float, now: float) -> Entry:
        """O(1)."""
        size = len(pool)
        if size == 1:
            return pool[0]
        first = int(self._random() * size)
        second = int(self._random() * (size - 1))
        if second >= first:
            second += 1
        one, other = pool[first], pool[second]
        return one if cost(one, prior, now) <= cost(other, prior, now) else other


class WeightedRandom:
    """`weighted_random`: by declared weight x measured speed x state x successes."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random

    def pick(self, pool: Sequence[Entry], prior: float, now: float) -> Entry:
        """O(n)."""
        shares = [each.ease * each.speed(prior) * each.success(now) for each in pool]
        point = self._random() * sum(shares)
        for each, share in zip(pool, shares, strict=True):
            point -= share
            if point < 0:
                return each
        return pool[-1]


class RoundRobin:
    """`round_robin`: the one whose last turn is longest ago, so that coming and going instances disturb nobody's share."""

    def __init__(self) -> None:
        self._turn = 0

    def pick(self, pool: Sequence[Entry], prior: float, now: float) -> Entry:
        """O(n)."""
        chosen = min(pool, key=_turn)
        self._turn += 1
        chosen.turn = self._turn
        return chosen


class LeastOutstanding:
    """`least_outstanding`: fewest calls out for its weight; among equals a random one."""

    def __init__(self, rng: random.Random) -> None:
        self._random = rng.random

    def pick(self, pool: Sequence[Entry], prior: float, now: float) -> Entry:
        """O(n)."""
        loads = [(each.outstanding + 1) / (each.ease * each.success(now)) for each in pool]
        least = min(loads)
        lightest = [each for each, load in zip(pool, loads, strict=True) if load == least]
        return lightest[int(self._random() * len(lightest))]


class PrimaryBackup:
    """`primary_backup`: the nearest of the heaviest; among equals the one that has it stays while it is usable.

    A weight above the others names the primary, and it gets its place back when it returns. `turn` is not touched: the place is
    kept per capability as the boot that was last chosen.
    """

    def __init__(self) -> None:
        self._places: dict[str, bytes] = {}

    def pick(self, pool: Sequence[Entry], prior: float, now: float) -> Entry:
        """O(n)."""
        capability = pool[0].provider.capability
        current = self._places.get(capability)
        chosen = min(pool, key=lambda each: (-each.weight, each.rank, each.boot != current, each.instance_id))
        self._places[capability] = chosen.boot
        return chosen


STRATEGIES = ("p2c", "weighted_random", "round_robin", "least_outstanding", "primary_backup")
"""Names of the built-in strategies."""


def make_strategies(rng: random.Random) -> dict[str, BuiltIn]:
    """One object per name, for one router."""
    made = (PowerOfTwo(rng), WeightedRandom(rng), RoundRobin(), LeastOutstanding(rng), PrimaryBackup())
    return dict(zip(STRATEGIES, made, strict=True))


def check_strategy(strategy: object) -> None:
    """Raise ConfigError unless it is None, a known name, or an object with a `pick` method."""
    if strategy is None or (isinstance(strategy, str) and strategy in STRATEGIES):
        return
    if isinstance(strategy, str):
        raise ConfigError(
            f"unknown strategy {shown(strategy)}", hint=f"one of {', '.join(STRATEGIES)}, or an object with pick(candidates, request)"
        )
    if isinstance(strategy, type) or not callable(getattr(strategy, "pick", None)):
        raise ConfigError(f"a strategy needs a method pick(candidates, request); {shown(strategy)} has none")


def choose(strategy: Any, candidates: Sequence[Candidate], request: RouteRequest) -> Candidate:
    """Ask a user's strategy. It may answer a candidate or an instance id.

    Raises:
        ConfigError: it raised, or answered something that is not among the candidates. Nothing was executed.
    """
    try:
        answer = strategy.pick(candidates, request)
    except Exception as problem:
        raise ConfigError(f"strategy {type(strategy).__name__} raised {type(problem).__name__}: {shown(problem)}") from problem
    for each in candidates:
        if answer is each or answer == each.instance_id:
            return each
    raise ConfigError(f"strategy {type(strategy).__name__} answered {shown(answer)}, which is not one of its candidates")


def refused(predicate: Predicate, candidates: Sequence[Candidate], metadata: Mapping[str, Any]) -> dict[bytes, str]:
    """Ask a content predicate about each candidate; answers boot and reason of those who may not have the call.

    A predicate that raises about a candidate refuses it: content rules that fail open would send data where it must not go.
    """
    out: dict[bytes, str] = {}
    for each in candidates:
        try:
            if not predicate(each, metadata):
                out[each.boot] = "the content predicate refused it"
        except Exception as problem:
            out[each.boot] = f"the content predicate raised {type(problem).__name__}: {problem}"
    return out


def _turn(entry: Entry) -> int:
    return entry.turn
