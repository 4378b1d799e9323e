"""Members nobody ever shook hands with: inventions of a liar, found out and voted away.

In an honest mesh the observers of a member are linked to it, so hearsay is soon proved or lost. When hearsay turns out
to be false, there may be much more of it than observers: then each node also tries unproved members that it does not
observe, more of them each period as long as tries fail, fewer once they succeed.

Invariant: without a false one found by this node, nothing is tried.
"""

from __future__ import annotations

from .links import Links
from .table import Table

FIRST_TRIES = 4
MOST_TRIES = 48
"""Tries a period: below the limit of dials at once, which the node's own links need too."""


class Doubt:
    """How many unproved members to try, and which are being tried."""

    def __init__(self, table: Table, links: Links) -> None:
        self._table = table
        self._links = links
        self._tries = 0
        self._tried: dict[bytes, None] = {}

    def found_false(self) -> None:
        """A member that this node observed was lost without ever having proved itself."""
        self._tries = max(self._tries, FIRST_TRIES)

    def tick(self, now: float) -> None:
        """Once a period: try some."""
        if not self._tries:
            return
        self._tried = {boot: None for boot in self._tried if boot in self._links.dialing}
        room = self._tries
        for member in self._table.live():
            boot = member.record.boot
            if not room:
                return
            if not member.verified and not member.suspected and boot not in self._tried and self._links.dial(boot, now):
                self._tried[boot] = None
                room -= 1
        if room == self._tries:
            self._tries = 0

    def answered(self, boot: bytes, proved: bool) -> bool:
        """A dial ended; whether it was such a try and failed, so that this node votes against the member."""
        if boot not in self._tried:
            return False
        del self._tried[boot]
        self._tries = self._tries // 2 if proved else min(self._tries * 2, MOST_TRIES)
        return not proved
