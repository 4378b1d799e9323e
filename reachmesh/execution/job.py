"""What the executor asks of one accepted request: the seam between the calls of a node and the threads that run them.

Place in the data path: the node wraps an accepted request as a `Job` and gives it to `Executor.submit`; the domain that
runs it drives the job through the steps below. The executor knows nothing of frames, deadlines, permits or records.

Order of the steps, all in the thread (or task) that runs the handler::

    begin() --None--> (over: the job has answered by itself)
       |
    entered() -> handler -> left(token)                 a plain answer:  finish(value) | fail(error)
       |
    entered() -> [item -> emit(item) -False-> wait_room()/room()]* -> generator closed -> left(token) -> finish(None) | fail(error)

Invariants: exactly one of `finish` and `fail` is called, once, for every job whose `begin` gave arguments; never before
the generator is closed; never for a job whose `begin` gave None. A job that never reached `begin` because the executor
was stopped gets `fail(NodeStopped)`.
"""

from __future__ import annotations

from collections.abc import Awaitable
from typing import Any, Protocol

from reachmesh.errors import PayloadError
from reachmesh.execution.handler import Handler


class UnsendableAnswer(PayloadError):
    """What a handler answered in another process cannot travel; not an error that the handler raised."""


class Job(Protocol):
    """One request on its way through a domain. Hashed and compared by identity."""

    @property
    def handler(self) -> Handler:
        """What to run."""
        ...

    @property
    def domain(self) -> str:
        """Where: "pool", "thread", "loop", "inline" or "process"."""
        ...

    @property
    def priority(self) -> int:
        """0 (first) to 255 (last)."""
        ...

    @property
    def cancelled(self) -> bool:
        """Whether the answer is no longer wanted; polled between the items of a stream."""
        ...

    def begin(self) -> tuple[list[Any], dict[str, Any]] | None:
        """Claim the request and give its arguments, ready for the handler; None = do not run, all is answered."""
        ...

    def entered(self) -> Any:
        """Called right before user code runs, in its thread or task; what it gives is handed to `left`."""
        ...

    def left(self, token: Any) -> None:
        """Called right after user code has run, in the same thread or task, whatever it raised."""
        ...

    def finish(self, value: Any) -> None:
        """The handler returned `value` (None at the end of a stream)."""
        ...

    def fail(self, exc: BaseException) -> None:
        """The handler raised, could not be run, or its stream was closed early (`Cancelled`)."""
        ...

    def emit(self, item: Any) -> bool:
        """Take one item of a stream. False = taken, but there is no credit for another: wait first."""
        ...

    def wait_room(self) -> bool:
        """Block until there is credit again. False = closed or cancelled: close the generator."""
        ...

    def room(self) -> Awaitable[bool]:
        """The same as `wait_room` for a task."""
        ...
