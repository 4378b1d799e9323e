"""One call that this node makes: what was asked, and how far the current attempt has come."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reachmesh.calls.flags import REQUEST_RETRY
from reachmesh.calls.flows import Buffer, Inflow, Outflow
from reachmesh.errors import ReachError
from reachmesh.routing import Provider, RouteRequest


class OutgoingCall:
    """A call and its current attempt.

    States: parked (nobody offers it yet), dialing (a link to the picked instance is being made), sent, closed.

    Attributes:
        handle: who is told (opaque).
        request: what routing goes by.
        body: encoded arguments as segments.
        deadline: monotonic seconds for the whole call, or None.
        metas: cache of encoded request metas by boot, shared by all calls of one `Reach`.
        parent: the `IncomingCall` in whose handler the call was made, or None.
        prefer: boot that a strategy of the user's own chose for the first attempt, or None.
        hedge, hedge_of: the second request that races this one, and back; see `Caller`.
        overdue: the try took more than its share of the time, and another instance was asked for that.
        watched: timers that belong to the current attempt.
        attempts: one mapping per finished attempt, oldest first.
    """

    __slots__ = (
        "answer_flags",
        "answer_format",
        "attempting",
        "attempts",
        "began",
        "body",
        "boot",
        "call_id",
        "closed",
        "deadline",
        "depth",
        "error",
        "extras",
        "flags",
        "handle",
        "hedge",
        "hedge_of",
        "inflow",
        "items_seen",
        "key",
        "metas",
        "outflow",
        "overdue",
        "parent",
        "payload_format",
        "prefer",
        "priority",
        "provider",
        "request",
        "retries",
        "sent_at",
        "span_id",
        "timed",
        "trace_id",
        "tried",
        "watched",
    )

    def __init__(
        self,
        handle: Any,
        request: RouteRequest,
        body: list[Buffer],
        payload_format: int,
        flags: int,
        extras: Mapping[str, Any] | None,
        metas: dict[bytes, bytes],
        deadline: float | None,
        depth: int,
        trace_id: bytes,
        span_id: bytes,
        retries: int,
        parent: Any = None,
    ) -> None:
        self.handle, self.request, self.body, self.payload_format = handle, request, body, payload_format
        self.flags, self.extras, self.metas, self.deadline, self.depth = flags, extras, metas, deadline, depth
        self.trace_id, self.span_id, self.retries, self.parent = trace_id, span_id, retries, parent
        self.priority = request.priority
        self.began = 0.0
        self.closed = False
        self.timed = False
        self.attempting = False
        self.key = self.call_id = 0
        self.boot = b""
        self.provider: Provider | None = None
        self.sent_at: float | None = None
        self.inflow: Inflow | None = None
        self.outflow: Outflow | None = None
        self.answer_flags: int | None = None
        self.answer_format = 0
        self.items_seen = False
        self.error: ReachError | None = None
        self.prefer: bytes | None = None
        self.hedge: OutgoingCall | None = None
        self.hedge_of: OutgoingCall | None = None
        self.watched = 0
        self.overdue = False
        self.tried: tuple[bytes, ...] = ()
        self.attempts: tuple[Mapping[str, Any], ...] = ()

    def twin(self) -> OutgoingCall:
        """A second request for the same answer; not retried, without a deadline of its own timers, known to nobody but this call."""
        return OutgoingCall(
            None,
            self.request,
            body=self.body,
            payload_format=self.payload_format,
            flags=self.flags | REQUEST_RETRY,
            extras=self.extras,
            metas=self.metas,
            deadline=self.deadline,
            depth=self.depth,
            trace_id=self.trace_id,
            span_id=self.span_id,
            retries=0,
        )
