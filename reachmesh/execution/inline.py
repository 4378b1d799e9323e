"""Inline handlers: run by whoever submits, in place, as long as they keep their word to be quick.

Place in the data path: the cheapest domain (no hand-over at all) and the most dangerous one, for it runs inside the turn
of the engine. So each run is timed: one over 100 ms, or [3] over 1 ms with fewer than [30] quick ones between, and the
handler moves to the pool for good, with a warning. The run that gave it away has already held the turn up; that is the
price of the domain.

A machine with more to do than cores makes any handler slow now and then. So from the second strike on, where the system can tell
(`getrusage` of a thread: Linux), a slow run counts only if the handler waited for something or computed for that long, and not if its
thread was merely put aside.
"""

from __future__ import annotations

import logging
from time import perf_counter

from reachmesh.execution.handler import Handler
from reachmesh.execution.job import Job
from reachmesh.execution.running import Adopt, run_plain

try:
    import resource
except ImportError:  # Windows
    resource = None  # type: ignore[assignment]  # a module elsewhere

log = logging.getLogger("reachmesh.execution")

SLOW_SECONDS = 0.001
"""An inline run over this is a strike."""

FAR_TOO_SLOW_SECONDS = 0.1
"""One run over this is enough."""

STRIKES = 3
"""Slow runs until the handler is moved. Fewer: a busy machine's hiccups cost the domain; more: the turn suffers longer."""

FORGIVEN_AFTER = 30
"""Quick runs in a row after which earlier strikes do not count: hiccups of a busy machine are rare, slow handlers are not."""


class InlineDomain:
    """Runs jobs in place and remembers which handlers were too slow for it."""

    def __init__(self) -> None:
        self._strikes: dict[Handler, int] = {}
        self._quick: dict[Handler, int] = {}

    def allows(self, handler: Handler) -> bool:
        """Whether the handler may (still) run in place."""
        return self._strikes.get(handler, 0) < STRIKES

    def run(self, job: Job, adopt: Adopt) -> None:
        """Run the job here and now, and judge its handler."""
        before = _usage() if job.handler in self._strikes else None
        started = perf_counter()
        run_plain(job, adopt)
        took = perf_counter() - started
        if took > SLOW_SECONDS:
            if before is None or took > FAR_TOO_SLOW_SECONDS or _is_to_blame(before):
                self._slow(job.handler, took)
        elif self._strikes:
            self._forgive(job.handler)

    def forget(self, handler: Handler) -> None:
        """The handler's capability is gone."""
        self._strikes.pop(handler, None)
        self._quick.pop(handler, None)

    def _forgive(self, handler: Handler) -> None:
        if self._strikes.get(handler, STRIKES) < STRIKES:
            self._quick[handler] = self._quick.get(handler, 0) + 1
            if self._quick[handler] >= FORGIVEN_AFTER:
                self.forget(handler)

    def _slow(self, handler: Handler, took: float) -> None:
        strikes = STRIKES if took > FAR_TOO_SLOW_SECONDS else self._strikes.get(handler, 0) + 1
        self._strikes[handler] = strikes
        self._quick[handler] = 0
        if strikes >= STRIKES:
            log.warning("%s took %.1f ms inline; from now on it runs in the pool (declare domain='pool')", handler.name, took * 1000)


def _usage() -> tuple[int, float] | None:
    """Waits and seconds of computing of this thread so far, or None where the system does not tell."""
    if resource is None or not hasattr(resource, "RUSAGE_THREAD"):
        return None
    usage = resource.getrusage(resource.RUSAGE_THREAD)
    return usage.ru_nvcsw, usage.ru_utime + usage.ru_stime


def _is_to_blame(before: tuple[int, float]) -> bool:
    """Whether this thread has waited, or computed for long, since `before`."""
    after = _usage()
    return after is None or after[0] != before[0] or after[1] - before[1] > SLOW_SECONDS
