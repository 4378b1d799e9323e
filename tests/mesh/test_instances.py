"""`serve(processes=n)`."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest

from reachmesh import ConfigError, ReachNode, UsageError
from tests.support import Child, World, eventually

SOURCE = """
import os, time
from reachmesh import ReachNode
def who() -> list:
    return [node.instance_id, os.getpid()]
def nap(seconds: float) -> str:
    print("NAPPING", flush=True)
    time.sleep(seconds)
    return "rested"
node = ReachNode("many", caps={"who": who, "nap": nap}, config={"heartbeat_period": 0.5, "warmup": 0})
print("START", flush=True)
node.serve(processes=3)
print("STOPPED", flush=True)
"""


def gone(pid: int) -> bool:
    """Whether a process has ended, or is a zombie."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


def instances(node: ReachNode) -> dict[str, int]:
    """Instance ids and pids of all who answer."""
    return {answer.value[0]: answer.value[1] for answer in node.reach("who", timeout=5).all() if answer.error is None}


def started(world: World) -> tuple[Child, ReachNode, dict[str, int]]:
    """A program that serves with three processes, a node that sees them, and their pids."""
    child = world.start(SOURCE, ready="START")
    node = world.node(config={"heartbeat_period": 0.5, "warmup": 0})
    node.wait_for("who", count=3, timeout=15)
    found = instances(node)
    assert len(found) == 3
    return child, node, found


def test_each_process_is_an_instance_and_a_dead_one_is_replaced(world: World) -> None:
    """Three instances with ids of their own; one that is killed comes back as a new one; SIGTERM drains all, exit code 0."""
    child, node, found = started(world)
    assert child.pid not in found.values()
    assert all(f"-{pid}-" in instance_id for instance_id, pid in found.items())
    victim = next(iter(found))
    os.kill(found[victim], signal.SIGKILL)
    eventually(lambda: len(now := instances(node)) == 3 and victim not in now, 15)
    resting = node.reach("nap", timeout=10).submit(0.7)
    child.expect("NAPPING")
    child.terminate()
    assert resting.result(5) == "rested"
    child.expect("STOPPED")
    assert child.wait(10) == 0
    eventually(lambda: not node.providers("who"))


def test_instances_end_with_their_parent(world: World) -> None:
    """Kill -9 of the watching process leaves no instance behind."""
    child, _, found = started(world)
    child.kill()
    eventually(lambda: all(gone(pid) for pid in found.values()), 15)


def test_what_cannot_be_meant_is_told_before_anything_is_forked(world: World) -> None:
    """One port for several processes, a started node, a strange number."""
    with pytest.raises(ConfigError, match="port 4711"):
        ReachNode("a", bind="127.0.0.1:4711").serve(processes=2)
    with pytest.raises(UsageError, match="started"):
        world.node("b").serve(processes=2)
    for wrong in (0, True, "2"):
        with pytest.raises(ConfigError):
            ReachNode("c").serve(processes=wrong)  # type: ignore[arg-type]


def test_wrong_settings_end_all_instead_of_being_tried_for_ever(world: World) -> None:
    """An instance that finds its settings wrong stops the whole; the error names the way."""
    source = SOURCE.replace("node = ReachNode(", "node = ReachNode(interfaces=['10.255.255.1'], name=").replace(
        'name="many"', 'name="many"'
    )
    child = world.start(source, ready="START")
    assert child.wait(15) == 1
    assert "ConfigError" in child.stderr
