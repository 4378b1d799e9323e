"""Whether a failed attempt is tried again (policy) and whether this node may afford it (throttle).

Classification, delay and execution are three things: `RetryPolicy.classify` says if, when and where; `RetryThrottle.allow` says whether
the node's share of retries and hedges is used up; the caller's engine does it, inside the call's own budget and deadline.

What ran is not run again unless the capability is declared idempotent. A handler's own failure is an answer, not a fault of the
instance, and is never tried again. A call below one that is itself a retry is not retried: in a chain of three hops each level's
retries would multiply otherwise.
"""

from __future__ import annotations

import random

import msgspec

from reachmesh.errors import (
    AccessDenied,
    BadRequest,
    Cancelled,
    DeadlineExceeded,
    LoopDetected,
    NoProvider,
    PayloadError,
    ProtocolError,
    ReachError,
    RemoteError,
    SemanticError,
    UsageError,
    VersionMismatch,
    WorkerCrashed,
)
from reachmesh.resilience.backoff import JITTER, LADDER, backoff

_NEVER = (
    SemanticError,
    RemoteError,
    WorkerCrashed,
    BadRequest,
    PayloadError,
    NoProvider,
    Cancelled,
    LoopDetected,
    AccessDenied,
    VersionMismatch,
    ProtocolError,
    UsageError,
)
"""Semantic and unrecoverable errors: another try gives the same, or does harm (a request that kills workers)."""

_SLOTS = 10


class RetryConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of retries; times in seconds."""

    budget: int = 1
    """Retries of one call that does not say `retries=`, 0 to `cap`."""
    cap: int = 2
    """Most retries of one call, whatever it says, >= 0. Each further one rarely helps and always loads."""
    delays: tuple[float, ...] = LADDER
    """Back-off before the first, second, ... retry of a call that may have run."""
    jitter: float = JITTER
    """Part by which a delay varies."""
    share: float = 0.2
    """Retries and hedges as part of the calls in `window`, 0 to 1. Low gives up on single losses, high feeds a storm."""
    window: float = 10.0
    """Sliding window of the throttle, > 0."""
    floor: int = 3
    """Retries in `window` that are always allowed, >= 0, so that a quiet node can retry at all."""


class Retry(msgspec.Struct, frozen=True):
    """Try again after `delay` seconds, on another instance when `elsewhere`."""

    delay: float
    elsewhere: bool


class RetryPolicy:
    """Says whether an error is worth another attempt. Without an `rng` delays have no jitter."""

    def __init__(self, config: RetryConfig | None = None, rng: random.Random | None = None) -> None:
        self.config = config or RetryConfig()
        self._rng = rng

    def budget(self, asked: int | None) -> int:
        """Retries a call gets: what it asks for within 0 and the cap, else the default."""
        return self.config.budget if asked is None else max(0, min(asked, self.config.cap))

    def classify(self, error: ReachError, *, idempotent: bool, attempt: int, below_retry: bool = False) -> Retry | None:
        """Classify the error of attempt number `attempt` (1 = the first); None = do not try again.

        Surely not executed and retryable: elsewhere, at once. May have run: only if idempotent, elsewhere, after a back-off.
        Timeout: only if idempotent (or surely not started) and only the first attempt's.
        """
        if below_retry or attempt > self.config.cap or isinstance(error, _NEVER):
            return None
        if isinstance(error, DeadlineExceeded):
            if attempt > 1:
                return None
        elif not error.retryable:
            return None
        if error.executed == "no":
            return Retry(0.0, elsewhere=True)
        if not idempotent:
            return None
        return Retry(backoff(attempt - 1, self._rng, ladder=self.config.delays, jitter=self.config.jitter), elsewhere=True)


class RetryThrottle:
    """Bound on the retries and hedges of one node: `share` of its calls in the window, at least `floor`.

    Invariant: at every `allow` that answers True, those allowed within the window are at most max(floor, share x calls within it).
    Memory is ten pairs of counters; each method is O(1), `allow` sums ten slots.
    """

    __slots__ = ("_calls", "_slot", "_spent", "_width", "config", "refused")

    def __init__(self, config: RetryConfig | None = None) -> None:
        self.config = config or RetryConfig()
        self._width = self.config.window / _SLOTS
        self._calls = [0] * _SLOTS
        self._spent = [0] * _SLOTS
        self._slot = 0
        self.refused = 0
        """Retries and hedges that were not made for it."""

    def reconfigure(self, config: RetryConfig) -> None:
        """Use another share and floor; the window stays, and what is in it."""
        self.config = msgspec.structs.replace(config, window=self.config.window)

    def note_call(self, now: float) -> None:
        """A call begins (not an attempt)."""
        slot = int(now / self._width)
        if slot != self._slot:
            self._turn(slot)
        self._calls[slot % _SLOTS] += 1

    def allow(self, now: float) -> bool:
        """Whether one more retry or hedge may be made now; it is counted when it may."""
        slot = int(now / self._width)
        if slot != self._slot:
            self._turn(slot)
        if sum(self._spent) + 1 > max(self.config.floor, self.config.share * sum(self._calls)):
            self.refused += 1
            return False
        self._spent[slot % _SLOTS] += 1
        return True

    def _turn(self, slot: int) -> None:
        """Forget the slots that time has passed over."""
        passed = slot - self._slot
        if passed >= _SLOTS or passed < 0:
            self._calls, self._spent = [0] * _SLOTS, [0] * _SLOTS
        else:
            for skipped in range(self._slot + 1, slot + 1):
                self._calls[skipped % _SLOTS] = self._spent[skipped % _SLOTS] = 0
        self._slot = slot
