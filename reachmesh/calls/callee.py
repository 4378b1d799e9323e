"""The serving side: takes requests in, hands complete ones to the execution side, carries their answers out.

Inputs are frames (`handle_*`) and verbs of the execution side (`answer`, `fail`, `put_items`, ...); outputs are frames on `Links`
and `Delivery` tuples. What a peer sends is never trusted further than its header: a request for another boot, a capability that
is not here, an expired or over-deep one is answered with an error whose `executed` is "no", and no handler hears of it.

Invariants: a REQUEST is delivered once, complete; STOPPED follows at most once and only after it; a call that the engine closed
before its claim never runs; everything sent for a call goes to the link and id it came by.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from reachmesh.calls.admission import Admission, Rule
from reachmesh.calls.flags import (
    MSGPACK,
    REQUEST_MORE,
    REQUEST_ONEWAY,
    REQUEST_RETRY,
    REQUEST_SENDS_STREAM,
    REQUEST_WANTS_STREAM,
    RESPONSE_ERROR,
    STREAM_CANCEL,
    STREAM_CREDIT,
    STREAM_END,
    STREAM_TO_CALLER,
)
from reachmesh.calls.flows import Batch, Buffer, Gathered, Inflow, Outflow
from reachmesh.calls.incoming import TAKEN, Incoming, IncomingCall
from reachmesh.calls.meter import Meter
from reachmesh.calls.ports import Delivery, Ended, Kind, Links
from reachmesh.calls.runs import NOWHERE, Outcome, Runs
from reachmesh.calls.sending import CREDIT, refusal_frame, response_frame, stream_frame
from reachmesh.calls.timers import Timers
from reachmesh.errors import (
    AccessDenied,
    BadRequest,
    DeadlineExceeded,
    Executed,
    LoopDetected,
    NoProvider,
    Overloaded,
    PeerLost,
    ProtocolError,
    ReachError,
    RemoteError,
    SemanticError,
    VersionMismatch,
    WorkerCrashed,
)
from reachmesh.resilience.cache import MISS, CacheConfig, ResultCache
from reachmesh.resilience.dedup import DedupConfig, DedupTable
from reachmesh.resilience.permits import PermitConfig
from reachmesh.resilience.pressure import PressureConfig
from reachmesh.routing import accepts
from reachmesh.wire.frames import NO_DEADLINE, Frame, RequestMeta, decode_request_meta, encode_error
from reachmesh.wire.limits import Limits

_METAS = 1024
"""Decoded request metas kept; callers repeat theirs, so the common one costs a dictionary lookup."""

_META_BYTES = 1024
"""Larger ones are decoded each time: what a caller attaches to single calls is not worth keeping."""

_NONE: Mapping[str, Any] = {}


class Callee:
    """All calls this node serves.

    Args:
        boot: this node's boot id; a request that names another is not ours.
        rule_of: the rule of a capability served here right now, or None.
        ended: shared list that each call that ended is appended to.
    """

    def __init__(
        self,
        links: Links,
        deliveries: list[Delivery],
        limits: Limits,
        *,
        boot: bytes,
        instance_id: str,
        depth_limit: int,
        rule_of: Callable[[str], Rule | None],
        ended: list[Ended],
        permits: PermitConfig,
        pressure: PressureConfig,
        dedup: DedupConfig | None = None,
        cache: CacheConfig | None = None,
        allows: Callable[[IncomingCall], bool] | None = None,
    ) -> None:
        self._allows = allows
        self._links, self._deliveries, self._limits = links, deliveries, limits
        self._boot, self._instance_id, self._depth_limit, self._rule_of = boot, instance_id, depth_limit, rule_of
        self.runs = Runs(boot.hex(), DedupTable(dedup))
        self.cache = ResultCache(cache)
        self.admission = Admission(deliveries, permits=permits, pressure=pressure)
        self.meter = Meter()
        self._calls = Incoming()
        self._timers = Timers()
        self._metas: dict[bytes, RequestMeta] = {}
        self._ended = ended
        self._refusal: ReachError | None = None
        self._stopped: list[IncomingCall] = []
        self.strays = 0

    @property
    def open(self) -> int:
        """Calls that are arriving, queued or running, and executions that outlive their calls."""
        return self._calls.open + self.runs.open

    def uses(self, key: int) -> bool:
        """Whether a call is open on a link."""
        return bool(self._calls.of_link(key))

    def all(self) -> Collection[IncomingCall]:
        """Every open call and every execution that outlives its call."""
        return [*self._calls.all(), *self.runs.all()]

    def reconfigure(self, permits: PermitConfig, pressure: PressureConfig, now: float) -> None:
        """Use other figures, and the limits that the rules have now."""
        self.admission.reconfigure(permits, pressure)
        self.admission.resize(self._rule_of, now)

    # ---------------------------------------------------------------- what came in

    def handle_request(self, key: int, boot: bytes, caller: tuple[str, str], frame: Frame, now: float) -> None:
        """A REQUEST frame from a peer whose handshake named `boot`."""
        _, flags, payload_format, priority, depth, call_id, trace_id, span_id, remaining, meta_bytes, body, parts = frame
        meta = self._metas.get(meta_bytes)
        if meta is None:
            meta = decode_request_meta(meta_bytes)
            if meta is None:
                return self._refuse(key, frame, ProtocolError("the request's header could not be read"))
            if len(self._metas) >= _METAS:
                self._metas.clear()
            if len(meta_bytes) <= _META_BYTES:
                self._metas[meta_bytes] = meta
        call = IncomingCall(
            key,
            call_id,
            boot,
            caller,
            meta.capability,
            meta.extras or _NONE,
            flags,
            payload_format,
            priority,
            depth,
            trace_id,
            span_id,
            None if remaining == NO_DEADLINE else now + remaining / 1000,
            now,
        )
        rule = self._rule_of(call.capability)
        refusal = self._reason_to_refuse(call, meta.boot, rule, remaining)
        if refusal is not None:
            return self._refuse(key, frame, refusal)
        self._calls.add(call)
        if call.deadline is not None:
            self._timers.add(call.deadline, call)
        if flags & _NOT_WHOLE:
            if flags & REQUEST_WANTS_STREAM:
                call.outflow = Outflow(self._limits.chunk)
            if flags & (REQUEST_SENDS_STREAM | REQUEST_MORE):
                is_body = not flags & REQUEST_SENDS_STREAM
                call.inflow = Inflow(self._limits.message, self._links.pace(key), now, is_body=is_body)
                self._grant(call)
            if flags & REQUEST_MORE:
                return None
        call.body = Batch([body, *parts] if len(body) else list(parts), 0)
        self._admit(call, rule, now)
        return None

    def _admit(self, call: IncomingCall, rule: Rule | None, now: float) -> None:
        """The request is complete."""
        if call.extras and ("d" in call.extras or "r" in call.extras):
            begun = self.runs.begin(call, now)
            if begun.error is not None:
                return self._fail(call, begun.error, now)
            if begun.outcome is not None:
                self._repeat(call, begun.outcome, now)
            if begun.run is None:
                return
            call = begun.run
            if call.task is not None and call.deadline is not None:
                self._timers.add(call.deadline, call)
        self._execute(call, rule, now)

    def _execute(self, call: IncomingCall, rule: Rule | None, now: float) -> None:
        """Find the answer in the cache, or have it run."""
        if rule is not None and rule.cache_ttl is not None and call.body is not None and not call.flags & _STREAMS:
            key = (call.capability, call.payload_format, *map(bytes, call.body.segments))
            if (kept := self.cache.get(key, now)) is not MISS:
                return self._repeat(call, kept, now)
            call.cache_key = (key, rule.cache_ttl)
        if (refusal := self.admission.admit(call, rule, now)) is not None:
            self._fail(call, refusal, now)

    def _repeat(self, call: IncomingCall, outcome: Outcome, now: float) -> None:
        """Answer with an outcome that is there."""
        call.status = outcome.status
        self._respond(call, outcome.flags, outcome.payload_format, list(outcome.segments), now)

    def _hand_over(self, call: IncomingCall, delivery: Delivery) -> None:
        """What the caller streams in follows its request, which may still wait for a permit."""
        if call.delivered:
            self._deliveries.append(delivery)
        else:
            call.early = [*(call.early or ()), delivery]

    def _reason_to_refuse(self, call: IncomingCall, meant: bytes, rule: Rule | None, remaining: int) -> ReachError | None:
        if meant != self._boot:
            return PeerLost("the instance this request was meant for is gone; another answers at its address", executed="no")
        if call.depth > self._depth_limit:
            return LoopDetected(f"{call.capability!r} is nested {call.depth} calls deep; the limit is {self._depth_limit}")
        if self._refusal is not None and not any(each.trace_id == call.trace_id for each in self.all()):
            return self._refusal
        if rule is None:
            return NoProvider(f"{self._instance_id} does not offer {call.capability!r}")
        if self._allows is not None and not self._allows(call):
            return AccessDenied(f"{call.caller[1]} may not use {call.capability!r} of {self._instance_id}")
        if call.extras and (refusal := _wrong_version(call, rule)) is not None:
            return refusal
        if remaining == 0:
            return DeadlineExceeded(f"the time for {call.capability!r} was over on arrival", executed="no")
        if (found := self._calls.reason_against(call.key, call.call_id)) is not None:
            if found == "full":
                return Overloaded(f"{self._instance_id} has too many calls of this caller open", retry_after=1.0)
            return ProtocolError("this call id is in use", executed="maybe")  # the call that has it hears this too
        return self.admission.turned_away(call)

    def handle_stream(self, key: int, frame: Frame, now: float) -> None:
        """A STREAM frame from the calling side: a chunk, items, their end, credit, or a cancel."""
        call = self._calls.get(key, frame.call_id)
        if call is None:
            self.strays += 1
            return
        flags = frame.flags
        if flags & STREAM_CREDIT:
            if call.outflow is not None and len(frame.body) == CREDIT.size:
                call.outflow.grant(*CREDIT.unpack(frame.body))
                self._links.flow(call)
                if call.body is not None:
                    self._deliveries.append((Kind.OUTPUT_ROOM, call, None))
        elif flags & STREAM_CANCEL:
            self._stop(call, "cancelled by the caller", now)
        elif flags & STREAM_END:
            if call.body is not None:
                self._hand_over(call, (Kind.INPUT_END, call, None))
        elif call.inflow is None:
            self.strays += 1
        else:
            self._take_piece(call, frame, now)

    def _take_piece(self, call: IncomingCall, frame: Frame, now: float) -> None:
        assert call.inflow is not None
        body = frame.body
        segments: list[Buffer] = [body, *frame.parts] if len(body) else list(frame.parts)
        batch, fault = call.inflow.handle_piece(frame.flags, segments, now)
        if fault:
            executed = self._ended_as(call, now)
            self._fail(call, BadRequest(f"what {call.capability!r} was sent is malformed: {fault}", executed=executed), now, closing=True)
            return
        if batch is not None:
            if call.body is None:
                call.body = batch
                call.inflow.consumed(0, batch.size, now)
                if not call.flags & REQUEST_SENDS_STREAM:  # nothing more comes
                    call.inflow.close(now)
                    call.inflow = None
                self._admit(call, self._rule_of(call.capability), now)
            else:
                self._hand_over(call, (Kind.INPUT, call, batch))
        self._grant(call)

    def handle_link_down(self, key: int, reason: str, now: float) -> None:
        """The caller is gone, and with it whoever wanted its calls."""
        for call in self._calls.of_link(key):
            self._stop(call, reason, now)

    def tick(self, now: float) -> None:
        """Stop what is over its deadline; one that has not started never will."""
        for owner in self._timers.due(now):
            assert isinstance(owner, IncomingCall)
            executed = self._ended_as(owner, now)
            self._fail(owner, DeadlineExceeded(f"{owner.capability!r} did not finish in time", executed=executed), now, closing=True)
        for call, error in self.admission.late(now):
            self._fail(call, error, now, closing=True)

    def next_timeout(self) -> float:
        """The next deadline, of a call or of a wait for a permit."""
        return min(self._timers.next(), self.admission.next_timeout())

    @property
    def level(self) -> int:
        """Backpressure level 0-255 for the answers."""
        return self.admission.level() if self.admission.pressed else 0

    def drain(self, refusal: ReachError) -> None:
        """Refuse new calls with `refusal`; those that belong to a call already accepted still come in."""
        self._refusal = refusal

    def stop_all(self, reason: str, now: float) -> None:
        """End every open call: its caller is told, its handler is cancelled."""
        for call in self.all():
            executed = self._ended_as(call, now)
            self._fail(call, PeerLost(f"{self._instance_id} stopped: {reason}", executed=executed), now, closing=True)

    # ---------------------------------------------------------------- verbs of the execution side

    def put_items(self, call: IncomingCall, items: Gathered, now: float) -> None:
        """Queue the items that are ready of the answer stream."""
        if not call.closed and call.outflow is not None:
            call.outflow.put_gathered(items)
            self._links.flow(call)

    def consumed(self, call: IncomingCall, items: int, size: int, now: float) -> None:
        """The handler took items of the stream its caller sends."""
        if not call.closed and call.inflow is not None:
            call.inflow.consumed(items, size, now)
            self._grant(call)

    def finish(self, call: IncomingCall, payload_format: int, segments: list[Buffer], now: float) -> None:
        """The handler returned (for a stream: it is over, with no segments)."""
        call.handle = None  # it holds the call: a circle that would be the garbage collector's work
        if call.permits is not None:
            self.admission.ran(call, now)
        if call.cache_key is not None:
            key, ttl = call.cache_key
            outcome = Outcome(0, payload_format, [bytes(each) for each in segments])
            self.cache.put(key, outcome, outcome.size, now, ttl)
        if call.closed and call.key != NOWHERE:
            return
        if call.outflow is not None:
            call.outflow.end()
            self._links.flow(call)
            call.final = (0, payload_format, segments, now)
            return
        self._respond(call, 0, payload_format, segments, now)

    def fail(self, call: IncomingCall, error: ReachError, now: float) -> None:
        """The handler failed, or could not be run; the error follows the items that are on their way."""
        call.handle = None
        if call.permits is not None:
            self.admission.ran(call, now)
        self._fail(call, error, now)

    def _fail(self, call: IncomingCall, error: ReachError, now: float, *, closing: bool = False) -> None:
        """The call ends with an error: at once when `closing`, whatever its handler does."""
        if call.closed and call.key != NOWHERE:
            return
        call.status = error.code
        call.failed = isinstance(error, _HANDLERS_FAULT) and error.executed != "no"
        segments: list[Buffer] = [encode_error(error)]
        if closing:
            call.outflow = None
            self._give_up(call, now)
            self._respond(call, RESPONSE_ERROR, MSGPACK, segments, now)
            call.reason = error.message
            self._tell_stopped(call, error.message)
        elif call.outflow is not None:
            call.outflow.end()
            self._links.flow(call)
            call.final = (RESPONSE_ERROR, MSGPACK, segments, now)
        else:
            self._respond(call, RESPONSE_ERROR, MSGPACK, segments, now)

    def handle_flow_ended(self, call: IncomingCall, now: float) -> None:
        """All items have left: the final frame follows them."""
        if call.closed:
            return
        if call.final is not None:
            flags, payload_format, segments, _ = call.final
            self._respond(call, flags, payload_format, segments, now)
        else:
            self._close(call, "", now)

    # ---------------------------------------------------------------- frames

    def _respond(self, call: IncomingCall, flags: int, payload_format: int, segments: list[Buffer], now: float) -> None:
        if call.key == NOWHERE:
            return self._settle(call, Outcome(flags, payload_format, segments, call.status), now)
        if call.flags & REQUEST_ONEWAY:
            self._close(call, "", now)
            return
        frame, parts, large = response_frame(call, flags, payload_format, segments, self.level, now)
        self._links.send(call.key, frame, parts)
        if large:
            call.final = None
            call.outflow = Outflow.of_body(self._limits.chunk, segments, self._links.pace(call.key), now)
            self._links.flow(call)
        else:
            self._close(call, "", now)

    def _refuse(self, key: int, frame: Frame, error: ReachError) -> None:
        if frame.flags & REQUEST_ONEWAY:
            return
        self._links.send(key, refusal_frame(frame, error, self.level))

    def _grant(self, call: IncomingCall) -> None:
        if call.inflow is not None and (grant := call.inflow.take_grant()):
            self._links.send(call.key, stream_frame(call, STREAM_CREDIT | STREAM_TO_CALLER, CREDIT.pack(*grant)))

    def _stop(self, call: IncomingCall, reason: str, now: float) -> None:
        """Close without an answer: nobody waits for one."""
        if call.closed:
            return
        call.status = "cancelled"
        self._close(call, reason, now)
        self._tell_stopped(call, reason)

    def _tell_stopped(self, call: IncomingCall, reason: str) -> None:
        if call.body is not None:
            self._deliveries.append((Kind.STOPPED, call, reason))
        if call.children:
            self._stopped.append(call)

    def take_stopped(self) -> list[IncomingCall]:
        """Calls that ended before their handler did, whose own calls are to be cancelled."""
        taken, self._stopped = self._stopped, []
        return taken

    def _settle(self, run: IncomingCall, outcome: Outcome, now: float) -> None:
        """A run ended: whoever waits for it gets its outcome."""
        tickets = self.runs.settle(run, outcome, now, ran=run.started is not None)
        self._close(run, "", now)
        for ticket in tickets:
            if not ticket.closed:
                ticket.started, ticket.failed = run.started, run.failed
                self._repeat(ticket, outcome, now)

    def _abandon(self, run: IncomingCall, reason: str, now: float) -> None:
        """Nobody waits for a run any more: it never begins, or its handler is told, and what that makes of it is the key's outcome."""
        if self._give_up(run, now):
            run.status = "cancelled"
            self._settle(run, Outcome(0, MSGPACK, (), "cancelled"), now)
        elif not run.closed:
            run.closed, run.reason = True, reason
            self._tell_stopped(run, reason)

    def _ended_as(self, call: IncomingCall, now: float) -> Executed:
        """End a call before its handler begins, if that can still be; what is then known of whether it ran."""
        return "no" if self._give_up(call, now) else "maybe"

    def _give_up(self, call: IncomingCall, now: float) -> bool:
        """See that a handler that has not begun never will; true when it surely has not and will not."""
        if call.claimed or not call.claim():
            return False
        self.admission.never_ran(call, now)
        return True

    def _close(self, call: IncomingCall, reason: str, now: float) -> None:
        if not self._calls.close(call, reason):
            return
        if call.inflow is not None:
            call.inflow.close(now)
        if not call.claimed and self._give_up(call, now) and call.body is not None:
            call.body = TAKEN
        if call.run_key is not None and call.key != NOWHERE and (run := self.runs.leave(call)) is not None:
            self._abandon(run, reason or "nobody waits for it", now)
        if call.deadline is not None:
            self._timers.forget()
        if call.silent:
            return
        started, trace, again = call.started, call.trace_id, 1 if call.flags & REQUEST_RETRY else 0
        entry = (
            False,
            call.capability,
            call.status,
            call.arrived,
            started,
            now,
            trace,
            call.span_id,
            call.depth,
            call.caller[1],
            again,
            call.subtasks or None,
        )
        self._ended.append(entry)
        self.meter.add(None if started is None else now - started, call.failed, now)


_STREAMS = REQUEST_SENDS_STREAM | REQUEST_WANTS_STREAM
_NOT_WHOLE = _STREAMS | REQUEST_MORE

_HANDLERS_FAULT = (RemoteError, SemanticError, WorkerCrashed, DeadlineExceeded)
"""Errors that count as failures of this node; refusals and callers' mistakes do not."""


def _wrong_version(call: IncomingCall, rule: Rule) -> ReachError | None:
    """A caller that asked for a version is served by it or refused, whatever its table of providers said."""
    asked = call.extras.get("v")
    if not isinstance(asked, str):
        return None
    if accepts(asked, version=rule.version, compatible_from=rule.compatible_from, node_version=rule.node_version):
        return None
    lowest = rule.compatible_from or rule.version
    return VersionMismatch(f"version {asked} of {call.capability!r} was asked for; {lowest} to {rule.version} is offered here")
