"""What an end of an attempt says: about the instance, for routing and its breaker, and about whether a handler may have run."""

from __future__ import annotations

from reachmesh.calls.outgoing import OutgoingCall
from reachmesh.errors import (
    AccessDenied,
    BadRequest,
    Cancelled,
    DeadlineExceeded,
    LoopDetected,
    NoProvider,
    Overloaded,
    PayloadError,
    ReachError,
    SemanticError,
    UsageError,
    VersionMismatch,
)
from reachmesh.routing import Outcome


def outcome_of(call: OutgoingCall, error: ReachError) -> Outcome:
    """What an error says about the instance: nothing where the caller or a limit was the cause.

    Where the capability declares which semantic codes are failures, the others are plain answers.
    """
    if isinstance(error, SemanticError):
        declared = None if call.provider is None else call.provider.options.get("semantic_errors")
        return Outcome.OK if isinstance(declared, list | tuple) and error.code not in declared else Outcome.SEMANTIC
    if isinstance(error, DeadlineExceeded):
        return Outcome.TIMEOUT
    if isinstance(error, Overloaded):
        return Outcome.REFUSED
    return Outcome.IGNORED if isinstance(error, _NOT_THE_INSTANCE) else Outcome.FAILED


def may_have_run(call: OutgoingCall) -> bool:
    """Whether an attempt of a call that is out, or one that ended, may have reached a handler."""
    return call.sent_at is not None or any(each["executed"] != "no" for each in call.attempts)


_NOT_THE_INSTANCE = (Cancelled, BadRequest, AccessDenied, VersionMismatch, LoopDetected, PayloadError, NoProvider, UsageError)
