"""The membership of one node: who is there, in which state, and what to tell whom.

A pure machine between the links and the routing. It never reads a clock, opens a socket or blocks; `now` is monotonic
seconds and never decreases. Every input is total: a peer's bytes are counted in `dropped` when they make no sense.

Inputs: `handle_link_up`, `handle_link_down`, `handle_dial`, `handle_frame`, `handle_life`, `handle_observer`; of this node
`set_record`, `set_load`, `drain`, `leave`; of time `note_turn`, `note_drained`, `tick`. Outputs: `take_sends`, `take_dials`,
`take_probes`, `take_closes`, `take_events`; reads: `members`, `state`, `table_digest`, `wants_link`. The driver calls `tick` when
`next_timeout()` has come, and takes the outputs after every batch of inputs.

Protocol (figures in `config.py`): a node reports to its observers every period (`neighbours.py`, `rings.py`); an observer
probes the silent and accuses them (`detector.py`); accusations are flooded and counted (`roster.py`, `suspicion.py`); the
accused refutes with a higher incarnation (`precedence.py`); news is flooded once over the control links (`gossip.py`); tables are compared after each
new link and now and then (`sync.py`); the lost are dialled again (`healing.py`).

Invariants: nobody but the owner raises its incarnation; a claim of loss from afar is an accusation first, so that its
owner can refute it before anybody acts on it; a node that was paused judges nobody before it has read its sockets; LOST
and LEFT members are never dialled for observation; a silent observer sends nothing but what it is asked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from random import Random
from typing import Literal

from reachmesh.wire.control import Control

from . import messages
from .config import MembershipConfig
from .detector import Detector
from .gossip import Gossip
from .links import Link, Links
from .messages import Claim, Vote
from .neighbours import Neighbours
from .outbox import MemberEvent, Outbox, Send
from .precedence import is_credible, takes_precedence
from .record import SERIAL_LIMIT, Record
from .rings import SortedRings
from .roster import Roster
from .states import Load, OwnState, State
from .sync import AntiEntropy
from .table import Member, Table

INF = float("inf")
DialOutcome = Literal["up", "refused", "silent", "other", "mute"]
GOSSIP_SHARE = 0.04
"""Share of the period that news may wait at most, so that a refutation is back long before `confirm_after`."""
MIN_PAUSE = 0.2
"""Seconds a turn must be late at least to count as a pause, whatever the period."""
LATE = 0.02
"""Seconds by which a turn is late: what averts a judgement may be waiting unread, so hear first."""
LISTEN_EVERY = 1.0
"""Seconds between two delays of judgement by late turns, or a node whose turns are always late would never judge."""


class Membership:
    """See the module.

    Args:
        me: this node's own record; its incarnation and serial are where this node starts.
        config: the figures.
        rng: seeded randomness.
        now: monotonic seconds.
        observer: a silent one: it learns everything, is counted by nobody, and sends nothing of its own accord.
        table: a first table, for simulations of very many nodes.
        everybody: the rings of those in it; this node counts as one that started before.
    """

    def __init__(
        self,
        me: Record,
        config: MembershipConfig,
        rng: Random,
        *,
        now: float,
        observer: bool = False,
        table: Table | None = None,
        everybody: SortedRings | None = None,
    ) -> None:
        me.encode()
        self.record = me
        self.config = config
        self.incarnation = max(1, me.incarnation)
        self.observer = observer
        self.refutations = 0
        self._rng = rng
        self._own = OwnState(config)
        self._outbox = Outbox()
        self._table = table if table is not None else Table()
        self._links = Links(self._outbox)
        self._gossip = Gossip(min(config.gossip_delay, GOSSIP_SHARE * config.heartbeat_period), self._outbox)
        self._sync = AntiEntropy(self._table, self._own_claim, self._outbox)
        self._detector = Detector(me.boot, config, rng, self._table, self._links, self._outbox)
        self._neighbours = Neighbours(me.boot, config, self._table, self._links, self._detector, self._outbox, observer=observer)
        self._roster = Roster(
            me,
            config,
            rng,
            table=self._table,
            links=self._links,
            outbox=self._outbox,
            gossip=self._gossip,
            sync=self._sync,
            detector=self._detector,
            neighbours=self._neighbours,
            observer=observer,
        )
        self._counter = 0
        self._beat_due = now
        self._chores_due = now + config.heartbeat_period * rng.uniform(0.5, 1.0)
        self._now = now
        self._due = INF
        self._patience = 1
        self._wall_offset: float | None = None
        self._listen_until = now
        self._synced = now
        self._roster.alarms.present(me.name, me.instance_id, me.boot, me.zone, now)
        if everybody is not None:
            self._own.started(now)
            self._neighbours.preset(everybody, now)

    # ---------------------------------------------------------------- reads

    @property
    def members(self) -> Mapping[bytes, Member]:
        """Everybody known but oneself, the remembered dead included. Read only."""
        return self._table

    @property
    def state(self) -> State:
        """This node's own state."""
        return self._own.state

    @property
    def reason(self) -> str:
        """Why it is in that state."""
        return self._own.reason

    @property
    def tombstones(self) -> Mapping[bytes, None]:
        """Boots that will not return: they left, or another process answers at their address."""
        return self._roster.over

    @property
    def dropped(self) -> int:
        """Frames and claims that made no sense, so far."""
        return self._roster.dropped

    @property
    def isolated(self) -> bool:
        """Whether this node suspects itself of being cut off."""
        return self._detector.isolated_since is not None

    def table_digest(self) -> int:
        """64-bit digest of table and self; equal tables have equal digests."""
        return self._sync.root()

    def wants_link(self, boot: bytes) -> bool:
        """Whether membership needs a link to this boot (the driver may close it when idle if not)."""
        return self._neighbours.wants(boot)

    def next_timeout(self) -> float:
        """Absolute monotonic time at which `tick` is due."""
        due = min(self._beat_due, self._chores_due, self._gossip.due(), self._own.due())
        if not self.observer:
            judgement = self._detector.next_due()
            if len(self._roster.suspicions):
                judgement = min(judgement, self._roster.suspicions.next_due(self._table.live_count + 1))
            if judgement < due:
                due = min(due, max(judgement, self._roster.held_until()))
        self._due = due = max(due, self._now)
        return due

    # ---------------------------------------------------------------- outputs

    def take_sends(self) -> list[Send]:
        """(boot, control kind, body) to send; to a boot without a link: dropped by the driver."""
        taken, self._outbox.sends = self._outbox.sends, []
        return taken

    def take_dials(self) -> list[bytes]:
        """Boots to connect to; each is answered by `handle_dial`."""
        taken, self._outbox.dials = self._outbox.dials, []
        return taken

    def take_probes(self) -> list[bytes]:
        """Linked boots to make one more connection to, only to see whether it is taken; each is answered by `handle_dial`."""
        taken, self._outbox.probes = self._outbox.probes, []
        return taken

    def take_closes(self) -> list[bytes]:
        """Links membership needs no longer."""
        taken, self._outbox.closes = self._outbox.closes, []
        return taken

    def take_events(self) -> list[MemberEvent]:
        """What happened, in order."""
        taken, self._outbox.events = self._outbox.events, []
        return taken

    # ---------------------------------------------------------------- links

    def handle_link_up(self, boot: bytes, *, now: float) -> None:
        """A handshake proved that `boot` is at the other end."""
        if boot == self.record.boot:
            return
        self._links.dialing.pop(boot, None)
        fresh = boot not in self._links
        link = self._links.setdefault(boot, Link(now))
        link.heard = now
        self._neighbours.linked(boot)
        self._neighbours.watchers.pop(boot, None)
        self._roster.heard(boot, now)
        if not fresh or self.observer:
            return
        self._sync.send_claims(boot, [self._own_claim()])
        member = self._table.find(boot)
        if self.record.boot < boot and (member is None or member.state.gone or not self._neighbours.is_large):
            self._sync.begin(boot)
        if member is not None:
            self._roster.verify(boot, now)
        self._detector.ping(boot, now)

    def handle_link_down(self, boot: bytes, *, refused: bool = False, closed: bool = False, now: float) -> None:
        """The last link to `boot` is gone.

        `closed`: by a goodbye of either side, so it says nothing about the peer. `refused`: a new dial was refused already.
        """
        self._neighbours.watchers.pop(boot, None)
        link = self._links.pop(boot, None)
        member = self._table.find(boot)
        if link is None or member is None or member.state.gone or self.state is State.LEFT:
            return
        if closed:
            if (
                not self.observer and now - link.since > self.config.heartbeat_period
            ):  # else wait for the next round, and never race the other side
                self._neighbours.dial_missing(now)
            return
        self._detector.link_dropped(boot, now)
        if refused:
            self.handle_dial(boot, "refused", now=now)

    def handle_dial(self, boot: bytes, outcome: DialOutcome, *, now: float) -> None:
        """How a dial asked for ended.

        "up": linked; "refused": nobody listens; "other": another boot answered; "mute": the connection was taken by a process
        that does not speak (its interpreter is busy); "silent": anything else.
        """
        self._links.dialing.pop(boot, None)
        member = self._table.find(boot)
        if outcome == "up" and boot in self._links:
            self.handle_life(boot, now=now)
        if outcome == "up" or member is None:
            return
        self._neighbours.dial_failed(boot, now)
        if outcome == "mute":
            self._roster.found_mute(boot, now)
            return
        dead = outcome in ("refused", "other")
        if member.state.gone:
            self._roster.try_failed(boot, outcome == "other", dead)
        else:
            self._roster.dial_failed(boot, dead, now)

    def handle_life(self, boot: bytes, *, now: float) -> None:
        """Any other frame came from `boot`; once a turn is enough."""
        link = self._links.get(boot)
        if link is not None:
            link.heard = now
            self._roster.heard(boot, now)

    def handle_observer(self, boot: bytes, *, now: float) -> None:
        """A silent observer linked: it gets the snapshot, then what the neighbours get."""
        self._links.dialing.pop(boot, None)
        self._links.setdefault(boot, Link(now))
        self._neighbours.watchers[boot] = None
        self._sync.snapshot(boot)
        self._outbox.sends.append((boot, Control.HEARTBEAT, self._heartbeat(now)))

    # ---------------------------------------------------------------- this node

    def set_record(self, record: Record, *, now: float) -> None:
        """This node declares something else; boot stays, serial and incarnation are kept by the machine.

        Raises:
            ValueError: the record is too large or cannot travel; nothing changed.
        """
        changed = record.changed(boot=self.record.boot, incarnation=self.incarnation, serial=min(self.record.serial + 1, SERIAL_LIMIT))
        changed.encode()
        old = self.record
        if old.instance_id != changed.instance_id or old.name != changed.name:
            self._roster.alarms.absent(old.name, old.instance_id, old.boot)
        self.record = changed
        self._roster.alarms.present(changed.name, changed.instance_id, changed.boot, changed.zone, now)
        self._publish(now, with_record=True)

    def set_load(self, load: Load, *, now: float) -> None:
        """New measurements of this node; may change its state after `state_hold`."""
        self._own.set_load(load, now)

    def drain(self, *, now: float) -> None:
        """This node finishes what it has and takes nothing new."""
        if self.state.rank < State.DRAINING.rank:
            self._own.drain()
            self._publish(now, raise_incarnation=True)
            self._flush(now)

    def leave(self, *, now: float) -> None:
        """This node is gone: told to every link at once."""
        if self.state is not State.LEFT:
            self._own.leave()
            self._publish(now, raise_incarnation=True)
            self._flush(now, everywhere=True)

    # ---------------------------------------------------------------- time

    def note_turn(self, *, now: float, wall: float | None = None) -> None:
        """The driver's turn begins. A turn later than asked for means that this node was paused.

        `wall`: the wall clock at this moment, for skew warnings only.
        """
        if wall is not None:
            self._wall_offset = wall - now
        self._now = now
        late = now - self._due
        self._due = max(self._due, now)
        if late > LATE and self.config.listen and now >= self._listen_until + LISTEN_EVERY:
            self._listen_until = now + self.config.listen
            self._roster.undrained_until = now + max(1.0, 0.2 * self.config.heartbeat_period)
        if late > max(self.config.pause_after * self.config.heartbeat_period, MIN_PAUSE):
            self._paused(late, now)

    def note_drained(self, *, now: float) -> None:
        """The sockets were read empty: what was waiting there has been heard, or is heard within `listen` seconds of a late turn."""
        self._roster.undrained_until = min(self._roster.undrained_until, self._listen_until)

    def tick(self, *, now: float) -> None:
        """Do what is due; cheap when nothing is."""
        self._now = now
        self._due = max(self._due, now)
        if self.state is State.LEFT:
            self._beat_due = self._chores_due = INF
            return
        if self.state is State.STARTING:
            self._own.started(now)
            self._publish(now, raise_incarnation=True)
        if self._own.tick(now):
            self._publish(now, raise_incarnation=True)
            self._beat_due = now
        if now >= self._beat_due:
            self._beat(now)
        if now >= self._chores_due:
            self._chores(now)
        if not self.observer and now >= self._roster.undrained_until:
            if now >= self._detector.next_due():
                self._detector.tick(now, self._patience)
                self._roster.accuse(now)
            if len(self._roster.suspicions):
                self._roster.decide(now)
        if now >= self._gossip.due():
            self._flush(now)

    # ---------------------------------------------------------------- frames

    def handle_frame(self, boot: bytes, kind: int, body: bytes, *, now: float) -> None:
        """One control frame of kind 5 and up from a linked boot."""
        link = self._links.get(boot)
        if link is None or boot in self._neighbours.watchers:
            self._roster.dropped += 1
            return
        link.heard = now
        understood = False
        if kind == Control.HEARTBEAT:
            understood = self._on_heartbeat(boot, link, body, now)
        elif kind == Control.GOSSIP:
            understood = self._on_gossip(boot, body, now)
        elif kind == Control.PING:
            if (number := messages.decode_ping(body)) is not None:
                understood = True
                self._outbox.sends.append((boot, Control.ACK, messages.encode_ack(number, messages.ALIVE, self.record.boot)))
        elif kind == Control.ACK:
            if (ack := messages.decode_ack(body)) is not None:
                understood = True
                rtt = self._detector.acked(boot, *ack, now)
                if rtt is not None and boot in self._table:
                    self._table.edit(boot).rtt = rtt
        elif kind == Control.PING_REQ:
            if (request := messages.decode_ping_req(body)) is not None:
                understood = True
                self._detector.probe_for(boot, *request, now)
        elif kind == Control.SYNC:
            claims = self._sync.handle(boot, body)
            understood = claims is not None
            if claims:
                self._learn(claims, boot, now)
        self._roster.dropped += not understood
        self._roster.heard(boot, now)

    def _on_heartbeat(self, boot: bytes, link: Link, body: bytes, now: float) -> bool:
        beat = messages.decode_heartbeat(body)
        if beat is None:
            return False
        link.beat = now
        known = self._table.find(boot)
        if known is None:
            self._sync.want(boot, [boot])
            return True
        member = self._table.edit(boot)
        member.load = beat.load
        if self._wall_offset is not None:
            self._roster.alarms.wall_clock(boot, beat.wall - now - self._wall_offset, now)
        if (beat.incarnation, beat.serial) != (member.incarnation, member.record.serial):
            self._learn([Claim(boot, beat.incarnation, beat.state, beat.serial, None, "")], boot, now)
        if now - self._synced >= self._sync_pause() and beat.digest != self._sync.root():
            self._synced = now
            self._sync.begin(boot)
        return True

    def _on_gossip(self, boot: bytes, body: bytes, now: float) -> bool:
        items = messages.decode_items(body)
        if items is None:
            return False
        claims = [item for item in items if isinstance(item, Claim)]
        self._learn(claims, boot, now)
        for item in items:
            if isinstance(item, Vote):
                self._on_vote(item, boot, now)
        return True

    def _on_vote(self, vote: Vote, source: bytes, now: float) -> None:
        if vote.boot == self.record.boot:
            if vote.incarnation >= self.incarnation and is_credible(vote.incarnation, self.incarnation):
                self._refute(vote.incarnation, now)
            return
        self._roster.vote(vote, source, now)

    # ---------------------------------------------------------------- own duties

    def _learn(self, claims: list[Claim], source: bytes, now: float) -> None:
        for claim in self._roster.learn(claims, source, now):
            self._on_claim_about_me(claim, now)

    def _on_claim_about_me(self, claim: Claim, now: float) -> None:
        """Somebody repeats, or invents, something about this node."""
        if self.observer:
            return
        if claim.serial > self.record.serial and is_credible(claim.serial, self.record.serial):
            self.record = self.record.changed(serial=claim.serial)
            self.set_record(self.record, now=now)
        if not is_credible(claim.incarnation, self.incarnation):
            self._roster.dropped += 1
        elif takes_precedence(claim.incarnation, claim.state, self.incarnation, self.state):
            self._refute(claim.incarnation, now)

    def _refute(self, incarnation: int, now: float) -> None:
        """Say the truth about this node with an incarnation above the one named."""
        self.incarnation = max(self.incarnation, incarnation)
        self.refutations += 1
        self._publish(now, raise_incarnation=True)
        self._beat_due = min(self._beat_due, now)

    def _paused(self, late: float, now: float) -> None:
        """This node was away: judge nobody for it, and speak at once; who doubts it will say so, and be refuted."""
        period = self.config.heartbeat_period
        self._detector.shift(late, now)
        self._roster.suspicions.start_over(now)
        self._listen_until = now + self.config.listen
        self._roster.undrained_until = now + max(1.0, 0.2 * period)
        self._beat_due = now
        if late > 0.5 * period:
            self._patience = min(self._patience + 1, self.config.max_health)

    def _beat(self, now: float) -> None:
        """Report to the observers."""
        period = self.config.heartbeat_period
        jitter = self.config.heartbeat_jitter
        first = self._counter == 0  # a random phase, so that nodes started together do not beat together
        self._beat_due = now + period * (self._rng.uniform(0.2, 1.0) if first else self._rng.uniform(1 - jitter, 1 + jitter))
        if self.observer:
            return
        self._counter += 1
        if self._gossip.due() < INF:
            self._flush(now)  # before the heartbeat, which tells the state but not the reason
        body = self._heartbeat(now)
        for boot in [*self._neighbours.observers(), *self._neighbours.watchers]:
            if boot in self._links:
                self._outbox.sends.append((boot, Control.HEARTBEAT, body))

    def _heartbeat(self, now: float) -> bytes:
        wall = now + self._wall_offset if self._wall_offset is not None else float("nan")
        beat = messages.Heartbeat(self.incarnation, self._counter, self.record.serial, self.state, self._own.load, wall, self._sync.root())
        return messages.encode_heartbeat(beat)

    def _chores(self, now: float) -> None:
        """Once a period: links, healing, forgetting, alarms."""
        config = self.config
        self._chores_due = now + config.heartbeat_period * self._rng.uniform(0.9, 1.1)
        self._patience = max(1, self._patience - 1)
        for boot in self._links.overdue(now):
            self.handle_dial(boot, "silent", now=now)
        self._neighbours.dial_missing(now)
        lost = None if self.observer else self._roster.healing.pick(self._table.live_count + 1, now)
        if lost is not None:
            self._links.dial(lost, now)
        for boot in self._table.purge(now - config.tombstone_ttl, config.max_tombstones):
            self._roster.forget(boot)
        self._roster.alarms.tick(now)
        if not self.observer and now >= self._roster.held_until():
            self._roster.doubt.tick(now)
        self._neighbours.close_idle(now)

    def _publish(self, now: float, *, raise_incarnation: bool = False, with_record: bool = False) -> None:
        """Spread this node's own claim."""
        if raise_incarnation:
            self.incarnation += 1
        if not self.observer:
            claim = self._own_claim()
            self._gossip.add(claim if with_record else claim._replace(record=None), None)

    def _flush(self, now: float, *, everywhere: bool = False) -> None:
        self._gossip.flush(list(self._links) if everywhere else self._neighbours.control_links(now), now)

    def _own_claim(self) -> Claim:
        return Claim(self.record.boot, self.incarnation, self.state, self.record.serial, self.record.encode(), self._own.reason)

    def _sync_pause(self) -> float:
        """Seconds between comparisons over one link: a period in a small mesh, `sync_interval` in a large one."""
        return self.config.sync_interval if self._neighbours.is_large else self.config.heartbeat_period
