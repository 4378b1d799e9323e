"""Why an instance was or was not taken, in words and factors (`node.explain`), and why nobody was (`NoPick`)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from difflib import get_close_matches

from reachmesh.routing.entry import Entry
from reachmesh.routing.group import Filter, Group, Plan
from reachmesh.routing.model import NoPick, NoPickKind, RouteRequest, Verdict

_NAMES = 5_000
_SIMILAR = 64
_COMPARED = 64
_SHOWN = 5


def explain_nobody(request: RouteRequest, capabilities: Iterable[str]) -> NoPick:
    """Nobody offers the capability at all. O(names), at most 5,000 of them; similar ones are looked for among 64."""
    names = [name for name, _ in zip(capabilities, range(_NAMES), strict=False)]
    near = tuple(get_close_matches(request.capability[:_COMPARED], _comparable(request.capability, names), n=3, cutoff=0.6))
    if near:
        hint = f"did you mean {' or '.join(map(repr, near))}? `reachmesh-inspect caps` lists what the mesh offers"
    elif names:
        hint = "`reachmesh-inspect caps` lists what the mesh offers"
    else:
        hint = (
            "no peer offers anything yet; `reachmesh-inspect caps` lists what the mesh offers, `reachmesh-inspect doctor` checks discovery"
        )
    message = f"nobody offers {request.capability!r}"
    if names:
        seen = sorted(names)
        message += f"; seen: {', '.join(seen[:_SHOWN])}" + (f" and {len(seen) - _SHOWN} more" if len(seen) > _SHOWN else "")
    return NoPick(kind="none", message=message, hint=hint, near=near)


def _comparable(wanted: str, names: Sequence[str]) -> list[str]:
    """The names worth a comparison, which costs up to a millisecond each: of about the same length, most promising first."""
    low, high = len(wanted) * 0.5 - 2, min(len(wanted) * 2 + 2, _COMPARED)
    fitting = [name for name in names if low <= len(name) <= high]
    return sorted(fitting, key=lambda name: (name[:3] != wanted[:3], abs(len(name) - len(wanted)), name))[:_SIMILAR]


def explain_unusable(request: RouteRequest, group: Group, plan: Plan, usable: Sequence[Entry], now: float) -> NoPick:
    """Somebody offers the capability and nobody may take this call."""
    name = group.capability
    hint = f"`reachmesh-inspect caps` shows who offers {name!r}, node.explain({name!r}) why each is not taken"
    if usable:
        tried = ", ".join(each.instance_id for each in usable[:_SHOWN])
        return NoPick(kind="excluded", message=f"every usable instance of {name!r} was tried already: {tried}", hint=hint)
    kind: NoPickKind
    if not plan.matched:
        wanted = Filter(request.version if isinstance(request.version, str) else None, None, None, None, None, request.shadow)
        reasons = [group.matches(each, wanted) for each in group.entries.values()]
        kind = "version" if reasons and all(reason.startswith("version") for reason in reasons) else "no_match"
        asked = _asked(request)
        offers = "; ".join(
            f"{each.instance_id}: {reason or 'tags or target'}"
            for each, reason in zip(list(group.entries.values())[:_SHOWN], reasons, strict=False)
        )
        return NoPick(kind=kind, message=f"{len(group.entries)} instance(s) offer {name!r}, none with {asked} ({offers})", hint=hint)
    alive = [each for each in plan.matched if each.live()]
    if not alive:
        states = ", ".join(f"{each.instance_id} is {each.provider.state}" for each in plan.matched[:_SHOWN])
        return NoPick(kind="suspended", message=f"no instance of {name!r} takes calls: {states}", hint=hint)
    opened = ", ".join(f"{each.instance_id}: {each.breaker.describe(now)}" for each in alive[:_SHOWN])
    waits = [each.breaker.until - now for each in alive if each.breaker.until > now]
    return NoPick(
        kind="breaker",
        message=f"the circuit breaker of every instance of {name!r} is open ({opened})",
        hint=hint,
        retry_after=min(waits, default=0.0),
    )


def verdicts(group: Group, plan: Plan, wanted: Filter, now: float) -> list[Verdict]:
    """One line per instance, by instance id."""
    usable = set(map(id, plan.usable))
    free = any(each.outstanding < each.window for each in plan.usable)
    shares = {id(each): _share(each, group, plan, now) for each in plan.usable}
    total = sum(shares.values())
    out = []
    for entry in group.entries.values():
        reason, taken = _reason(entry, group, plan, wanted, now), id(entry) in usable
        if taken and free and entry.outstanding >= entry.window:
            taken, reason = False, f"window full: {entry.outstanding} outstanding, room for {entry.window:.0f}"
            if entry.provider.full:
                reason = f"full: its permits are taken, {entry.outstanding} of them by this node"
        elif taken and not reason:
            reason = f"usable, weighs {shares[id(entry)] / total:.0%} of the candidates" if total else "usable"
        out.append(Verdict(instance_id=entry.instance_id, usable=taken, reason=reason, factors=_factors(entry, group, plan, now)))
    return out


def _reason(entry: Entry, group: Group, plan: Plan, wanted: Filter, now: float) -> str:
    mismatch = group.matches(entry, wanted)
    if mismatch:
        return mismatch
    if not entry.live():
        return f"state {entry.provider.state} takes no calls"
    used = entry in plan.usable
    if entry.provider.suspected:
        return "suspected to be lost; used because nobody else is left" if used else "suspected to be lost"
    if entry.breaker.ejecting and not (used and entry.breaker.wants_probe(now)):
        text = f"breaker {entry.breaker.describe(now)}"
        return f"{text}; ignored because too few others are usable" if used else text
    if not used:
        return "weight 0" if entry.weight <= 0 else "a normal instance: shadow calls go to the shadow ones"
    if entry.breaker.describe(now) != "closed":
        return f"usable, breaker {entry.breaker.describe(now)}"
    return ""


def _share(entry: Entry, group: Group, plan: Plan, now: float) -> float:
    return entry.ease * entry.speed(group.latency) * entry.success(now) * (entry.warm(now) if plan.warming else 1.0)


def _factors(entry: Entry, group: Group, plan: Plan, now: float) -> dict[str, float]:
    return {
        "weight": entry.weight,
        "speed": round(entry.speed(group.latency), 4),
        "state": entry.state_factor(),
        "warmup": round(entry.warm(now), 4) if plan.warming else 1.0,
        "success": round(entry.success(now), 4),
        "outstanding": float(entry.outstanding),
        "latency_ms": round(entry.latency.read(group.latency, now) * 1000.0, 3),
        "distance": float(entry.rank),
        "backpressure": float(entry.provider.backpressure),
    }


def _asked(request: RouteRequest) -> str:
    asked = []
    if request.version is not None:
        asked.append(f"version {request.version}")
    if request.tags:
        asked.append(f"tags {dict(request.tags)}")
    if request.target is not None:
        asked.append(f"target {request.target.hex() if isinstance(request.target, bytes) else request.target}")
    return " and ".join(asked) or "what was asked"
