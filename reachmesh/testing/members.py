"""The membership machine as a participant of the network."""

from __future__ import annotations

from collections.abc import Callable

from reachmesh.membership import MemberEvent, Membership
from reachmesh.membership.machine import DialOutcome


class SimulatedMember:
    """Drives one `Membership` as a node's engine does.

    Attributes:
        membership: the machine; read it freely, after an input call `Network.poke`.
        events: everything it reported.
        reads_first: False for a driver whose timers fire before its sockets are read, as after a pause they may.
    """

    def __init__(self, membership: Membership, wall: Callable[[float], float] | None = None) -> None:
        self.membership = membership
        self.boot = membership.record.boot
        self.events: list[MemberEvent] = []
        self.wall = wall
        self.reads_first = True

    def turn_begins(self, now: float) -> None:
        """A turn begins."""
        self.membership.note_turn(now=now, wall=self.wall(now) if self.wall else None)
        if not self.reads_first and self.membership.next_timeout() <= now:
            self.membership.tick(now=now)

    def link_up(self, boot: bytes, now: float) -> None:
        """A connection is established."""
        self.membership.handle_link_up(boot, now=now)

    def link_down(self, boot: bytes, now: float) -> None:
        """A connection broke."""
        self.membership.handle_link_down(boot, now=now)

    def dialled(self, boot: bytes, outcome: DialOutcome, now: float) -> None:
        """A dial ended."""
        self.membership.handle_dial(boot, outcome, now=now)

    def frame(self, boot: bytes, kind: int, body: bytes, now: float) -> None:
        """A frame arrived."""
        self.membership.handle_frame(boot, kind, body, now=now)

    def turn_ends(self, now: float) -> float:
        """Do what is due."""
        self.membership.note_drained(now=now)
        if self.membership.next_timeout() <= now:
            self.membership.tick(now=now)
        self.events += self.membership.take_events()
        self.membership.take_closes()
        return self.membership.next_timeout()

    def take_sends(self) -> list[tuple[bytes, int, bytes]]:
        """Frames to send."""
        return self.membership.take_sends()

    def take_dials(self) -> list[bytes]:
        """Connections to make."""
        return self.membership.take_dials()

    def take_probes(self) -> list[bytes]:
        """Connections to make beside the one there is."""
        return self.membership.take_probes()
