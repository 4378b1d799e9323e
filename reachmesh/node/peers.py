"""What the user sees of others: peers and events, as frozen values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from reachmesh.engine import Note
from reachmesh.membership.record import Record
from reachmesh.membership.states import Load, State
from reachmesh.membership.table import Member

KINDS = (
    "peer_joined",
    "peer_left",
    "peer_lost",
    "peer_state",
    "peer_suspected",
    "peer_cleared",
    "peer_flapping",
    "record_changed",
    "session_moved",
    "breaker_opened",
    "breaker_closed",
    "link_refused",
    "version_refused",
    "identity_conflict",
    "tag_conflict",
    "clock_skew",
    "overload",
)
"""The kinds of events."""


@dataclass(frozen=True, slots=True)
class PeerInfo:
    """One instance as this node sees it at one moment.

    Attributes:
        name, instance_id: the logical name; the one process.
        endpoints: transport addresses, best first.
        state: its state; LOST and LEFT are gone.
        capabilities: what it offers, with the options it declared.
        version, tags, zone: as it declared them.
        load: what it last said about its load, or None.
        rtt: seconds of the last round trip, or None.
        since: local monotonic second at which this node first knew it.
        reason: why it is in that state.
        suspected: an observer suspects it: no new calls go there for now.
        weight: its share of calls relative to other instances.
        host: name of the host it runs on.
        started: when it started, in seconds of its own wall clock.
    """

    name: str
    instance_id: str
    endpoints: tuple[str, ...]
    state: State
    capabilities: Mapping[str, Mapping[str, Any]]
    version: str
    tags: Mapping[str, Any]
    zone: str | None
    load: Load | None
    rtt: float | None
    since: float
    reason: str = ""
    suspected: bool = False
    weight: float = 1.0
    host: str = ""
    started: float = 0.0


@dataclass(frozen=True, slots=True)
class Event:
    """Something that happened.

    Attributes:
        kind: one of `KINDS`.
        peer: whom it is about, or None.
        reason: one sentence for people.
        at: local monotonic seconds.
    """

    kind: str
    peer: PeerInfo | None
    reason: str
    at: float


def peer_of(member: Member) -> PeerInfo:
    """The public view of a member."""
    return _peer(member.record, member.shown, member.load, member.rtt, member.since, member.reason, member.suspected)


def own_peer(record: Record, state: State, since: float) -> PeerInfo:
    """This node itself, as its peers see it."""
    return _peer(record, state, None, None, since, "", False)


def event_of(note: Note) -> Event:
    """The public view of a note of the engine."""
    peer = None
    if note.record is not None:
        state = State[note.state] if note.state else State.HEALTHY
        peer = _peer(note.record, state, None, None, note.at, note.reason, False)
    return Event(note.kind, peer, note.reason, note.at)


def _peer(record: Record, state: State, load: Load | None, rtt: float | None, since: float, reason: str, suspected: bool) -> PeerInfo:
    return PeerInfo(
        name=record.name,
        instance_id=record.instance_id,
        endpoints=record.endpoints,
        state=state,
        capabilities=record.capabilities,
        version=record.version,
        tags=record.tags,
        zone=record.zone,
        load=load,
        rtt=rtt,
        since=since,
        reason=reason,
        suspected=suspected,
        weight=record.weight,
        host=record.host,
        started=record.started,
    )
