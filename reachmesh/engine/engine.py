"""One node's state machine: bytes in, bytes and deliveries out.

The driver calls `handle_*` with what the sockets gave and verbs of `caller` and `callee` with what this process wants, then `settle`
until nothing moves, and takes: dials, sends, closes (in that order), deliveries and notes. All of it under one seat, by whichever
thread sits there; nothing in here knows about threads.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import msgspec

from reachmesh.calls.admission import Rule
from reachmesh.calls.callee import Callee
from reachmesh.calls.caller import Caller
from reachmesh.calls.flags import CONTROL, REQUEST, RESPONSE, STREAM, STREAM_TO_CALLER
from reachmesh.calls.flows import Buffer
from reachmesh.calls.incoming import IncomingCall
from reachmesh.calls.outgoing import OutgoingCall
from reachmesh.calls.ports import Delivery, Ended
from reachmesh.engine.access import AccessRules
from reachmesh.engine.link import LinkNote
from reachmesh.engine.links import INSECURE, SELF, LinkTable
from reachmesh.engine.providers import RESERVED, hidden_provider, providers_of
from reachmesh.errors import Overloaded, ProtocolError, ReachError
from reachmesh.membership.config import MembershipConfig
from reachmesh.membership.machine import DialOutcome, Membership
from reachmesh.membership.outbox import MemberEvent
from reachmesh.membership.record import Record
from reachmesh.membership.states import Load, full_capability
from reachmesh.resilience.cache import CacheConfig
from reachmesh.resilience.deadline import TimeoutConfig
from reachmesh.resilience.dedup import DedupConfig
from reachmesh.resilience.hedge import HedgeConfig
from reachmesh.resilience.permits import PermitConfig
from reachmesh.resilience.pressure import PressureConfig
from reachmesh.resilience.retry import RetryPolicy, RetryThrottle
from reachmesh.routing import NoPick, Provider, RouteEvent, Router, RouteRequest, RoutingConfig
from reachmesh.wire.control import Control
from reachmesh.wire.frames import Frame, encode_control, split_batch
from reachmesh.wire.limits import LIMITS

_REFUSALS_EVERY = 30.0
"""Seconds between two events about the same refusal."""

_REFUSALS = 256
"""Different refusals remembered."""

_REFUSALS_AT_ONCE = 8.0
"""Different refusals told at once; beyond them one a second, for their texts hold what strangers call themselves."""

_LINK_CHECK = 1.0
"""Seconds between two looks for links that are no longer needed."""


LOAD_PERIOD = 0.25
"""Seconds between two measurements of the own load while calls are open. Shorter shows a full node sooner and costs wake-ups."""

_IDLE = Load()

_DIAL_OUTCOMES: dict[str, DialOutcome] = {"refused": "refused", "other": "other", "mute": "mute", "up": "up"}

_ENDINGS = ("retired", "left", "not needed")
"""Reasons of a link's end that were agreed on, and so say nothing about the peer."""


class Identity(msgspec.Struct, frozen=True):
    """Who this node is for its whole life."""

    boot: bytes
    instance_id: str
    name: str
    mesh: str
    host: str
    zone: str | None = None
    observer: bool = False


class Note(msgspec.Struct, frozen=True):
    """Something worth telling the node's user: `kind` as in `node.on`, the peer's record if there is one, and the reason."""

    kind: str
    record: Record | None
    reason: str
    at: float
    boot: bytes = b""
    state: str = ""


class Engine:
    """Membership, routing, calls and links of one node, turning together.

    Args:
        rule_of: the rule of a capability served right now, or None (a dictionary look-up, nothing of the user's).
        grace: seconds after the start during which a call that nobody can serve waits for discovery.

    Attributes:
        loop_lag: seconds by which this node's event loop is late; the driver measures it while calls are served.
    """

    def __init__(
        self,
        identity: Identity,
        record: Record,
        *,
        membership: MembershipConfig,
        routing: RoutingConfig,
        rng: random.Random,
        rule_of: Callable[[str], Rule | None],
        now: float,
        depth_limit: int = 16,
        grace: float = 1.5,
        policy: RetryPolicy | None = None,
        throttle: RetryThrottle | None = None,
        permits: PermitConfig | None = None,
        pressure: PressureConfig | None = None,
        dedup: DedupConfig | None = None,
        cache: CacheConfig | None = None,
        timeouts: TimeoutConfig | None = None,
        hedging: HedgeConfig | None = None,
        access: AccessRules | None = None,
    ) -> None:
        self.identity = identity
        self._access = access or AccessRules({})
        self.deliveries: list[Delivery] = []
        self.ended: list[Ended] = []
        self.links = LinkTable(
            identity.boot, identity.instance_id, identity.name, identity.mesh, observer=identity.observer, in_use=self._in_use
        )
        self.router = Router(routing, rng, zone=identity.zone, host=identity.host, now=now)
        self.membership = Membership(record, membership, rng, now=now, observer=identity.observer)
        self.caller = Caller(
            self.links,
            self.router,
            self.deliveries,
            LIMITS,
            rng,
            policy=policy or RetryPolicy(rng=rng),
            throttle=throttle or RetryThrottle(),
            depth_limit=depth_limit,
            grace_until=now + grace,
            ended=self.ended,
            hidden=self._hidden,
            refusals=lambda: self.refusals,
            timeouts=timeouts,
            hedging=hedging,
        )
        self.callee = Callee(
            self.links,
            self.deliveries,
            LIMITS,
            boot=identity.boot,
            instance_id=identity.instance_id,
            depth_limit=depth_limit,
            rule_of=rule_of,
            ended=self.ended,
            permits=permits or PermitConfig(),
            pressure=pressure or PressureConfig(),
            dedup=dedup,
            cache=cache,
            allows=self._allows if access else None,
        )
        # A probe of a process that is too busy to speak has to be back before the time for a suspicion.
        self._patience = 0.8 * (membership.suspect_after - membership.probe_after) * membership.heartbeat_period
        self._notes: list[Note] = []
        self._heard: dict[int, bytes] = {}
        self._next_link_check = now + _LINK_CHECK
        self._retiring: dict[bytes, None] = {}
        self._broken: dict[bytes, float] = {}
        """Boots whose last link broke, until it stands again, they are gone, or this instant: by then they would be suspected."""
        self._judged_after = membership.suspect_after * membership.heartbeat_period
        self._refusals: dict[str, float] = {}
        self._refusals_left, self._refused_at = _REFUSALS_AT_ONCE, now
        self._touched = True
        self._member_due = now
        self._load_due = now
        self._load = _IDLE
        self.loop_lag = 0.0
        self.faults = 0
        self._own_providers(record, now)

    # ---------------------------------------------------------------- inputs

    def handle_candidate(self, address: str, boot: bytes | None, now: float) -> None:
        """Discovery found an address: dial it to meet somebody new, or learn where somebody known may be reached.

        Links to known members are the membership's affair: in a large mesh most are not wanted. A lost one may have moved; it is
        tried in its turn.
        """
        members = self.membership.members
        if boot is None:
            endpoint = f"tcp://{address}"
            if self.links.linked() and any(endpoint in each.record.endpoints and not each.state.gone for each in members.values()):
                return  # a member is there, unless somebody lies; that cannot keep a node alone that has no link yet
        elif boot in members:
            if boot not in self.membership.tombstones:
                self.links.book.learn(boot, (address,))
            return
        self.links.handle_candidate(address, boot, now)

    def handle_message(self, key: int, batch: bytes, parts: Sequence[Buffer], now: float) -> None:
        """One received ZeroMQ message."""
        frames, fault = split_batch(batch, parts)
        link = self.links.get(key)
        if fault is not None:
            self.faults += 1
            if link is None:
                return
        for frame in frames:
            kind = frame[0]
            if link is None or not link.boot or kind == CONTROL:
                self._handle_control(key, frame, now)
                link = self.links.get(key)
            elif kind == REQUEST:
                self.callee.handle_request(key, link.boot, (link.name, link.instance_id), frame, now)
            elif kind == RESPONSE:
                self.caller.handle_response(key, frame, now)
            elif kind == STREAM:
                if frame[1] & STREAM_TO_CALLER:
                    self.caller.handle_stream(key, frame, now)
                else:
                    self.callee.handle_stream(key, frame, now)
        if link is not None and key != SELF and link.boot:
            self._heard[key] = link.boot

    def _handle_control(self, key: int, frame: Frame, now: float) -> None:
        kind, body = frame.flags, bytes(frame.body)
        if frame.frame_type != CONTROL:
            self.links.handle_unknown(key)
        elif kind == Control.HELLO:
            self.links.handle_hello(key, body, now)
        elif kind == Control.WELCOME:
            self.links.handle_welcome(key, body, now)
        elif kind == Control.REFUSE:
            self.links.handle_refuse(key, body, now)
        elif kind == Control.GOODBYE:
            self.links.handle_goodbye(key, body, now)
        else:
            link = self.links.get(key)
            if link is None or not link.boot:
                self.links.handle_unknown(key)
            elif not link.observer:
                self.membership.handle_frame(link.boot, kind, body, now=now)
                self._touched = True
        self._take_link_notes(now)

    def handle_opened(self, key: int, now: float) -> None:
        """A dialled connection stands."""
        self.links.handle_opened(key, now)

    def handle_closed(self, key: int, reason: str, now: float) -> None:
        """A connection ended, or could not be made ("refused", "silent")."""
        self.links.handle_closed(key, reason, now)
        self._take_link_notes(now)

    def _allows(self, call: IncomingCall) -> bool:
        """Whether the caller of a request may have it."""
        own = call.boot == self.identity.boot
        return own or self._access.allows(call.capability, *call.caller, self._record(call.boot))

    def handle_stranger(self, now: float) -> None:
        """Somebody was turned away at the door: another secret, or none."""
        self._note_refused(LinkNote("refused", 0, b"", f"somebody {INSECURE}"), now)

    @property
    def refusals(self) -> list[str]:
        """Why links were refused, each reason once, the newest last."""
        return sorted(self._refusals, key=self._refusals.__getitem__)

    def ready(self, capability: str, now: float) -> list[str]:
        """Instances that a call would be sent to now; one whose link just broke is none until it is there again."""
        return [each.instance_id for each in self.router.ready(capability, now) if self._broken.get(each.boot, 0.0) <= now]

    def _note_refused(self, note: LinkNote, now: float) -> None:
        """Tell of a refusal, the same one at most every `_REFUSALS_EVERY` seconds: strangers try again and again."""
        detail = "".join(each if each.isprintable() else "\ufffd" for each in note.detail)  # it goes into logs as it stands
        if now - self._refusals.get(detail, float("-inf")) < _REFUSALS_EVERY:
            return
        self._refusals_left = min(_REFUSALS_AT_ONCE, self._refusals_left + now - self._refused_at)
        self._refused_at = now
        if self._refusals_left < 1.0:
            self.faults += 1
            return
        self._refusals_left -= 1.0
        if len(self._refusals) >= _REFUSALS:
            self._refusals.clear()
        self._refusals[detail] = now
        kind = "version_refused" if note.kind == "version_refused" else "link_refused"
        self._notes.append(Note(kind, self._record(note.boot), detail, now, note.boot))

    def set_record(self, record: Record, now: float) -> None:
        """This node's own declaration changed."""
        old = self.membership.record.endpoints
        self.membership.set_record(record, now=now)
        if record.endpoints != old:
            self.links.handle_moved(_addresses(old), _addresses(record.endpoints), now)
            self._take_link_notes(now)
        self._touched = True
        self._own_providers(record, now)
        self.caller.handle_change(now)

    def reconfigure(self, routing: RoutingConfig, policies: Mapping[str, Any], now: float) -> None:
        """Use other figures from now on; `policies` as the constructor takes them. What is under way goes on as it began."""
        changes = {name: getattr(routing, name) for name in ("strategy", "warmup", "spill_outstanding", "predicate")}
        self.router.reconfigure(**changes)
        self.caller.reconfigure(policies["policy"], policies["throttle"], policies["timeouts"], policies["hedging"])
        self.callee.reconfigure(policies["permits"], policies["pressure"], now)

    def _own_providers(self, record: Record, now: float) -> None:
        if self.identity.observer:
            return
        self.router.put(record.boot, providers_of(record, state="HEALTHY", suspected=False, since=now, backpressure=0), now)

    def drain(self, now: float) -> None:
        """Accept nothing new; tell the mesh."""
        name = self.identity.instance_id
        self.callee.drain(Overloaded(f"{name} is draining: it finishes what it accepted and stops", code="draining", executed="no"))
        self.membership.drain(now=now)
        self._touched = True

    def leave(self, error: ReachError, now: float) -> None:
        """End everything and say goodbye; after the sends are taken the sockets may close."""
        self.caller.stop(error, now)
        self.callee.stop_all("it was told to", now)
        self.membership.leave(now=now)
        self._touched = True
        self._take_membership(now)
        self.links.say_goodbye("left")

    def give_up(self, args: Sequence[object], now: float) -> None:
        """Something of ours failed while it did what these are the arguments of: a call among them ends here and now."""
        for each in args:
            if isinstance(each, OutgoingCall):
                self.caller.break_off(each, ProtocolError("reachmesh failed while it made this call; see its log", executed="maybe"), now)

    # ---------------------------------------------------------------- time

    def tick(self, now: float) -> None:
        """Everything that is due."""
        if self._heard:
            heard, self._heard = self._heard, {}
            self.links.handle_heard(heard)
            for boot in dict.fromkeys(heard.values()):
                self.membership.handle_life(boot, now=now)
                self._touched = True
        self.links.tick(now)
        self._take_link_notes(now)
        self.membership.tick(now=now)
        self._touched = True
        self.caller.tick(now)
        self.callee.tick(now)
        if now >= self._load_due:
            if self._active:
                self._report_load(now)
            else:  # calls shorter than a look: not worth a tick each
                self._load_due = now + LOAD_PERIOD
        if now >= self._next_link_check:
            self._next_link_check = now + _LINK_CHECK
            self._retire_links(now)
        self.settle(now)

    def note_turn(self, now: float, wall: float) -> None:
        """A turn begins; one that comes late means that this process was paused. `wall`: the wall clock, for skew warnings only."""
        self.membership.note_turn(now=now, wall=wall)
        self._touched = True

    def note_drained(self, now: float) -> None:
        """The sockets are empty: what peers said meanwhile has been heard."""
        self.membership.note_drained(now=now)

    def settle(self, now: float) -> None:
        """Carry outputs of one part to the inputs of another until none is left."""
        if self._touched:
            self._take_membership(now)
        for stopped in self.callee.take_stopped():
            for child in list(stopped.children or ()):
                self.caller.cancel(child, now=now, reason=f"the call it was made for is over: {stopped.reason}")
        for owner in self.links.take_ended():
            if isinstance(owner, IncomingCall):
                self.callee.handle_flow_ended(owner, now)
            else:
                self.caller.handle_flow_ended(owner, now)

    def next_timeout(self) -> float:
        """When `tick` is needed next (monotonic seconds)."""
        if self._touched:
            self._touched = False
            self._member_due = self.membership.next_timeout()
        due = min(self.caller.next_timeout(), self.callee.next_timeout(), self._member_due, self.links.next_timeout())
        return min(due, self._load_due) if self._active else due

    @property
    def serves(self) -> bool:
        """Whether this node offers anything."""
        return bool(self.membership.record.capabilities)

    @property
    def _active(self) -> bool:
        """Whether there is load to report, or its end."""
        return bool(self.callee.open) or self._load is not _IDLE

    def _report_load(self, now: float) -> None:
        """Measure what this node serves, for its state and its heartbeats."""
        callee, admission = self.callee, self.callee.admission
        qps, failure_rate, p95 = callee.meter.read(now)
        full, queue = admission.full(), admission.queued
        if callee.open or qps or full:
            load = Load(
                outstanding=callee.open,
                queue=queue,
                failure_rate=failure_rate,
                p95_ms=p95 * 1000.0,
                loop_lag_ms=self.loop_lag * 1000.0 if callee.open else 0.0,
                qps=qps,
                backpressure=callee.level,
                full=full,
            )
        else:
            load = _IDLE
        self._load = load
        self._load_due = now + (LOAD_PERIOD if callee.open else 4 * LOAD_PERIOD)
        self.membership.set_load(load, now=now)
        self._touched = True

    def _retire_links(self, now: float) -> None:
        for key in self.links.spare(now):
            if not self._in_use(key):
                self.links.retire(key, now)
        for boot in list(self._retiring):
            best = self.links.link_to(boot)
            if best is None or best <= 0:
                self._retiring.pop(boot, None)
            elif not self._in_use(best):
                self._retiring.pop(boot, None)
                self.links.retire(best, now)

    # ---------------------------------------------------------------- inside

    def _in_use(self, key: int) -> bool:
        """Whether a call is open on a link, in either direction."""
        return self.caller.uses(key) or self.callee.uses(key)

    def _take_link_notes(self, now: float) -> None:
        for note in self.links.take_notes():
            boot = note.boot
            if note.kind == "up":
                if note.observer:
                    self.membership.handle_observer(boot, now=now)
                    self._touched = True
                else:
                    self.membership.handle_dial(boot, "up", now=now)
                    self._touched = True
                    self.membership.handle_link_up(boot, now=now)
                    self._touched = True
                    self._retiring.pop(boot, None)
                    self._broken.pop(boot, None)
                    self.caller.handle_link_up(boot, now)
            elif note.kind == "down":
                self.caller.handle_link_down(note.key, note.detail, now)
                self.callee.handle_link_down(note.key, note.detail, now)
                if not note.observer and self.links.link_to(boot) is None:
                    if note.detail not in _ENDINGS and boot in self.membership.members:
                        self._broken[boot] = now + self._judged_after
                    self.membership.handle_link_down(boot, closed=note.detail in _ENDINGS, now=now)
                    self._touched = True
            elif note.kind in ("dial_failed", "probed"):
                if note.kind == "dial_failed":
                    self.caller.handle_dial_failed(boot, note.detail, now)
                self.membership.handle_dial(boot, _DIAL_OUTCOMES.get(note.detail, "silent"), now=now)
                self._touched = True
            else:
                self._note_refused(note, now)

    def _take_membership(self, now: float) -> None:
        changed = False
        for event in self.membership.take_events():
            changed |= self._member_changed(event, now)
        for boot, kind, body in self.membership.take_sends():
            key = self.links.link_to(boot)
            if key is None:
                key = self.links.second_link(boot)
            if key is not None:
                self.links.send(key, encode_control(kind, body))
        for boot in self.membership.take_dials():
            if (record := self._record(boot)) is not None:
                self._learn(record)
            if not self.links.want(boot, now):
                self.membership.handle_dial(boot, "silent", now=now)
                self._touched = True
        for boot in self.membership.take_probes():
            if not self.links.probe(boot, self._patience, now):
                self.membership.handle_dial(boot, "silent", now=now)
                self._touched = True
        for boot in self.membership.take_closes():
            self._retiring[boot] = None
        self._take_link_notes(now)
        if changed:
            self.caller.handle_change(now)

    def _member_changed(self, event: MemberEvent, now: float) -> bool:
        """Feed routing and links; true when a call that waits for a provider should look again."""
        member = event.member
        if member is None:
            self._notes.append(Note(event.kind, None, event.reason, event.at))
            return False
        boot = member.record.boot
        gone = member.state.gone
        if gone:
            self.router.remove(boot, now)
            self._broken.pop(boot, None)
            self.links.close_boot(boot, event.reason or member.state.name.lower(), now)
        else:
            self._learn(member.record)
            load = member.load
            providers = providers_of(
                member.record,
                state=member.state.name,
                suspected=member.suspected,
                since=member.since,
                backpressure=0 if load is None else load.backpressure,
                full=full_capability(member.state, member.reason),
            )
            self.router.put(boot, providers, now)
        self._notes.append(Note(event.kind, member.record, event.reason, event.at, boot, member.state.name))
        return not gone

    def _learn(self, record: Record) -> None:
        self.links.book.learn(record.boot, _addresses(record.endpoints))

    def _record(self, boot: bytes) -> Record | None:
        member = self.membership.members.get(boot)
        return member.record if member is not None else None

    def _hidden(self, request: RouteRequest, exclude: Collection[bytes]) -> Provider | NoPick | None:
        """Who answers a reserved capability: the target, which every node of the mesh can be. None: it is no reserved one."""
        if not request.capability.startswith(RESERVED):
            return None
        target = request.target
        mine = self.membership.record
        if target in (mine.boot, mine.instance_id, mine.name) and mine.boot not in exclude and not self.identity.observer:
            return hidden_provider(mine, request.capability, self.membership.state.name)
        for boot, member in self.membership.members.items():
            record = member.record
            if target in (boot, record.instance_id, record.name) and not member.state.gone and boot not in exclude:
                return hidden_provider(record, request.capability, member.state.name)
        return NoPick(kind="no_match", message=f"no node {target!r} is here to answer {request.capability!r}")

    # ---------------------------------------------------------------- outputs

    @property
    def has_notes(self) -> bool:
        """Whether `take_notes` has something to give."""
        return bool(self._notes) or self.router.has_events

    def take_notes(self) -> list[Note]:
        """What the user may want to hear of, oldest first."""
        for event in self.router.take_events():
            self._notes.append(_route_note(event, self._record(event.boot)))
        taken, self._notes = self._notes, []
        return taken

    def take_ended(self) -> list[Ended]:
        """Calls that have ended, made and served, for the log."""
        taken = self.ended.copy()
        self.ended.clear()
        return taken

    def take_deliveries(self) -> list[Delivery]:
        """Results, requests and items for the world outside, in order."""
        if not self.deliveries:
            return []
        taken = self.deliveries.copy()
        self.deliveries.clear()
        return taken


def _addresses(endpoints: Sequence[str]) -> list[str]:
    return [endpoint.removeprefix("tcp://") for endpoint in endpoints]


def _route_note(event: RouteEvent, record: Record | None) -> Note:
    return Note(event.kind, record, event.reason, event.at, event.boot)
