"""All instances of one capability, and the plans: cached answers to "who may take calls with this filter".

A plan is built from the filter, the states and the breakers; it stays valid until the index, a breaker or a ramp changes, so a
call pays for none of that. What changes with every call (outstanding windows) is looked at when picking.

Order of the sieve (R1): filter by version, tags, target -> state -> weight above 0 -> breaker -> suspicion, and then:

* panic: when less than `panic_share` of those alive are left, open breakers are ignored, for a call that names no target;
* last resort: when nobody is left, the suspected are asked, since a node that hears nobody should suspect itself first;
* never more than half of the instances are ejected by breakers: `may_eject` and `settle_ejections` keep that.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from reachmesh.resilience.breaker import BreakerState
from reachmesh.routing.config import RoutingConfig
from reachmesh.routing.entry import Entry
from reachmesh.routing.versions import accepts, share_of

_PLANS = 256
_NEVER = float("inf")


class Filter(NamedTuple):
    """The part of a request that a plan depends on; hashable."""

    version: str | None
    share: str | None
    """Version drawn from `shares`; None = elsewhere. Only meaningful with `shares`."""
    shares: tuple[str, ...] | None
    """Names of the versions that have shares, or None."""
    tags: tuple[tuple[str, Any], ...] | None
    target: str | bytes | None
    shadow: bool


PLAIN = Filter(None, None, None, None, None, False)


class Plan(NamedTuple):
    """Who may take calls under one filter, in order of distance."""

    matched: tuple[Entry, ...]
    usable: tuple[Entry, ...]
    tiers: tuple[tuple[Entry, ...], ...]
    """`usable` by distance: zone and host, zone only, elsewhere."""
    sole: Entry | None
    probing: Entry | None
    """One whose half-open breaker waits for a probe."""
    warming: bool
    tripped: bool
    """Some breaker of the usable is not closed (held ones too)."""
    degraded: bool
    """Nobody was usable in the proper sense: panic or last resort."""


class Group:
    """Entries of one capability by boot, ordered by instance id."""

    def __init__(self, capability: str, config: RoutingConfig) -> None:
        self.capability = capability
        self._config = config
        self.entries: dict[bytes, Entry] = {}
        self.latency = 0.0
        """Average latency of good answers in seconds; 0 while there is none."""
        self.samples = 0
        self.timeout: float | None = None
        """Longest declared timeout, or None."""
        self.plain: Plan | None = None
        self._plans: dict[Filter, Plan] = {}
        self.stale_at = _NEVER

    def touch(self) -> None:
        """Something plans depend on has changed."""
        self.plain = None
        self._plans.clear()

    def reconfigure(self, config: RoutingConfig) -> None:
        """Use other figures from the next plan on."""
        self._config = config
        self.touch()

    def put(self, entry: Entry) -> None:
        """Add an entry, keeping the order by instance id."""
        self.entries[entry.boot] = entry
        self.entries = dict(sorted(self.entries.items(), key=lambda item: item[1].instance_id))
        self.touch()

    def refresh(self, now: float) -> None:
        """Let time pass: breakers become half-open, ramps end."""
        for each in self.entries.values():
            each.breaker.refresh(now)
        self.touch()
        self._reckon(now)

    def plan(self, wanted: Filter, now: float) -> Plan:
        """The plan for a filter, cached."""
        if wanted is PLAIN:
            if self.plain is None:
                self.plain = self._build(PLAIN, now)
            return self.plain
        found = self._plans.get(wanted)
        if found is None:
            if len(self._plans) >= _PLANS:
                self._plans.clear()
            found = self._plans[wanted] = self._build(wanted, now)
        return found

    def ejected(self) -> list[Entry]:
        """Entries that a breaker ejects, half-open ones included."""
        return [each for each in self.entries.values() if each.breaker.ejecting]

    def may_eject(self, entry: Entry) -> bool:
        """Whether ejecting `entry` leaves at least half of the routable instances in."""
        routable = sum(1 for each in self.entries.values() if each.live())
        others = sum(1 for each in self.ejected() if each is not entry and each.live())
        return others + 1 <= routable // 2

    def settle_ejections(self) -> list[Entry]:
        """After a change of who is there: release the ejections that are over half, the last opened first. Answers the released."""
        routable = sum(1 for each in self.entries.values() if each.live())
        ejected = sorted((each for each in self.ejected() if each.live()), key=lambda each: each.breaker.until)
        released = ejected[routable // 2 :]
        for each in released:
            each.breaker.release()
        return released

    def matches(self, entry: Entry, wanted: Filter) -> str:
        """Empty when `entry` passes the filter, else the reason one can read; reasons of versions begin with "version"."""
        provider = entry.provider
        if wanted.target is not None and wanted.target not in (provider.boot, provider.instance_id, provider.name):
            return "not the target asked for"
        tags = wanted.tags or ()
        for key, value in tags:
            if not _tag_matches(provider.tags.get(key, provider.zone if key == "zone" else None), value):
                return f"tag {key} is {provider.tags.get(key)!r}, not {value!r}"
        hidden = is_shadow(provider.tags) and wanted.target is None and not any(key == "shadow" for key, _ in tags)
        if hidden and not wanted.shadow:
            return "a shadow instance: takes shadow calls only"
        if wanted.version is not None and not accepts(
            wanted.version, version=provider.version, compatible_from=provider.compatible_from, node_version=provider.node_version
        ):
            lowest = provider.compatible_from or provider.version
            return f"version {wanted.version} asked, {lowest} to {provider.version} offered" + f" (node version {provider.node_version})"
        if wanted.shares is not None:
            share = share_of(dict.fromkeys(wanted.shares, 1.0), version=provider.version, node_version=provider.node_version)
            if share != wanted.share:
                return f"version share {share or 'elsewhere'}, not {wanted.share or 'elsewhere'}"
        return ""

    def _build(self, wanted: Filter, now: float) -> Plan:
        config = self._config
        matched = [each for each in self.entries.values() if not self.matches(each, wanted)]
        if wanted.shadow:
            matched = [each for each in matched if is_shadow(each.provider.tags)] or matched
        alive = [each for each in matched if each.live()]
        alive = [each for each in alive if each.weight > 0] or alive
        sure = [each for each in alive if not each.provider.suspected]
        clean = [each for each in sure if not each.breaker.ejecting or each.breaker.wants_probe(now)]
        usable, degraded = clean, not clean
        if len(clean) < len(sure) * config.panic_share and wanted.target is None:
            usable, degraded = sure, True
        if not sure:
            usable, degraded = alive, True
        usable = sorted(usable, key=lambda each: (each.rank, each.instance_id))
        ranks = sorted({each.rank for each in usable})
        tiers = tuple(tuple(each for each in usable if each.rank == rank) for rank in ranks)
        warming = len(usable) > 1 and any(now < each.warm_at for each in usable)
        for each in usable:
            each.roomy = each.provider.state == "HEALTHY" and each.provider.backpressure < 128 and (now >= each.warm_at or not warming)
        tripped = any(each.breaker.state is not BreakerState.CLOSED for each in usable)
        probing = next((each for each in usable if each.breaker.ejecting and each.breaker.wants_probe(now)), None)
        sole = usable[0] if len(usable) == 1 and not tripped and not degraded else None
        self._reckon(now)
        return Plan(tuple(matched), tuple(usable), tiers, sole, probing, warming, tripped, degraded)

    def _reckon(self, now: float) -> None:
        """Find the next instant at which a plan may change by time alone."""
        nearest = _NEVER
        for each in self.entries.values():
            nearest = min(nearest, each.breaker.next_change(now), each.warm_at if each.warm_at > now else _NEVER)
        self.stale_at = nearest


def is_shadow(tags: Mapping[str, Any]) -> bool:
    """Whether an instance is tagged to take shadow calls only."""
    return str(tags.get("shadow", "")).lower() in ("1", "true", "yes")


def freeze_tags(tags: Mapping[str, Any]) -> tuple[tuple[str, Any], ...]:
    """Tags as a hashable key."""
    return tuple(
        (key, tuple(map(str, value)) if isinstance(value, list | tuple | set | frozenset) else str(value))
        for key, value in sorted(tags.items())
    )


def _tag_matches(has: Any, wanted: Any) -> bool:
    if has is None:
        return False
    return str(has) in wanted if isinstance(wanted, tuple) else str(has) == wanted
