"""Handlers in worker processes."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from reachmesh import RemoteError, WorkerCrashed, capability
from tests.support import World, eventually

BODY = """
import os, signal
def pid() -> list:
    return [os.getpid(), os.getppid()]
def die() -> None:
    os.kill(os.getpid(), signal.SIGKILL)
def fail() -> None:
    raise ValueError("no such row")
def count(n: int):
    for i in range(n):
        yield [i, os.getpid()]
"""
CAPS = "[capability(f.__name__, handler=f, domain='process') for f in (pid, die, fail, count)]"


def gone(pid: int) -> bool:
    """Whether a process has ended (or is a zombie nobody has reaped yet)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def test_a_worker_dies_alone_and_with_its_node(world: World) -> None:
    """A worker's death is `WorkerCrashed` for its own call, errors and streams pass as from any handler, and no process outlives the node."""
    child = world.serve("worker", CAPS, BODY)
    node = world.node()
    node.wait_for("pid", timeout=10)
    worker, template = node.reach("pid", timeout=10).call()
    assert worker != child.pid
    with pytest.raises(WorkerCrashed, match="signal 9"):
        node.reach("die", timeout=10).call()
    with pytest.raises(RemoteError, match="no such row") as caught:
        node.reach("fail", timeout=10).call()
    assert caught.value.type_name == "ValueError"
    assert [item[0] for item in node.reach("count", timeout=10).stream(n=100)] == list(range(100))
    child.kill()
    eventually(lambda: gone(worker) and gone(template))


def test_a_capability_added_later_runs_in_a_process_too(world: World) -> None:
    """`domain="process"` on a running node works, and its processes end with the node."""
    node = world.node("late")
    node.capability("pid", domain="process")(_pids)
    worker, template = node.reach("pid", timeout=10).call()
    assert worker != os.getpid()
    assert not gone(template)
    node.stop()
    eventually(lambda: gone(worker) and gone(template))


def test_without_a_process_capability_there_is_no_process(world: World) -> None:
    """The domain costs nothing where nobody asks for it."""
    node = world.node("plain", [capability("pid", handler=_pids)])
    assert node.reach("pid", timeout=10).call()[0] == os.getpid()
    assert node._life.executor is not None
    assert node._life.executor.processes is None


def _pids() -> list[int]:
    return [os.getpid(), os.getppid()]
