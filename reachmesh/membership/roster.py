"""Judges what is said about members, and keeps the table by it.

Claims come from gossip, heartbeats and comparisons of tables; votes from observers, this node's own detector among them.
What was news is passed on, what is missing is asked for, what is over is reported. See `precedence.py` for which claim
holds, and `suspicion.py` for when votes make a loss.

Invariant: a claim of loss counts as one more accusation and no more, so that the owner hears of it and can refute before
anybody acts. Else each half of a healed mesh would bury the other before listening to it.
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random

from reachmesh.wire.control import Control

from .alarms import Alarms
from .config import MembershipConfig
from .detector import Detector
from .doubt import Doubt
from .gossip import Gossip
from .healing import Healing
from .links import Links
from .messages import Claim, Item, Vote, encode_items
from .neighbours import Neighbours
from .outbox import Outbox
from .precedence import is_credible, takes_precedence
from .record import Record
from .states import State
from .suspicion import Suspicions
from .sync import AntiEntropy
from .table import Member, Table

TELL_AGAIN = 0.2
"""Least seconds between telling the same accused the same thing."""

_UNEXPLAINED = dict.fromkeys(State, "it says so") | {State.LOST: "others hold it for lost", State.LEFT: "it stopped"}
"""Reasons of changes that arrived without one: heartbeats and comparisons of tables carry no text."""


class Roster:
    """Inputs: `learn`, `vote`, `accuse`, `verify`, `heard`. Outputs: the table, gossip, events. `dropped` counts nonsense."""

    def __init__(
        self,
        me: Record,
        config: MembershipConfig,
        rng: Random,
        *,
        table: Table,
        links: Links,
        outbox: Outbox,
        gossip: Gossip,
        sync: AntiEntropy,
        detector: Detector,
        neighbours: Neighbours,
        observer: bool,
    ) -> None:
        self._boot = me.boot
        self._mesh = me.mesh
        self._config = config
        self._table = table
        self._links = links
        self._outbox = outbox
        self._gossip = gossip
        self._sync = sync
        self._detector = detector
        self._neighbours = neighbours
        self._observer = observer
        self.suspicions = Suspicions(config)
        self.healing = Healing(config.heartbeat_period, rng)
        self.alarms = Alarms(config, table, outbox)
        self.doubt = Doubt(table, links)
        self.undrained_until = 0.0
        self.dropped = 0
        self.over: dict[bytes, None] = {}

    # ---------------------------------------------------------------- claims

    def learn(self, claims: Iterable[Claim], source: bytes, now: float) -> list[Claim]:
        """Take in claims that `source` told, except those about this node, which are the answer."""
        about_me, wanted = [], []
        for claim in claims:
            member = self._table.find(claim.boot)
            if claim.boot == self._boot:
                about_me.append(claim)
            elif member is None:
                if claim.record is not None:
                    self._introduce(claim, source, now)
                elif not claim.state.gone:
                    wanted.append(claim.boot)
            elif not is_credible(claim.incarnation, member.incarnation) or not is_credible(claim.serial, member.record.serial):
                self.dropped += 1
            else:
                if claim.serial > member.record.serial and claim.record is None and not claim.state.gone:
                    wanted.append(claim.boot)
                self._weigh(claim, source, now)
        if not self._observer:
            self._sync.want(source, wanted)
        return about_me

    def _weigh(self, claim: Claim, source: bytes, now: float) -> None:
        """A credible claim about a known member."""
        record_is_news = self._take_record(claim, now)
        member = self._table[claim.boot]
        if takes_precedence(claim.incarnation, claim.state, member.incarnation, member.state):
            if claim.state is State.LOST and not member.state.gone and not self._observer:
                self._hear_of_loss(claim, source, now)
                return
            self._adopt(claim, now)
        elif not record_is_news:
            self._gossip.known_by(claim, source)
            return
        self._pass_on(claim if record_is_news else claim._replace(record=None), source)

    def _hear_of_loss(self, claim: Claim, source: bytes, now: float) -> None:
        """`source` holds for lost whom this node does not: one vote, passed on only when it is the first the accused may hear of."""
        votes = self.suspicions.votes(claim.boot)
        vote = Vote(claim.boot, claim.incarnation, source, any(known.dead for known in votes))
        if votes:
            self.suspicions.add(vote, now)
        else:
            self._count(vote, source, now)
        self.decide(now)

    def _introduce(self, claim: Claim, source: bytes, now: float) -> None:
        """A member heard of for the first time."""
        record = Record.decode(claim.record) if claim.record is not None and not claim.state.gone else None
        is_ours = record is not None and record.boot == claim.boot and record.mesh == self._mesh
        has_room = self._table.live_count < self._config.max_members or claim.boot in self._links
        if record is None or not is_ours or not has_room or not is_credible(claim.incarnation, 0):
            self.dropped += 1
            return
        was_large = self._neighbours.is_large
        member = Member(record, claim.incarnation, claim.state, claim.reason, now)
        self._table.add(member)
        self.alarms.present(record.name, record.instance_id, record.boot, record.zone, now)
        self._neighbours.living(claim.boot, now)
        if claim.boot in self._links:
            self.verify(claim.boot, now)
        self._announce(member, "its record arrived", now)
        if self._neighbours.is_large and not was_large:
            for hearsay in [other for other in self._table.live() if not other.announced]:
                self._announce(hearsay, "known by hearsay", now)
        self._pass_on(claim, source)

    def _take_record(self, claim: Claim, now: float) -> bool:
        """Replace the record if the one offered is newer and good; whether it was."""
        old = self._table[claim.boot].record
        if claim.record is None or claim.serial <= old.serial:
            return False
        record = Record.decode(claim.record)
        if record is None or record.boot != claim.boot or record.mesh != self._mesh or record.serial != claim.serial:
            self.dropped += 1
            return False
        member = self._table.replace_record(record)
        if not member.state.gone:
            if (old.name, old.instance_id) != (record.name, record.instance_id):
                self.alarms.absent(old.name, old.instance_id, old.boot)
            self.alarms.present(record.name, record.instance_id, record.boot, record.zone, now)
        if member.announced:
            self._outbox.event("record_changed", member, "its record changed", now)
        return True

    def _adopt(self, claim: Claim, now: float) -> None:
        """Write down a claim that takes precedence, and let every part know what it means."""
        before = self._table[claim.boot]
        old_state, refuted = before.state, claim.incarnation > before.incarnation
        reason = claim.reason or (before.reason if claim.state is old_state else _UNEXPLAINED[claim.state])
        member = self._table.restate(claim.boot, claim.incarnation, claim.state, reason, now)
        member.suspected = False
        if self.suspicions.clear(claim.boot) and refuted and not claim.state.gone:
            self._detector.forgive(claim.boot, now)
            if member.announced:
                self._outbox.event("peer_cleared", member, "it refuted the suspicion", now)
        if claim.state.gone and not old_state.gone:
            self._end(member, now)
        elif old_state.gone and not claim.state.gone:
            self.alarms.present(member.record.name, member.record.instance_id, claim.boot, member.record.zone, now)
            self.forget(claim.boot)
            self._neighbours.living(claim.boot, now)
            self._announce(member, "it is back", now)
        elif claim.state is not old_state and member.announced:
            self._outbox.event("peer_state", member, member.reason, now)

    def _end(self, member: Member, now: float) -> None:
        """A member became LOST or LEFT."""
        boot = member.record.boot
        member.mute = False
        self.alarms.absent(member.record.name, member.record.instance_id, boot)
        if member.state is State.LOST:
            self.healing.lost(boot, now)
            self.alarms.lost(boot, now)
            if self._detector.watches(boot) and not member.verified:
                self.doubt.found_false()
        else:
            self.over[boot] = None
        if member.announced:
            member.announced = False
            self._outbox.event("peer_left" if member.state is State.LEFT else "peer_lost", member, member.reason, now)
        self._neighbours.gone(boot, now)

    def try_failed(self, boot: bytes, taken: bool, refused: bool) -> None:
        """A dial to a member that is gone failed; `taken`: another process has its address."""
        if taken:
            self.healing.forget(boot)
            self.over[boot] = None
        else:
            self.healing.failed(boot, refused)

    def forget(self, boot: bytes) -> None:
        """A tombstone was removed, or its owner is back."""
        self.healing.forget(boot)
        self.over.pop(boot, None)

    def verify(self, boot: bytes, now: float) -> None:
        """A link proves the identity of a known member."""
        self.doubt.answered(boot, True)
        member = self._table.edit(boot)
        member.verified = True
        self._announce(member, "it answered the handshake", now)

    def _announce(self, member: Member, reason: str, now: float) -> None:
        """Tell of a member once: verified, or known by hearsay in a mesh too large to shake every hand."""
        if not member.announced and not member.state.gone and (member.verified or self._neighbours.is_large or self._observer):
            self._table.edit(member.record.boot).announced = True
            self._outbox.event("peer_joined", self._table[member.record.boot], reason, now)

    # ---------------------------------------------------------------- votes

    def vote(self, vote: Vote, source: bytes, now: float) -> None:
        """Somebody's vote against a member, told by `source`."""
        member, voter = self._table.find(vote.boot), self._table.find(vote.voter)
        if member is None or member.state.gone or vote.incarnation != member.incarnation:
            return
        if vote.voter == self._boot or voter is None or voter.state.gone:
            return
        self._count(vote, source, now)
        if vote.dead and vote.boot not in self._links and (self._detector.watches(vote.boot) or not self._neighbours.is_large):
            self._detector.link_dropped(vote.boot, now)  # a second witness, at once

    def accuse(self, now: float) -> None:
        """Count the detector's accusations as this node's votes."""
        for boot, dead in self._detector.take_accusations():
            member = self._table.find(boot)
            if member is not None and not member.state.gone:
                self._count(Vote(boot, member.incarnation, self._boot, dead), None, now)

    def decide(self, now: float) -> None:
        """Declare those lost whose suspicion is ripe, unless judgement is held back."""
        if now < self.held_until():
            return
        for boot, reason in self.suspicions.decided(self._table.live_count + 1, now):
            member = self._table[boot]
            claim = Claim(boot, member.incarnation, State.LOST, member.record.serial, None, reason)
            self._adopt(claim, now)
            self._pass_on(claim, None)

    def dial_failed(self, boot: bytes, refused: bool, now: float) -> None:
        """A dial to a living member failed."""
        if self.doubt.answered(boot, False):
            self._detector.accuse(boot)
        self._detector.dial_failed(boot, refused, now)
        self.accuse(now)

    def held_until(self) -> float:
        """Until when this node judges nobody: it was paused and has not read its sockets, or it is isolated."""
        return max(self.undrained_until, self._detector.held_until)

    def _count(self, vote: Vote, source: bytes | None, now: float) -> None:
        if not self.suspicions.add(vote, now):
            if source is not None:
                self._gossip.known_by(vote, source)
            return
        member = self._table.edit(vote.boot)
        self._pass_on(vote, source)
        if not member.suspected:
            member.suspected = True
            if member.announced:
                what = "its connection dropped and its port refuses" if vote.dead else "silent, and no answer to probes"
                self._outbox.event("peer_suspected", member, what, now)
        if vote.dead:  # an observer's own counts in its own table: there may be nobody else to tell it
            self.decide(now)

    # ---------------------------------------------------------------- life signs

    def heard(self, boot: bytes, now: float) -> None:
        """A life sign came directly from a linked boot."""
        self._detector.heard(boot, now)
        member = self._table.find(boot)
        if member is None:
            return
        if self._detector.watches(boot) or member.mute:
            member = self._table.edit(boot)
            member.last_heard = now
            if member.mute:
                member.mute = False
                self._outbox.event("peer_state", member, "it speaks again", now)
        if (member.state.gone or member.suspected) and not self._observer:
            self._tell(boot, member, now)

    def found_mute(self, boot: bytes, now: float) -> None:
        """A member's process takes connections and says nothing: alive, for as long as `mute_limit` allows."""
        member = self._table.edit(boot)
        if member.state.gone or (member.last_heard and now - member.last_heard > self._config.mute_limit):
            self._detector.dial_failed(boot, False, now)
            return
        self._detector.heard(boot, now - (self._config.probe_after - 0.5) * self._config.heartbeat_period)
        if not member.mute:
            member.mute = True
            self._outbox.event("peer_state", member, "its process takes connections but does not answer", now)

    def _tell(self, boot: bytes, member: Member, now: float) -> None:
        """A frame came from one who is held for lost or suspected: say so, that it may refute."""
        link = self._links.get(boot)
        if link is None or now - link.told < TELL_AGAIN:
            return
        link.told = now
        items: list[Item] = list(self.suspicions.votes(boot))
        if member.state.gone:
            items.append(Claim(boot, member.incarnation, member.state, member.record.serial, None, member.reason))
        if items:
            self._outbox.sends.append((boot, Control.GOSSIP, encode_items(items)))

    def _pass_on(self, item: Item, source: bytes | None) -> None:
        if not self._observer:
            self._gossip.add(item, source)
