"""The process domain: the same calls in another process, and what becomes of them when that dies."""

from __future__ import annotations

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reachmesh.errors import BadRequest, Cancelled, PayloadError, SemanticError, WorkerCrashed
from reachmesh.execution.executor import Executor
from reachmesh.execution.handler import Handler
from reachmesh.execution.process import ProcessDomain
from reachmesh.wire.values import dump, load
from tests.support import eventually
from tests.unit.execution.fake_jobs import LIMIT, FakeJob, handler_of

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")


@dataclasses.dataclass
class Point:
    x: int


def pid() -> int:
    return os.getpid()


def double(p: Point) -> list[Any]:
    return [type(p).__name__, p.x * 2]


def crash(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    os._exit(3)


def fail(kind: str) -> None:
    if kind == "semantic":
        raise SemanticError("no stock left", code="NO_STOCK")
    if kind == "exit":
        raise SystemExit(0)
    raise ValueError("bad colour")


def unsendable() -> dict[str, Any]:
    return {"rows": [1, threading.Lock()]}


def count(n: int, note: str) -> Iterator[int]:
    try:
        yield from range(n)
    finally:
        Path(note).write_text("closed")


def slow(note: str, stubborn: bool) -> None:
    Path(note).write_text("started")
    while True:
        try:
            time.sleep(LIMIT)
        except KeyboardInterrupt:
            if not stubborn:
                Path(note).write_text("cleaned up")
                raise


def digest(data: bytes) -> int:
    return len(data)


def open_sockets() -> int:
    return sum(
        os.readlink(f"/proc/self/fd/{fd}").startswith("socket")
        for fd in os.listdir("/proc/self/fd")
        if Path(f"/proc/self/fd/{fd}").exists()
    )


def alive(pid: int) -> bool:
    """Whether a process is there and no zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(") ")[2][0] != "Z"
    except OSError:
        return False


HANDLERS = {fn.__name__: handler_of(fn) for fn in (pid, double, crash, fail, unsendable, count, slow, digest, open_sockets)}


@pytest.fixture
def executor() -> Iterator[Executor]:
    """An executor with a process domain; after the test no process of it is left."""
    processes = ProcessDomain(dump, load, name="p", limit=4)
    for handler in HANDLERS.values():
        processes.register(handler)
    processes.start()
    executor = Executor(name="p", processes=processes)
    yield executor
    assert executor.stop(LIMIT)
    assert not Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()


def run(executor: Executor, name: str | Handler, *args: Any, **options: Any) -> FakeJob:
    job = FakeJob(name if isinstance(name, Handler) else HANDLERS[name], *args, domain="process", **options)
    executor.submit(job)
    job.wait()
    return job


def test_calls_run_in_another_process_with_the_handlers_own_types(executor: Executor) -> None:
    """Arguments arrive as the hints say, wrong ones never get there, and a worker is used again."""
    first = run(executor, "pid").value
    assert first not in (os.getpid(), 0)
    assert run(executor, "pid").value == first
    assert run(executor, "double", {"x": 4}).value == ["Point", 8]
    assert isinstance(run(executor, "double", {"x": "4"}).error, BadRequest)


@pytest.mark.parametrize(("how", "words"), [("kill", "signal 9"), ("exit", "exit code 3")])
def test_a_crash_fails_its_call_only(executor: Executor, how: str, words: str) -> None:
    """A worker that dies fails its call with WorkerCrashed, saying how it ended; the next call is fine."""
    error = run(executor, "crash", how).error
    assert isinstance(error, WorkerCrashed)
    assert words in str(error)
    assert run(executor, "pid").value != os.getpid()


def test_errors_keep_their_name_text_and_fields(executor: Executor) -> None:
    """An exception comes back under its own name with the worker's stack as a note; ours come back as they were."""
    value, exit_, semantic = (run(executor, "fail", kind).error for kind in ("value", "exit", "semantic"))
    assert (type(value).__name__, str(value)) == ("ValueError", "bad colour")
    assert "in fail" in value.__notes__[0]
    assert type(exit_).__name__ == "SystemExit"
    assert isinstance(semantic, SemanticError)
    assert (semantic.code, semantic.message) == ("NO_STOCK", "no stock left")


def test_an_unsendable_answer_tells_its_path(executor: Executor) -> None:
    """What cannot leave the worker is a PayloadError with the path; the worker goes on."""
    before = run(executor, "pid").value
    error = run(executor, "unsendable").error
    assert isinstance(error, PayloadError)
    assert "rows[1]" in error.path
    assert run(executor, "pid").value == before


def test_streams_come_item_by_item_and_close_early(executor: Executor, tmp_path: Path) -> None:
    """A generator runs no further than it is read, ends, and is closed in the worker when the reader leaves."""
    note = tmp_path / "note"
    assert run(executor, "count", 50, str(note)).items == list(range(50))
    note.unlink()
    job = FakeJob(HANDLERS["count"], 10**9, str(note), domain="process", credit=3)
    executor.submit(job)
    assert job.waiting.wait(LIMIT)
    assert job.items == [0, 1, 2]
    job.cancel()
    assert isinstance(job.error, Cancelled)
    assert note.read_text() == "closed"


@pytest.mark.parametrize("stubborn", [False, True])
def test_a_cancelled_call_is_interrupted_then_killed(executor: Executor, tmp_path: Path, stubborn: bool) -> None:
    """A cancel raises KeyboardInterrupt in the handler, whose cleanup runs; one that goes on is killed a second later."""
    note = tmp_path / "note"
    job = FakeJob(HANDLERS["slow"], str(note), stubborn, domain="process")
    executor.submit(job)
    eventually(lambda: note.exists() and note.read_text())
    job.cancelled = True
    assert isinstance(job.error, Cancelled)
    assert note.read_text() == ("started" if stubborn else "cleaned up")
    assert run(executor, "pid").value != os.getpid()


def test_big_values_travel(executor: Executor) -> None:
    """Arguments far larger than a socket buffer arrive whole."""
    assert run(executor, "digest", b"x" * (8 << 20)).value == 8 << 20


def test_workers_hold_no_socket_of_the_node() -> None:
    """Whatever sockets the node has when it forks, a worker has its own one only: a killed node's connections end with it."""
    with socket.create_server(("127.0.0.1", 0)) as server, socket.create_connection(server.getsockname()):
        processes = ProcessDomain(dump, load, name="p")
        executor = Executor(name="p", processes=processes)
        assert run(executor, "open_sockets").value == 1
        assert executor.stop(LIMIT)


def test_a_handler_added_later_runs_too(executor: Executor) -> None:
    """A handler registered after the start, a lambda even, is run by a newly forked template; the old workers end."""
    before = run(executor, "pid").value
    assert run(executor, handler_of(lambda: "late")).value == "late"
    assert run(executor, "pid").value != before
    eventually(lambda: not alive(before))


def test_the_death_of_the_template_is_survived(executor: Executor, caplog: pytest.LogCaptureFixture) -> None:
    """When the template is killed its workers die with it and the next call gets a new one."""
    before = run(executor, "pid").value
    [template] = Path(f"/proc/{os.getpid()}/task/{os.getpid()}/children").read_text().split()
    os.kill(int(template), signal.SIGKILL)
    eventually(lambda: not alive(before))
    assert run(executor, "pid").value not in (before, os.getpid())


def test_stop_cuts_off_what_does_not_end(tmp_path: Path) -> None:
    """stop() waits for its timeout, then kills the workers; their calls fail."""
    executor, note = Executor(name="p", processes=ProcessDomain(dump, load, name="p")), tmp_path / "note"
    job = FakeJob(HANDLERS["slow"], str(note), True, domain="process")
    executor.submit(job)
    eventually(lambda: note.exists())
    assert executor.stop(0.05) is False
    assert isinstance(job.error, WorkerCrashed)


def test_workers_die_with_a_killed_node(tmp_path: Path) -> None:
    """A kill -9 of the node ends template and workers at once, one in the middle of a call too; `python -c` handlers work."""
    source = """
        import os, time
        from reachmesh.execution.executor import Executor
        from reachmesh.execution.process import ProcessDomain
        from reachmesh.wire.values import dump, load
        from tests.unit.execution.fake_jobs import FakeJob

        def hang():
            print("PID", os.getpid(), flush=True)
            while True:
                pass

        executor = Executor(name="p", processes=ProcessDomain(dump, load, name="p"))
        executor.submit(FakeJob(hang, domain="process"))
        time.sleep(60)
    """
    root = Path(__file__).parents[3]
    node = subprocess.Popen([sys.executable, "-c", textwrap.dedent(source)], stdout=subprocess.PIPE, text=True, cwd=root)
    assert node.stdout is not None
    worker = int(node.stdout.readline().split()[1])
    node.kill()
    node.wait(LIMIT)
    assert node.stdout.read() == ""  # ends when nobody holds the pipe any more
    node.stdout.close()
    eventually(lambda: not alive(worker))
