"""The shared seat: whoever waits turns the engine, and no wake-up is ever missed."""

from __future__ import annotations

import asyncio
import random
import threading
import time
from collections.abc import Iterator

import pytest

from reachmesh import Context, ReachError, ReachNode, capability

SECONDS = 4.0
"""How long each mixture runs."""


def double(x: int) -> int:
    return 2 * x


async def triple(x: int) -> int:
    if x % 40 == 0:
        time.sleep(0.02)  # the user's mistake, which holds up nobody else for long
    return 3 * x


async def stuck(seconds: float) -> None:
    STUCK.set()
    time.sleep(seconds)


def count(n: int) -> Iterator[int]:
    yield from range(n)


def around(x: int, ctx: Context) -> int:
    node = NODES[ctx.caller.name]
    return int(node.reach("double", timeout=20).call(x=x))


NODES: dict[str, ReachNode] = {}
STUCK = threading.Event()


@pytest.fixture
def pair() -> Iterator[tuple[ReachNode, ReachNode]]:
    """A serving node and a calling one that serves too."""
    caps = [
        capability("double", handler=double, domain="inline"),
        capability("pooled", handler=double),
        capability("triple", handler=triple),
        capability("stuck", handler=stuck),
        capability("count", handler=count),
        capability("around", handler=around),
    ]
    mesh = f"seat-{random.getrandbits(40):x}"
    slow = {"heartbeat_period": 60}  # no timer of the engine's may make up for a wake-up that was missed
    with (
        ReachNode("server", caps=caps, mesh=mesh, interfaces=["127.0.0.1"], config=slow) as server,
        ReachNode("client", caps={"double": double}, mesh=mesh, interfaces=["127.0.0.1"], config=slow) as client,
    ):
        NODES.update(server=server, client=client)
        client.wait_for("around", timeout=15)
        yield server, client
    NODES.clear()


def expected(cap: str, x: int) -> int:
    return 3 * x if cap == "triple" else 2 * x


class Mixture:
    """Threads and loops that call one node at random until told to end; keeps the slowest answer and every wrong one."""

    def __init__(self, node: ReachNode, seed: int) -> None:
        self.node = node
        self.rng = random.Random(seed)
        self.end = threading.Event()
        self.slowest = 0.0
        self.calls = 0
        self.wrong: list[object] = []
        self.threads: list[threading.Thread] = []

    def note(self, began: float, cap: str, x: int, got: object) -> None:
        self.calls += 1
        self.slowest = max(self.slowest, time.monotonic() - began)
        if got != expected(cap, x):
            self.wrong.append((cap, x, got))

    def pick(self, rng: random.Random) -> tuple[str, int]:
        return rng.choice(("double", "pooled", "triple", "around")), rng.randrange(1000)

    def blocking(self, seed: int) -> None:
        rng = random.Random(seed)
        while not self.end.is_set():
            cap, x = self.pick(rng)
            began = time.monotonic()
            try:
                if rng.random() < 0.1:
                    n = rng.randrange(200)
                    got = list(self.node.reach("count", timeout=20).stream(n=n))
                    if got != list(range(n)):
                        self.wrong.append(("count", n, got))
                    continue
                self.note(began, cap, x, self.node.reach(cap, timeout=20).call(x=x))
            except ReachError as error:
                self.wrong.append((cap, x, error))
            if rng.random() < 0.1:
                self.end.wait(rng.random() * 0.02)

    def looping(self, seed: int) -> None:
        asyncio.run(self.loop_main(random.Random(seed)))

    async def loop_main(self, rng: random.Random) -> None:
        async def one(number: int) -> None:
            own = random.Random(number)
            while not self.end.is_set():
                cap, x = self.pick(own)
                began = time.monotonic()
                try:
                    self.note(began, cap, x, await self.node.reach(cap, timeout=20).submit(x=x))
                except ReachError as error:
                    self.wrong.append((cap, x, error))

        async def blocker() -> None:
            while not self.end.is_set():
                time.sleep(rng.random() * 0.03)  # the user's mistake that must not hold up others for long
                await asyncio.sleep(rng.random() * 0.05)

        await asyncio.gather(*(one(rng.getrandbits(30)) for _ in range(4)), blocker())

    def start(self, threads: int, loops: int) -> None:
        for target, number in ((self.blocking, threads), (self.looping, loops)):
            for _ in range(number):
                thread = threading.Thread(target=target, args=(self.rng.getrandbits(30),), daemon=True)
                thread.start()
                self.threads.append(thread)

    def join(self) -> None:
        self.end.set()
        for thread in self.threads:
            thread.join(30)
        assert not any(thread.is_alive() for thread in self.threads)


@pytest.mark.parametrize(("threads", "loops"), [(1, 0), (0, 1), (4, 0), (0, 2), (3, 2)])
def test_no_wake_up_is_missed(pair: tuple[ReachNode, ReachNode], threads: int, loops: int) -> None:
    """Blocked callers, loops, blocked loops and nested calls in any mixture: every answer is right and none waits for a timeout."""
    _, client = pair
    mixture = Mixture(client, seed=threads * 10 + loops)
    mixture.start(threads, loops)
    mixture.end.wait(SECONDS / (1 + (threads + loops > 3)))
    mixture.join()
    assert not mixture.wrong
    assert mixture.calls > 20
    assert mixture.slowest < 3.0


def test_a_loop_that_is_gone_leaves_the_watch(pair: tuple[ReachNode, ReachNode]) -> None:
    """After a loop has ended, or is asleep between two runs, threads and other loops are answered as before."""
    _, client = pair

    async def ask() -> int:
        return int(await client.reach("double", timeout=10).submit(x=4))

    resting = asyncio.new_event_loop()
    try:
        for _ in range(20):
            assert asyncio.run(ask()) == 8
            began = time.monotonic()
            assert client.reach("double", timeout=10).call(x=2) == 4
            assert resting.run_until_complete(ask()) == 8
            assert client.reach("pooled", timeout=10).call(x=2) == 4
            assert time.monotonic() - began < 2
    finally:
        resting.close()


def test_a_loop_blocked_by_its_user_holds_up_nobody(pair: tuple[ReachNode, ReachNode]) -> None:
    """While a loop that has the watch is blocked for a second, the node goes on answering others and keeps its heartbeats."""
    server, client = pair

    async def main() -> None:
        pending = client.reach("triple", timeout=10).submit(x=1)
        await asyncio.sleep(0)
        answers: list[float] = []

        def others() -> None:
            for _ in range(10):
                began = time.monotonic()
                assert server.reach("double", target=client.instance_id, timeout=5).call(x=1) == 2
                answers.append(time.monotonic() - began)

        thread = threading.Thread(target=others, daemon=True)
        thread.start()
        time.sleep(1.0)  # the mistake under test
        thread.join(10)
        assert len(answers) == 10
        assert sorted(answers)[5] < 0.5
        assert await pending == 3

    asyncio.run(main())


def test_a_stop_ends_whoever_waits(pair: tuple[ReachNode, ReachNode]) -> None:
    """Threads and loops that wait when the node is stopped all end, with an error of ours."""
    _, client = pair
    mixture = Mixture(client, seed=5)
    mixture.start(threads=3, loops=1)
    mixture.end.wait(0.5)
    client.stop(drain=0)
    mixture.join()
    assert all(isinstance(each, tuple) and isinstance(each[2], ReachError) for each in mixture.wrong)


def test_a_blocked_handlers_loop_holds_up_nobody_else(pair: tuple[ReachNode, ReachNode]) -> None:
    """While an async handler blocks the loop it runs on, the node serves its other handlers as fast as ever."""
    _, client = pair
    pooled = client.reach("pooled", timeout=20)
    client.reach("triple").call(x=1)  # from now on the loop turns the engine
    blocked = client.reach("stuck", timeout=20).submit(seconds=3.0)
    assert STUCK.wait(10)
    began = time.monotonic()
    for x in range(300):
        assert pooled.call(x=x) == 2 * x
    took = time.monotonic() - began
    assert not blocked.done()
    assert took < 0.9, f"{took / 300 * 1000:.1f} ms a call"
    assert blocked.result(20) is None
    assert client.reach("triple").call(x=2) == 6
