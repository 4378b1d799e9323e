"""Things that are wrong with a deployment rather than with a node: reported as events, never acted upon.

Zones: two zone tags under one node name for `zone_conflict_after` seconds. Identities: one instance id with two living
boots. Skew: a peer's wall clock that differs from ours over three heartbeats in a row (one alone may merely be late).
Flapping: one peer lost `flap_count` times within `flap_window`.
"""

from __future__ import annotations

from .config import MembershipConfig
from .outbox import Outbox
from .table import Member, Table

SKEW_BEATS = 3
NAME_LIMIT = 4096


class Alarms:
    """Bookkeeping for the alarm events; every part of it is bounded by the table or by NAME_LIMIT."""

    def __init__(self, config: MembershipConfig, table: Table, outbox: Outbox) -> None:
        self._config = config
        self._table = table
        self._outbox = outbox
        self._zones: dict[str, dict[bytes, str]] = {}
        self._conflicts: dict[str, float] = {}
        self._ids: dict[str, dict[bytes, None]] = {}
        self._skewed: dict[bytes, int] = {}
        self._losses: dict[bytes, list[float]] = {}

    def present(self, name: str, instance_id: str, boot: bytes, zone: str | None, now: float) -> None:
        """A living instance (oneself too) declares this."""
        since = self._conflicts.get(name, now)
        self.absent(name, instance_id, boot)
        ids = self._ids.setdefault(instance_id, {})
        ids[boot] = None
        if len(ids) > 1:
            self._outbox.event(
                "identity_conflict", self._table.find(boot), f"instance id {instance_id} is used by {len(ids)} processes", now
            )
        if zone is not None and (name in self._zones or len(self._zones) < NAME_LIMIT):
            zones = self._zones.setdefault(name, {})
            zones[boot] = zone
            if len(set(zones.values())) > 1:
                self._conflicts[name] = since

    def absent(self, name: str, instance_id: str, boot: bytes) -> None:
        """It is gone, or is about to declare something else."""
        self._skewed.pop(boot, None)
        ids = self._ids.get(instance_id)
        if ids is not None:
            ids.pop(boot, None)
            if not ids:
                del self._ids[instance_id]
        zones = self._zones.get(name)
        if zones is not None:
            zones.pop(boot, None)
            if not zones:
                del self._zones[name]
            if len(set(zones.values())) < 2:
                self._conflicts.pop(name, None)

    def lost(self, boot: bytes, now: float) -> None:
        """A member was lost (again)."""
        losses = [at for at in self._losses.pop(boot, []) if at > now - self._config.flap_window]
        losses.append(now)
        self._losses[boot] = losses[-self._config.flap_count :]
        if len(self._losses) > NAME_LIMIT:
            del self._losses[next(iter(self._losses))]
        if len(losses) == self._config.flap_count:
            reason = f"lost {len(losses)} times in {self._config.flap_window:g} s"
            self._outbox.event("peer_flapping", self._table.find(boot), reason, now)

    def wall_clock(self, boot: bytes, skew: float, now: float) -> None:
        """A heartbeat's wall clock minus ours, in seconds."""
        if not abs(skew) > self._config.skew_limit:
            self._skewed.pop(boot, None)
            return
        count = self._skewed.get(boot, 0) + 1
        self._skewed[boot] = count
        if count == SKEW_BEATS:
            self._outbox.event("clock_skew", self._table.find(boot), f"its wall clock differs by {skew:+.1f} s", now)

    def tick(self, now: float) -> None:
        """Report zone conflicts that lasted."""
        for name, since in list(self._conflicts.items()):
            if now - since >= self._config.zone_conflict_after:
                self._conflicts[name] = float("inf")  # told once, until it is over
                boots = self._zones[name]
                member: Member | None = next((found for boot in boots if (found := self._table.find(boot))), None)
                zones = ", ".join(sorted(set(boots.values())))
                self._outbox.event("tag_conflict", member, f"instances of {name} declare different zones: {zones}", now)
