"""Engines joined in memory: what calls and streams promise, whatever the network does."""

from __future__ import annotations

import pytest

from reachmesh.calls.ports import Kind
from reachmesh.errors import Cancelled, DeadlineExceeded, LoopDetected, NodeStopped, NoProvider, PeerLost
from reachmesh.wire.control import Hello
from tests.unit.engine.memory import ONEWAY, Asked, World


def test_a_call_finds_its_provider_and_comes_back() -> None:
    """Two nodes that were told one address call each other, both ways over one connection."""
    world = World(1)
    one, other = world.pair("echo")
    back = other.ask("echo", "self")
    there = one.ask("echo", {"x": [1, 2]}, deadline=world.now + 3)
    world.run(0.1)
    assert (there.value, back.value) == ([there.token, {"x": [1, 2]}], [back.token, "self"])
    assert len(world.connections()) == 1
    world.check()
    world.check_at_rest()


def test_the_end_of_a_stream_comes_with_its_last_item() -> None:
    """A stream ends within the round trips it needs, not at the next heartbeat."""
    world = World(2, think=(0.0, 0.0))
    one, _ = world.pair("count")
    for items in (0, 1, 200):
        asked = one.ask("count", [items, 10])
        assert world.run_until(asked.has_ended, 1.0) < 0.1
        assert asked.kind is Kind.ANSWER
    world.check()
    world.check_at_rest()


def test_a_call_to_the_own_node_never_leaves_it() -> None:
    """Own capabilities are served through the same machines, streams, big bodies and cancels too, with no connection at all."""
    world = World(3)
    node = world.node("solo", "echo", "count", "sum", "never")
    node.ask("echo", b"x" * 500_000)
    node.ask("count", [300, 2_000])
    node.ask("sum", [1, 2, 3])
    never = node.ask("never")
    world.run(0.5)
    node.cancel(never)
    world.run(0.1)
    assert [each.kind for each in world.asked] == [Kind.ANSWER, Kind.ANSWER, Kind.ANSWER, Kind.FAILED]
    assert world.dials == 0
    world.check()
    world.check_at_rest()


def test_big_bodies_go_both_ways() -> None:
    """A body of megabytes is cut, credited and joined in both directions, and a one-way call with one is accepted when it has left."""
    world = World(4)
    one, other = world.pair("echo", "sum")
    big = b"\x00\x01" * 1_500_000
    echo = one.ask("echo", big)
    oneway = one.ask("echo", big, flags=ONEWAY)
    stream = one.ask("sum", [big, 1, big])
    world.run(5)
    assert echo.value == [echo.token, big]
    assert oneway.kind is Kind.ACCEPTED
    assert stream.value == [stream.token, [big, 1, big]]
    assert other.executed.count(oneway.token) == 1
    world.check_at_rest()


@pytest.mark.parametrize("seed", range(4))
def test_two_that_dial_each_other_at_once_keep_their_calls(seed: int) -> None:
    """Both sides dial in the same instant and call at once: no call fails, and one connection is left."""
    world = World(seed, delay=(0.001, 0.004))
    one, other = world.node("one", "echo"), world.node("other", "echo")
    one.engine.links.book.learn(other.boot, [other.address])
    other.engine.links.book.learn(one.boot, [one.address])
    one.do(one.engine.handle_candidate, other.address, other.boot)
    other.do(other.engine.handle_candidate, one.address, one.boot)
    for _ in range(100):
        one.ask("echo", "there", target="other")
        other.ask("echo", "back", target="one")
        world.run(0.001 + seed * 0.0005)
    world.run(10)
    assert [each.kind for each in world.asked] == [Kind.ANSWER] * 200
    assert len(world.connections()) == 1
    assert world.dials == 2
    world.check()


def test_a_link_is_not_retired_under_a_call() -> None:
    """A call that crosses the goodbye of a retired link is answered all the same, however long it takes."""
    for early in range(6):
        world = World(early, delay=(0.004, 0.004), think=(8.0, 8.0))
        one, other = world.pair("echo", "never")
        one_back = one.engine.links.link_to(other.boot)
        assert one_back is not None
        asked: list[Asked] = []

        def call(world: World = world, asked: list[Asked] = asked) -> None:
            asked.append(world.nodes[0].ask("echo", 1))

        dialler = one if one_back > 0 else other
        key = dialler.engine.links.link_to((other if dialler is one else one).boot)
        assert key is not None
        world.at(early * 0.002, call)
        world.at(0.004, lambda: dialler.do(dialler.engine.links.retire, key))  # noqa: B023 - runs within this round
        world.run(20)
        assert asked[0].kind is Kind.ANSWER, asked[0].ends
        world.check_at_rest()


def test_an_idle_retired_link_ends_and_can_be_made_again() -> None:
    """After a retirement both sides have closed the connection; the next call makes a new one, also in the middle of it."""
    for pause in (0.0, 0.002, 0.005, 0.2):
        world = World(7)
        one, other = world.pair("echo")
        key = one.engine.links.link_to(other.boot)
        assert key is not None
        one.do(one.engine.links.retire, key)
        world.run(pause)
        asked = one.ask("echo", 1, deadline=world.now + 2)
        world.run(10)
        assert asked.kind is Kind.ANSWER
        assert len(world.connections()) == 1


def test_a_dropped_connection_fails_its_calls_at_once() -> None:
    """What was under way is PeerLost, maybe executed; what is called next goes over a new connection."""
    world = World(8, think=(0.05, 0.05))
    one, _ = world.pair("echo")
    lost = one.ask("echo", 1)
    world.run(0.01)
    world.drop(world.connections()[0])
    world.run(0.02)
    assert isinstance(lost.value, PeerLost)
    assert lost.value.executed == "maybe"
    again = one.ask("echo", 2)
    world.run(1)
    assert again.kind is Kind.ANSWER
    world.check()
    world.check_at_rest()


def test_a_broken_link_is_not_ready_until_it_stands_again() -> None:
    """From the drop on nobody is ready behind that link; a link made anew, or long silence about it, ends that; who is lost is gone."""
    world = World(8, think=(0.0, 0.0))
    one, other = world.pair("echo")

    def ready() -> list[str]:
        return one.engine.ready("echo", world.now)

    assert ready() == [other.engine.identity.instance_id]
    world.drop(world.connections()[0])
    assert world.run_until(lambda: not ready(), 1.0) < 0.5
    assert world.run_until(lambda: bool(ready()), 5.0) < 2.0
    world.kill(other)
    assert world.run_until(lambda: not ready(), 1.0) < 0.5
    world.run(60)
    assert ready() == []
    assert one.engine._broken == {}


def test_a_process_reborn_at_the_address_executes_nothing_meant_for_the_old_one() -> None:
    """Requests name the boot: a successor on the same port refuses them, and later calls find it by its own name."""
    world = World(9)
    one, other = world.pair("echo")
    world.kill(other)
    reborn = world.node("other", "echo", address=other.address)
    calls = [one.ask("echo", n, retries=0, deadline=world.now + 2) for n in range(20)]
    reborn.find(one)
    world.run(10)
    assert not reborn.executed
    assert all(each.kind is Kind.FAILED for each in calls)
    assert all(each.value.executed in ("no", "maybe") for each in calls)
    late = one.ask("echo", "hello", deadline=world.now + 2)
    world.run(1)
    assert late.kind is Kind.ANSWER
    assert reborn.executed == [late.token]


def test_strangers_that_are_refused_are_told_of_once_a_second_at_most() -> None:
    """A few at once, then one a second, the rest is counted, whatever each calls itself; no line feed or escape of theirs gets into a log."""
    engine = World(13).node("one").engine
    engine.take_notes()
    began = 100.0

    def greet(number: int, now: float) -> None:
        hello = Hello(
            lo=50, hi=60, mesh=engine.identity.mesh, boot=number.to_bytes(8, "big"), instance=f"x-{number}\n\x1b[2Jforged", name="x"
        )
        engine.links.handle_hello(-1000 - number, hello.encode(), now)
        engine.tick(now)

    for number in range(600):
        greet(number, began + number / 200)
    told = [note for note in engine.take_notes() if note.kind == "version_refused"]
    assert 8 <= len(told) <= 8 + 3
    assert engine.faults >= 600 - len(told)
    greet(1000, began + 10)
    told += engine.take_notes()
    assert "x-1000" in told[-1].reason
    assert all(note.reason.isprintable() for note in told)


def test_a_settled_mesh_makes_no_connections() -> None:
    """What is not needed in a mesh too large for links to everybody is closed once, and what discovery repeats is not dialled."""
    world = World(12)
    nodes = [world.node(f"n{number}") for number in range(26)]
    for each in nodes[1:]:
        each.find(nodes[0])
    world.run(30)
    dials, links = world.dials, len(world.connections())
    for each in nodes:
        for other in nodes:
            each.do(each.engine.handle_candidate, other.address, other.boot)
            each.do(each.engine.handle_candidate, other.address, None)
    world.run(20)
    assert world.dials == dials
    assert len(world.connections()) <= links < 26 * 16 / 2


def test_a_new_address_of_a_lost_peer_is_remembered_for_the_next_try() -> None:
    """A hint about a lost peer is not dialled at once, for it may be old; about one that left it is not even kept."""
    world = World(10)
    one, other = world.pair("echo")
    third = world.node("third")
    one.find(third)
    world.run(1)
    world.kill(other)
    third.stop()
    world.run(10)
    dials = world.dials
    for gone, address in ((other, "10.0.0.98:7000"), (third, "10.0.0.99:7000")):
        one.do(one.engine.handle_candidate, address, gone.boot)
    assert world.dials == dials
    assert "10.0.0.98:7000" in one.engine.links.book.of(other.boot)
    assert "10.0.0.99:7000" not in one.engine.links.book.of(third.boot)


def test_deadlines_and_cancels_reach_queued_and_running_handlers() -> None:
    """A call over its time ends in time and its handler is stopped; one cancelled before its claim never runs."""
    world = World(10, think=(0.5, 0.5))
    one, other = world.pair("never", "echo")
    queued = one.ask("echo", 1)
    world.run(0.1)
    one.cancel(queued)
    running = one.ask("never", deadline=world.now + 1.0)
    world.run(3)
    assert isinstance(queued.value, Cancelled)
    assert isinstance(running.value, DeadlineExceeded)
    assert other.executed == [running.token]
    world.check()
    world.check_at_rest()


def test_the_end_of_a_call_reaches_the_calls_made_for_it() -> None:
    """Cancelling a call cancels, in order, what its handler called, and what that called."""
    world = World(11)
    one, other = world.pair("never")
    outer = one.ask("never")
    world.run(0.1)
    inner = [other.ask("never", n, parent=other.serving[0].call) for n in range(5)]
    world.run(0.1)
    assert not outer.ends
    one.cancel(outer)
    world.run(0.1)
    assert all(isinstance(each.value, Cancelled) for each in inner)
    world.check()
    world.check_at_rest()


def test_a_circle_of_calls_stops_at_the_limit() -> None:
    """The call beyond the depth limit is refused where it is made, and surely not executed."""
    world = World(12)
    node = world.node("solo", "never", depth_limit=3)
    parent, calls = None, []
    for _ in range(5):
        calls.append(node.ask("never", parent=parent))
        world.run(0.1)
        parent = node.serving[-1].call
    assert [bool(each.ends) for each in calls] == [False, False, False, False, True]
    assert isinstance(calls[-1].value, LoopDetected)


def test_nobody_offers_it_waits_for_the_grace_only() -> None:
    """In the first seconds a call waits for discovery and is served when it finds somebody; later it fails at once."""
    world = World(13)
    one, other = world.node("one"), world.node("other", "echo")
    early = one.ask("echo", 1)
    world.run(0.5)
    assert not early.ends
    one.find(other)
    world.run(0.6)
    assert early.kind is Kind.ANSWER
    hopeless = one.ask("ecko", 1)
    world.run(1.5)
    assert isinstance(hopeless.value, NoProvider)
    late = one.ask("ecko", 1)
    assert isinstance(late.value, NoProvider)
    world.check_at_rest()


def test_leaving_ends_everything_once_and_is_known_at_once() -> None:
    """A node that leaves ends its own calls, tells the callers of those it serves, and is called by nobody afterwards."""
    world = World(14, think=(0.5, 0.5))
    one, other = world.pair("never", "echo")
    made, served = other.ask("never"), [one.ask("echo", 1, retries=0), one.ask("never", retries=0)]
    world.run(0.2)
    other.stop()
    world.run(0.1)
    assert isinstance(made.value, NodeStopped)
    assert all(isinstance(each.value, PeerLost) for each in served)
    after = one.ask("echo", 1)
    world.run(2)
    assert isinstance(after.value, NoProvider)
    world.check()
    world.check_at_rest()


@pytest.mark.parametrize("seed", range(8))
def test_whatever_happens_every_call_ends_once_and_honestly(seed: int) -> None:
    """Random calls, streams, cancels and broken connections between two nodes: the invariants of calls hold, and nothing is left over."""
    world = World(seed, delay=(0.0001, 0.01), think=(0.0, 0.02))
    options = {"idempotent": seed % 2 == 0, "max_concurrent": 5 if seed % 5 == 0 else None}
    nodes = [world.node(name, "echo", "fail", "count", "sum", "never", options=options) for name in ("one", "other")]
    nodes[0].find(nodes[1])
    if seed % 3 == 0:
        nodes[1].find(nodes[0])
    rng = world.rng

    def act() -> None:
        node = rng.choice(nodes)
        roll = rng.random()
        deadline = world.now + rng.choice([0.005, 0.05, 0.5, 5.0])
        target = rng.choice([None, "one", "other"])
        if roll < 0.35:
            node.ask(
                "echo", rng.randbytes(rng.choice([10, 1000, 20_000, 200_000])), deadline=deadline, target=target, retries=rng.randrange(3)
            )
        elif roll < 0.45:
            node.ask("fail", deadline=deadline, target=target)
        elif roll < 0.65:
            size = rng.choice([0, 5, 3_000, 100_000])
            deadline_or_none = rng.choice([None, deadline])
            node.ask("count", [rng.randrange(100 if size < 100_000 else 8), size], deadline=deadline_or_none, target=target)
        elif roll < 0.75:
            node.ask("sum", [rng.randbytes(rng.choice([1, 30_000])) for _ in range(rng.randrange(90))], deadline=deadline, target=target)
        elif roll < 0.82:
            node.ask("never", deadline=deadline, target=target)
        elif roll < 0.96 and world.asked:
            asked = rng.choice(world.asked[-20:])
            asked.owner.cancel(asked)
        elif (open_now := world.connections()) and roll > 0.985:
            world.drop(rng.choice(open_now))
        else:
            rng.choice(nodes).find(rng.choice(nodes))

    for _ in range(200):
        act()
        world.run(rng.choice([0.0, 0.0005, 0.01]))
    world.run(12)
    world.check()
    world.check_at_rest()
    assert all(len(node.engine.links._links) <= 3 for node in nodes)
    assert len(world.connections()) == 1
