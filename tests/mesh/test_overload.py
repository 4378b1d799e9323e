"""A node that is asked for more than it can do, and what its callers make of that."""

from __future__ import annotations

from typing import Any

from reachmesh import Backpressure, CallFuture, Overloaded, ReachNode
from tests.support import World, eventually

FAST: dict[str, Any] = {"heartbeat_period": 0.5, "warmup": 0}
GATE = """
import os, time
def hold() -> str:
    while not os.path.exists("open-the-gate"):
        time.sleep(0.01)
    return node.instance_id
def free() -> str:
    return node.instance_id
"""
CAPS = "[capability('hold', handler=hold, max_concurrent=2), capability('free', handler=free)]"


def state_at(node: ReachNode, instance_id: str) -> str:
    """State of an instance as `node` sees it."""
    return next((peer.state.name for peer in node.peers() if peer.instance_id == instance_id), "")


def test_what_others_made_full_is_skipped(world: World) -> None:
    """An instance whose permits other callers hold is BUSY with a reason, gets no call of a third one, and is used again afterwards."""
    ids = [world.serve("worker", CAPS, GATE, config=FAST).lines[0].split()[1] for _ in range(2)]
    greedy, other = world.node("greedy", config=FAST), world.node("other", config=FAST)
    for node in (greedy, other):
        node.wait_for("hold", count=2, timeout=10)
    held = [greedy.reach("hold", target=ids[0], timeout=60).submit() for _ in range(2)]
    eventually(lambda: state_at(other, ids[0]) == "BUSY", 3)
    verdicts = {each.instance_id: each for each in other.explain("hold").candidates}
    assert not verdicts[ids[0]].usable
    assert "permits" in verdicts[ids[0]].reason
    assert verdicts[ids[1]].usable
    mine = [other.reach("hold", timeout=60, retries=0).submit() for _ in range(2)]
    assert {other.reach("free", strategy="round_robin").call() for _ in range(4)} == set(ids)
    (world.folder / "open-the-gate").touch()
    assert {future.result(10) for future in held} == {ids[0]}
    assert {future.result(10) for future in mine} == {ids[1]}
    eventually(lambda: state_at(other, ids[0]) == "HEALTHY", 5)
    eventually(lambda: {other.reach("hold", strategy="round_robin").call() for _ in range(4)} == set(ids), 5)


def test_callers_hold_low_priority_back_from_a_crowded_instance(world: World) -> None:
    """A long line for permits raises the level in the answers, and a caller then refuses its own low-priority calls without sending them."""
    body = "import time\ndef work() -> None:\n    time.sleep(0.02)\n"
    world.serve("worker", "[capability('work', handler=work, max_concurrent=2)]", body, config=FAST)
    node = world.node("app", config=FAST)
    node.wait_for("work", timeout=10)
    futures: list[CallFuture] = []

    def crowded_out() -> Backpressure | None:
        """Crowd the instance once more; the refusal of our own side, if it came before the line for permits had run out."""
        crowd = [node.reach("work", priority=200, retries=0).submit() for _ in range(60)]
        futures.extend(crowd)
        crowd[0].exception(5)
        error = node.reach("work", priority=200, retries=0).submit().exception(5)
        return error if isinstance(error, Backpressure) else None

    local = eventually(crowded_out, 20)
    assert local is not None
    assert (local.attempts, local.executed, local.retryable) == ((), "no", True)
    assert node.reach("work", priority=10, retries=0).submit().exception(5) is None
    assert all(error is None or isinstance(error, Overloaded) for error in (future.exception(5) for future in futures))
    eventually(lambda: node.reach("work", priority=200, retries=0).submit().exception(5) is None, 15)


def test_an_automatic_limit_follows_what_is_asked(world: World) -> None:
    """`max_concurrent="auto"` on a handler that only waits: 40 callers that ask again at once soon run at once, more than the limit began with."""
    body = """
    import asyncio
    most = running = 0
    async def work() -> None:
        global most, running
        running += 1
        most = max(most, running)
        await asyncio.sleep(0.05)
        running -= 1
    async def seen() -> int:
        return most
    """
    world.serve("worker", "[capability('work', handler=work, max_concurrent='auto'), capability('seen', handler=seen)]", body, config=FAST)
    node = world.node("app", config=FAST)
    node.wait_for("work", timeout=10)

    def crowd() -> bool:
        for future in [node.reach("work", retries=0).submit() for _ in range(40)]:
            future.exception(10)
        return bool(node.reach("seen").call() >= 40)

    crowd()
    assert 1 <= node.reach("seen").call() <= 16
    eventually(crowd, 30)
