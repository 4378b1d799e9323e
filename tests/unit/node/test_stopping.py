"""Stopping a node where waiting would hold others up: on an event loop's thread, and inside a handler."""

from __future__ import annotations

import asyncio
import secrets
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from typing import Self

import pytest

from reachmesh import Context, NodeStopped, ReachNode
from tests.support import eventually

STALL = 0.1
"""Longest time (s) that a loop may stand still."""


async def nap(seconds: float) -> str:
    await asyncio.sleep(seconds)
    return "rested"


def doze(seconds: float) -> str:
    time.sleep(seconds)
    return "rested"


def made() -> ReachNode:
    caps = {"nap": nap, "doze": doze}
    return ReachNode("solo", caps=caps, mesh="stop-" + secrets.token_hex(4), interfaces=["127.0.0.1"], discovery=("local",))


class Stalls:
    """Measures how long the running loop stands still at most."""

    async def __aenter__(self) -> Self:
        self.longest = 0.0
        self._task = asyncio.ensure_future(self._tick())
        await asyncio.sleep(0.02)
        return self

    async def _tick(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(0.005)
            self.longest = max(self.longest, time.monotonic() - before - 0.005)

    async def __aexit__(self, *_: object) -> None:
        await asyncio.sleep(0.02)
        self._task.cancel()


@pytest.mark.parametrize("how", ["stop", "with"])
def test_a_stop_on_a_loop_does_not_hold_it_up(how: str) -> None:
    """`stop()` and leaving `with` on a loop's thread return at once; the accepted call finishes, the node is used no more."""

    async def main() -> float:
        node = made().start()
        slow = node.reach("doze", timeout=5).submit(seconds=0.4)
        await asyncio.sleep(0.1)
        async with Stalls() as stalls:
            if how == "stop":
                node.stop()
            else:
                with node:
                    pass
            assert not node.is_running
            with pytest.raises(NodeStopped):
                await node.reach("nap").submit(seconds=0)
            with pytest.raises(NodeStopped):
                node.peers()
            node.stop()
            assert await slow == "rested"
            await node.stop_async()
        return stalls.longest

    assert min(asyncio.run(main()) for _ in range(3)) < STALL  # of three, for the machine stalls by itself


def test_async_handlers_finish_while_their_own_loop_stops_the_node() -> None:
    """In `async with`, where handlers run on this loop, `stop()` on it lets them end."""

    async def main() -> None:
        async with made() as node:
            future = node.reach("nap", timeout=5).submit(seconds=0.3)
            await asyncio.sleep(0.1)
            node.stop()
            assert await future == "rested"

    asyncio.run(main())


@pytest.mark.parametrize("verb", ["stop", "stop_async"])
def test_an_async_handler_may_stop_its_node(verb: str) -> None:
    """Both verbs begin the stop inside a handler and return, and its answer arrives."""

    async def leave() -> str:
        result = getattr(node, verb)()
        if result is not None:
            await result
        return "bye"

    node = made()
    node.capability("leave")(leave)
    with node:
        assert node.reach("leave", timeout=5).call() == "bye"
        eventually(lambda: not node.is_running, 5)


def test_stop_async_needs_no_thread_of_the_loops_pool() -> None:
    """A default executor that is full of other work does not keep a node from stopping."""

    async def main() -> None:
        release = threading.Event()
        loop = asyncio.get_running_loop()
        busy = [loop.run_in_executor(None, release.wait, 10) for _ in range(40)]
        node = made().start()
        await asyncio.wait_for(node.stop_async(), 5)
        assert not node.is_running
        release.set()
        await asyncio.gather(*busy)

    asyncio.run(main())


def test_the_process_ends_after_the_goodbye() -> None:
    """What `stop()` began on a loop is finished although the loop and the program end right after it."""
    code = f"""
import asyncio, time
from reachmesh import ReachNode
done = []
def work():
    time.sleep(0.5); print("worked", flush=True)
async def main():
    node = ReachNode("solo", caps={{"work": work}}, mesh="end-{secrets.token_hex(4)}", interfaces=["127.0.0.1"], discovery=()).start()
    node.reach("work").notify()
    await asyncio.sleep(0.2)
    node.stop()
asyncio.run(main())
"""
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=30, check=False)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "worked\n", "")


def test_a_call_made_right_before_the_stop_is_let_finish() -> None:
    """On a loop, what was submitted before `with` is left is accepted before the node drains."""

    async def main() -> str:
        with made() as node:
            future = node.reach("nap").submit(seconds=0.05)
        return str(await future)

    for _ in range(5):
        assert asyncio.run(main()) == "rested"


def endless(pause: float) -> Iterator[bytes]:
    while True:
        time.sleep(pause)
        yield b"x" * 10_000


def look(given: Iterator[bytes], ctx: Context) -> None:
    while not ctx.cancelled:
        time.sleep(0.002)


def size(given: Iterator[bytes]) -> int:
    return sum(map(len, given))


def ask(ctx: Context) -> None:
    node.reach("look", timeout=60).call(endless(0.002))


node: ReachNode


def test_after_a_stop_no_thread_is_left_that_can_end() -> None:
    """Producers of streams, read or not, streamed arguments, nested calls, loops and listeners: all their threads are gone after `stop()`."""
    global node
    caps = {"endless": endless, "look": look, "size": size, "ask": ask, "nap": nap}
    for _ in range(10):
        node = ReachNode("solo", caps, mesh="stop-" + secrets.token_hex(4), interfaces=["127.0.0.1"])
        node.capability("quick", domain="inline")(lambda: 1)
        with node:
            node.on("*", lambda event: None)
            kept: list[object] = [node.reach("endless").stream(pause=pause) for pause in (0.0, 0.02, 0.02)]
            kept += [node.reach(cap, timeout=60).submit(endless(0.02)) for cap in ("look", "size") for _ in range(2)]
            kept += [node.reach("ask", timeout=60).submit(), node.reach("nap", timeout=60).submit(seconds=60)]
            assert node.reach("quick").call() == 1
            time.sleep(0.02)
            node.stop(drain=0)
            left = [each.name for each in threading.enumerate() if each.name.startswith("reachmesh-")]
            assert left == []


def test_what_blocks_in_user_code_holds_up_neither_the_stop_nor_the_process() -> None:
    """A handler, a generator, a function in `asyncio.to_thread`, an argument and a callback that block: stopped and ended in seconds."""
    code = f"""
import asyncio, time
from collections.abc import Iterator
from reachmesh import ReachNode
def block(): time.sleep(60)
def items():
    yield 1
    time.sleep(60)
async def aside(): await asyncio.to_thread(time.sleep, 60)
def size(given: Iterator[int]): return len(list(given))
caps = {{"block": block, "items": items, "aside": aside, "size": size}}
node = ReachNode("solo", caps, mesh="end-{secrets.token_hex(4)}", interfaces=["127.0.0.1"], discovery=()).start()
kept = [node.reach("block").submit(), node.reach("aside").submit(), node.reach("size").submit(items()), node.reach("items").stream()]
assert kept[3].next() == 1
kept[0].add_done_callback(lambda future: time.sleep(60))
time.sleep(0.3)
begun = time.monotonic()
node.stop(drain=0)
print(time.monotonic() - begun, flush=True)
"""
    begun = time.monotonic()
    ended = subprocess.run([sys.executable, "-W", "error", "-c", code], capture_output=True, text=True, timeout=50, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert float(ended.stdout) < 4.0
    assert time.monotonic() - begun < 20.0
