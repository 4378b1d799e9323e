"""The reserved capabilities: what every node tells tools about itself. Asked by target, in no record, no index and no log.

Each runs in a thread of its own: a node whose pool is full of stuck calls answers all the same, for that is when somebody looks.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from reachmesh.calls.incoming import IncomingCall
from reachmesh.engine.providers import RESERVED
from reachmesh.errors import BadRequest
from reachmesh.node.capability import Capability, Served
from reachmesh.node.tasks import TASK, describe_task
from reachmesh.observe.calls import CallLog, Execution

if TYPE_CHECKING:
    from reachmesh.node.node import ReachNode

STATUS = f"{RESERVED}status"
TRACE = f"{RESERVED}trace"
SETTINGS = f"{RESERVED}settings"

MOST_CALLS = 1000
"""Executions that one `reachmesh.status` gives at most."""


def reserved_capabilities(node: ReachNode) -> dict[str, Served]:
    """The reserved capabilities of one node, by name."""

    def status(calls: int = 20) -> dict[str, Any]:
        """How this node does: state, rates of the last minute, and its last calls, newest first."""
        return _status(node, max(0, min(calls, MOST_CALLS)))

    def trace(trace_id: str) -> list[dict[str, Any]]:
        """The calls of one trace that this node served or serves, oldest first."""
        try:
            wanted = bytes.fromhex(trace_id)
        except ValueError:
            wanted = b""
        if len(wanted) != 16:
            raise BadRequest(f"trace_id must be 32 hex digits, not {trace_id[:80]!r}")
        return _trace(node, wanted)

    def task(task_id: str) -> dict[str, Any]:
        """State of a `reply_to` call that this node runs, and its result or error once there is one."""
        runs = node._driver.engine.callee.runs
        return describe_task(node._driver.ask(lambda now: runs.task(task_id)))

    def settings() -> list[dict[str, Any]]:
        """Every setting of this node, as text, and where it came from."""
        return [{"name": each.name, "value": _plain(each.value), "origin": each.origin} for each in node.settings()]

    handlers: dict[str, Callable[..., Any]] = {STATUS: status, TRACE: trace, TASK: task, SETTINGS: settings}
    return {name: Served(Capability(name=name, handler=handler, domain="thread")) for name, handler in handlers.items()}


def _status(node: ReachNode, count: int) -> dict[str, Any]:
    driver, executor = node._life.driver, node._life.executor
    engine = driver.engine
    running, _ = executor.load() if executor is not None else (0, 0)

    def read(log: CallLog, now: float) -> dict[str, Any]:
        rates = log.served.rates(now)
        since = node._wall() - now
        members = engine.membership.members
        links = [members[boot] for boot in engine.links.linked() if boot in members]
        return {
            "queue": engine.callee.admission.queued,
            "qps": rates.qps,
            "p95": rates.p95,
            "fail_rate": rates.fail_rate,
            "calls": [_call(each, since) for each in reversed(log.served.recent(count))],
            "capabilities": {name: _stats(log, name, now) for name in sorted(node._served)},
            "links": [{"node": m.record.name, "instance_id": m.record.instance_id, "rtt": m.rtt} for m in links if not m.state.gone],
            "faults": engine.faults,
        }

    own = {
        "node": node.name,
        "instance_id": node.instance_id,
        "status": node.state.name,
        "started": node._life.started_at,
        "now": node._wall(),
        "running": max(0, running - 1),  # this very call left out
    }
    return own | driver.ask_log(read)


def _stats(log: CallLog, capability: str, now: float) -> dict[str, Any]:
    stats = log.served.stats(capability, now)
    return {
        "count": stats.count,
        "failures": stats.failures,
        "p50_ms": stats.p50_ms,
        "p90_ms": stats.p90_ms,
        "p99_ms": stats.p99_ms,
    }


def _trace(node: ReachNode, trace_id: bytes) -> list[dict[str, Any]]:
    engine = node._driver.engine

    def read(log: CallLog, now: float) -> list[dict[str, Any]]:
        since = node._wall() - now
        open_now = [_running(each, now) for each in engine.callee.all() if each.trace_id == trace_id]
        seen = [*log.served.of_trace(trace_id), *(each for each in open_now if not each.capability.startswith(RESERVED))]
        own = {"node": node.name, "instance_id": node.instance_id}
        return [own | _call(each, since) for each in sorted(seen, key=lambda each: each.arrived)]

    return node._driver.ask_log(read)


def _plain(value: Any) -> Any:
    """A setting as a value that travels: numbers and texts as they are, all else as text."""
    return value if value is None or isinstance(value, bool | int | float | str) else str(value)


def _running(call: IncomingCall, now: float) -> Execution:
    """A call that has not ended, as far as it has come."""
    status = "queued" if call.started is None else "running"
    caller = call.caller[1]
    return Execution(
        False, call.capability, status, call.arrived, call.started, now, call.trace_id, call.span_id, call.depth, caller, 0, call.subtasks
    )


def _call(each: Execution, since: float) -> dict[str, Any]:
    """One execution as plain values; `since` turns monotonic seconds into those of the wall clock."""
    return {
        "capability": each.capability,
        "status": each.status,
        "duration_ms": (each.ended - each.arrived) * 1000,
        "waited_ms": None if each.started is None else max(0.0, each.started - each.arrived) * 1000,
        "trace_id": each.trace_id.hex(),
        "span_id": each.span_id.hex(),
        "depth": each.depth,
        "caller": each.peer,
        "retry": bool(each.retries),
        "subtasks_ms": {name: seconds * 1000 for name, seconds in list(each.subtasks.items())} if each.subtasks else {},
        "at": each.arrived + since,
    }
