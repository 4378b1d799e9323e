"""Between a complete request and its handler: the watermark of the queue, and the permits of each capability.

Place in the data path: the callee asks `turned_away` when a request's header is there and `admit` when its arguments are. A call that waits for
a permit waits here, so it occupies no thread, and a cancel takes it out of the line.

A permit is held until the *handler* is over, not the call: a handler that runs on after its caller has gone still takes its place.
Who ends a call before it was claimed (by a cancel, its deadline, a lost link) tells `never_ran`, who ran it `ran`; each delivered
call is told to exactly one of them, since exactly one side gets its ticket.

Invariants: held permits equal running or delivered calls of the capability; `queued` counts the calls that were delivered and not begun,
plus those in line for a permit; nobody waits longer than `PermitConfig.wait`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Literal

import msgspec

from reachmesh.calls.incoming import IncomingCall
from reachmesh.calls.ports import Delivery, Kind
from reachmesh.calls.timers import NEVER
from reachmesh.errors import Backpressure, QuotaExceeded, ReachError
from reachmesh.resilience.adaptive import AdaptiveLimit
from reachmesh.resilience.permits import Grant, PermitConfig, Permits
from reachmesh.resilience.pressure import PressureConfig, admits, level

_ROOM = 5 / 6
"""Part of the share from which on a capability counts as full, under which it has room again; below 1, or the state of the node flutters."""

_SWEEP = 4096
"""Begun calls that are counted in one go."""


class Rule(msgspec.Struct, frozen=True, kw_only=True):
    """What a served capability declares about its calls; see `node.capability`."""

    max_concurrent: int | Literal["auto"] | None = None
    version: str = "1"
    compatible_from: str | None = None
    node_version: str = "1"
    cache_ttl: float | None = None


class Admission:
    """Who may start now."""

    def __init__(self, deliveries: list[Delivery], *, permits: PermitConfig, pressure: PressureConfig) -> None:
        self._deliveries = deliveries
        self._config, self.pressure = permits, pressure
        self._permits: dict[str, Permits] = {}
        self._adaptive: dict[str, AdaptiveLimit] = {}
        self._lines: dict[str, Permits] = {}
        self._full: dict[str, None] = {}
        self._delivered = 0
        self.begun: list[None] = []
        """Handlers' threads append to it as they claim a call (an append is atomic)."""

    def reconfigure(self, permits: PermitConfig, pressure: PressureConfig) -> None:
        """Use other figures from now on; who waits already waits as long as it was to."""
        self._config, self.pressure = permits, pressure
        for each in self._permits.values():
            each.config = permits

    @property
    def queued(self) -> int:
        """Calls accepted and not begun. O(lines)."""
        waiting = sum(each.waiting for each in self._lines.values()) if self._lines else 0
        return self._unbegun() + waiting

    @property
    def pressed(self) -> bool:
        """Whether there may be a backpressure level at all; two comparisons."""
        return bool(self._lines) or self._delivered - len(self.begun) > self.pressure.watermark

    def _unbegun(self) -> int:
        begun = len(self.begun)
        if begun > _SWEEP:
            del self.begun[:begun]
            self._delivered -= begun
            begun = 0
        return self._delivered - begun

    def turned_away(self, call: IncomingCall) -> ReachError | None:
        """Why a call of this priority is not taken now, or None."""
        if self._delivered - len(self.begun) < self.pressure.watermark and not self._lines:
            if len(self.begun) > _SWEEP:
                self._unbegun()
            return None
        queued = self.queued
        if admits(self.pressure, call.priority, queued):
            return None
        return Backpressure(f"{queued} calls wait here; priority {call.priority} is not taken now", retry_after=0.5)

    def admit(self, call: IncomingCall, rule: Rule | None, now: float) -> ReachError | None:
        """A request is complete: it is delivered, or waits in line; else the reason why not."""
        if rule is None or rule.max_concurrent is None:
            self._deliver(call)
            return None
        limit = self._limit(call.capability, rule.max_concurrent)
        permits = self._permits.get(call.capability)
        if permits is None:
            permits = self._permits[call.capability] = Permits(limit, self._config)
        elif permits.limit != limit:
            permits.resize(limit, now)
            self._pass_on(permits)
        call.permits = permits
        grant = permits.acquire(call, now, call.priority)
        if grant is Grant.GRANTED:
            self._deliver(call)
        elif grant is Grant.QUEUED:
            self._lines[call.capability] = permits
        else:
            call.permits = None
            return self._over_quota(call, permits)
        return None

    def _limit(self, capability: str, declared: int | Literal["auto"]) -> int:
        if declared != "auto":
            if self._adaptive:
                self._adaptive.pop(capability, None)
            return declared
        adaptive = self._adaptive.get(capability)
        if adaptive is None:
            adaptive = self._adaptive[capability] = AdaptiveLimit()
        return adaptive.limit

    def resize(self, rule_of: Callable[[str], Rule | None], now: float) -> None:
        """Rules may have changed: who waits under a limit that was raised, or is none any more, goes in."""
        for name, permits in self._lines.items():
            rule = rule_of(name)
            declared = None if rule is None else rule.max_concurrent
            limit = permits.holding + permits.waiting if declared is None else self._limit(name, declared)
            permits.resize(limit, now)
            self._pass_on(permits)

    def _deliver(self, call: IncomingCall) -> None:
        call.delivered = True
        self._delivered += 1
        self._deliveries.append((Kind.REQUEST, call, None))
        if call.early:
            self._deliveries.extend(call.early)
            call.early = None

    def _pass_on(self, permits: Permits) -> None:
        for call in permits.take_granted():
            assert isinstance(call, IncomingCall)
            self._deliver(call)

    def ran(self, call: IncomingCall, now: float) -> None:
        """The handler is over: its permit goes to the next in line."""
        permits, call.permits = call.permits, None
        if permits is not None:
            holding = permits.holding
            held = permits.release(call, now)
            if held is not None and (adaptive := self._adaptive.get(call.capability)) is not None and adaptive.ended(held, holding, now):
                permits.resize(adaptive.limit, now)
            self._pass_on(permits)

    def never_ran(self, call: IncomingCall, now: float) -> None:
        """The call ended before its handler began, and now never will: out of the queue and the line."""
        if call.delivered:
            self.begun.append(None)
        permits, call.permits = call.permits, None
        if permits is not None:
            permits.cancel(call, now)
            self._pass_on(permits)

    def late(self, now: float) -> Iterable[tuple[IncomingCall, ReachError]]:
        """Take those out who waited for a permit for too long."""
        late: list[tuple[IncomingCall, ReachError]] = []
        for name, permits in list(self._lines.items()):
            for call in permits.expire(now):
                assert isinstance(call, IncomingCall)
                call.permits = None
                late.append((call, self._over_quota(call, permits)))
            if not permits.waiting:
                del self._lines[name]
        return late

    def next_timeout(self) -> float:
        """When `late` finds the next one."""
        return min((each.next_timeout() for each in self._lines.values()), default=NEVER) if self._lines else NEVER

    def level(self) -> int:
        """Backpressure level 0-255 that answers carry: of the queue, or of the longest line measured by its permits.

        Example: 4 permits and 24 waiting is a line of 6 rounds: 127; from 10 rounds on 255.
        """
        most = level(self.pressure, self._unbegun())
        for permits in self._lines.values():
            rounds = permits.waiting / permits.limit
            most = max(most, min(255, int(255 * (rounds - 2.0) / 8.0)))
        return most

    def full(self) -> str:
        """Name of a capability most of whose permits are taken, or ""."""
        for name, permits in self._permits.items():
            share, full = permits.holding / permits.limit, permits.config.full_share
            if share >= full:
                self._full[name] = None
            elif share < full * _ROOM:
                self._full.pop(name, None)
        return next(iter(self._full), "")

    @staticmethod
    def _over_quota(call: IncomingCall, permits: Permits) -> ReachError:
        after = permits.retry_after()
        message = f"{call.capability!r} runs {permits.limit} calls at once here, and no place came free"
        return QuotaExceeded(message, hint=f"try again in {after:.2g} s", retry_after=after)
