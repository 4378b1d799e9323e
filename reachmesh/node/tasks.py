"""`reply_to`: the answer of a call as a call of its own, and asking for the state of such a task from anywhere in the mesh."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from reachmesh.calls.incoming import IncomingCall
from reachmesh.calls.runs import Task
from reachmesh.engine.providers import RESERVED
from reachmesh.errors import BadRequest, ReachError
from reachmesh.wire.frames import decode_error
from reachmesh.wire.values import load_body

if TYPE_CHECKING:
    from reachmesh.node.node import ReachNode

_log = logging.getLogger("reachmesh")

TASK = f"{RESERVED}task"
"""Reserved capability that tells about a task of the node asked."""


@dataclass(frozen=True, slots=True)
class TaskInfo:
    """A `reply_to` call as it stands.

    Attributes:
        task_id: as in the acceptance.
        state: queued, running, done, failed or cancelled.
        result: the answer once it is done, else None.
        error: how it failed or was cancelled, else None.
    """

    task_id: str
    state: str
    result: Any = None
    error: ReachError | None = None


def boot_of(task_id: object) -> bytes | None:
    """Boot id of the node that runs a task; None when that is no task id."""
    head, dash, number = task_id.partition("-") if isinstance(task_id, str) else ("", "", "")
    try:
        boot = bytes.fromhex(head)
        int(number, 16)
    except ValueError:
        return None
    return boot if dash and len(boot) == 8 else None


def describe_task(task: Task | None) -> dict[str, Any]:
    """What the reserved capability answers.

    Raises:
        BadRequest: the task never was, or was forgotten.
    """
    if task is None:
        raise BadRequest("there is no such task here; what ended more than five minutes ago is forgotten")
    told: dict[str, Any] = {"state": task.state}
    if (outcome := task.outcome) is not None and outcome.segments:
        if outcome.flags:
            told["error"] = b"".join(outcome.segments)
        else:
            told["result"] = load_body(outcome.payload_format, outcome.segments)
    return told


def read_task(task_id: str, told: dict[str, Any]) -> TaskInfo:
    """The other end of `describe_task`."""
    error = told.get("error")
    return TaskInfo(task_id, told["state"], told.get("result"), decode_error(error) if error is not None else None)


def deliver_reply(node: ReachNode, call: IncomingCall, value: Any) -> None:
    """Call the capability that waits for an answer, with it as the only argument. Failures are logged; the task keeps the answer."""
    extras = call.extras
    reach = node.reach(
        extras["r"],
        correlation_id=extras.get("c"),
        session=extras.get("s"),
        metadata=extras.get("m"),
        priority=call.priority,
        trace_id=call.trace_id.hex(),
        timeout=REPLY_SECONDS,
    )
    outgoing, _ = reach._make(_Reply(call), (value,), {}, 0)
    outgoing.depth = call.depth + 1
    driver = node._driver
    driver.post_call(driver.engine.caller.start, outgoing)


REPLY_SECONDS = 30.0
"""Time a reply has to arrive in; the deadline of the call it answers is over when that is."""


class _Reply:
    """Where the outcome of a delivery goes: into the log when the answer could not be delivered."""

    __slots__ = ("_call",)

    def __init__(self, call: IncomingCall) -> None:
        self._call = call

    def failed(self, error: ReachError) -> None:
        """Nobody got it."""
        trace = self._call.trace_id.hex()
        text = "[%s] the answer of %r was not delivered to %r: %s"
        _log.warning(text, trace, self._call.capability, self._call.extras["r"], error, extra={"trace_id": trace})

    def answered(self, *_: Any) -> None:
        """It arrived; what its receiver returned is of no interest."""

    received = has_room = accepted = answered
