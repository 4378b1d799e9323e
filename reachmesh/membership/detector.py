"""The observer's work: silence, probes and accusations.

Inputs: life signs, acks, dropped links, outcomes of dials, time. Outputs: pings and dials into the outbox, and
accusations (`take_accusations`), which the machine counts and floods. It decides no loss.

Invariants: nobody is accused within `suspect_after` periods of his last life sign unless his connection dropped and cannot be made
again; nobody is accused without a probe, by helpers too, that had `probe_timeout`, unless his port refuses; nobody is accused
while more than half of the observed are silent together (isolation), for `isolation_wait` periods. Source: SWIM section 3.1
for indirect probes, Lifeguard for patience.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from reachmesh.wire.control import Control

from .config import MembershipConfig
from .links import Links
from .messages import ALIVE, REFUSED, encode_ack, encode_ping, encode_ping_req
from .outbox import Outbox
from .table import Table

INF = float("inf")
DUTY_LIMIT = 256
"""Probes made for others at once."""


class Watch:
    """One observed member: `proof` is its last life sign, `probed` when the running probe began (0.0 = none)."""

    __slots__ = ("accused", "number", "probed", "proof", "refused")

    def __init__(self, now: float) -> None:
        self.proof = now
        self.probed = 0.0
        self.number = 0
        self.refused = False
        self.accused = False


class Detector:
    """Watches the observed members; see the module."""

    def __init__(self, me: bytes, config: MembershipConfig, rng: Random, table: Table, links: Links, outbox: Outbox) -> None:
        self._me = me
        self._config = config
        self._rng = rng
        self._table = table
        self._links = links
        self._outbox = outbox
        self._watches: dict[bytes, Watch] = {}
        self._dropped: dict[bytes, float] = {}
        self._pings: dict[int, tuple[bytes, float]] = {}
        self._duties: dict[bytes, dict[bytes, tuple[int, float]]] = {}
        self._accusations: list[tuple[bytes, bool]] = []
        self._number = rng.getrandbits(31)
        self._next = INF
        self.isolated_since: float | None = None

    def watch(self, boots: Iterable[bytes], now: float) -> None:
        """Observe exactly these; newly observed ones start with a clean record."""
        old = self._watches
        self._watches = {boot: old.get(boot) or Watch(now) for boot in boots}
        self._next = min(self._next, now + self._config.probe_after * self._config.heartbeat_period)

    def watches(self, boot: bytes) -> bool:
        """Whether this member is observed."""
        return boot in self._watches

    def heard(self, boot: bytes, now: float) -> None:
        """A life sign came directly from this member."""
        watch = self._watches.get(boot)
        if watch is not None:
            watch.proof = now
            if watch.probed or watch.accused:
                self._start_over(watch)
        if boot in self._dropped:
            del self._dropped[boot]
        if boot in self._duties:
            self._discharge(boot, ALIVE, now)

    def ping(self, boot: bytes, now: float) -> None:
        """Send a direct probe over the link there is."""
        self._number = (self._number + 1) & 0xFFFFFFFF
        self._pings[self._number] = (boot, now)
        if len(self._pings) > DUTY_LIMIT:
            del self._pings[next(iter(self._pings))]
        self._outbox.sends.append((boot, Control.PING, encode_ping(self._number)))

    def acked(self, sender: bytes, number: int, verdict: int, boot: bytes, now: float) -> float | None:
        """An ACK came; the round trip in seconds when it answers a direct ping."""
        if boot == sender:
            asked = self._pings.pop(number, None)
            return now - asked[1] if asked is not None and asked[0] == sender else None
        watch = self._watches.get(boot)
        if watch is not None and watch.probed and number == watch.number and verdict == ALIVE:  # good for one more period
            watch.proof = max(watch.proof, now - (self._config.probe_after - 1) * self._config.heartbeat_period)
            self._start_over(watch)
        return None

    def probe_for(self, requester: bytes, number: int, boot: bytes, now: float) -> None:
        """Somebody asks for a probe: by the link there is, else by a fresh connection."""
        duties = self._duties.setdefault(boot, {})
        duties[requester] = (number, now + 2 * max(self._config.heartbeat_period, self._config.probe_timeout))
        if len(self._duties) > DUTY_LIMIT:
            del self._duties[next(iter(self._duties))]
        if boot in self._links:
            self.ping(boot, now)
        elif boot in self._table:
            self._links.dial(boot, now)

    def link_dropped(self, boot: bytes, now: float) -> None:
        """The last connection to a living member broke without a goodbye: find out why, at once."""
        self._dropped[boot] = now
        self._links.dial(boot, now)

    def dial_failed(self, boot: bytes, refused: bool, now: float) -> None:
        """A dial found the port closed or taken by another (`refused`), or nothing."""
        if refused and boot in self._duties:
            self._discharge(boot, REFUSED, now)
        watch = self._watches.get(boot)
        if self._dropped.pop(boot, None) is None:
            if refused and watch is not None:
                watch.refused = True
        elif refused:
            self.accuse(boot, refused)
        elif watch is not None:  # the fault may be of the one path between: hear the helpers, then judge without waiting for more silence
            watch.proof = -INF
            self._probe(boot, watch, now)
            self._next = min(self._next, now + self._config.probe_timeout)

    def tick(self, now: float, patience: int) -> None:
        """Probe the silent, accuse those whose probes failed. `patience`: own health multiplier, 1 = healthy."""
        period = self._config.heartbeat_period
        probe_after = self._config.probe_after * period
        suspect_after = self._config.suspect_after * period * patience
        silent = 0
        due = []
        for boot, watch in self._watches.items():
            silence = now - watch.proof
            if silence < probe_after:
                continue
            if not watch.probed:
                self._probe(boot, watch, now)
            if silence >= suspect_after and now - watch.probed >= self._config.probe_timeout:
                silent += not watch.refused
                if not watch.accused:
                    due.append((boot, watch))
        if not self._held_back(silent, now):
            for boot, watch in due:
                member = self._table.find(boot)
                watch.accused = True
                self.accuse(boot, watch.refused and member is not None and member.verified)
        self._expire(now)
        self._next = self._earliest(patience)

    def next_due(self) -> float:
        """When `tick` may have something to do: never late, sometimes early, since life signs only put it off."""
        return self._next

    def _earliest(self, patience: int) -> float:
        period = self._config.heartbeat_period
        due = INF
        for watch in self._watches.values():
            if watch.accused:
                continue
            if not watch.probed:
                at = watch.proof + self._config.probe_after * period
            else:
                at = max(watch.proof + self._config.suspect_after * period * patience, watch.probed + self._config.probe_timeout)
            due = min(due, at)
        return due

    @property
    def held_until(self) -> float:
        """Until when isolation keeps this node's judgements back; 0.0 when it is not isolated."""
        if self.isolated_since is None:
            return 0.0
        return self.isolated_since + self._config.isolation_wait * self._config.heartbeat_period

    def forgive(self, boot: bytes, now: float) -> None:
        """An accused refuted: judge it anew from now."""
        watch = self._watches.get(boot)
        if watch is not None:
            watch.proof = max(watch.proof, now - self._config.heartbeat_period)
            self._start_over(watch)

    def shift(self, seconds: float, now: float) -> None:
        """This node itself was away for so long: nobody's silence counts for that time."""
        for watch in self._watches.values():
            watch.proof = min(now, watch.proof + seconds)
            if watch.probed and not watch.accused:
                self._start_over(watch)
        self.isolated_since = None

    def take_accusations(self) -> list[tuple[bytes, bool]]:
        """(boot, dead) of new accusations."""
        taken, self._accusations = self._accusations, []
        return taken

    def _probe(self, boot: bytes, watch: Watch, now: float) -> None:
        """Probe directly and through helpers."""
        watch.probed = now
        if boot in self._links:
            self.ping(boot, now)
            self._outbox.probes.append(boot)  # a fresh connection tells a dead link, and a busy interpreter, from a dead process
        else:
            self._links.dial(boot, now)
        self._number = watch.number = (self._number + 1) & 0xFFFFFFFF
        helpers = [other for other in self._links if other != boot and other in self._table]
        for helper in self._rng.sample(helpers, min(self._config.helpers, len(helpers))):
            self._outbox.sends.append((helper, Control.PING_REQ, encode_ping_req(watch.number, boot)))

    def _start_over(self, watch: Watch) -> None:
        """A life sign ends a probe and an accusation."""
        watch.probed = 0.0
        watch.refused = watch.accused = False
        self._next = min(self._next, watch.proof + self._config.probe_after * self._config.heartbeat_period)

    def _held_back(self, silent: int, now: float) -> bool:
        """Whether so many are silent that this node suspects itself, and still keeps its judgement back."""
        watched = len(self._watches)
        if watched < 2 or silent <= watched * self._config.isolation_share:
            self.isolated_since = None
            return False
        if self.isolated_since is None:
            self.isolated_since = now
        return now < self.held_until

    def accuse(self, boot: bytes, dead: bool = False) -> None:
        """Hold a member for lost."""
        self._accusations.append((boot, dead))

    def _discharge(self, boot: bytes, verdict: int, now: float) -> None:
        """Answer those who asked for a probe of this member."""
        for requester, (number, until) in self._duties.pop(boot).items():
            if now <= until:
                self._outbox.sends.append((requester, Control.ACK, encode_ack(number, verdict, boot)))

    def _expire(self, now: float) -> None:
        """Forget pings and duties that nobody waits for any more; oldest first."""
        limit = now - 4 * self._config.heartbeat_period
        for number, (_, sent) in list(self._pings.items()):
            if sent >= limit:
                break
            del self._pings[number]
        for boot, duties in list(self._duties.items()):
            if all(until < now for _, until in duties.values()):
                del self._duties[boot]
        for boot, at in list(self._dropped.items()):
            if at < now - 60:
                del self._dropped[boot]
