"""The router: from a request to the one instance that takes it.

Inputs: `put` and `remove` feed the index from membership; `started` and `finished` tell of each attempt. Outputs: `pick` and its
relatives answer at once; `take_events` hands over what happened (session_moved, breaker_opened, breaker_closed).

One order of decisions, the same for call, submit, stream and channel: filter -> state -> breaker (`group.py`) -> tried before ->
distance -> outstanding window -> probe -> session -> ramp -> strategy. The window comes before the session because a full instance
is not usable while another is not; the ramp comes before the strategy so that every strategy honours it.

Invariants: `pick` never answers an instance that does not match; it answers NoPick only when nobody may take the call; each
attempt is counted by exactly one `finished`. Users' objects (strategy, predicate) are never called here: `candidates` is for them.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Mapping, Sequence

import msgspec

from reachmesh.errors import ConfigError
from reachmesh.resilience.breaker import BreakerState
from reachmesh.resilience.limiter import UNLIMITED
from reachmesh.routing.config import RoutingConfig
from reachmesh.routing.entry import Entry
from reachmesh.routing.explain import explain_nobody, explain_unusable, verdicts
from reachmesh.routing.group import PLAIN, Filter, Group, Plan, freeze_tags
from reachmesh.routing.model import Candidate, NoPick, Outcome, Provider, RouteEvent, RouteRequest, Verdict
from reachmesh.routing.sessions import Sessions, point, rendezvous
from reachmesh.routing.strategies import BuiltIn, make_strategies
from reachmesh.routing.versions import draw_share

_HIGH_PRIORITY = 50
_LOW_PRIORITY = 151
_AVERAGE_STEP = 0.05
_KNOWN_AFTER = 5
_EVENTS = 1_000


class Router:
    """Capability index and pick of one node. Not thread-safe: the engine's lock is around it."""

    def __init__(self, config: RoutingConfig, rng: random.Random, *, zone: str | None, host: str, now: float) -> None:
        self._config = config
        self._rng = rng
        self._zone = zone
        self._host = host
        self._began = now
        self._groups: dict[str, Group] = {}
        self._offers: dict[bytes, tuple[Provider, ...]] = {}
        self._strategies = make_strategies(rng)
        self._steady = (self._strategies["round_robin"], self._strategies["primary_backup"])
        """Strategies whose order a probe must not break; they meet the half-open instance by themselves."""
        if config.strategy not in self._strategies:
            raise ConfigError(f"unknown strategy {config.strategy!r}")
        self._default = self._strategies[config.strategy]
        self._sessions = Sessions(config.session_memory)
        self._events: list[RouteEvent] = []
        self.fallback_count = 0
        """Times nobody was usable in the proper sense: picks that failed, or went by panic or last resort."""

    # index

    def put(self, boot: bytes, providers: Sequence[Provider], now: float) -> None:
        """Set what an instance offers, all of it; measurements of what it offered before stay. Cheap when nothing changed."""
        offered = tuple(providers)
        before = self._offers.get(boot)
        if before == offered:
            return
        self._offers[boot] = offered
        names = {each.capability for each in offered}
        for gone in [each.capability for each in before or () if each.capability not in names]:
            self._drop(boot, gone, now)
        for provider in offered:
            group = self._groups.get(provider.capability)
            if group is None:
                group = self._groups[provider.capability] = Group(provider.capability, self._config)
            entry = group.entries.get(boot)
            if entry is None:
                settled = provider.since - self._began <= self._config.founding
                group.put(Entry(provider, self._config, rank=self._rank(provider), settled=settled))
            elif entry.provider != provider:
                entry.update(provider)
                entry.rank = self._rank(provider)
            else:
                continue
            self._rebalance(group, now)

    def remove(self, boot: bytes, now: float) -> None:
        """Forget an instance and all that was measured of it."""
        for provider in self._offers.pop(boot, ()):
            self._drop(boot, provider.capability, now)

    def capabilities(self) -> list[str]:
        """Names somebody offers, in order."""
        return sorted(self._groups)

    def declared_timeout(self, capability: str) -> float | None:
        """Longest timeout that its providers declare. May be read without the engine's seat."""
        group = self._groups.get(capability)
        return None if group is None else group.timeout

    def providers(self, capability: str) -> list[Provider]:
        """Everybody who offers it, whatever their state, by instance id."""
        group = self._groups.get(capability)
        return [each.provider for each in group.entries.values()] if group else []

    def ready(self, capability: str, now: float) -> list[Provider]:
        """Those who take calls now, whatever a call asks for beside the capability: well, not suspected, their breakers closed."""
        group = self._groups.get(capability)
        if group is None:
            return []
        if now >= group.stale_at:
            group.refresh(now)
        return [
            each.provider
            for each in group.entries.values()
            if each.live() and not each.provider.suspected and (not each.breaker.ejecting or each.breaker.wants_probe(now))
        ]

    # pick

    def pick(self, request: RouteRequest, now: float, exclude: Collection[bytes] = ()) -> Provider | NoPick:
        """The instance that takes the next attempt of a call; `exclude` holds the boots not to ask again.

        A strategy that is an object counts as the default one here. O(1) for a lone provider, O(n) otherwise.

        Raises:
            ConfigError: the strategy's name is unknown.
        """
        group = self._groups.get(request.capability)
        if group is None:
            self.fallback_count += 1
            return explain_nobody(request, self._groups)
        if now >= group.stale_at:
            group.refresh(now)
        if request.version is None and request.tags is None and request.target is None and not request.shadow:
            plan = group.plain or group.plan(PLAIN, now)
        else:
            plan = self._plan(group, request, now)
        sole = plan.sole
        if (
            sole is not None
            and not exclude
            and request.session is None
            and (request.priority < _LOW_PRIORITY or sole.outstanding < sole.slow)
        ):
            return sole.provider
        return self._pick_from(group, plan, request, now, exclude)

    def pick_all(self, request: RouteRequest, now: float) -> list[Provider]:
        """Every usable instance that matches, for `all`: weights, windows and sessions do not matter. Empty when nobody is."""
        group = self._groups.get(request.capability)
        if group is None:
            return []
        if now >= group.stale_at:
            group.refresh(now)
        plan = group.plan(_filter(request), now)
        alive = [each for each in plan.matched if each.live() and not each.provider.suspected and not each.breaker.ejecting]
        return [each.provider for each in alive or plan.usable]

    def candidates(self, request: RouteRequest, now: float, exclude: Collection[bytes] = ()) -> list[Candidate]:
        """Usable instances with room, for a strategy or predicate of the user's own; empty when `pick` would refuse.

        The caller asks its objects outside the engine's lock, then picks with the chosen boot as target.
        """
        group = self._groups.get(request.capability)
        if group is None:
            return []
        if now >= group.stale_at:
            group.refresh(now)
        usable = [each for each in self._plan(group, request, now).usable if each.boot not in exclude]
        if request.fail_fast:
            usable = _obeying(usable, now)
        free = [each for each in usable if each.outstanding < each.window]
        return [
            Candidate(
                provider=each.provider,
                outstanding=each.outstanding,
                latency=each.latency.read(group.latency, now),
                share=each.ease * each.speed(group.latency) * each.success(now) * (each.warm(now) if len(usable) > 1 else 1.0),
                full=not free,
            )
            for each in free or usable
        ]

    def explain(self, request: RouteRequest, now: float) -> list[Verdict]:
        """Each instance that offers the capability, whether it may take this call now, why, and the factors of its share."""
        group = self._groups.get(request.capability)
        if group is None:
            return []
        group.refresh(now)
        return verdicts(group, group.plan(_filter(request), now), _filter(request), now)

    # attempts

    def started(self, boot: bytes, capability: str, now: float) -> None:
        """An attempt goes to an instance."""
        group = self._groups.get(capability)
        entry = group.entries.get(boot) if group is not None else None
        if entry is None or group is None:
            return
        entry.outstanding += 1
        if entry.breaker.state is BreakerState.HALF_OPEN:
            entry.breaker.started(now)
            group.touch()

    def finished(self, boot: bytes, capability: str, outcome: Outcome, latency: float, backpressure: int, now: float) -> None:
        """An attempt ended: `latency` seconds after it started, with the `backpressure` level (0-255) of its answer, 0 without one."""
        group = self._groups.get(capability)
        entry = group.entries.get(boot) if group is not None else None
        if entry is None or group is None:
            return
        if entry.outstanding > 0:
            entry.outstanding -= 1
        if (backpressure or entry.slow != UNLIMITED) and entry.press(backpressure, now):
            group.touch()
        blamed = outcome is not Outcome.TIMEOUT or self._long_enough(group, latency)
        if outcome is Outcome.OK:
            entry.observe(latency, now)
            group.samples += 1
            group.latency = group.latency + _AVERAGE_STEP * (latency - group.latency) if group.latency else latency
            if entry.failing:
                entry.note_success()
            if entry.breaker.succeeded(now - latency, now):
                self._note("breaker_closed", entry, capability, "enough good probes", now)
                group.touch()
            elif entry.breaker.state is not BreakerState.CLOSED:
                group.touch()
        elif outcome is Outcome.REFUSED:
            self._weigh_failure(group, entry, latency, now)
            if entry.breaker.state is not BreakerState.CLOSED:
                entry.breaker.ignored(now - latency)
                group.touch()
        elif outcome is Outcome.IGNORED or (outcome is Outcome.TIMEOUT and latency < self._config.timeout_counts_after and not blamed):
            if entry.breaker.state is not BreakerState.CLOSED:
                entry.breaker.ignored(now - latency)
                group.touch()
        else:
            self._failed(group, entry, outcome, latency, now, blamed=blamed)

    @property
    def has_events(self) -> bool:
        """Whether `take_events` has something to give."""
        return bool(self._events)

    def take_events(self) -> list[RouteEvent]:
        """Hand over what happened since the last time; at most the newest 1,000."""
        events, self._events = self._events, []
        return events

    # inside

    def _pick_from(self, group: Group, plan: Plan, request: RouteRequest, now: float, exclude: Collection[bytes]) -> Provider | NoPick:
        usable: Sequence[Entry] = plan.usable
        if request.fail_fast and (plan.tripped or plan.degraded):
            usable = _obeying(usable, now)
            plan = plan._replace(usable=tuple(usable), tiers=(tuple(usable),))
        pool = self._with_room(plan, exclude)
        if not pool:
            pool = [each for each in usable if each.boot not in exclude]
            if not pool:
                self.fallback_count += not usable
                return explain_unusable(request, group, plan, usable, now)
            if request.priority >= _LOW_PRIORITY and all(each.outstanding >= each.slow for each in pool):
                self.fallback_count += 1
                return NoPick(kind="backpressure", message=f"every instance of {group.capability} asks to slow down", retry_after=0.2)
        self.fallback_count += plan.degraded
        if request.session is not None:
            return self._stay(group, plan, request.session, pool, exclude, now).provider
        if len(pool) == 1:
            return pool[0].provider
        strategy = self._default if request.strategy is None else self._strategy(request.strategy)
        if plan.probing is not None and request.priority > _HIGH_PRIORITY and plan.probing in pool and strategy not in self._steady:
            return plan.probing.provider
        if plan.warming:
            pool = self._ramp(pool, now)
        return strategy.pick(pool, group.latency, now).provider

    def _strategy(self, wanted: object) -> BuiltIn:
        if not isinstance(wanted, str):
            return self._default
        found = self._strategies.get(wanted)
        if found is None:
            raise ConfigError(f"unknown strategy {wanted!r}", hint=f"one of {', '.join(self._strategies)}")
        return found

    def _with_room(self, plan: Plan, exclude: Collection[bytes]) -> Sequence[Entry]:
        """Instances with room, from the nearest tier on until one of them is truly free; empty when all are full."""
        spill = self._config.spill_outstanding
        pool: list[Entry] = []
        for tier in plan.tiers:
            if exclude:
                pool += [each for each in tier if each.outstanding < each.window and each.boot not in exclude]
            else:
                pool += [each for each in tier if each.outstanding < each.window]
            if tier is not plan.tiers[-1] and any(each.roomy and each.outstanding < spill for each in pool):
                return pool
        return pool

    def _ramp(self, pool: Sequence[Entry], now: float) -> Sequence[Entry]:
        """Let each new instance take part with the probability of its ramp; all of them when that leaves nobody."""
        draw = self._rng.random
        return [each for each in pool if now >= each.warm_at or draw() < each.warm(now)] or pool

    def _stay(self, group: Group, plan: Plan, session: str, pool: Sequence[Entry], exclude: Collection[bytes], now: float) -> Entry:
        """The session's instance while it is usable, else the winner of the hash, with an event."""
        home = self._sessions.home(group.capability, session)
        if home is None:
            chosen = rendezvous(session, pool)
            self._sessions.settle(group.capability, session, chosen.boot)
            return chosen
        entry = group.entries.get(home)
        if entry is not None and entry in plan.usable and (entry.outstanding < entry.window or entry in pool) and home not in exclude:
            return entry
        chosen = rendezvous(session, pool)
        if home not in exclude or entry is None:
            self._sessions.settle(group.capability, session, chosen.boot)
            why = "is gone" if entry is None else "is full" if entry in plan.usable else "is not usable"
            self._note("session_moved", chosen, group.capability, f"session {session[:64]!r}: its instance {why}", now)
        return chosen

    def _plan(self, group: Group, request: RouteRequest, now: float) -> Plan:
        wanted = _filter(request)
        if not isinstance(request.version, Mapping):
            return group.plan(wanted, now)
        names = tuple(request.version)
        wanted = wanted._replace(shares=names)
        elsewhere = group.plan(wanted, now)
        where = point(request.session, b"share") if request.session is not None else self._rng.random()
        drawn = draw_share(request.version, where, elsewhere=bool(elsewhere.usable))
        plan = elsewhere if drawn is None else group.plan(wanted._replace(share=drawn), now)
        return plan if plan.usable else group.plan(wanted._replace(shares=None), now)

    def _failed(self, group: Group, entry: Entry, outcome: Outcome, latency: float, now: float, *, blamed: bool) -> None:
        if blamed:
            self._weigh_failure(group, entry, latency, now)
        closed = entry.breaker.state is BreakerState.CLOSED
        if entry.breaker.failed(now - latency, now, blamed=blamed):
            ejecting = entry.breaker.ejecting or group.may_eject(entry)
            was_ejecting = entry.breaker.ejecting
            entry.breaker.open(now, ejecting=ejecting)
            if ejecting and not was_ejecting:
                self._note("breaker_opened", entry, group.capability, f"too many failures, the last one {outcome.value}", now)
            group.touch()
        elif not closed:
            group.touch()

    @staticmethod
    def _weigh_failure(group: Group, entry: Entry, latency: float, now: float) -> None:
        entry.note_failure(now)
        # A failure that came fast must not look attractive: it counts as an answer no better than the average.
        entry.latency.observe(max(latency, group.latency, entry.latency.value), now)

    def _long_enough(self, group: Group, waited: float) -> bool:
        """Whether a caller's timeout blames the instance: it waited longer than the capability usually takes.

        One that did not counts in a row only, and not at all under `timeout_counts_after`.
        """
        if group.samples >= _KNOWN_AFTER:
            return waited >= 1.5 * group.latency
        return waited >= self._config.timeout_counts_after

    def _drop(self, boot: bytes, capability: str, now: float) -> None:
        group = self._groups.get(capability)
        if group is None or group.entries.pop(boot, None) is None:
            return
        if not group.entries:
            del self._groups[capability]
            return
        self._rebalance(group, now)

    def _rebalance(self, group: Group, now: float) -> None:
        """After a change of who is there: plans anew, ejections within the half rule."""
        group.timeout = max((each.provider.timeout or 0.0 for each in group.entries.values()), default=0.0) or None
        for each in group.settle_ejections():
            self._note("breaker_closed", each, group.capability, "released: no more than half may be ejected", now)
        group.touch()
        group.stale_at = now

    def _rank(self, provider: Provider) -> int:
        far_zone = self._zone is not None and provider.zone != self._zone
        far_host = self._config.prefer_host and provider.host != self._host
        return 2 * far_zone + far_host

    def _note(self, kind: str, entry: Entry, capability: str, reason: str, now: float) -> None:
        event = RouteEvent(kind=kind, boot=entry.boot, instance_id=entry.instance_id, capability=capability, reason=reason, at=now)  # type: ignore[arg-type]
        self._events.append(event)
        if len(self._events) > _EVENTS:
            del self._events[0]

    def reconfigure(self, **changes: object) -> None:
        """Change figures at run time; strategy, ramps, spill-over and shares apply to the next pick, breakers keep their own."""
        config = msgspec.structs.replace(self._config, **changes)
        if config.strategy not in self._strategies:
            raise ConfigError(f"unknown strategy {config.strategy!r}")
        self._config = config
        self._default = self._strategies[config.strategy]
        for group in self._groups.values():
            group.reconfigure(config)


def _filter(request: RouteRequest) -> Filter:
    if request.version is None and request.tags is None and request.target is None and not request.shadow:
        return PLAIN
    tags = freeze_tags(request.tags) if request.tags else None
    version = request.version if isinstance(request.version, str) else None
    return Filter(version, None, None, tags, request.target, request.shadow)


def _obeying(entries: Sequence[Entry], now: float) -> list[Entry]:
    """Those whose breaker lets a call through that has a fallback: closed, or half-open and waiting for a probe."""
    return [each for each in entries if each.breaker.state is BreakerState.CLOSED or each.breaker.wants_probe(now)]
