"""With whom this node keeps links: its observers, those it observes, and all in a small mesh.

Up to `full_mesh_limit` nodes everybody observes everybody; beyond it the rings say who. Whoever reports dials. Nothing
here judges; it follows the table and tells the detector whom to watch.
"""

from __future__ import annotations

from .config import MembershipConfig
from .detector import Detector
from .links import Links
from .outbox import Outbox
from .rings import Rings, SortedRings
from .table import Table

OBSERVER_LINKS = 256
"""Members a silent observer links to, for their loads."""


class Neighbours:
    """Derives the wanted links from the table. `watchers` are the silent observers linked to this node."""

    def __init__(
        self, me: bytes, config: MembershipConfig, table: Table, links: Links, detector: Detector, outbox: Outbox, *, observer: bool
    ) -> None:
        self._me = me
        self._config = config
        self._table = table
        self._links = links
        self._detector = detector
        self._outbox = outbox
        self._observer = observer
        self._rings = Rings(me, config.rings)
        self._redial_at: dict[bytes, float] = {}
        self.watchers: dict[bytes, None] = {}

    @property
    def is_large(self) -> bool:
        """Whether the mesh is too large for everybody to observe everybody."""
        return self._table.live_count >= self._config.full_mesh_limit

    def preset(self, everybody: SortedRings, now: float) -> None:
        """Take the neighbours from rings sorted elsewhere, for a table that was given ready-made."""
        self._rings.preset(*everybody.neighbours(self._me))
        self._changed(now)

    def living(self, boot: bytes, now: float) -> None:
        """A member lives (again)."""
        self._rings.add(boot)
        self._changed(now)

    def gone(self, boot: bytes, now: float) -> None:
        """A member is LOST or LEFT."""
        self._redial_at.pop(boot, None)
        self._rings.remove(boot, (member.record.boot for member in self._table.live()))
        self._changed(now)

    def observers(self) -> list[bytes]:
        """To whom this node reports."""
        if self.is_large and not self._observer:
            return list(self._rings.observers)
        everyone = [member.record.boot for member in self._table.live()]
        return everyone[:OBSERVER_LINKS] if self._observer else everyone

    def wants(self, boot: bytes) -> bool:
        """Whether a link to this boot is needed."""
        if boot in self.watchers:
            return True
        if self.is_large:
            return boot in self._rings.observers or boot in self._rings.observed
        member = self._table.find(boot)
        return member is not None and not member.state.gone

    def control_links(self, now: float) -> list[bytes]:
        """Links that carry news: the wanted ones, and those whose other side took this node for its observer lately."""
        recent = now - 2.5 * self._config.heartbeat_period
        return [boot for boot, link in self._links.items() if link.beat >= recent or link.since >= recent or self.wants(boot)]

    def linked(self, boot: bytes) -> None:
        """A link came up."""
        self._redial_at.pop(boot, None)

    def dial_failed(self, boot: bytes, now: float) -> None:
        """A dial failed: wait a period before the next."""
        if self.wants(boot):
            self._redial_at[boot] = now + self._config.heartbeat_period

    def dial_missing(self, now: float) -> None:
        """Ask for the links that are needed. In a small mesh the lower boot id dials first, to spare the double dial."""
        patience = 0.5 * self._config.heartbeat_period
        defers = not self.is_large and not self._observer
        for boot in self.observers():
            if boot in self._links or self._redial_at.get(boot, 0.0) > now:
                continue
            if not (defers and self._me > boot and now - self._table[boot].since < patience):
                self._links.dial(boot, now)

    def close_idle(self, now: float) -> None:
        """Propose to close the links nobody needs, once each."""
        idle = now - 2.5 * self._config.heartbeat_period
        for boot, link in self._links.items():
            if not link.close_asked and link.since < idle and link.beat < idle and not self.wants(boot):
                link.close_asked = True
                self._outbox.closes.append(boot)

    def _changed(self, now: float) -> None:
        if not self._observer:
            watched = self._rings.observed if self.is_large else [member.record.boot for member in self._table.live()]
            self._detector.watch(watched, now)
        self.dial_missing(now)
