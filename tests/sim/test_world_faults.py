"""Faults in a world of whole nodes: each does what it says, and what the library promises about calls holds under all of them."""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any

import pytest

from reachmesh import Context, State, capability
from reachmesh.errors import Cancelled, DeadlineExceeded, NodeStopped, NoProvider, PeerLost, ProtocolError
from reachmesh.testing import Faults, SimulatedNode, World


async def nap(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


def pair(seed: int = 1, **options: Any) -> tuple[World, SimulatedNode, SimulatedNode]:
    """A node that calls and one that serves, acquainted."""
    world = World(seed)
    app, server = world.node("app", **options), world.node("server", {"nap": nap, "echo": lambda x: x}, **options)
    app.wait_for("nap", timeout=5)
    server.wait_for("nap", timeout=5)
    world.run_until(lambda: server.peers(), limit=5)
    return world, app, server


def state_of(other: SimulatedNode, node: SimulatedNode) -> State | None:
    """What `node` thinks of `other`."""
    return next((peer.state for peer in node.peers() if peer.instance_id == other.instance_id), None)


# ---------------------------------------------------------------- kill


def test_a_killed_peer_ends_its_calls_honestly() -> None:
    """A call that ran on a killed process ends at once with `PeerLost` and may have been executed; the handler never goes on."""
    went_on: list[str] = []

    async def work() -> None:
        try:
            await asyncio.sleep(5)
        finally:
            went_on.append("went on")

    world, app, server = pair()
    server.capability("work")(work)
    app.wait_for("work", timeout=5)
    future = app.reach("work", timeout=30).submit()
    world.after(1, world.kill, server)
    with pytest.raises(PeerLost) as lost:
        future.result()
    assert lost.value.executed == "maybe"
    assert world.now < 2
    world.run(10)
    assert went_on == []
    assert app.peers() == []
    assert "peer_lost" in [event.kind for event in app.seen]
    with pytest.raises(NoProvider) as nobody:
        app.reach("echo").call(1)
    assert nobody.value.executed == "no"


def test_a_killed_caller_ends_its_own_calls_and_cancels_its_handlers() -> None:
    """What a killed process was waiting for ends with `NodeStopped` for the test; the handler elsewhere is cancelled."""
    ended: list[float] = []

    async def work() -> None:
        try:
            await asyncio.sleep(100)
        finally:
            ended.append(asyncio.get_running_loop().time())

    world, app, server = pair()
    server.capability("work")(work)
    app.wait_for("work", timeout=5)
    future = app.reach("work", timeout=200).submit()
    stream = app.reach("nap").stream(0)
    answers = app.reach("work", timeout=100).all()
    world.run(1)
    world.kill(app)
    with pytest.raises(NodeStopped):
        future.result()
    assert list(stream) == [0]
    assert [type(answer.error) for answer in answers] == [NodeStopped]
    world.run(1)
    assert ended == [pytest.approx(1, abs=0.1)] * 2
    assert not app.is_running
    with pytest.raises(NodeStopped):
        app.reach("nap").call(0)


def test_a_host_that_vanishes_is_lost_by_silence() -> None:
    """Nobody is told of a host without power: calls on it end when it is found silent or at their deadline, not before."""
    world, app, server = pair(config={"preset": "fast"})
    future = app.reach("nap", timeout=60).submit(30)
    world.run(1)
    world.kill(server, silent=True)
    cut_at = world.now
    world.run(1)
    assert not future.done()
    took = world.run_until(lambda: not app.peers(), limit=10)
    assert took > 1
    with pytest.raises(PeerLost):
        future.result()
    assert world.now - cut_at < 10


def test_a_restarted_node_is_a_new_instance() -> None:
    """The same name at the same address is another process: the old one's calls end, the new one has never run them, and it is called."""
    runs: list[str] = []

    async def work(ctx: Context) -> str:
        runs.append(ctx.trace_id)
        await asyncio.sleep(3)
        return "done"

    world, app, server = pair()
    server.capability("work")(work)
    app.wait_for("work", timeout=5)
    before = server.instance_id
    future = app.reach("work", timeout=20, retries=2).submit()
    world.run(1)
    world.restart(server)
    assert server.instance_id != before
    with pytest.raises(PeerLost):
        future.result()
    assert len(runs) == 1
    app.wait_for("echo", timeout=5)
    world.run(1)
    assert [peer.instance_id for peer in app.peers()] == [server.instance_id]
    assert app.reach("work", timeout=20).call() == "done"
    assert len(runs) == 2


def test_an_idempotent_call_moves_to_another_instance() -> None:
    """What may run twice is tried again elsewhere when its process dies in the middle."""
    world = World(3)
    ran: list[str] = []

    def serve(name: str) -> Any:
        async def work() -> str:
            ran.append(name)
            await asyncio.sleep(2)
            return name

        return capability("work", handler=work, idempotent=True)

    app = world.node("app")
    servers = {name: world.node(name, [serve(name)]) for name in ("one", "two")}
    app.wait_for("work", count=2, timeout=5)
    future = app.reach("work", timeout=20).submit()
    world.run(1)
    world.kill(servers[ran[0]])
    assert future.result() != ran[0]
    assert len(ran) == 2


# ---------------------------------------------------------------- freeze and clocks


def test_a_short_freeze_is_survived() -> None:
    """A process stopped for less than a suspicion takes is not lost; its calls are late and end well, its handlers have not moved."""
    world, app, server = pair()
    future = app.reach("nap", timeout=60).submit(2)
    world.run(1)
    world.freeze(server, 8)
    assert server.is_frozen
    assert future.result() == 2
    assert world.now == pytest.approx(9, abs=0.5)
    world.run(60)
    for node in (app, server):
        assert {event.kind for event in node.seen} <= {"peer_joined", "peer_suspected", "peer_cleared", "peer_state"}
        assert len(node.peers()) == 1
    assert app.reach("echo").call(1) == 1


def test_a_long_freeze_is_a_loss_and_a_return() -> None:
    """A process stopped for longer than a loss takes is lost, its calls end, and it is back soon after it goes on."""
    world, app, server = pair(config={"preset": "fast"})
    future = app.reach("nap", timeout=60).submit(1)
    world.freeze(server)
    with pytest.raises(PeerLost):
        future.result()
    world.run(60)
    assert app.peers() == []
    world.thaw(server)
    world.run_until(lambda: state_of(server, app) is State.HEALTHY and state_of(app, server) is State.HEALTHY, limit=15)
    assert app.reach("echo").call(2) == 2


def test_a_frozen_caller_notices_its_deadline_when_it_goes_on() -> None:
    """Nothing happens in a stopped process, not even the end of its calls."""
    world, app, _ = pair()
    future = app.reach("nap", timeout=3).submit(2)
    world.freeze(app, 10)
    world.run(9)
    assert not future.done()
    world.run(2)
    assert isinstance(future.exception(), DeadlineExceeded)


@pytest.mark.parametrize("seconds", [86_400.0, -86_400.0])
def test_a_jumping_clock_harms_nothing(seconds: float) -> None:
    """A wall clock set by a day moves no deadline and no state; it is told of."""
    world, app, server = pair()
    future = app.reach("nap", timeout=20).submit(10)
    world.run(5)
    world.jump(server, seconds)
    assert future.result() == 10
    world.run(300)
    assert app.reach("echo", timeout=1).call(1) == 1
    for node in (app, server):
        assert {event.kind for event in node.seen} <= {"peer_joined", "clock_skew"}
        assert [peer.state for peer in node.peers()] == [State.HEALTHY]


# ---------------------------------------------------------------- paths


def test_a_partition_parts_and_heals() -> None:
    """Each half keeps calling its own and loses the other; after the heal all tables are whole again."""
    world = World(2)
    nodes = [world.node(f"n{index}", {"who": lambda index=index: index}, config={"preset": "fast"}) for index in range(6)]
    world.run_until(lambda: all(len(node.peers()) == 5 for node in nodes), limit=10)
    left, right = nodes[:3], nodes[3:]
    world.partition(left, right)
    world.run(30)
    for side in (left, right):
        for node in side:
            assert {peer.name for peer in node.peers()} == {each.name for each in side if each is not node}
            assert {node.reach("who").call() for _ in range(20)} <= {nodes.index(each) for each in side}
    world.heal()
    world.run_until(lambda: all(len(node.peers()) == 5 for node in nodes), limit=20)
    assert left[0].reach("who", target="n5").call() == 5


def test_a_cut_path_holds_what_is_sent() -> None:
    """A path that is cut for a moment delays, as TCP does; the call ends well when it is whole again, and nothing ran twice."""
    ran: list[int] = []
    world, app, server = pair()
    server.capability("work")(lambda number: ran.append(number))
    app.wait_for("work", timeout=5)
    for one_way in (True, False):
        world.cut(app, server, one_way=one_way)
        future = app.reach("work", timeout=10).submit(1)
        world.run(2)
        assert not future.done()
        world.heal(app, server)
        assert future.result() is None
    assert ran == [1, 1]
    world.cut(server, app, one_way=True)
    late = app.reach("work", timeout=1).submit(2)
    assert isinstance(late.exception(), DeadlineExceeded)
    assert ran == [1, 1, 2]


def test_a_broken_connection_ends_its_calls_and_is_made_again() -> None:
    """What was under way on a connection that breaks is `PeerLost`, and may have run; the next call goes over a new one."""
    world, app, server = pair()
    future = app.reach("nap", timeout=20).submit(5)
    world.after(1, world.disconnect, server, app)
    with pytest.raises(PeerLost) as lost:
        future.result()
    assert lost.value.executed == "maybe"
    assert world.now < 2
    world.run(0.1)
    assert app.reach("echo").call(1) == 1
    assert len(app.peers()) == 1


def test_a_degraded_path_is_slow() -> None:
    """Faults of one path delay what passes there, that path only, until they are taken away."""
    world, app, server = pair()
    other = world.node("other", {"here": lambda: None})
    app.wait_for("here", timeout=5)
    world.degrade(app, server, Faults(delay=0.5, jitter=0.0))
    took = {}
    for name, argument in (("echo", (1,)), ("here", ())):
        began = world.now
        app.reach(name).call(*argument)
        took[name] = world.now - began
    assert took["echo"] == pytest.approx(1, abs=0.01)
    assert took["here"] < 0.1
    world.degrade(app, server, None)
    began = world.now
    app.reach("echo").call(1)
    assert world.now - began < 0.1
    assert other.is_running


def test_dropped_messages_end_in_a_deadline() -> None:
    """A request or an answer that vanishes is not waited for longer than the call's time."""
    world, app, server = pair()
    ran: list[int] = []
    server.capability("work")(lambda number: ran.append(number))
    app.wait_for("work", timeout=5)
    for sender, receiver, times in ((app, server, 0), (server, app, 1)):
        ran.clear()
        world.degrade(sender, receiver, Faults(drop=1.0), one_way=True)
        with pytest.raises(DeadlineExceeded):
            app.reach("work", timeout=2).call(1)
        assert len(ran) == times
        world.degrade(sender, receiver, None)


def test_duplicated_messages_end_each_call_truly() -> None:
    """Of a request that arrives twice its call gets its own answer, or an error that does not deny that it ran; with a key it runs once."""
    world, app, server = pair()
    ran: Counter[int] = Counter()

    async def work(number: int) -> int:
        ran[number] += 1
        await asyncio.sleep(0.0005)
        return number

    server.capability("work")(work)
    app.wait_for("work", timeout=5)
    world.faults = Faults(duplicate=1.0)
    told = [app.reach("work").submit(number).exception() for number in range(50)]
    assert {type(error) for error in told} == {ProtocolError, type(None)}
    assert {error.executed for error in told if isinstance(error, ProtocolError)} == {"maybe"}
    for number in range(100, 110):
        app.reach("work", dedup_key=f"k{number}").submit(number).exception()
    world.run(1)
    assert {ran[number] for number in range(100, 110)} == {1}


def test_overtaken_messages_confuse_no_calls() -> None:
    """Messages that overtake each other: each call gets its own answer."""
    world, app, _ = pair()
    world.faults = Faults(reorder=0.5, delay=0.01)

    async def ask_all() -> list[int]:
        return await asyncio.gather(*[app.reach("echo").submit(number) for number in range(100)])

    assert world.run_async(ask_all()) == list(range(100))


def test_cancelled_is_told_apart() -> None:
    """A future cancelled before anything was sent, and one whose node is frozen, end at once for the caller."""
    world, app, _ = pair()
    world.freeze(app)
    future = app.reach("nap").submit(1)
    future.cancel()
    with pytest.raises(Cancelled):
        future.result()
