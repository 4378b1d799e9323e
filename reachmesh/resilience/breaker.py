"""Circuit breaker of one key: the pair of an instance and a capability.

States::

    CLOSED ----- min_calls with share failed, or `consecutive` failures in a row ----> OPEN
    OPEN ------- open_for seconds, doubled with every opening in a row up to open_max ----> HALF_OPEN
    HALF_OPEN -- one probe at a time; `good_probes` successes ----> CLOSED
    HALF_OPEN -- one failure ----> OPEN

Inputs: `started`, `succeeded`, `failed`, `ignored`, `refresh`. `failed` never opens by itself: it answers that the breaker should
open, and the owner of the group decides with `open(ejecting=...)`, because no more than half of a group may be ejected.
An open breaker that does not eject is *held*: it warns those who have a fallback and lets everybody else pass.

Invariants: never asks to open with fewer than `consecutive` failures in a row and fewer than `min_calls` calls in the window;
at most one probe is out in HALF_OPEN; an outcome of a call that began before the half-open phase moves nothing.
"""

from __future__ import annotations

from enum import Enum

import msgspec

_SLOTS = 10


class BreakerConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of a breaker; all times in seconds."""

    window: float = 30.0
    """Sliding window of the failure share, 1 to 600. Short forgets bursts, long keeps ejecting what has recovered."""
    share: float = 0.5
    """Failed share of the window's calls that opens, 0 < share <= 1. Low ejects for noise, high keeps a bad instance."""
    min_calls: int = 20
    """Calls the window must hold before the share counts, >= 1. Few judges on chance, many judges late."""
    consecutive: int = 5
    """Failures in a row that open without a share, >= 1. Catches the dead instance before the window fills."""
    open_for: float = 5.0
    """First opening, > 0. Short probes a dead instance with real calls, long leaves a recovered one idle."""
    open_max: float = 60.0
    """Bound of the doubling, >= open_for."""
    good_probes: int = 3
    """Good answers that close a half-open breaker, >= 1."""


class BreakerState(Enum):
    """What the breaker does with the next call."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class Breaker:
    """See the module for states and invariants. Memory is constant; every method is O(1) but `failed`, which sums ten slots."""

    __slots__ = (
        "_bad",
        "_config",
        "_good",
        "_half_since",
        "_openings",
        "_probe_until",
        "_slot",
        "_streak",
        "_total",
        "_width",
        "ejecting",
        "state",
        "until",
    )

    def __init__(self, config: BreakerConfig) -> None:
        self._config = config
        self._width = config.window / _SLOTS
        self._total = [0] * _SLOTS
        self._bad = [0] * _SLOTS
        self._slot = 0
        self._streak = 0
        self._good = 0
        self._openings = 0
        self._half_since = 0.0
        self._probe_until = 0.0
        self.state = BreakerState.CLOSED
        self.ejecting = False
        self.until = 0.0

    def refresh(self, now: float) -> None:
        """Let time pass: an opening that is over becomes half-open."""
        if self.state is BreakerState.OPEN and now >= self.until:
            self.state = BreakerState.HALF_OPEN
            self._half_since = now
            self._good = 0
            self._probe_until = 0.0

    def wants_probe(self, now: float) -> bool:
        """Whether the next call may be the probe of a half-open breaker. A probe that never ends frees its place after `open_max`."""
        return self.state is BreakerState.HALF_OPEN and now >= self._probe_until

    def next_change(self, now: float) -> float:
        """Instant at which `refresh` or `wants_probe` may answer differently; infinity when only an outcome can change it."""
        if self.state is BreakerState.OPEN:
            return self.until
        if self.state is BreakerState.HALF_OPEN and self._probe_until > now:
            return self._probe_until
        return float("inf")

    def started(self, now: float) -> None:
        """A call goes to this key."""
        if self.state is BreakerState.HALF_OPEN:
            self._probe_until = now + self._config.open_max

    def succeeded(self, began: float, now: float) -> bool:
        """A call that began at `began` went well. Answers whether the breaker closed by it."""
        if self.state is BreakerState.CLOSED:
            slot = int(now / self._width)
            if slot != self._slot:
                self._turn(slot)
            self._total[slot % _SLOTS] += 1
            self._streak = 0
            return False
        if self.state is BreakerState.OPEN or began < self._half_since:
            return False
        self._probe_until = 0.0
        self._good += 1
        if self._good < self._config.good_probes:
            return False
        self._close()
        return True

    def failed(self, began: float, now: float, *, blamed: bool = True) -> bool:
        """A call that began at `began` failed. Answers whether the breaker should open now; the state is left as it was.

        Without `blamed` the caller may have been impatient (its timeout is under what calls usually take): that counts in a row only,
        where one good answer to anybody clears it, and not in the share.
        """
        if self.state is BreakerState.CLOSED and not blamed:
            self._streak += 1
            return self._streak >= self._config.consecutive
        if self.state is BreakerState.CLOSED:
            slot = int(now / self._width)
            if slot != self._slot:
                self._turn(slot)
            self._total[slot % _SLOTS] += 1
            self._bad[slot % _SLOTS] += 1
            self._streak += 1
            if self._streak >= self._config.consecutive:
                return True
            total = sum(self._total)
            return total >= self._config.min_calls and sum(self._bad) >= total * self._config.share
        return self.state is BreakerState.HALF_OPEN and began >= self._half_since

    def ignored(self, began: float) -> None:
        """A call ended in a way that says nothing about the instance; if it was the probe, another may go."""
        if self.state is BreakerState.HALF_OPEN and began >= self._half_since:
            self._probe_until = 0.0

    def open(self, now: float, *, ejecting: bool) -> None:
        """Open for the next period: 5, 10, 20, 40, 60, 60 s with the default figures."""
        period = min(self._config.open_for * 2.0 ** min(self._openings, 30), self._config.open_max)
        self._openings += 1
        self.state = BreakerState.OPEN
        self.ejecting = ejecting
        self.until = now + max(period, 0.0)

    def release(self) -> None:
        """Stop ejecting (the group's half rule), without calling the instance good: the breaker is held from here on."""
        self.ejecting = False

    def describe(self, now: float) -> str:
        """One phrase for `explain`."""
        if self.state is BreakerState.CLOSED:
            return "closed"
        kind = "" if self.ejecting else " (held: half of the group is ejected already, or it is the only one)"
        if self.state is BreakerState.OPEN:
            return f"open for another {max(self.until - now, 0.0):.1f} s{kind}"
        return f"half-open, {self._good} of {self._config.good_probes} good probes{kind}"

    def _close(self) -> None:
        self.state = BreakerState.CLOSED
        self.ejecting = False
        self._streak = self._good = self._openings = 0
        self._total = [0] * _SLOTS
        self._bad = [0] * _SLOTS

    def _turn(self, slot: int) -> None:
        """Forget the slots that time has passed over."""
        passed = slot - self._slot
        if passed >= _SLOTS or passed < 0:
            self._total = [0] * _SLOTS
            self._bad = [0] * _SLOTS
        else:
            for skipped in range(self._slot + 1, slot + 1):
                self._total[skipped % _SLOTS] = 0
                self._bad[skipped % _SLOTS] = 0
        self._slot = slot
