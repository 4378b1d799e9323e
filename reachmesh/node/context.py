"""What a handler may know about the call it serves: the parameter annotated `Context`."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NoReturn

from reachmesh.errors import SemanticError

if TYPE_CHECKING:
    from reachmesh.calls.incoming import IncomingCall

_log = logging.getLogger("reachmesh.handler")


@dataclass(frozen=True, slots=True)
class CallerInfo:
    """Who called, as its handshake said; as text the instance id."""

    name: str
    instance_id: str

    def __str__(self) -> str:
        return self.instance_id


class _TraceLogger(logging.LoggerAdapter[logging.Logger]):
    """Puts the trace id in front of every message and into the record as `trace_id`."""

    def process(self, msg: Any, kwargs: Any) -> tuple[Any, Any]:
        extra = self.extra or {}
        kwargs["extra"] = {**extra, **(kwargs.get("extra") or {})}
        return f"[{extra['trace_id']}] {msg}", kwargs


class Context:
    """The call a handler serves. Made by the node; readable from the handler's thread or task.

    Attributes:
        trace_id: 32 hex digits, the same for all calls that one outer call caused.
        span_id: 16 hex digits of this call.
        caller: who called.
        deadline: local `time.monotonic()` second at which the caller stops waiting; infinity when it waits for ever.
        priority: 0 (first) to 255 (last).
        session, correlation_id: as given by the caller, or None.
        metadata: what the caller attached, as plain values.
        subtasks: seconds spent in each `subtask`, by name.
    """

    __slots__ = (
        "_call",
        "_now",
        "caller",
        "correlation_id",
        "deadline",
        "log",
        "metadata",
        "priority",
        "session",
        "span_id",
        "subtasks",
        "trace_id",
    )

    def __init__(self, call: IncomingCall, now: Callable[[], float] = time.monotonic) -> None:
        self._call, self._now = call, now
        extras = call.extras
        self.trace_id = call.trace_id.hex()
        self.span_id = call.span_id.hex()
        self.caller = CallerInfo(*call.caller)
        self.deadline = call.deadline if call.deadline is not None else float("inf")
        self.priority = call.priority
        self.session: str | None = extras.get("s")
        self.correlation_id: str | None = extras.get("c")
        self.metadata: Mapping[str, Any] = extras.get("m") or {}
        self.subtasks: dict[str, float] = {}
        call.subtasks = self.subtasks
        self.log: logging.LoggerAdapter[logging.Logger] = _TraceLogger(_log, {"trace_id": self.trace_id})

    @property
    def cancelled(self) -> bool:
        """Whether nobody waits for the answer any more: cancelled, expired, or the caller is gone. Poll it in long loops."""
        return self._call.closed

    def remaining(self) -> float:
        """Seconds left until the deadline, not below 0; infinity without one."""
        return max(0.0, self.deadline - self._now())

    @contextmanager
    def subtask(self, name: str) -> Iterator[None]:
        """Measure a part of the handler's work under a name."""
        began = self._now()
        try:
            yield
        finally:
            self.subtasks[name] = self.subtasks.get(name, 0.0) + self._now() - began

    def fail(self, code: str, message: str = "") -> NoReturn:
        """End the call with a semantic failure: the caller gets `SemanticError` with this code.

        Raises:
            SemanticError: always.
        """
        raise SemanticError(message or code, code=code)
