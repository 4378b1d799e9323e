"""Time and cancellation between real processes: late answers, cancels by the thousand, and an interpreter that is held."""

from __future__ import annotations

import os
import random
import threading
import time

import pytest

from reachmesh import LoopDetected, ReachNode
from tests.support import World, eventually

SLOW = """
import threading, time
running = 0
lock = threading.Lock()
def slow(x, seconds: float):
    time.sleep(seconds)
    return x
async def wait(ctx: Context):
    global running
    with lock: running += 1
    try:
        import asyncio
        await asyncio.sleep(600)
    finally:
        with lock: running -= 1
def poll(ctx: Context):
    global running
    with lock: running += 1
    try:
        while not ctx.cancelled: time.sleep(0.005)
    finally:
        with lock: running -= 1
def count(ctx: Context):
    global running
    with lock: running += 1
    try:
        n = 0
        while True:
            yield n
            n += 1
    finally:
        with lock: running -= 1
def left(): return running
"""


def test_a_late_answer_is_nobodys(world: World) -> None:
    """Answers that come after their call's time are dropped: the calls after it get their own, over the same link."""
    world.serve("slow", "{'slow': slow}", SLOW)
    app = world.node()
    app.wait_for("slow", timeout=10)
    late = [app.reach("slow", timeout=0.05, retries=0).submit(x="late", seconds=0.15) for _ in range(20)]
    assert [type(each.exception(5)).__name__ for each in late] == ["DeadlineExceeded"] * 20
    answers = [app.reach("slow", timeout=5).submit(x=n, seconds=0.1) for n in range(40)]
    assert [each.result(10) for each in answers] == list(range(40))
    assert [peer.name for peer in app.peers()] == ["slow"]


def test_random_cancels_leave_nothing_behind(world: World) -> None:
    """Calls and streams cancelled at random moments, queued or running: no handler runs on, and both sides are at rest."""
    world.serve("slow", "{'wait': wait, 'poll': poll, 'count': count, 'left': left}", SLOW, config={"pool_threads": 8})
    app = world.node()
    app.wait_for("left", timeout=10)
    rng = random.Random(5)
    total = int(os.environ.get("TEST_CANCELS", "1500"))

    def cancel_some(count: int, rng: random.Random) -> None:
        waiting = []
        for _ in range(count):
            kind = rng.choice(["wait", "wait", "poll", "count"])
            if kind == "count":
                stream = app.reach("count").stream()
                for _ in range(rng.randrange(3)):
                    stream.next()
                stream.close()
            else:
                waiting.append(app.reach(kind, timeout=60).submit())
            while waiting and (len(waiting) > 40 or rng.random() < 0.3):
                waiting.pop(rng.randrange(len(waiting))).cancel()
        for each in waiting:
            each.cancel()

    workers = [threading.Thread(target=cancel_some, args=(total // 4, random.Random(rng.random()))) for _ in range(4)]
    for each in workers:
        each.start()
    for each in workers:
        each.join(90)
        assert not each.is_alive()
    eventually(lambda: app.reach("left").call() == 0)
    engine = app._driver.engine
    eventually(lambda: engine.caller.open == 0 and engine.callee.open == 0)


def test_a_held_interpreter_is_not_a_lost_node(world: World) -> None:
    """C code that keeps the interpreter lock for ten heartbeat periods: nobody is lost, and its answer comes."""
    body = "import ctypes\ndef hold(seconds: float):\n    ctypes.PyDLL(None).usleep(int(seconds * 1e6))\n    return 'held'"
    fast = {"heartbeat_period": 0.3}
    world.serve("holder", "{'hold': hold}", body, config=fast)
    app = world.node(config=fast)
    third = world.node("third", config=fast)
    app.wait_for("hold", timeout=10)
    eventually(lambda: len(third.peers()) == 2)
    told: list[tuple[str, str]] = []
    for node in (app, third):
        node.on("*", lambda event: told.append((event.kind, event.reason)))
    start = time.monotonic()
    assert app.reach("hold", timeout=20).call(seconds=3.0) == "held"
    assert time.monotonic() - start >= 3.0
    assert [each for each in told if each[0] in ("peer_lost", "peer_left")] == []
    assert app.reach("hold", timeout=20).call(seconds=0.0) == "held"


def test_a_circle_of_calls_is_named_to_whoever_began_it() -> None:
    """However deep a loop of calls was stopped, its first caller is told `LoopDetected`, and not that some handler failed."""
    with ReachNode("circle", interfaces=["127.0.0.1"], mesh=f"circle-{os.getpid()}") as node:
        node.capability("again")(lambda n: node.reach("again", timeout=20).call(n=n + 1))
        with pytest.raises(LoopDetected) as caught:
            node.reach("again", timeout=20).call(n=1)
    assert caught.value.executed == "yes"
