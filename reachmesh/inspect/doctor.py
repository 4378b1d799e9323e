"""What may be wrong between this host and a mesh, checked one by one: from the nearest (interfaces) to the farthest (clocks)."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from reachmesh.inspect.session import Session, state_of
from reachmesh.node.about import STATUS
from reachmesh.node.peers import PeerInfo
from reachmesh.transport.interfaces import present_interfaces

SKEW = 2.0
"""Seconds by which two wall clocks may differ before logs of several hosts are hard to read together."""


def examine(session: Session) -> dict[str, Any]:
    """All checks: {"security", "checks": [{"name", "ok", "detail"}]}."""
    found = session.look()
    asked = time.time()
    answers = session.ask(STATUS, found, calls=0)
    answered = time.time()
    checks = [
        _interfaces(session),
        *_discovery(session),
        _listening(session),
        _greeting(session),
        _nodes(found),
        _answers(found, answers),
        _states(found, answers),
        _zones(found),
        _clocks(found, answers, asked, answered),
        _security(session),
    ]
    return {"security": session.node.security, "mesh": session.node.mesh, "checks": checks}


def _check(name: str, ok: bool, detail: str) -> dict[str, Any]:
    return {"name": name, "ok": ok, "detail": detail}


def _interfaces(session: Session) -> dict[str, Any]:
    settings = session.node._settings
    present = present_interfaces(settings.interfaces)
    names = ", ".join(f"{each.name} {each.address}" for each in present)
    beyond = [each for each in present if not each.address.startswith("127.") and each.address != "::1"]
    if not present:
        return _check("interfaces", False, "no network interface is up")
    if beyond:
        return _check("interfaces", True, names)
    if settings.interfaces is not None:
        return _check("interfaces", True, f"{names}: kept to this host, as asked for")
    return _check("interfaces", False, f"{names}: nothing but loopback is up, so nodes of other hosts cannot be found")


def _discovery(session: Session) -> list[dict[str, Any]]:
    settings, surroundings = session.node._settings, session.node._life.surroundings
    problems = surroundings.discovery.problems() if surroundings is not None else {}
    used = {source.name for source in settings.sources()}
    checks = [
        _check(f"discovery by {name}", name not in problems, problems.get(name, "works")) for name in settings.discovery if name in used
    ]
    return checks or [_check("discovery", False, "every way to find nodes is turned off")]


def _listening(session: Session) -> dict[str, Any]:
    return _check("listening", True, f"the inspector could listen at {', '.join(session.node.endpoints)}")


def _greeting(session: Session) -> dict[str, Any]:
    waiting = session.greeting()
    if not waiting:
        return _check("greeting", True, "every address that was found has answered or refused")
    return _check("greeting", False, f"no answer from {_some(waiting)}: frozen, or a firewall is between")


def _nodes(found: Sequence[PeerInfo]) -> dict[str, Any]:
    if found:
        return _check("nodes", True, f"{len(found)} found: {_some(sorted({peer.name for peer in found}))}")
    return _check("nodes", False, "nobody was found: is the mesh's name right, and does multicast pass? seeds= goes without it")


def _answers(found: Sequence[PeerInfo], answers: Mapping[str, Any]) -> dict[str, Any]:
    silent = [peer.name for peer in found if not isinstance(answers[peer.instance_id], Mapping)]
    if silent:
        return _check("answers", False, f"{len(silent)} of {len(found)} did not answer: {_some(silent)}")
    return _check("answers", True, f"all {len(found)} nodes answered")


def _states(found: Sequence[PeerInfo], answers: Mapping[str, Any]) -> dict[str, Any]:
    states = {peer.instance_id: state_of(peer, answers[peer.instance_id]) for peer in found}
    unwell = [f"{peer.name} is {states[peer.instance_id]}" for peer in found if states[peer.instance_id] != "HEALTHY"]
    return _check("states", not unwell, _some(unwell) if unwell else "every node is HEALTHY")


def _zones(found: Sequence[PeerInfo]) -> dict[str, Any]:
    zones: dict[str, set[str]] = {}
    for peer in found:
        if peer.zone is not None:
            zones.setdefault(peer.name, set()).add(peer.zone)
    torn = [f"{name} claims {' and '.join(sorted(said))}" for name, said in sorted(zones.items()) if len(said) > 1]
    return _check("zones", not torn, _some(torn) if torn else "no node name claims two zones")


def _clocks(found: Sequence[PeerInfo], answers: Mapping[str, Any], asked: float, answered: float) -> dict[str, Any]:
    """A clock is only blamed for what lies outside the time between question and answer."""
    wrong = []
    for peer in found:
        answer = answers[peer.instance_id]
        told = answer.get("now") if isinstance(answer, Mapping) else None
        if isinstance(told, int | float):
            off = told - answered if told > answered else min(0.0, told - asked)
            if abs(off) > SKEW:
                wrong.append(f"{peer.name} is {abs(off):.1f} s {'ahead' if off > 0 else 'behind'}")
    return _check("clocks", not wrong, _some(wrong) if wrong else f"within {SKEW:g} s of this host's")


def _security(session: Session) -> dict[str, Any]:
    if session.node.security != "OPEN":
        return _check("security", True, f"encrypted and authenticated by a secret ({session.node.security})")
    return _check("security", True, "no secret: the mesh is OPEN, whoever reaches this network may join and call")


def _some(names: Sequence[str], most: int = 10) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
