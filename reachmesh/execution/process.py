"""The process domain: handlers that burn the CPU or may crash run in worker processes, and take only their call down.

Place in the data path: the executor puts jobs here; a few threads of the node each drive one worker process at a time
over a socket (`channel.py`), and workers come from a template process (`worker.py`).

A worker that dies fails its call with `WorkerCrashed` and nothing else. A cancelled call is interrupted (KeyboardInterrupt
in the handler, so that its `finally` runs), and killed a second later; its worker is not used again. Arguments and answers
travel as the wire's values, so both sides of the process boundary see what both sides of a socket would; no pickle.

Start it before the node's threads (`start`): a fork copies locks that other threads hold at that moment. A handler added
later needs a new template, forked from the threaded process as it is then; this works unless such a lock is needed.
Needs `os.fork` and passing of descriptors: Linux and macOS.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import sys
import threading
import time
import warnings
from collections.abc import Callable
from typing import Any

from reachmesh.errors import BY_CODE, Cancelled, ConfigError, WorkerCrashed
from reachmesh.execution.channel import CALL, CLOSE, FAILED, ITEM, NEXT, Channel, ChannelLost, Dump, Load
from reachmesh.execution.handler import Handler
from reachmesh.execution.job import Job, UnsendableAnswer
from reachmesh.execution.pool import ThreadPool
from reachmesh.execution.running import failed, finished, stream_closed
from reachmesh.execution.worker import FORK, NUMBER, REAP, template_main

log = logging.getLogger("reachmesh.execution")

_CANCEL_LOOKED_FOR_EVERY = 0.05
_INTERRUPT_GRACE = 1.0
_PR_SET_PDEATHSIG = 1


class ProcessDomain:
    """Worker processes for one node.

    Args:
        dump: value -> segments, raising PayloadError with the path of what cannot travel.
        load: segments -> value.
        name: part of the driving threads' names.
        limit: most workers at once; None = the number of processors, at least 4. Fewer: calls queue up; more: memory.

    Raises:
        ConfigError: this platform cannot fork.
    """

    def __init__(self, dump: Dump, load: Load, *, name: str, limit: int | None = None) -> None:
        if not hasattr(os, "fork") or not hasattr(socket, "send_fds"):
            raise ConfigError("domain='process' needs a platform with fork", hint="use domain='pool' here")
        self._dump = dump
        self._load = load
        self._handlers: dict[int, Handler] = {}
        self._keys: dict[Handler, int] = {}
        self._lock = threading.Lock()
        self._fork_lock = threading.Lock()
        self._template: _Template | None = None
        self._idle: list[_Worker] = []
        self._busy: set[_Worker] = set()
        self._closed = False
        most = limit or max(4, os.cpu_count() or 1)
        self._pool = ThreadPool(f"{name}-process", self._run, most, most)
        self._death_signal = _death_signal()

    def register(self, handler: Handler) -> None:
        """Make a handler known; before `start` if that can be."""
        with self._lock:
            if handler not in self._keys:
                key = len(self._handlers)
                self._keys[handler] = key
                self._handlers[key] = handler
                handler.remote = True

    def start(self) -> None:
        """Fork the template, if there is a handler for it; call it before threads are started."""
        if self._handlers:
            with self._fork_lock:
                self._current_template()

    def put(self, job: Job) -> bool:
        """Run the job in a worker; False = closed."""
        if job.handler not in self._keys:
            self.register(job.handler)
        return self._pool.put(job)

    def load(self) -> tuple[int, int]:
        """Running and queued jobs."""
        return self._pool.load()

    def close(self) -> list[Job]:
        """Take no more jobs; gives back the queued ones."""
        self._closed = True
        return self._pool.close()

    def join(self, deadline: float) -> bool:
        """Wait for running calls until `deadline` (monotonic), then end all processes; True = no call was cut off."""
        clean = self._pool.join(deadline)
        with self._lock:
            workers = [*self._busy]
        for worker in workers:
            worker.kill()
        if workers:
            self._pool.join(time.monotonic() + 1.0)
        with self._lock:
            idle, self._idle = self._idle, []
        for worker in idle:
            worker.channel.close()
        with self._fork_lock:
            template, self._template = self._template, None
        if template is not None:
            template.close()
        return clean

    def _run(self, job: Job) -> None:
        """Drive one job from a thread of ours."""
        try:
            arguments = job.begin()
            if arguments is None:
                return
            value = self._drive(job, arguments)
        except BaseException as error:
            failed(job, error)
        else:
            finished(job, value)

    def _drive(self, job: Job, arguments: tuple[list[Any], dict[str, Any]]) -> Any:
        worker = self._take()
        usable = False
        try:
            worker.channel.send(CALL, [self._keys[job.handler], *arguments])
            value = self._converse(job, worker)
            usable = not worker.interrupted
            return value
        except ChannelLost as error:
            if job.cancelled:
                raise Cancelled("cancelled; the worker process was ended", executed="yes") from None
            raise WorkerCrashed(f"the worker process of {job.handler.name} {worker.reap(str(error))}") from None
        except _HandlerFailed as failure:
            usable = not worker.interrupted
            if worker.interrupted:
                raise Cancelled("cancelled while the handler ran", executed="yes") from failure.error
            raise failure.error from None
        finally:
            self._give_back(worker, usable)

    def _converse(self, job: Job, worker: _Worker) -> Any:
        """Receive the answer, item by item if it is a stream; cancel the call when the job is."""
        channel = worker.channel
        kill_at = 0.0
        closed = False
        refused: BaseException | None = None
        while True:
            if not channel.ready(_CANCEL_LOOKED_FOR_EVERY):
                if job.cancelled and not worker.interrupted:
                    worker.interrupt()
                    kill_at = time.monotonic() + _INTERRUPT_GRACE
                elif worker.interrupted and time.monotonic() > kill_at:
                    worker.kill()
                continue
            kind, value = channel.receive()
            if kind == ITEM:
                try:
                    wanted = not closed and not job.cancelled and (job.emit(value) or job.wait_room()) and not job.cancelled
                except BaseException as error:
                    wanted, refused = False, error
                closed = not wanted
                channel.send(NEXT if wanted else CLOSE)
            elif kind == FAILED:
                raise _HandlerFailed(rebuild_failure(value))
            elif closed:
                raise refused or stream_closed()
            else:
                return value

    def _take(self) -> _Worker:
        """An idle worker that lives, or a new one."""
        with self._fork_lock:
            template = self._current_template()
        while True:
            with self._lock:
                worker = self._idle.pop() if self._idle else None
                if worker is not None:
                    self._busy.add(worker)
            if worker is None:
                break
            if worker.template is template and not worker.channel.ready(0):
                return worker
            self._give_back(worker, False)
        try:
            worker = template.fork(self._dump, self._load)
        except OSError:  # the template was killed
            with self._fork_lock:
                if self._template is template:
                    log.warning("the template of the worker processes died; it is forked again")
                    template.close()
                    self._template = None
                template = self._current_template()
            try:
                worker = template.fork(self._dump, self._load)
            except OSError as error:
                raise WorkerCrashed(f"no worker process can be started: {error}", executed="no", retryable=True) from None
        with self._lock:
            self._busy.add(worker)
        return worker

    def _give_back(self, worker: _Worker, usable: bool) -> None:
        usable = usable and not self._closed and worker.template is self._template
        with self._lock:
            self._busy.discard(worker)
            if usable:
                self._idle.append(worker)
        if not usable:
            worker.channel.close()
            worker.reap("")
            worker.template.drop(worker, close=worker.template is not self._template)

    def _current_template(self) -> _Template:
        """The template that knows all handlers; forked anew when there is none. Under the fork lock."""
        template = self._template
        if template is None or template.knows < len(self._handlers):
            before, self._template = template, _Template(dict(self._handlers), self._dump, self._load, self._death_signal)
            if before is not None:
                before.drop(None, close=True)
            template = self._template
        return template


class _HandlerFailed(Exception):
    """The handler in the worker raised `error`."""

    def __init__(self, error: BaseException) -> None:
        super().__init__(error)
        self.error = error


class _Template:
    """The parent's view of a template process."""

    def __init__(self, handlers: dict[int, Handler], dump: Dump, load: Load, death_signal: Callable[[], None]) -> None:
        self.knows = len(handlers)
        self._lock = threading.Lock()
        self._workers: set[_Worker] = set()
        self._closed = False
        self._control, theirs = socket.socketpair()
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                continue
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # forking beside threads: see the module's docstring
            self.pid = os.fork()
        if self.pid == 0:
            template_main(theirs, handlers, dump, load, death_signal)
        theirs.close()

    def fork(self, dump: Dump, load: Load) -> _Worker:
        """A new worker; OSError when the template is gone."""
        ours, theirs = socket.socketpair()
        try:
            with self._lock:
                socket.send_fds(self._control, [FORK], [theirs.fileno()])
                pid = self._answer()
        except OSError:
            ours.close()
            raise
        finally:
            theirs.close()
        worker = _Worker(self, pid, Channel(ours, dump, load))
        with self._lock:
            self._workers.add(worker)
        return worker

    def reap(self, pid: int) -> int | None:
        """Exit status of a worker, which is ended if it still lives; None = nobody knows."""
        try:
            with self._lock:
                self._control.sendall(REAP + NUMBER.pack(pid))
                return self._answer()
        except OSError:
            return None

    def drop(self, worker: _Worker | None, *, close: bool) -> None:
        """A worker is gone; with `close`, this template is no longer used and ends with its last worker."""
        with self._lock:
            if worker is not None:
                self._workers.discard(worker)
            last = close and not self._workers
        if last:
            self.close()

    def close(self) -> None:
        """End the template and with it all its workers; waits until it has gone."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
            self._control.close()
        give_up = time.monotonic() + 1.0
        try:
            while os.waitpid(self.pid, os.WNOHANG) == (0, 0):
                if time.monotonic() > give_up:
                    os.kill(self.pid, signal.SIGKILL)
                    os.waitpid(self.pid, 0)
                    return
                time.sleep(0.001)
        except (ChildProcessError, ProcessLookupError):
            return

    def _answer(self) -> int:
        data = b""
        while len(data) < NUMBER.size:
            more = self._control.recv(NUMBER.size - len(data))
            if not more:
                raise ConnectionResetError("the template process is gone")
            data += more
        number: int = NUMBER.unpack(data)[0]
        return number


class _Worker:
    """The parent's view of a worker process."""

    def __init__(self, template: _Template, pid: int, channel: Channel) -> None:
        self.template = template
        self.pid = pid
        self.channel = channel
        self.interrupted = False
        self._gone = False

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the handler."""
        self.interrupted = True
        self._signal(signal.SIGINT)

    def kill(self) -> None:
        """End the process, whatever it does."""
        self._signal(signal.SIGKILL)

    def reap(self, otherwise: str) -> str:
        """End and forget the process; how it ended, in words."""
        if self._gone:
            return otherwise
        self._gone = True
        status = self.template.reap(self.pid)
        if status is None or status == 0:
            return f"ended: {otherwise}"
        return f"was killed by signal {-status}" if status < 0 else f"ended with exit code {status}"

    def _signal(self, number: int) -> None:
        """Safe against reuse of the pid: only `reap` lets go of it."""
        if not self._gone:
            try:
                os.kill(self.pid, number)
            except ProcessLookupError:
                return


def rebuild_failure(told: dict[str, Any]) -> BaseException:
    """The exception that `worker.describe_failure` told of.

    Ours come back as what they were; any other as an exception whose class has the original's name, so that whoever names
    and logs it sees no difference; the worker's stack is a note on it.
    """
    known = BY_CODE.get(told["kind"]) if told["kind"] else None
    if told.get("unsendable"):
        return UnsendableAnswer(told["message"], **told["fields"])
    error: BaseException
    if known is not None:
        error = known(told["message"], **told["fields"])
    else:
        error = type(told["type"], (Exception,), {"__module__": "worker"})(told["message"])
    error.add_note("in the worker process:\n" + told["stack"])
    return error


def _death_signal() -> Callable[[], None]:
    """What makes a worker die with its template; loaded before any fork."""
    if not sys.platform.startswith("linux"):
        return lambda: None
    libc = ctypes.CDLL(None, use_errno=True)
    return lambda: libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL) and None
