"""Every error reachmesh raises, in one tree. Imports nothing, so every room may use it.

::

    ReachError
     +-- ConfigError            an option, environment variable or declaration is wrong (raised before anything runs)
     +-- UsageError             the library was used in a way that cannot work
     |    +-- NodeStopped           the node is not running (never started, stopping, or stopped)
     |    +-- BlockingCallInLoop    a blocking verb on an event loop's own thread
     +-- NoProvider             nobody offers the capability (or nobody who matches)
     +-- PeerLost               the peer, or the link to it, went away while the call was with it
     +-- DeadlineExceeded       the call's time is over (also a TimeoutError)
     +-- Cancelled              somebody cancelled the call
     +-- BreakerOpen            every instance is ejected by its circuit breaker
     +-- Overloaded             the instance refused for lack of room
     |    +-- QuotaExceeded         no permit of the capability came free in time
     |    +-- Backpressure          the queue is over its watermark
     +-- BadRequest             the arguments do not fit the handler
     +-- PayloadError           a value cannot travel; `path` leads to it
     |    +-- PayloadTooLarge       a message over the size limit
     +-- VersionMismatch        protocol or capability versions do not meet
     +-- LoopDetected           calls nested deeper than the depth limit
     +-- RemoteError            the handler raised; `type_name` and `message` say what
     +-- SemanticError          the handler says that its answer is a failure (handlers raise it too)
     +-- WorkerCrashed          the process that ran the handler died; the node itself lives
     +-- AccessDenied           this caller may not
     +-- ProtocolError          the other side does not speak as the specification says

`executed` is honest: "no" means that the handler surely never started, "yes" that it surely ran, "maybe" that nobody
on this side can know. Errors survive pickling by the user; reachmesh itself never unpickles anything.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Literal

Executed = Literal["no", "maybe", "yes"]

MESSAGE_LIMIT = 8192
"""Characters of an error's message; of a longer one the middle is left out, and it says so."""


def shortened(text: str, limit: int) -> str:
    """A text of at most `limit` characters (>= 100): beginning and end, and between them how long it was."""
    if len(text) <= limit:
        return text
    note, tail = f" ... (cut from {len(text)} characters) ... ", limit // 4
    return text[: limit - tail - len(note)] + note + text[-tail:]


def shown(value: object) -> str:
    """Any value as short text for a message, whatever its own `repr` does."""
    try:
        text = repr(value[: _SHOWN + 1] if isinstance(value, str | bytes | list | tuple) else value)
    except Exception:  # the user's own code, or an integer of too many digits
        text = f"<{type(value).__name__}>"
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."


_SHOWN = 80


class ReachError(Exception):
    """Root of the tree.

    Args:
        message: one or two sentences for a person.
        code: machine-readable name; each class has its own default.
        retryable: whether the same call may succeed later or elsewhere; each class has its own default.
        executed: "no", "maybe" or "yes": whether a handler started.
        hint: what to do about it, or "".
        trace_id: 32 hex digits, the key into every log of the call, or "".
        attempts: what was tried, oldest first: one mapping per attempt with `instance_id`, `error` and `executed`.
    """

    default_code: ClassVar[str] = "error"
    default_retryable: ClassVar[bool] = False
    default_executed: ClassVar[Executed] = "no"

    def __init__(
        self,
        message: str = "",
        *,
        code: str | None = None,
        retryable: bool | None = None,
        executed: Executed | None = None,
        hint: str = "",
        trace_id: str = "",
        attempts: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        super().__init__(shortened(message, MESSAGE_LIMIT) if isinstance(message, str) else message)
        self.code = code if code is not None else self.default_code
        self.retryable = retryable if retryable is not None else self.default_retryable
        self.executed: Executed = executed if executed is not None else self.default_executed
        self.hint = shortened(hint, MESSAGE_LIMIT) if isinstance(hint, str) else hint
        self.trace_id = trace_id
        self.attempts: tuple[Mapping[str, Any], ...] = tuple(attempts)

    @property
    def message(self) -> str:
        """The text alone, without hint."""
        return str(self.args[0]) if self.args else ""

    def __str__(self) -> str:
        return f"{self.message} ({self.hint})" if self.hint else self.message

    def __repr__(self) -> str:
        return f"{type(self).__name__}({str(self)!r})"

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.args, dict(self.__dict__)))


def _rebuild(kind: type[ReachError], args: tuple[Any, ...], state: dict[str, Any]) -> ReachError:
    """Make an error from what `__reduce__` gave, without running a constructor whose arguments differ."""
    error = kind.__new__(kind, *args)
    error.args = args
    error.__dict__.update(state)
    return error


class ConfigError(ReachError):
    """An option, an environment variable or a declaration is wrong."""

    default_code = "config"


class UsageError(ReachError):
    """The library was used in a way that cannot work."""

    default_code = "usage"


class NodeStopped(UsageError):
    """The node is not running."""

    default_code = "node_stopped"


class BlockingCallInLoop(UsageError):
    """A blocking verb was used on the thread of a running event loop; the hint names the twin to await."""

    default_code = "blocking_call_in_loop"


class NoProvider(ReachError):
    """Nobody offers the capability, or nobody who matches what the caller asked for."""

    default_code = "no_provider"


class PeerLost(ReachError):
    """The peer or the link to it went away while the call was with it."""

    default_code = "peer_lost"
    default_retryable = True
    default_executed = "maybe"


class DeadlineExceeded(ReachError, TimeoutError):
    """The call's time is over."""

    default_code = "deadline_exceeded"
    default_executed = "maybe"


class Cancelled(ReachError):
    """The call was cancelled: by its caller, its caller's caller, or a stop."""

    default_code = "cancelled"
    default_executed = "maybe"


class BreakerOpen(ReachError):
    """Every instance that offers the capability is ejected by its circuit breaker."""

    default_code = "breaker_open"
    default_retryable = True


class Overloaded(ReachError):
    """The instance refused for lack of room; `retry_after` seconds say when to come back (0 = not said)."""

    default_code = "overloaded"
    default_retryable = True

    def __init__(self, message: str = "", *, retry_after: float = 0.0, **fields: Any) -> None:
        super().__init__(message, **fields)
        self.retry_after = retry_after


class QuotaExceeded(Overloaded):
    """No permit of the capability came free within the permitted wait."""

    default_code = "quota_exceeded"


class Backpressure(Overloaded):
    """The instance's queue is over its watermark."""

    default_code = "backpressure"


class BadRequest(ReachError):
    """The arguments do not fit the handler's signature; the message names the argument."""

    default_code = "bad_request"


class PayloadError(ReachError):
    """A value cannot travel; `path` leads to it, e.g. `rows[3].when`."""

    default_code = "payload"

    def __init__(self, message: str = "", *, path: str = "", **fields: Any) -> None:
        super().__init__(message, **fields)
        self.path = path


class PayloadTooLarge(PayloadError):
    """A message over the size limit."""

    default_code = "payload_too_large"


class VersionMismatch(ReachError):
    """Protocol or capability versions do not meet; the message has both ranges."""

    default_code = "version_mismatch"


class LoopDetected(ReachError):
    """Calls are nested deeper than the depth limit."""

    default_code = "loop_detected"


class RemoteError(ReachError):
    """The handler raised an exception of its own.

    Only the name of its type and its message travel, unchanged however many nodes pass it on; the stack stays in the serving node's log, under
    `trace_id`.
    """

    default_code = "remote_error"
    default_executed = "yes"

    def __init__(self, message: str = "", *, type_name: str = "Exception", **fields: Any) -> None:
        super().__init__(message, **fields)
        self.type_name = type_name

    def __str__(self) -> str:
        return f"{self.type_name}: {super().__str__()}"


class SemanticError(ReachError):
    """The handler's answer is a failure in the application's own terms; handlers raise it with a code of their own.

    It reaches the caller with code and message unchanged, counts for breaker and weight, and is never retried.
    """

    default_code = "semantic_error"
    default_executed = "yes"


class WorkerCrashed(ReachError):
    """The worker process that ran the handler died (crash, kill, out of memory); the serving node itself lives."""

    default_code = "worker_crashed"
    default_executed = "maybe"


class AccessDenied(ReachError):
    """This caller may not use this capability."""

    default_code = "access_denied"


class ProtocolError(ReachError):
    """The other side does not speak as the specification says."""

    default_code = "protocol"


def _tree(kind: type[ReachError]) -> list[type[ReachError]]:
    """`kind` and all below it, in the order of definition."""
    return [kind, *(each for child in kind.__subclasses__() for each in _tree(child))]


BY_CODE: Mapping[str, type[ReachError]] = {each.default_code: each for each in _tree(ReachError)}
"""Class of each default code; an error of the wire is rebuilt through it."""
