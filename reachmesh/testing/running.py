"""What a simulated node has in place of threads: its turns, its handlers and its callbacks are things that happen in its process."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, cast

from reachmesh.calls.ports import Kind
from reachmesh.errors import NodeStopped
from reachmesh.execution.executor import Executor
from reachmesh.execution.job import Job
from reachmesh.execution.loops import LoopRunner
from reachmesh.execution.running import failed, finished, not_a_stream, run_plain, stream_closed
from reachmesh.node.callbacks import Callbacks
from reachmesh.node.driver import Driver, Waiting
from reachmesh.node.served import ServedCall
from reachmesh.node.turns import Turns
from reachmesh.observe.stacks import log_failure

from .process import Process

_log = logging.getLogger("reachmesh")

SOONEST = 1e-6
"""Seconds until a turn that is due at once, so that time goes on."""


class SimulatedTurns(Turns):
    """Turns whose mistakes are nobody's to live with: what a real node logs and goes on from fails the test here."""

    _mistake: Exception | None = None

    def _turn_or_settle(self, ready: Any) -> None:
        if self.ended.is_set():
            self.settle()
        else:
            self._turn(ready)
        mistake, self._mistake = self._mistake, None
        if mistake is not None:
            raise mistake

    def _deliver_one(self, kind: Kind, target: Any, value: Any) -> None:
        try:
            super()._deliver_one(kind, target, value)
        except Exception as error:
            self._mistake = error
            raise


class SimulatedDriver(Driver):
    """Takes the turns of one node when something has come or is due."""

    def __init__(self, turns: Turns, process: Process) -> None:
        super().__init__(turns)
        self.process = process
        self.now = process.schedule.time
        self._asked = False
        self._wakes_at = float("inf")

    def start(self) -> None:
        """The first turn."""
        self.want_turn()

    def stop(self, linger: float, settle: float = 0.0) -> None:
        """No more turns; what is still asked is answered by a stopped engine."""
        with self._turns.seat:
            self._turns.ended.set()
            self._turns.settle()

    def want_turn(self) -> None:
        """Take a turn next."""
        if not self._asked:
            self._asked = True
            self.process.soon(self._take_turn)

    def _take_turn(self) -> None:
        self._asked = False
        turns = self._turns
        if turns.ended.is_set():
            return
        turns.turn(())
        turns.run_inline()
        if turns.restless:
            self.want_turn()
        due = max(turns.due, self.now() + SOONEST)
        if due < self._wakes_at:
            self._wakes_at = due
            self.process.at(due, lambda: self._wake(due))

    def _wake(self, due: float) -> None:
        if self._wakes_at == due:
            self._wakes_at = float("inf")
        if self._turns.due <= self.now():
            self._take_turn()
        elif self._turns.due < self._wakes_at:
            self._wakes_at = later = self._turns.due
            self.process.at(later, lambda: self._wake(later))

    def _drain(self) -> None:
        turns = self._turns
        if not turns.ended.is_set():
            self.want_turn()
        while turns.ended.is_set() and turns.inbox and turns.try_turn():
            pass

    def post_soon(self, action: Callable[..., None], *args: Any) -> None:
        """As `post`."""
        self.post(action, *args)

    def post_call(self, action: Callable[..., None], *args: Any) -> None:
        """As `post`."""
        self.post(action, *args)

    def post_answer(self, action: Callable[..., None], *args: Any) -> None:
        """As `post`."""
        self.post(action, *args)

    def attend(self, waiting: Waiting, timeout: float | None) -> None:
        """Let the world go on until `waiting` is done."""
        self.process.schedule.wait(waiting.done, timeout)

    def watch_from(self, loop: asyncio.AbstractEventLoop) -> None:
        """Turns come by themselves."""

    def guard_inline(self) -> None:
        """There is no thread to be held up."""


class SimulatedExecutor(Executor):
    """Runs async handlers on the loop of the process, all others in place: these take no virtual time but what they wait for."""

    def __init__(self, name: str, process: Process) -> None:
        super().__init__(name=name)
        self._process = process
        self._runner = LoopRunner(process.loop)

    def submit(self, job: Job) -> None:
        """Run a job next; after `stop` it fails with `NodeStopped`."""
        if self._stopped:
            failed(job, NodeStopped("the node is stopping", executed="no"))
        elif job.handler.is_async:
            self._runner.put(job)
        elif job.handler.streams:
            self._process.soon(_Streaming(cast("ServedCall", job), self._process).begin)
        else:
            self._process.soon(lambda: run_plain(job, self._adopt))

    def cancel(self, job: Job) -> None:
        """Cancel the task of an async job. Others poll `job.cancelled`."""
        self._runner.cancel(job)

    def _adopt(self, job: Job, coroutine: Coroutine[Any, Any, Any]) -> None:
        self._runner.put(job, coroutine)

    def use_loop(self, loop: asyncio.AbstractEventLoop | None) -> None:
        """Async handlers stay in their own process."""

    def load(self) -> tuple[int, int]:
        """Tasks that run and that wait."""
        return self._runner.load()

    def lag(self, now: float) -> float:
        """The loop is never late."""
        return 0.0

    def stop(self, timeout: float) -> bool:
        """Take no more jobs, cancel the tasks."""
        self._stopped = True
        self._runner.cancel_all()
        return True


class _Streaming:
    """A plain generator at work: it goes on whenever there is credit, and holds up nobody in between."""

    def __init__(self, job: ServedCall, process: Process) -> None:
        self._job, self._process = job, process
        self._items: Any = None
        self._over = False

    def begin(self) -> None:
        """Claim the call and start."""
        job = self._job
        try:
            arguments = job.begin()
            if arguments is None:
                return
            token = job.entered()
            try:
                self._items = job.handler.fn(*arguments[0], **arguments[1])
            finally:
                job.left(token)
            if not hasattr(self._items, "__next__"):
                raise not_a_stream(job, self._items)
        except BaseException as error:
            failed(job, error)
            return
        self._go_on()

    def wake(self) -> None:
        """There may be credit again, or nobody reads any more."""
        self._process.soon(self._go_on)

    def _go_on(self) -> None:
        job = self._job
        if self._over:
            return
        token = job.entered()
        try:
            for item in self._items:
                if not job.emit(item) and not self._may_go_on():
                    return
                if job.cancelled:
                    raise stream_closed()
            self._over = True
        except BaseException as error:
            self._over = True
            self._end(error)
        else:
            finished(job, None)
        finally:
            job.left(token)

    def _may_go_on(self) -> bool:
        """Whether there is credit; if not, `wake` is called when there is. Raises `Cancelled` when nobody reads."""
        job = self._job
        if job.cancelled or job._refused is not None:
            raise stream_closed()
        if job._has_credit():
            return True
        job._waker = cast("Any", self)
        return False

    def _end(self, error: BaseException) -> None:
        try:
            close = getattr(self._items, "close", None)
            if close is not None:
                close()
        except BaseException as failure:
            error = failure
        failed(self._job, error)


class SimulatedCallbacks(Callbacks):
    """Callbacks of the user's, as things that happen in the process; what waits at its end happens then."""

    def __init__(self, name: str, process: Process) -> None:
        super().__init__(name)
        self._process = process

    def put(self, fn: Callable[..., Any], *args: Any) -> None:
        """Have `fn(*args)` called next; at once when the process has ended."""
        self._waiting.append((fn, args))
        if self._closed:
            self._call_all()
        else:
            self._process.soon(self._call_all)

    def close(self, timeout: float = 1.0) -> None:
        """Call what waits; from now on each is called as it comes."""
        self._closed = True
        self._call_all()

    def _call_all(self) -> None:
        while self._waiting:
            fn, args = self._waiting.popleft()
            try:
                fn(*args)
            except BaseException as error:
                log_failure(_log, error, "a callback of %s failed", self._name)
