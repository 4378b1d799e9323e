"""The calling side: picks an instance, sends, waits, retries what may be retried, and ends every call exactly once.

Inputs are verbs of this node's own threads (`start`, `cancel`, `put_items`, ...) and what came in (`handle_*`); outputs are frames
on `Links` and `Delivery` tuples. An answer counts only when it comes by the link its request left by, under the id of the
attempt that is still open: late, doubled and foreign answers are counted in `strays` and dropped.

Invariants: each started call gets exactly one ANSWER, FAILED or ACCEPTED; none after its deadline (plus one turn); a request is
sent only over a link whose handshake proved the picked boot; a call that may have run is sent again only if it is idempotent.
"""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Collection, Sequence
from typing import Any

import msgspec

from reachmesh.calls.flags import (
    REQUEST_ONEWAY,
    REQUEST_RETRY,
    REQUEST_SENDS_STREAM,
    REQUEST_WANTS_STREAM,
    RESPONSE_ERROR,
    RESPONSE_MORE,
    STREAM_CANCEL,
    STREAM_CREDIT,
    STREAM_END,
)
from reachmesh.calls.flows import Buffer, Gathered, Inflow, Outflow
from reachmesh.calls.latencies import Latencies
from reachmesh.calls.outcomes import may_have_run, outcome_of
from reachmesh.calls.outgoing import OutgoingCall
from reachmesh.calls.ports import Delivery, Ended, Kind, Links
from reachmesh.calls.sending import CREDIT, request_frame, stream_frame
from reachmesh.calls.timers import Timers
from reachmesh.errors import (
    Cancelled,
    DeadlineExceeded,
    LoopDetected,
    NoProvider,
    PeerLost,
    ProtocolError,
    ReachError,
)
from reachmesh.resilience.deadline import TimeoutConfig, try_timeout
from reachmesh.resilience.hedge import HedgeConfig, hedge_delay
from reachmesh.resilience.retry import RetryPolicy, RetryThrottle
from reachmesh.routing import NoPick, Outcome, Provider, Router, RouteRequest
from reachmesh.routing.group import is_shadow
from reachmesh.wire.frames import Frame, decode_error
from reachmesh.wire.limits import Limits
from reachmesh.wire.transfer import as_bytes

REROUTES = 3
"""Instances tried beyond the first while nothing has been sent at all."""


_SWEEP_EVERY = 30.0
"""Seconds between two looks for latencies nothing is known of any more."""


class _Later:
    """A retry that waits for its delay."""

    __slots__ = ("call",)

    def __init__(self, call: OutgoingCall) -> None:
        self.call = call

    @property
    def closed(self) -> bool:
        return self.call.closed


class _Watch:
    """A timer of one attempt: its time as a try is over, or a second instance is to be asked."""

    __slots__ = ("call", "call_id", "hedges")

    def __init__(self, call: OutgoingCall, hedges: bool) -> None:
        self.call, self.call_id, self.hedges = call, call.call_id, hedges

    @property
    def closed(self) -> bool:
        return self.call.closed or self.call.sent_at is None or self.call.call_id != self.call_id


class Caller:
    """All calls this node makes.

    Args:
        links: where frames go and links come from.
        router: picks instances and learns from outcomes.
        deliveries: shared list that results are appended to.
        depth_limit: calls nested deeper than this are `LoopDetected`.
        grace_until: monotonic instant until which a call that nobody can serve yet waits for discovery.
        ended: shared list that each call that ended is appended to.
        hidden: asked when routing knows nobody: the target itself, for capabilities that are in no index; None = not one of those.
        refusals: why links were refused, the newest last: one of those may be who is looked for.
    """

    def __init__(
        self,
        links: Links,
        router: Router,
        deliveries: list[Delivery],
        limits: Limits,
        rng: random.Random,
        *,
        policy: RetryPolicy,
        throttle: RetryThrottle,
        depth_limit: int,
        grace_until: float,
        ended: list[Ended],
        hidden: Callable[[RouteRequest, Collection[bytes]], Provider | NoPick | None],
        refusals: Callable[[], Sequence[str]] = tuple,
        timeouts: TimeoutConfig | None = None,
        hedging: HedgeConfig | None = None,
    ) -> None:
        self.latencies = Latencies(timeouts or TimeoutConfig())
        self.hedging = hedging or HedgeConfig()
        self._links, self._router, self._deliveries, self._limits = links, router, deliveries, limits
        self._ended, self._hidden, self._refusals = ended, hidden, refusals
        self._policy, self._throttle = policy, throttle
        self._depth_limit = depth_limit
        self.grace_until = grace_until
        self._next_id = rng.getrandbits(63)
        self._calls: dict[int, OutgoingCall] = {}
        self._by_link: dict[int, dict[int, OutgoingCall]] = {}
        self._dialing: dict[bytes, list[OutgoingCall]] = {}
        self._parked: list[OutgoingCall] = []
        self._timers = Timers()
        self._stopped: ReachError | None = None
        self._sweep_at = 0.0
        self.strays = 0

    def reconfigure(self, policy: RetryPolicy, throttle: RetryThrottle, timeouts: TimeoutConfig, hedging: HedgeConfig) -> None:
        """Use other figures from now on. The throttle keeps its count."""
        self._policy, self.hedging, self.latencies.config = policy, hedging, timeouts
        self._throttle.reconfigure(throttle.config)

    @property
    def open(self) -> int:
        """Calls that were sent and not yet ended."""
        return len(self._calls)

    def uses(self, key: int) -> bool:
        """Whether a call is open on a link."""
        return key in self._by_link

    # ---------------------------------------------------------------- verbs of this node

    def start(self, call: OutgoingCall, now: float) -> None:
        """Route and send; the outcome is delivered to `call.handle`."""
        if call.closed:
            return
        call.began = now
        if self._stopped is not None:
            return self._settle_error(call, self._stopped, now)
        if call.parent is not None:
            if call.parent.closed:
                return self._settle_error(call, Cancelled("the call this one was made for was cancelled", executed="no"), now)
            if call.parent.children is None:
                call.parent.children = {}
            call.parent.children[call] = None
        if call.depth > self._depth_limit:
            return self._settle_error(
                call,
                LoopDetected(
                    f"{call.request.capability!r} would be call number {call.depth} in a chain of calls",
                    hint=f"the limit is {self._depth_limit}; look for capabilities that call each other in a circle",
                ),
                now,
            )
        if call.deadline is not None:
            if call.deadline <= now:
                return self._settle_error(call, DeadlineExceeded("no time was left to make the call", executed="no"), now)
            call.timed = True
            self._timers.add(call.deadline, call)
        if not call.flags & REQUEST_ONEWAY:
            self._throttle.note_call(now)
        self._route(call, now)

    def cancel(self, call: OutgoingCall, now: float, reason: str = "cancelled by the caller") -> None:
        """End the call and tell the serving side; a call that has ended is left alone."""
        if call.closed:
            return
        sent = call.sent_at is not None
        self._send_cancel(call)
        self._settle_error(call, Cancelled(reason, executed="maybe" if sent else "no"), now)

    def break_off(self, call: OutgoingCall, error: ReachError, now: float) -> None:
        """End a call whose making failed half-way on this side."""
        if not call.closed:
            call.retries = 0
            self._settle_error(call, error, now)
        elif call.handle is not None:  # in the middle of its end: whoever waits is told all the same
            self._deliveries.append((Kind.FAILED, call.handle, error))
            call.handle = None

    def put_items(self, call: OutgoingCall, items: Gathered, now: float) -> None:
        """Queue the items that are ready of the stream that the caller sends."""
        if call.closed or call.outflow is None:
            return
        call.outflow.put_gathered(items)
        if call.sent_at is not None:
            self._links.flow(call)

    def end_input(self, call: OutgoingCall, now: float) -> None:
        """The caller's stream is complete."""
        if call.closed or call.outflow is None:
            return
        call.outflow.end()
        if call.sent_at is not None:
            self._links.flow(call)

    def consumed(self, call: OutgoingCall, items: int, size: int, now: float) -> None:
        """The reader took items of the answer stream."""
        if not call.closed and call.inflow is not None:
            call.inflow.consumed(items, size, now)
            self._grant(call)

    # ---------------------------------------------------------------- what came in

    def handle_response(self, key: int, frame: Frame, now: float) -> None:
        """A RESPONSE frame: the answer, or its announcement when the body follows in chunks."""
        _, flags, payload_format, level, _, call_id, _, _, _, _, body, parts = frame
        call = self._calls.get(call_id)
        if call is None or call.key != key or call.answer_flags is not None:
            self.strays += 1
            return
        if flags & RESPONSE_MORE:
            call.answer_flags, call.answer_format = flags, payload_format
            if call.inflow is not None:
                call.inflow.close(now)
            call.inflow = Inflow(self._limits.message, self._links.pace(key), now, is_body=True)
            return self._grant(call)
        segments: list[Buffer] = [body, *parts] if len(body) else list(parts)
        self._answer(call, flags, payload_format, segments, level, now)

    def handle_stream(self, key: int, frame: Frame, now: float) -> None:
        """A STREAM frame from the serving side: items, a chunk, or credit for what this side sends."""
        call = self._calls.get(frame.call_id)
        if call is None or call.key != key:
            self.strays += 1
            return
        if frame.flags & STREAM_CREDIT:
            if call.outflow is not None and len(frame.body) == CREDIT.size:
                call.outflow.grant(*CREDIT.unpack(frame.body))
                self._links.flow(call)
                if call.handle is not None:  # a second request has nobody who writes more
                    self._deliveries.append((Kind.ROOM, call.handle, None))
            return
        if call.inflow is None:
            self.strays += 1
            return
        body = frame.body
        segments: list[Buffer] = [body, *frame.parts] if len(body) else list(frame.parts)
        batch, fault = call.inflow.handle_piece(frame.flags, segments, now)
        if fault:
            self._send_cancel(call)
            return self._attempt_failed(
                call, ProtocolError(f"the stream of {self._who(call)} is malformed: {fault}", executed="maybe"), now
            )
        if batch is not None:
            if call.answer_flags is not None:
                return self._answer(call, call.answer_flags, call.answer_format, batch.segments, 0, now)
            call.items_seen = True
            self._deliveries.append((Kind.ITEMS, call.handle, batch))
        self._grant(call)

    def handle_link_up(self, boot: bytes, now: float) -> None:
        """A link to a boot is there: what waited for it is sent."""
        for call in self._dialing.pop(boot, ()):
            if not call.closed and call.boot == boot and call.sent_at is None:
                key = self._links.link_to(boot)
                if key is None:
                    self._undelivered(call, "the link closed at once", now)
                else:
                    self._send(call, key, now)

    def handle_dial_failed(self, boot: bytes, reason: str, now: float) -> None:
        """No link could be made: what waited for it surely did not run and goes elsewhere."""
        for call in self._dialing.pop(boot, ()):
            if not call.closed and call.boot == boot and call.sent_at is None:
                self._undelivered(call, reason, now)

    def handle_link_down(self, key: int, reason: str, now: float) -> None:
        """A link dropped: its calls may or may not have run."""
        for call in list(self._by_link.get(key, {}).values()):
            error = PeerLost(f"the link to {self._who(call)} was lost: {reason}", executed="maybe")
            self._attempt_failed(call, error, now)

    def handle_change(self, now: float) -> None:
        """The routing table changed: calls that nobody could serve look again."""
        if self._parked:
            parked, self._parked = self._parked, []
            for call in parked:
                if not call.closed:
                    self._route(call, now)

    def tick(self, now: float) -> None:
        """End what is over its deadline, make the retries that are due, and stop waiting for discovery after the grace."""
        for owner in self._timers.due(now):
            if isinstance(owner, _Later):
                self._route(owner.call, now)
                continue
            if isinstance(owner, _Watch):
                owner.call.watched -= 1
                (self._hedge if owner.hedges else self._try_over)(owner.call, now)
                continue
            assert isinstance(owner, OutgoingCall)
            call = owner
            call.timed = False
            sent = call.sent_at is not None
            self._send_cancel(call)
            where = f" by {self._who(call)}" if sent or call.attempts else ": it was never sent"
            error: ReachError = DeadlineExceeded(
                f"{call.request.capability!r} was not answered in time{where}", executed="maybe" if sent else "no"
            )
            if not sent and not call.attempting and not call.attempts:  # parked until now: say why
                picked = self._router.pick(call.request, now)
                error = self._nobody(picked) if isinstance(picked, NoPick) else error
            self._settle_error(call, error, now)
        if self._parked and now >= self.grace_until:
            self.handle_change(now)
        if now >= self._sweep_at:
            self._sweep_at = now + _SWEEP_EVERY
            self.latencies.forget_stale(now)

    def next_timeout(self) -> float:
        """The next instant at which `tick` has something to do."""
        following = self._timers.next()
        return min(following, self.grace_until) if self._parked else following

    def stop(self, error: ReachError, now: float) -> None:
        """End everything with `error`, and refuse what comes later."""
        self._stopped = error
        waiting = [call for calls in self._dialing.values() for call in calls]
        for call in [*self._calls.values(), *waiting, *self._parked]:
            if not call.closed:
                self._send_cancel(call)
                self._settle_error(call, error, now)
        for owner in self._timers.due(float("inf")):  # retries that wait for their delay
            if isinstance(owner, _Later):
                self._settle_error(owner.call, error, now)

    # ---------------------------------------------------------------- routing and sending

    def _route(self, call: OutgoingCall, now: float) -> None:
        request = call.request
        if call.prefer is not None:
            request, call.prefer = msgspec.structs.replace(request, target=call.prefer), None
        picked = self._router.pick(request, now, exclude=call.tried)
        if isinstance(picked, NoPick):
            picked = self._hidden(call.request, call.tried) or picked
        if isinstance(picked, NoPick):
            if call.error is not None:
                self._settle_error(call, call.error, now)
            elif now < self.grace_until and picked.kind in ("none", "no_match", "version") and not request.shadow:
                self._parked.append(call)
            else:
                self._settle_error(call, self._nobody(picked), now)
            return
        if request.shadow and not is_shadow(picked.tags):
            return self._settle_error(call, NoProvider(f"no instance of {request.capability!r} takes shadow calls"), now)
        call.provider, call.boot, call.attempting = picked, picked.boot, True
        self._router.started(picked.boot, call.request.capability, now)
        key = self._links.link_to(picked.boot)
        if key is not None:
            self._send(call, key, now)
        elif self._links.want(picked.boot, now):
            self._dialing.setdefault(picked.boot, []).append(call)
        else:
            self._undelivered(call, "no address of it is known", now)

    def _nobody(self, picked: NoPick) -> ReachError:
        """The error of a call that nobody can have; who was refused might have."""
        if picked.kind == "none" and (refused := self._refusals()):
            picked = msgspec.structs.replace(picked, message=f"{picked.message}; a link was refused: {refused[-1]}")
        return picked.error()

    def _send(self, call: OutgoingCall, key: int, now: float) -> None:
        self._next_id = call_id = (self._next_id + 1) & 0xFFFFFFFFFFFFFFFF
        call.call_id, call.key, call.sent_at = call_id, key, now
        self._calls[call_id] = call
        calls = self._by_link.get(key)
        if calls is None:
            calls = self._by_link[key] = {}
        calls[call_id] = call
        if call.flags & REQUEST_WANTS_STREAM:
            call.inflow = Inflow(self._limits.message, self._links.pace(key), now)
        frame, parts, large = request_frame(call, call_id, now)
        self._links.send(key, frame, parts)
        if call.provider is not None and call.provider.idempotent and not call.flags & _ONE_WAY_OR_STREAM:
            self._watch(call, now)
        if large and call.outflow is not None:
            call.outflow.put_body(call.body)
        elif large:
            call.outflow = Outflow.of_body(self._limits.chunk, call.body, self._links.pace(key), now)
        if call.outflow is not None:
            self._links.flow(call)
        if call.flags & REQUEST_ONEWAY:
            if call.outflow is None:
                self._accepted(call, now)
            else:
                call.outflow.end()

    def handle_flow_ended(self, call: OutgoingCall, now: float) -> None:
        """Everything this side had to send has left."""
        if call.flags & REQUEST_SENDS_STREAM:
            self._links.send(call.key, stream_frame(call, STREAM_END))
        if call.flags & REQUEST_ONEWAY and not call.closed:
            self._accepted(call, now)

    def _accepted(self, call: OutgoingCall, now: float) -> None:
        self._end_attempt(call, Outcome.IGNORED, None, now)
        self._settle(call, (Kind.ACCEPTED, call.handle, None), "sent", now)

    def _send_cancel(self, call: OutgoingCall) -> None:
        if call.sent_at is not None and not call.closed and not call.flags & REQUEST_ONEWAY:
            self._links.send(call.key, stream_frame(call, STREAM_CANCEL))

    def _grant(self, call: OutgoingCall) -> None:
        if call.inflow is not None and (grant := call.inflow.take_grant()):
            self._links.send(call.key, stream_frame(call, STREAM_CREDIT, CREDIT.pack(*grant)))

    # ---------------------------------------------------------------- outcomes

    def _answer(self, call: OutgoingCall, flags: int, payload_format: int, segments: Sequence[Any], level: int, now: float) -> None:
        if flags & RESPONSE_ERROR:
            return self._attempt_failed(call, decode_error(b"".join(map(as_bytes, segments))), now, level)
        self._end_attempt(call, Outcome.OK, None, now, level)
        self._settle(call, (Kind.ANSWER, call.handle, (payload_format, segments)), "ok", now)

    def _undelivered(self, call: OutgoingCall, reason: str, now: float) -> None:
        """Nothing was sent: another instance may be tried without spending a retry."""
        error = PeerLost(f"{self._who(call)} could not be reached: {reason}", executed="no")
        self._end_attempt(call, Outcome.FAILED, error, now)
        call.error = error
        if len(call.attempts) > REROUTES:
            return self._settle_error(call, error, now)
        call.tried = (*call.tried, call.boot)
        self._route(call, now)

    def _watch(self, call: OutgoingCall, now: float) -> None:
        """Set the timers of an attempt that may be made twice."""
        window = self.latencies.window(call.request.capability)
        if call.hedge_of is None and call.hedge is None:
            delay = hedge_delay(self.hedging, window, idempotent=True, now=now)
            if delay is not None:
                self._timers.add(now + delay, _Watch(call, True))
                call.watched += 1
        if call.deadline is not None and call.retries > 0:
            limit = try_timeout(self.latencies.config, window, call.deadline - now, now)
            self._timers.add(now + limit, _Watch(call, False))
            call.watched += 1

    def _try_over(self, call: OutgoingCall, now: float) -> None:
        """A try took its share of the call's time: another instance is asked too, if there is one, and what comes first is taken.

        The first request goes on, for a handler that needs more than its share would otherwise never be waited for. There is no
        back-off: the time for that was spent waiting.
        """
        if call.hedge is None and not self._is_below_retry(call) and self._ask_another(call, now):
            call.retries -= 1
            call.overdue = True

    def _hedge(self, call: OutgoingCall, now: float) -> None:
        """Nearly all calls are answered by now: ask a second instance too."""
        self._ask_another(call, now)

    def _ask_another(self, call: OutgoingCall, now: float) -> bool:
        """Send the request to a second instance as well, where there is one and the throttle allows."""
        tried = (*call.tried, call.boot)
        if call.answer_flags is not None or isinstance(self._router.pick(call.request, now, exclude=tried), NoPick):
            return False
        if not self._throttle.allow(now):
            return False
        twin = call.hedge = call.twin()
        twin.hedge_of, twin.tried, twin.began = call, tried, now
        self._route(twin, now)
        return True

    def _end_hedge(self, twin: OutgoingCall, delivery: Delivery, now: float) -> None:
        """The second request ended: its answer is the call's; its failure matters only when the first has failed too."""
        call = twin.hedge_of
        assert call is not None
        call.hedge = None
        call.attempts = (*call.attempts, *twin.attempts)
        if call.closed:
            return
        if delivery[0] is Kind.ANSWER:
            self._send_cancel(call)
            self._end_attempt(call, Outcome.TIMEOUT if call.overdue else Outcome.IGNORED, self._late(call), now)
            call.provider = twin.provider
            self._settle(call, (Kind.ANSWER, call.handle, delivery[2]), "ok", now)
        elif not call.attempting:
            self._settle_error(call, call.error or delivery[2], now)

    def _late(self, call: OutgoingCall) -> ReachError | None:
        """The error of a try that another one overtook."""
        if not call.overdue:
            return None
        return DeadlineExceeded(f"{self._who(call)} did not answer within the time of one try", executed="maybe")

    @staticmethod
    def _is_below_retry(call: OutgoingCall) -> bool:
        return call.parent is not None and bool(call.parent.flags & REQUEST_RETRY)

    def _attempt_failed(self, call: OutgoingCall, error: ReachError, now: float, level: int = 0) -> None:
        if call.hedge is not None:  # the other request may still be answered
            self._end_attempt(call, outcome_of(call, error), error, now, level)
            call.error = error
            return
        again = None
        if call.retries > 0 and not call.items_seen and not call.flags & REQUEST_SENDS_STREAM and call.provider is not None:
            below = self._is_below_retry(call)
            again = self._policy.classify(error, idempotent=call.provider.idempotent, attempt=len(call.attempts) + 1, below_retry=below)
        self._end_attempt(call, outcome_of(call, error), error, now, level)
        too_late = again is not None and call.deadline is not None and now + again.delay >= call.deadline
        if again is None or too_late or not self._throttle.allow(now):
            return self._settle_error(call, error, now)
        call.retries -= 1
        call.error = error
        if again.elsewhere:
            call.tried = (*call.tried, call.boot)
        if again.delay > 0:
            self._timers.add(now + again.delay, _Later(call))
        else:
            self._route(call, now)

    def _end_attempt(self, call: OutgoingCall, outcome: Outcome, error: ReachError | None, now: float, level: int = 0) -> None:
        """Close the attempt, if one is open: nothing that still comes for it counts, and the router learns how it went."""
        if not call.attempting:
            return
        call.attempting = False
        sent_at, capability = call.sent_at, call.request.capability
        latency = 0.0 if sent_at is None else now - sent_at
        self._router.finished(call.boot, capability, outcome, latency, level, now)
        if not call.flags & _ONE_WAY_OR_STREAM:
            if outcome is Outcome.OK:
                self.latencies.add(capability, latency, now)
            elif outcome is Outcome.TIMEOUT:
                self.latencies.add_vain(capability, latency, now)
        if call.watched:
            for _ in range(call.watched):
                self._timers.forget()
            call.watched = 0
        if error is not None and call.provider is not None:
            attempt = {"instance_id": call.provider.instance_id, "error": error.code, "executed": error.executed}
            call.attempts = (*call.attempts, attempt)
        if sent_at is not None:
            del self._calls[call.call_id]
            calls = self._by_link[call.key]
            del calls[call.call_id]
            if not calls:
                del self._by_link[call.key]
            call.sent_at = None
        if call.inflow is not None:
            call.inflow.close(now)
        call.answer_flags = call.inflow = None
        if not call.flags & REQUEST_SENDS_STREAM:
            call.outflow = None

    def _settle_error(self, call: OutgoingCall, error: ReachError, now: float) -> None:
        if call.closed:
            return
        self._end_attempt(call, outcome_of(call, error), error, now)
        if error.trace_id or error.attempts:  # shared with other calls (a stop): give this one a copy
            error = copy.copy(error)
        error.trace_id = call.trace_id.hex()
        error.attempts = call.attempts
        if error.executed == "no" and (may_have_run(call) or (call.hedge is not None and may_have_run(call.hedge))):
            error.executed = "maybe"  # an earlier attempt, or one beside it
        self._settle(call, (Kind.FAILED, call.handle, error), error.code, now)

    def _settle(self, call: OutgoingCall, delivery: Delivery, status: str, now: float) -> None:
        call.closed = True
        call.body = []  # a timer may hold on to the call until its deadline
        if call.timed:
            self._timers.forget()
        if call.parent is not None and call.parent.children:
            call.parent.children.pop(call, None)
        if call.hedge_of is not None:
            return self._end_hedge(call, delivery, now)
        if (twin := call.hedge) is not None:
            call.hedge = None
            self._send_cancel(twin)
            twin.closed = True
            self._end_attempt(twin, Outcome.IGNORED, None, now)
        self._deliveries.append(delivery)
        call.handle = None  # it holds the call: a circle that would be the garbage collector's work
        peer = "" if call.provider is None else call.provider.instance_id
        again = len(call.attempts) if status == "ok" else max(0, len(call.attempts) - 1)
        entry = (
            True,
            call.request.capability,
            status,
            call.began,
            None,
            now,
            call.trace_id,
            call.span_id,
            call.depth,
            peer,
            again,
            None,
        )
        self._ended.append(entry)

    @staticmethod
    def _who(call: OutgoingCall) -> str:
        return call.provider.instance_id if call.provider is not None else "the peer"


_ONE_WAY_OR_STREAM = REQUEST_ONEWAY | REQUEST_WANTS_STREAM | REQUEST_SENDS_STREAM
