"""Runs one job in the thread that calls: the steps of `job.Job` for plain handlers and for generators.

Place in the data path: called by pool threads, own threads and (for inline handlers) by the submitter; `loops` has the
same for tasks. Nothing a handler raises leaves these functions, SystemExit and KeyboardInterrupt included: each ends in
`Job.fail`, and the thread lives on.

Invariant: a generator is advanced and closed in one and the same thread, between `entered` and `left`.
"""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Coroutine
from typing import Any

from reachmesh.errors import Cancelled
from reachmesh.execution.job import Job

log = logging.getLogger("reachmesh.execution")

Adopt = Callable[[Job, Coroutine[Any, Any, Any]], None]
"""Takes over a job whose plain handler turned out to return a coroutine."""


def run_plain(job: Job, adopt: Adopt) -> None:
    """Run a handler that returns one answer, and hand the answer or the error to the job."""
    try:
        arguments = job.begin()
        if arguments is None:
            return
        token = job.entered()
        try:
            value = job.handler.fn(*arguments[0], **arguments[1])
        finally:
            job.left(token)
        if value is not None and type(value) not in _SETTLED:
            if inspect.iscoroutine(value):
                adopt(job, value)
                return
            if inspect.isgenerator(value) or inspect.isasyncgen(value):
                raise _undeclared(job, value)
    except BaseException as error:
        failed(job, error)
    else:
        finished(job, value)


def run_stream(job: Job) -> None:
    """Run a generator to its end, its error, or the end of its reader, and close it here."""
    try:
        arguments = job.begin()
        if arguments is None:
            return
        token = job.entered()
        try:
            _pump(job, job.handler.fn(*arguments[0], **arguments[1]))
        finally:
            job.left(token)
    except BaseException as error:
        failed(job, error)
    else:
        finished(job, None)


def finished(job: Job, value: Any) -> None:
    """Hand over the answer; a job that cannot take it fails with the reason."""
    try:
        job.finish(value)
    except BaseException as error:
        log.exception("the answer of %s could not be handed over", job.handler.name)
        failed(job, error)


def failed(job: Job, error: BaseException) -> None:
    """Hand over the error; what goes wrong with that is logged, for nobody is left to tell."""
    try:
        job.fail(error)
    except BaseException:
        log.exception("the failure of %s could not be handed over", job.handler.name)


def stream_closed() -> Cancelled:
    """The error of a stream whose reader left before its end."""
    return Cancelled("the stream was closed before its end", executed="yes")


def not_a_stream(job: Job, value: Any) -> TypeError:
    """The error of a handler declared as a stream that returned something else."""
    return TypeError(f"{job.handler.name} is declared as a stream but returned {type(value).__name__}")


def _pump(job: Job, items: Any) -> None:
    """Move items until the generator ends; close it in any case. `Cancelled` when nobody wants more."""
    if not hasattr(items, "__next__"):
        if inspect.iscoroutine(items):
            items.close()
        raise not_a_stream(job, items)
    emit = job.emit
    try:
        for item in items:
            if not (emit(item) or job.wait_room()) or job.cancelled:
                raise stream_closed()
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()


def _undeclared(job: Job, value: Any) -> TypeError:
    """The error of a plain handler that returned a generator."""
    if inspect.isgenerator(value):
        value.close()
    return TypeError(f"{job.handler.name} returned a generator; make it a generator function, or hint it `-> Iterator[...]`")


_SETTLED = frozenset({int, str, bool, float, bytes, list, dict, tuple, set})
"""Types of answers that need no second look."""
