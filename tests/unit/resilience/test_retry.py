"""Promises of retries: what is tried again, when, and how many of them a node makes."""

from __future__ import annotations

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reachmesh.errors import (
    BadRequest,
    BreakerOpen,
    Cancelled,
    DeadlineExceeded,
    LoopDetected,
    NoProvider,
    Overloaded,
    PayloadError,
    PeerLost,
    QuotaExceeded,
    ReachError,
    RemoteError,
    SemanticError,
    WorkerCrashed,
)
from reachmesh.resilience.backoff import backoff
from reachmesh.resilience.retry import Retry, RetryConfig, RetryPolicy, RetryThrottle


def classify(error: ReachError, *, idempotent: bool = False, attempt: int = 1, below_retry: bool = False) -> Retry | None:
    """The default policy without jitter."""
    return RetryPolicy().classify(error, idempotent=idempotent, attempt=attempt, below_retry=below_retry)


@pytest.mark.parametrize("error", [PeerLost(executed="no"), QuotaExceeded(), Overloaded(), BreakerOpen()])
def test_what_surely_did_not_run_goes_elsewhere_at_once(error: ReachError) -> None:
    """A retryable error with executed=no is tried on another instance without delay, idempotent or not."""
    assert classify(error) == Retry(0.0, elsewhere=True)


@pytest.mark.parametrize("error", [PeerLost(), Overloaded(executed="yes"), DeadlineExceeded()])
def test_what_may_have_run_is_repeated_only_if_idempotent(error: ReachError) -> None:
    """An error after which the handler may have run is tried again only if declared idempotent, after a back-off."""
    assert classify(error) is None
    assert classify(error, idempotent=True) == Retry(1.0, elsewhere=True)


@pytest.mark.parametrize(
    "error",
    [
        SemanticError(), RemoteError(), BadRequest(), PayloadError(), NoProvider(), Cancelled(), LoopDetected(), WorkerCrashed(),
        SemanticError(retryable=True, executed="no"), ReachError("unknown"),
    ],
)  # fmt: skip
def test_semantic_and_unrecoverable_errors_are_final(error: ReachError) -> None:
    """A handler's own failure and what fails everywhere alike are never tried again."""
    assert classify(error, idempotent=True) is None


def test_timeouts_are_repeated_once() -> None:
    """A timeout is repeated after the first attempt only."""
    assert classify(DeadlineExceeded(), idempotent=True, attempt=1) is not None
    assert classify(DeadlineExceeded(), idempotent=True, attempt=2) is None
    assert classify(DeadlineExceeded(executed="no"), attempt=1) == Retry(0.0, elsewhere=True)


def test_no_retries_below_a_retry() -> None:
    """A call made below one that is itself a retry is not retried."""
    assert classify(PeerLost(executed="no"), below_retry=True) is None


def test_two_retries_are_the_most() -> None:
    """Nothing is tried more than three times, whatever the call asks for; the default is one retry."""
    assert classify(PeerLost(), idempotent=True, attempt=2) == Retry(2.0, elsewhere=True)
    assert classify(PeerLost(executed="no"), attempt=3) is None
    policy = RetryPolicy()
    assert [policy.budget(asked) for asked in (None, 0, 2, 100, -1)] == [1, 0, 2, 2, 0]


def test_delays_vary_by_a_fifth_and_repeat_with_their_seed() -> None:
    """Back-off is 1, 2, 4, 4 s within 20 %, from the injected generator alone."""
    rng = random.Random(5)
    for retry, base in enumerate((1.0, 2.0, 4.0, 4.0)):
        delays = [backoff(retry, rng) for _ in range(200)]
        assert base * 0.8 <= min(delays) < base * 0.9
        assert base * 1.1 < max(delays) <= base * 1.2
    assert backoff(0, random.Random(9)) == backoff(0, random.Random(9))
    first, second = (RetryPolicy(rng=random.Random(2)).classify(PeerLost(), idempotent=True, attempt=1) for _ in range(2))
    assert first == second != Retry(1.0, elsewhere=True)


@given(st.lists(st.tuples(st.sampled_from(["call", "retry"]), st.floats(0.0, 3.0)), max_size=300))
def test_the_throttle_holds_its_bound(steps: list[tuple[str, float]]) -> None:
    """Whenever a retry is allowed, those of the last 9 s are at most max(3, a fifth of the calls of the last 10 s)."""
    throttle, now = RetryThrottle(), 0.0
    calls: list[float] = []
    spent: list[float] = []
    for kind, pause in steps:
        now += pause
        if kind == "call":
            throttle.note_call(now)
            calls.append(now)
        elif throttle.allow(now):
            spent.append(now)
            recent = sum(at > now - 9.0 for at in spent)
            assert recent <= max(3, 0.2 * sum(at > now - 10.0 for at in calls))


def test_a_quiet_node_may_retry_and_a_storm_may_not() -> None:
    """Three retries are free; with every one of 100 calls failing, 20 are made, and the window gives them back."""
    throttle = RetryThrottle()
    assert [throttle.allow(0.0) for _ in range(4)] == [True, True, True, False]
    throttle = RetryThrottle()
    for _ in range(100):
        throttle.note_call(1.0)
    assert sum(throttle.allow(1.0) for _ in range(100)) == 20
    assert throttle.refused == 80
    assert throttle.allow(12.0)


def test_throttle_figures_are_settings() -> None:
    """Share and floor come from the configuration."""
    throttle = RetryThrottle(RetryConfig(share=0.0, floor=0))
    throttle.note_call(0.0)
    assert not throttle.allow(0.0)
