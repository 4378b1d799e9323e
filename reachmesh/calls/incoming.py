"""Calls this node serves: from the request frame to the last frame of the answer.

States of a call: arriving (its body still comes in), queued (given to the execution side), running (claimed by a handler's
thread or task), closed. A claim is one ticket that exactly one side takes: the handler's thread to run the call, or the engine
to cancel it before it ran; so a cancelled or expired call that has not started never starts, whatever the threads do.

Invariants: at most `CALLS_PER_LINK` calls a link; a call sends exactly one RESPONSE unless it was cancelled by its caller, its
link dropped or it is one-way; nothing is sent for a closed call.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reachmesh.calls.flows import Batch, Inflow, Outflow

CALLS_PER_LINK = 65_536
"""Calls one link may have open here; one more is refused as overloaded."""


TAKEN = Batch([], 0)
"""In place of arguments that were taken or are no longer wanted: a timer may hold on to a call until its deadline."""

NO_SUBTASKS: Mapping[str, float] = {}
"""Shared by all calls that measure none."""


class IncomingCall:
    """One served call. The engine alone changes it, but for `claim()` and what `handle` does with itself.

    Attributes:
        key, call_id: the link it came by and its id there; answers go nowhere else.
        boot: the caller's boot id; instance_id and name as told in its handshake.
        deadline: monotonic seconds, or None.
        handle: what the execution side hung here (opaque to the engine).
        run_key: the dedup key it runs or waits for; task: the task it runs (see `runs`); silent: it is not entered in the log.
        subtasks: seconds of each part of the handler's work that it measures.
        cache_key: where its answer is to be kept, or None.
        delivered: whether it was handed to the execution side.
        permits: where it holds or waits for a permit (the callee's business), or None.
        early: what the caller streamed in before that.
        failed: whether it counts as a failure of this node.
        status: "ok" or the code of the error it ends with.
        children: calls made while serving this one; they are cancelled with it.
    """

    __slots__ = (
        "_tickets",
        "arrived",
        "body",
        "boot",
        "cache_key",
        "call_id",
        "caller",
        "capability",
        "children",
        "closed",
        "deadline",
        "delivered",
        "depth",
        "early",
        "extras",
        "failed",
        "final",
        "flags",
        "handle",
        "inflow",
        "key",
        "outflow",
        "payload_format",
        "permits",
        "priority",
        "reason",
        "run_key",
        "silent",
        "span_id",
        "started",
        "status",
        "subtasks",
        "task",
        "trace_id",
    )

    def __init__(
        self,
        key: int,
        call_id: int,
        boot: bytes,
        caller: tuple[str, str],
        capability: str,
        extras: Mapping[str, Any],
        flags: int,
        payload_format: int,
        priority: int,
        depth: int,
        trace_id: bytes,
        span_id: bytes,
        deadline: float | None,
        now: float,
    ) -> None:
        self.key, self.call_id, self.boot, self.caller = key, call_id, boot, caller
        self.capability, self.extras, self.flags = capability, extras, flags
        self.payload_format, self.priority, self.depth = payload_format, priority, depth
        self.trace_id, self.span_id, self.deadline, self.arrived = trace_id, span_id, deadline, now
        self.body: Batch | None = None
        self.inflow: Inflow | None = None
        self.outflow: Outflow | None = None
        self.handle: Any = None
        self.children: dict[Any, None] | None = None
        self.final: tuple[int, int, list[Any], float] | None = None
        self.closed = self.delivered = self.failed = self.silent = False
        self.run_key: Any = None
        self.task: Any = None
        self.cache_key: Any = None
        self.permits: Any = None
        self.subtasks: Mapping[str, float] = NO_SUBTASKS
        self.early: list[Any] | None = None
        self.started: float | None = None
        self.reason = ""
        self.status = "ok"
        self._tickets = [True]

    def claim(self) -> bool:
        """Take the one ticket: true for exactly one asker, from any thread (`list.pop` is atomic)."""
        try:
            return self._tickets.pop()
        except IndexError:
            return False

    @property
    def claimed(self) -> bool:
        """Whether the ticket is gone: the call runs, ran, or was cancelled before."""
        return not self._tickets


class Incoming:
    """The table of served calls, by link and call id."""

    def __init__(self) -> None:
        self._links: dict[int, dict[int, IncomingCall]] = {}
        self.open = 0

    def get(self, key: int, call_id: int) -> IncomingCall | None:
        """The open call with this id on this link."""
        calls = self._links.get(key)
        return calls.get(call_id) if calls else None

    def reason_against(self, key: int, call_id: int) -> str | None:
        """Why the link may not open a call with this id: "full", "taken", or None."""
        calls = self._links.get(key)
        if calls is None:
            return None
        if call_id in calls:
            return "taken"
        return "full" if len(calls) >= CALLS_PER_LINK else None

    def add(self, call: IncomingCall) -> None:
        """Enter an arriving call."""
        calls = self._links.get(call.key)
        if calls is None:
            calls = self._links[call.key] = {}
        calls[call.call_id] = call
        self.open += 1

    def close(self, call: IncomingCall, reason: str = "") -> bool:
        """Take a call out; false when it was closed before."""
        if call.closed:
            return False
        call.closed, call.reason = True, reason
        calls = self._links.get(call.key)
        if calls and calls.pop(call.call_id, None) is not None:
            self.open -= 1
            if not calls:
                del self._links[call.key]
        return True

    def of_link(self, key: int) -> list[IncomingCall]:
        """All open calls of one link, oldest first."""
        return list(self._links.get(key, {}).values())

    def all(self) -> list[IncomingCall]:
        """All open calls."""
        return [call for calls in self._links.values() for call in calls.values()]
