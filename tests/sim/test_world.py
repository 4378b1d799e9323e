"""Whole nodes in a world of virtual time: what a user's own test can do with them, and that it is what real nodes do."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from reachmesh import LAST_GOOD, Context, ReachNode, State, capability
from reachmesh.errors import (
    AccessDenied,
    BlockingCallInLoop,
    NodeStopped,
    NoProvider,
    RemoteError,
    UsageError,
)
from reachmesh.testing import World
from tests.sim.pairs import double, pair


def test_nodes_find_each_other_and_call() -> None:
    """Two nodes made in one world call each other at once, with no port, no thread and hardly any time."""
    threads = threading.active_count()
    world, app, server = pair()
    assert app.reach("double").call(x=4) == 8
    assert world.now < 0.1
    assert [peer.name for peer in app.peers()] == ["server"]
    assert [peer.name for peer in server.peers()] == ["app"]
    assert [peer.instance_id for peer in app.providers("double")] == [server.instance_id]
    assert app.explain("double").candidates[0].usable
    assert [event.kind for event in app.seen] == ["peer_joined"]
    assert app.stats("double").count == 1
    assert threading.active_count() == threads
    assert isinstance(app, ReachNode)


def test_time_is_virtual() -> None:
    """An async handler that sleeps a minute takes a minute of the world's time and none of ours, and others are served meanwhile."""
    world, app, _ = pair()
    began = time.monotonic()
    future = app.reach("nap", timeout=100).submit(60)
    world.run(30)
    assert not future.done()
    assert app.reach("double").call(1) == 2
    assert future.result() == pytest.approx(60, abs=0.1)
    world.run(600)
    assert world.now == pytest.approx(660, abs=1)
    assert time.monotonic() - began < 5


def test_a_coroutine_drives_the_world() -> None:
    """Async test code awaits calls, sleeps and reads streams on a loop of the world, many at once."""
    world, app, _ = pair()

    async def main() -> list[float]:
        reach = app.reach("nap", timeout=20)
        with pytest.raises(BlockingCallInLoop):
            reach.call(1)
        with pytest.raises(UsageError):
            world.run(1)
        await app.wait_for_async("nap", timeout=1)
        async with asyncio.timeout(10):
            return await asyncio.gather(*[reach.submit(seconds) for seconds in (3, 1, 2)])

    ended = world.run_async(main())
    assert [round(at) for at in ended] == [3, 1, 2]
    assert world.now == pytest.approx(3, abs=0.1)

    async def fail() -> None:
        await asyncio.sleep(1)
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        world.run_async(fail())


def test_textual_hints_of_the_test_are_resolved() -> None:
    """A handler defined in the test may use the test's own names in its hints."""

    class Point:
        def __init__(self, x: int) -> None:
            self.x = x

    def where(at: "Point | None" = None) -> bool:  # noqa: UP037 - a textual hint is the point
        return at is None

    world = World(1)
    world.node("server", {"where": where})
    assert world.node("app").reach("where").call()


def test_options_of_nodes_and_calls_mean_what_they_mean() -> None:
    """Access rules, middleware, fallbacks by age, targets, sessions and events work on simulated nodes."""
    world = World(6)
    server = world.node("server", {"reset": lambda: "done", "echo": lambda x: x}, config={"access": {"reset": ["name:ops"]}})
    app, ops = world.node("app", config={"last_good_age": 60.0}), world.node("ops")
    with pytest.raises(AccessDenied):
        app.reach("reset").call()
    assert ops.reach("reset").call() == "done"

    sides: list[str] = []

    def noted(call: Any) -> Iterator[None]:
        sides.append(call.side)
        yield
        call.answer = [call.answer]

    server.use(noted)
    assert app.reach("echo", fallback=LAST_GOOD).call(1) == [1]
    app.use(noted)
    assert app.reach("echo").call(1) == [[1]]
    assert sides == ["handler", "caller", "handler"]
    world.kill(server)
    heard: list[str] = []
    app.on("peer_joined", lambda event: heard.append(event.peer.name if event.peer else ""))
    world.restart(server)
    world.run(1)
    assert heard == ["server"]


def test_last_good_answers_age_in_virtual_time() -> None:
    """What was answered last stands in for an error as long as it is fresh by the world's clock."""
    world, app, server = pair()
    app.reconfigure(last_good_age=60.0)
    reach = app.reach("double", fallback=LAST_GOOD)
    assert reach.call(2) == 4
    world.kill(server)
    world.run(30)
    assert reach.call(2) == 4
    world.run(60)
    with pytest.raises(NoProvider):
        reach.call(2)


def test_breakers_open_and_try_again() -> None:
    """A provider that fails is left out, told by an event, and tried again after virtual seconds."""
    broken = [True]

    def shaky() -> str:
        if broken[0]:
            raise OSError("out of order")
        return "fine"

    world, app, server = pair(caps={"shaky": shaky}, config={"warmup": 0})
    other = world.node("other", {"shaky": lambda: "fine"}, config={"warmup": 0})
    app.wait_for("shaky", count=2, timeout=5)
    for _ in range(5):
        with pytest.raises(RemoteError):
            app.reach("shaky", retries=0, target="server").call()
    assert ("breaker_opened", server.instance_id) in [(event.kind, event.peer and event.peer.instance_id) for event in app.seen]
    assert [app.reach("shaky").call() for _ in range(20)] == ["fine"] * 20
    assert [each.usable for each in app.explain("shaky").candidates if each.instance_id == server.instance_id] == [False]
    broken[0] = False
    world.kill(other)
    world.run(10)
    assert app.reach("shaky").call() == "fine"


def test_a_stopping_node_finishes_what_it_accepted() -> None:
    """`stop` drains: calls that run end well, later ones find nobody, peers are told that it left."""
    world, app, server = pair()
    future = app.reach("nap", timeout=20).submit(3)
    world.run(1)
    server.stop()
    assert world.now == pytest.approx(3, abs=0.1)
    assert future.result() == pytest.approx(3, abs=0.1)
    assert app.peers() == []
    assert [event.kind for event in app.seen] == ["peer_joined", "peer_state", "peer_left"]
    with pytest.raises(NodeStopped):
        server.reach("double").call(1)
    with pytest.raises(NodeStopped):
        server.start()

    async def leave() -> None:
        async with world.node("guest") as guest:
            await asyncio.sleep(1)
            assert guest.is_running
        assert guest.state is State.LEFT

    world.run_async(leave())


def test_secrets_and_meshes_keep_nodes_apart() -> None:
    """Nodes with different secrets are refused at the door, nodes of other meshes never meet."""
    world = World(7)
    a, b, c = world.node("a", secret="one"), world.node("b", secret="two"), world.node("c", mesh="other")
    friend = world.node("friend", secret="one")
    world.run(5)
    assert [peer.name for peer in a.peers()] == ["friend"]
    assert [peer.name for peer in friend.peers()] == ["a"]
    assert b.peers() == c.peers() == []
    assert "link_refused" in [event.kind for event in a.seen]


def test_seeds_are_enough() -> None:
    """Nodes without discovery meet by an address that one of them is given."""
    world = World(8)
    a = world.node("a", {"double": double}, discovery=())
    b = world.node("b", discovery=())
    world.run(5)
    assert b.peers() == []
    c = world.node("c", discovery=(), seeds=[a.address, b.address])
    assert c.reach("double").call(2) == 4
    world.run_until(lambda: len(b.peers()) == 2, limit=5)


SCRIPT = Path(__file__).with_name("world_script.py")


def test_the_same_seed_is_the_same_run() -> None:
    """Two processes with different hash seeds go through the same run of calls and faults, message by message; another seed is another run."""

    def run(seed: int, hash_seed: str) -> str:
        environment = {"PYTHONHASHSEED": hash_seed, "PYTHONPATH": str(Path(__file__).parents[2])}
        done = subprocess.run([sys.executable, SCRIPT, str(seed)], capture_output=True, text=True, timeout=60, env=environment, check=False)
        assert done.returncode == 0, done.stderr
        return done.stdout

    first = run(3, "1")
    assert first == run(3, "4242")
    assert first != run(4, "1")


def test_a_callers_events_come_in_order() -> None:
    """Listeners, iterators and `seen` tell the same story."""
    world, app, server = pair()
    heard: list[str] = []
    app.on("*", lambda event: heard.append(event.kind))

    async def listen() -> list[str]:
        events = app.events()
        world.after(1, world.kill, server)
        world.after(2, world.restart, server)
        kinds = []
        async for event in events:
            kinds.append(event.kind)
            if len(kinds) == 3:
                break
        return kinds

    kinds = world.run_async(listen())
    world.run(1)
    assert kinds[0] == "peer_joined"
    assert heard[:3] == kinds == [event.kind for event in app.seen][:3]


def test_nothing_takes_a_process_or_a_real_clock() -> None:
    """A handler for another process runs in the world too; statuses and measured parts of a call are in the world's time."""

    async def parts(ctx: Context) -> dict[str, float]:
        with ctx.subtask("nap"):
            await asyncio.sleep(3)
        return ctx.subtasks

    world, app, server = pair(caps={"parts": parts, "double": capability("double", handler=double, domain="process")})
    server.capability("also", domain="process")(double)
    app.wait_for("also", timeout=5)
    assert app.reach("double").call(1) == app.reach("also").call(1) == 2
    assert app.reach("parts", timeout=10).call() == {"nap": pytest.approx(3)}
    status = app.reach("reachmesh.status", target="server").call()
    assert status["started"] == pytest.approx(world.wall - 3, abs=0.5)
    assert status["calls"][0]["at"] == pytest.approx(world.wall - 3, abs=0.5)
