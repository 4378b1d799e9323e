"""What the membership hands to its driver: swapped lists, filled by its parts, emptied by `take_*()`."""

from __future__ import annotations

import msgspec

from .table import Member

Send = tuple[bytes, int, bytes]
"""(boot, control kind, body)."""


class MemberEvent(msgspec.Struct, frozen=True):
    """Something happened to a member.

    Attributes:
        kind: peer_joined, peer_left, peer_lost, peer_state, peer_suspected, peer_cleared, record_changed, tag_conflict, clock_skew,
            identity_conflict or peer_flapping.
        member: whom it is about; None when it is about the node itself.
        reason: one sentence for people.
        at: local monotonic seconds.
    """

    kind: str
    member: Member | None
    reason: str
    at: float


class Outbox:
    """Five lists in order of production."""

    def __init__(self) -> None:
        self.sends: list[Send] = []
        self.dials: list[bytes] = []
        self.probes: list[bytes] = []
        self.closes: list[bytes] = []
        self.events: list[MemberEvent] = []

    def event(self, kind: str, member: Member | None, reason: str, now: float) -> None:
        """Report something. The member is copied, so that what the event shows stays what it was."""
        self.events.append(MemberEvent(kind, member.copy() if member is not None else None, reason, now))
