"""The membership of one node: who is there, in which state, and what to tell whom.

A pure machine between the links and the routing. It never reads a clock, opens a socket or blocks; `now` is monotonic
seconds and never decreases. Every input is total: a peer's bytes are counted in `dropped` when they make no sense.

Inputs: `handle_link_up`, `handle_link_down`, `handle_dial`, `handle_frame`, `handle_life`, `handle_observer`; of this node
`set_record`, `set_load`, `drain`, `leave`; of time `note_turn`, `note_drained`, `tick`. Outputs: `take_sends`, `take_dials`,
`take_closes`, `take_events`; reads: `members`, `state`, `table_digest`, `wants_link`. The driver calls `tick` when
`next_timeout()` has come, and takes the outputs after every batch of inputs.

Protocol (figures in `config.py`): a node reports to its observers every period (`rings.py`); an observer probes the silent
and accuses them (`detector.py`); accusations are flooded and counted (`suspicion.py`); the accused refutes with a higher
incarnation (`precedence.py`); news is flooded once over the control links (`gossip.py`); tables are compared after each
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
from .alarms import Alarms
from .config import MembershipConfig
from .detector import Detector
from .gossip import Gossip
from .healing import Healing
from .links import Link, Links
from .messages import Claim, Item, Vote
from .outbox import MemberEvent, Outbox, Send
from .precedence import is_credible, takes_precedence
from .record import SERIAL_LIMIT, Record
from .rings import Rings
from .states import Load, OwnState, State
from .suspicion import Suspicions
from .sync import AntiEntropy
from .table import Member, Table

INF = float("inf")
DialOutcome = Literal["up", "refused", "silent", "other", "mute"]
MIN_PAUSE = 0.2
"""Seconds a turn must be late at least to count as a pause, whatever the period."""
OBSERVER_LINKS = 256
"""Members a silent observer links to, for their loads."""
TELL_AGAIN = 0.2
"""Least seconds between telling the same accused the same thing."""


class Membership:
    """See the module.

    Args:
        me: this node's own record; its incarnation and serial are where this node starts.
        config: the figures.
        rng: seeded randomness.
        now: monotonic seconds.
        observer: a silent one: it learns everything, is counted by nobody, and sends nothing of its own accord.
        table: a first table, for simulations.
    """

    def __init__(
        self, me: Record, config: MembershipConfig, rng: Random, *, now: float, observer: bool = False, table: Table | None = None
    ) -> None:
        me.encode()
        self.record = me
        self.config = config
        self.incarnation = max(1, me.incarnation)
        self.observer = observer
        self.dropped = 0
        self.refutations = 0
        self._rng = rng
        self._own = OwnState(config)
        self._outbox = Outbox()
        self._table = table if table is not None else Table()
        self._links = Links(self._outbox)
        self._rings = Rings(me.boot, config.rings)
        self._detector = Detector(me.boot, config, rng, self._table, self._links, self._outbox)
        self._suspicions = Suspicions(config)
        self._gossip = Gossip(config.gossip_delay, self._outbox)
        self._sync = AntiEntropy(self._table, self._own_claim, self._outbox)
        self._healing = Healing(config.heartbeat_period, rng)
        self._alarms = Alarms(config, self._table, self._outbox)
        self._watchers: dict[bytes, None] = {}
        self._redials: dict[bytes, float] = {}
        self._counter = 0
        self._beat_due = now
        self._chores_due = now + config.heartbeat_period * rng.uniform(0.5, 1.0)
        self._now = now
        self._due = now
        self._patience = 1
        self._undrained_until = 0.0
        self._wall_offset: float | None = None
        self._synced = now
        self._alarms.present(me.name, me.instance_id, me.boot, me.zone, now)

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
    def isolated(self) -> bool:
        """Whether this node suspects itself of being cut off."""
        return self._detector.isolated_since is not None

    def table_digest(self) -> int:
        """64-bit digest of table and self; equal tables have equal digests."""
        return self._sync.root()

    def wants_link(self, boot: bytes) -> bool:
        """Whether membership needs a link to this boot (the driver may close it when idle if not)."""
        return boot in self._watchers or self._is_neighbour(boot)

    def next_timeout(self) -> float:
        """Absolute monotonic time at which `tick` is due."""
        due = min(self._beat_due, self._chores_due, self._gossip.due(), self._own.due())
        if not self.observer:
            judgement = min(self._detector.next_due(self._patience), self._suspicions.next_due(self._table.live_count + 1))
            due = min(due, max(judgement, self._held_until()))
        self._due = max(due, self._now)
        return self._due

    # ---------------------------------------------------------------- outputs

    def take_sends(self) -> list[Send]:
        """(boot, control kind, body) to send; to a boot without a link: dropped by the driver."""
        taken, self._outbox.sends = self._outbox.sends, []
        return taken

    def take_dials(self) -> list[bytes]:
        """Boots to connect to; each is answered by `handle_dial`."""
        taken, self._outbox.dials = self._outbox.dials, []
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
        self._redials.pop(boot, None)
        self._watchers.pop(boot, None)
        self._heard(boot, now)
        if not fresh or self.observer:
            return
        self._sync.send_claims(boot, [self._own_claim()])
        if self.record.boot < boot:
            self._sync.begin(boot)
        if (member := self._table.find(boot)) is not None:
            self._verify(member, now)
        self._detector.ping(boot, now)

    def handle_link_down(self, boot: bytes, *, refused: bool = False, closed: bool = False, now: float) -> None:
        """The last link to `boot` is gone.

        `closed`: by a goodbye of either side, so it says nothing about the peer. `refused`: a new dial was refused already.
        """
        self._watchers.pop(boot, None)
        if self._links.pop(boot, None) is None:
            return
        member = self._table.find(boot)
        if closed or self.observer or member is None or member.state.gone or self.state is State.LEFT:
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
        if outcome == "up" or boot in self._links or member is None:
            return
        self._redials[boot] = now + self.config.heartbeat_period
        if outcome == "mute":
            self._found_mute(boot, member, now)
            return
        dead = outcome in ("refused", "other")
        if member.state.gone:
            self._healing.forget(boot) if outcome == "other" else self._healing.failed(boot, dead)
        else:
            self._detector.dial_failed(boot, dead, now)
            self._count_own_votes(now)

    def handle_life(self, boot: bytes, *, now: float) -> None:
        """Any other frame came from `boot`; once a turn is enough."""
        link = self._links.get(boot)
        if link is not None:
            link.heard = now
            self._heard(boot, now)

    def handle_observer(self, boot: bytes, *, now: float) -> None:
        """A silent observer linked: it gets the snapshot, then what the neighbours get."""
        self._links.dialing.pop(boot, None)
        self._links.setdefault(boot, Link(now))
        self._watchers[boot] = None
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
            self._alarms.absent(old.name, old.instance_id, old.boot)
        self.record = changed
        self._alarms.present(changed.name, changed.instance_id, changed.boot, changed.zone, now)
        self._publish(now, with_record=True)

    def set_load(self, load: Load, *, now: float) -> None:
        """New measurements of this node; may change its state after `state_hold`."""
        self._own.set_load(load, now)

    def drain(self, *, now: float) -> None:
        """This node finishes what it has and takes nothing new."""
        if self.state.value < State.DRAINING.value:
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
        if late > max(self.config.pause_after * self.config.heartbeat_period, MIN_PAUSE):
            self._due = now
            self._paused(late, now)

    def note_drained(self, *, now: float) -> None:
        """The sockets were read empty: what was waiting there has been heard."""
        self._undrained_until = 0.0

    def tick(self, *, now: float) -> None:
        """Do what is due."""
        self._now = now
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
        if not self.observer and now >= self._undrained_until:
            self._detector.tick(now, self._patience)
            self._count_own_votes(now)
            if len(self._suspicions) and now >= self._held_until():
                self._decide(now)
        if now >= self._gossip.due():
            self._flush(now)

    # ---------------------------------------------------------------- frames

    def handle_frame(self, boot: bytes, kind: int, body: bytes, *, now: float) -> None:
        """One control frame of kind 5 and up from a linked boot."""
        link = self._links.get(boot)
        if link is None or boot in self._watchers:
            self.dropped += 1
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
        self.dropped += not understood
        self._heard(boot, now)

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
            self._alarms.wall_clock(boot, beat.wall - now - self._wall_offset, now)
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
        member = self._table.find(vote.boot)
        voter = self._table.find(vote.voter)
        if member is None or member.state.gone or vote.incarnation != member.incarnation:
            return
        if vote.voter == self.record.boot or voter is None or voter.state.gone:
            return
        self._count_vote(vote, source, now)
        if vote.dead and vote.boot not in self._links and (self._detector.watches(vote.boot) or not self._is_large()):
            self._detector.link_dropped(vote.boot, now)  # a second witness, at once

    # ---------------------------------------------------------------- judging claims

    def _learn(self, claims: list[Claim], source: bytes, now: float) -> None:
        """Take claims in that `source` told; pass on what was news; ask for records that are missing."""
        wanted = []
        for claim in claims:
            if claim.boot == self.record.boot:
                self._on_claim_about_me(claim, now)
                continue
            member = self._table.find(claim.boot)
            if member is None:
                if claim.state.gone:
                    continue
                if claim.record is None:
                    wanted.append(claim.boot)
                elif self._introduce(claim, source, now):
                    self._pass_on(claim, source)
                continue
            if not is_credible(claim.incarnation, member.incarnation) or not is_credible(claim.serial, member.record.serial):
                self.dropped += 1
                continue
            if claim.serial > member.record.serial and not claim.state.gone and claim.record is None:
                wanted.append(claim.boot)
            record_is_news = claim.record is not None and self._take_record(claim, now)
            if takes_precedence(claim.incarnation, claim.state, member.incarnation, member.state):
                if claim.state is State.LOST and not member.state.gone and claim.boot not in self._suspicions and not self.observer:
                    self._accused_from_afar(claim, source, now)
                elif self._take_claim(claim, now) or record_is_news:
                    self._pass_on(claim if record_is_news else claim._replace(record=None), source)
            elif record_is_news:
                self._pass_on(claim, source)
            else:
                self._gossip.known_by(claim, source)
        if wanted and not self.observer:
            self._sync.want(source, wanted)

    def _introduce(self, claim: Claim, source: bytes, now: float) -> bool:
        """A member heard of for the first time."""
        record = Record.decode(claim.record) if claim.record is not None else None
        if record is None or record.boot != claim.boot or record.mesh != self.record.mesh or not is_credible(claim.incarnation, 0):
            self.dropped += 1
            return False
        if self._table.live_count >= self.config.max_members and claim.boot not in self._links:
            self.dropped += 1
            return False
        member = Member(record, claim.incarnation, claim.state, claim.reason, now)
        self._table.add(member)
        self._alarms.present(record.name, record.instance_id, record.boot, record.zone, now)
        self._living(claim.boot, now)
        if claim.boot in self._links:
            self._verify(member, now)
        self._announce(member, "its record arrived", now)
        return True

    def _take_record(self, claim: Claim, now: float) -> bool:
        """Replace the record if the one offered is newer and good."""
        member = self._table[claim.boot]
        if claim.record is None or claim.serial <= member.record.serial:
            return False
        record = Record.decode(claim.record)
        if record is None or record.boot != claim.boot or record.mesh != self.record.mesh or record.serial != claim.serial:
            self.dropped += 1
            return False
        old = member.record
        if (old.name, old.instance_id) != (record.name, record.instance_id):
            self._alarms.absent(old.name, old.instance_id, old.boot)
        member = self._table.replace_record(record)
        if not member.state.gone:
            self._alarms.present(record.name, record.instance_id, record.boot, record.zone, now)
        if member.announced:
            self._outbox.event("record_changed", member, "its record changed", now)
        return True

    def _take_claim(self, claim: Claim, now: float) -> bool:
        """Adopt a claim that takes precedence: write it down, and let every part know."""
        before = self._table[claim.boot]
        old_state, refuted = before.state, claim.incarnation > before.incarnation
        reason = claim.reason or ("" if claim.state is old_state else "it says so")
        member = self._table.restate(claim.boot, claim.incarnation, claim.state, reason or before.reason, now)
        if refuted or claim.state.gone:
            if self._suspicions.clear(claim.boot) and refuted and not claim.state.gone:
                self._detector.forgive(claim.boot, now)
            member.suspected = False
        if claim.state.gone and not old_state.gone:
            self._gone(member, now)
        elif old_state.gone and not claim.state.gone:
            self._alarms.present(member.record.name, member.record.instance_id, claim.boot, member.record.zone, now)
            self._healing.forget(claim.boot)
            self._living(claim.boot, now)
            self._announce(member, "it is back", now)
        elif claim.state is not old_state and member.announced:
            self._outbox.event("peer_state", member, member.reason, now)
        return True

    def _gone(self, member: Member, now: float) -> None:
        """A member became LOST or LEFT."""
        boot = member.record.boot
        member.mute = False
        self._alarms.absent(member.record.name, member.record.instance_id, boot)
        if member.state is State.LOST:
            self._healing.lost(boot, now)
            self._alarms.lost(boot, now)
        if member.announced:
            member.announced = False
            self._outbox.event("peer_left" if member.state is State.LEFT else "peer_lost", member, member.reason, now)
        self._rings.remove(boot, (m.record.boot for m in self._table.live()))
        self._neighbours_changed(now)

    def _living(self, boot: bytes, now: float) -> None:
        """A member lives (again)."""
        self._rings.add(boot)
        self._neighbours_changed(now)

    def _verify(self, member: Member, now: float) -> None:
        """Its identity is proved by a link."""
        member = self._table.edit(member.record.boot)
        member.verified = True
        self._announce(member, "it answered the handshake", now)

    def _announce(self, member: Member, reason: str, now: float) -> None:
        """Tell of a member once: verified, or known by hearsay in a mesh too large to shake every hand."""
        if member.announced or member.state.gone or not (member.verified or self._is_large()):
            return
        member.announced = True
        self._outbox.event("peer_joined", member, reason, now)

    def _on_claim_about_me(self, claim: Claim, now: float) -> None:
        """Somebody repeats, or invents, something about this node."""
        if self.observer:
            return
        if claim.serial > self.record.serial and is_credible(claim.serial, self.record.serial):
            self.record = self.record.changed(serial=claim.serial)
            self.set_record(self.record, now=now)
        if not is_credible(claim.incarnation, self.incarnation):
            self.dropped += 1
        elif takes_precedence(claim.incarnation, claim.state, self.incarnation, self.state):
            self._refute(claim.incarnation, now)

    def _refute(self, incarnation: int, now: float) -> None:
        """Say the truth about this node with an incarnation above the one named."""
        self.incarnation = max(self.incarnation, incarnation)
        self.refutations += 1
        self._publish(now, raise_incarnation=True)
        self._beat_due = min(self._beat_due, now)

    def _accused_from_afar(self, claim: Claim, source: bytes, now: float) -> None:
        """Somebody holds a member for lost that this node does not: let the accused hear of it, and wait."""
        self._count_vote(Vote(claim.boot, claim.incarnation, source, False), source, now)

    # ---------------------------------------------------------------- votes

    def _count_own_votes(self, now: float) -> None:
        for boot, dead in self._detector.take_accusations():
            member = self._table.find(boot)
            if member is not None and not member.state.gone:
                self._count_vote(Vote(boot, member.incarnation, self.record.boot, dead), None, now)

    def _count_vote(self, vote: Vote, source: bytes | None, now: float) -> None:
        if vote.incarnation < self._table[vote.boot].incarnation or not self._suspicions.add(vote, now):
            if source is not None:
                self._gossip.known_by(vote, source)
            return
        self._table.edit(vote.boot).suspected = True
        if not self.observer:
            self._gossip.add(vote, source)
            if vote.dead and now >= self._held_until():
                self._decide(now)

    def _held_until(self) -> float:
        """Until when this node judges nobody: paused and not drained, or isolated."""
        return max(self._undrained_until, self._detector.held_until)

    def _decide(self, now: float) -> None:
        """Declare those lost whose suspicion is ripe."""
        for boot, reason in self._suspicions.decided(self._table.live_count + 1, now):
            member = self._table[boot]
            claim = Claim(boot, member.incarnation, State.LOST, member.record.serial, None, reason)
            if self._take_claim(claim, now):
                self._gossip.add(claim, None)

    def _heard(self, boot: bytes, now: float) -> None:
        """A life sign came directly from a linked boot."""
        member = self._table.find(boot)
        if member is None:
            return
        if self._detector.watches(boot) or member.mute:
            member = self._table.edit(boot)
            member.last_heard = now
            if member.mute:
                member.mute = False
                self._outbox.event("peer_state", member, "it speaks again", now)
        self._detector.heard(boot, now)
        if (member.state.gone or member.suspected) and not self.observer:
            self._tell(boot, member, now)

    def _tell(self, boot: bytes, member: Member, now: float) -> None:
        """A frame came from one who is held for lost or suspected: say so, that it may refute."""
        link = self._links[boot]
        if now - link.told < TELL_AGAIN:
            return
        link.told = now
        items: list[Item] = list(self._suspicions.votes(boot))
        if member.state.gone:
            items.append(Claim(boot, member.incarnation, member.state, member.record.serial, None, member.reason))
        if items:
            self._outbox.sends.append((boot, Control.GOSSIP, messages.encode_items(items)))

    def _found_mute(self, boot: bytes, member: Member, now: float) -> None:
        """A member's process takes connections and says nothing: alive, for as long as `mute_limit` allows."""
        if member.state.gone or (member.last_heard and now - member.last_heard > self.config.mute_limit):
            self._detector.dial_failed(boot, False, now)
            return
        member = self._table.edit(boot)
        self._detector.heard(boot, now - (self.config.probe_after - 0.5) * self.config.heartbeat_period)
        if not member.mute:
            member.mute = True
            self._outbox.event("peer_state", member, "its process takes connections but does not answer", now)

    # ---------------------------------------------------------------- own duties

    def _paused(self, late: float, now: float) -> None:
        """This node was away: judge nobody for it, speak at once, and say that it lives if others may doubt it."""
        period = self.config.heartbeat_period
        self._detector.shift(late, now)
        self._suspicions.shift(late)
        self._undrained_until = now + max(1.0, 0.2 * period)
        self._beat_due = now
        if late > 0.5 * period:
            self._patience = min(self._patience + 1, self.config.max_health)
        if late > period and not self.observer and self.state is not State.LEFT:
            self._refute(self.incarnation, now)

    def _beat(self, now: float) -> None:
        """Report to the observers."""
        period = self.config.heartbeat_period
        self._beat_due = now + period * self._rng.uniform(1 - self.config.heartbeat_jitter, 1 + self.config.heartbeat_jitter)
        if self.observer:
            return
        self._counter += 1
        body = self._heartbeat(now)
        for boot in [*self._observers(), *self._watchers]:
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
        self._dial_missing(now)
        lost = None if self.observer else self._healing.pick(self._table.live_count + 1, now)
        if lost is not None:
            self._links.dial(lost, now)
        for boot in self._table.purge(now - config.tombstone_ttl, config.max_tombstones):
            self._healing.forget(boot)
            self._redials.pop(boot, None)
        self._alarms.tick(now)
        idle = now - 2 * config.heartbeat_period
        for boot, link in self._links.items():
            if not link.close_asked and link.since < idle and link.beat < idle and not self.wants_link(boot):
                link.close_asked = True
                self._outbox.closes.append(boot)

    def _neighbours_changed(self, now: float) -> None:
        if self.observer:
            self._dial_missing(now)
            return
        if not self._is_large():
            self._detector.watch([member.record.boot for member in self._table.live()], now)
        else:
            self._detector.watch(self._rings.observed, now)
            if self._table.live_count == self.config.full_mesh_limit:
                for member in list(self._table.live()):
                    self._announce(self._table.edit(member.record.boot), "known by hearsay", now)
        self._dial_missing(now)

    def _dial_missing(self, now: float) -> None:
        """Ask for the links this node needs. In a small mesh the lower boot id dials first, to spare the double dial."""
        patience = 0.5 * self.config.heartbeat_period
        for boot in self._observers():
            if boot in self._links or self._redials.get(boot, 0.0) > now:
                continue
            if not self._is_large() and not self.observer and self.record.boot > boot and now - self._table[boot].since < patience:
                continue
            self._links.dial(boot, now)

    def _observers(self) -> list[bytes]:
        """To whom this node reports."""
        if self._is_large() and not self.observer:
            return list(self._rings.observers)
        everyone = [member.record.boot for member in self._table.live()]
        return everyone[:OBSERVER_LINKS] if self.observer else everyone

    def _is_large(self) -> bool:
        return self._table.live_count >= self.config.full_mesh_limit

    def _is_neighbour(self, boot: bytes) -> bool:
        if not self._is_large():
            member = self._table.find(boot)
            return member is not None and not member.state.gone
        return boot in self._rings.observers or boot in self._rings.observed

    def _control_links(self, now: float) -> list[bytes]:
        """Links that carry news: neighbours, those who take me for their observer, silent observers."""
        recent = now - 2.5 * self.config.heartbeat_period
        return [boot for boot, link in self._links.items() if link.beat >= recent or link.since >= recent or self.wants_link(boot)]

    def _pass_on(self, item: Item, source: bytes | None) -> None:
        if not self.observer:
            self._gossip.add(item, source)

    def _publish(self, now: float, *, raise_incarnation: bool = False, with_record: bool = False) -> None:
        """Spread this node's own claim."""
        if raise_incarnation:
            self.incarnation += 1
        if not self.observer:
            claim = self._own_claim()
            self._gossip.add(claim if with_record else claim._replace(record=None), None)

    def _flush(self, now: float, *, everywhere: bool = False) -> None:
        self._gossip.flush(list(self._links) if everywhere else self._control_links(now), now)

    def _own_claim(self) -> Claim:
        return Claim(self.record.boot, self.incarnation, self.state, self.record.serial, self.record.encode(), self._own.reason)

    def _sync_pause(self) -> float:
        """Seconds between comparisons over one link: a period in a small mesh, `sync_interval` in a large one."""
        return self.config.sync_interval if self._is_large() else self.config.heartbeat_period
