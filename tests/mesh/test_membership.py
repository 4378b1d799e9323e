"""What real processes on one host make of busy, mute, foreign and vanished neighbours."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from reachmesh import NodeConfig, NoProvider
from tests.support import World, eventually

PERIOD = 0.5
FAST = {"heartbeat_period": PERIOD}

BUSY = {
    "blocks": (
        "import time\ndef work(seconds: float) -> None:\n    time.sleep(seconds)",
        '[capability("work", handler=work, max_concurrent=1)]',
    ),
    "holds the interpreter lock": (
        "import ctypes\ndef work(seconds: float) -> None:\n    ctypes.PyDLL(None).usleep(ctypes.c_uint(int(seconds * 1e6)))",
        '{"work": work}',
    ),
    "never awaits": ("import time\nasync def work(seconds: float) -> None:\n    time.sleep(seconds)", '{"work": work}'),
}


def states(node: Any, name: str) -> set[str]:
    """States of the peers of a name."""
    return {peer.state.name for peer in node.peers() if peer.name == name and not peer.suspected}


@pytest.mark.parametrize("kind", BUSY)
def test_nobody_is_lost_for_being_busy(world: World, kind: str) -> None:
    """A handler that blocks for twelve periods, holds the interpreter lock or never awaits changes what is shown, and loses nobody."""
    body, caps = BUSY[kind]
    child = world.serve("busy", caps, body, config=FAST)
    app, witness = (world.node(name, config=FAST) for name in ("app", "witness"))
    gone: list[str] = []
    for node in (app, witness):
        node.on("peer_lost", lambda event: gone.append(event.reason))
        node.wait_for("work", timeout=10)
    began = time.monotonic()
    call = app.reach("work", timeout=30, retries=0).submit(seconds=12 * PERIOD)
    eventually(lambda: states(app, "busy") <= {"BUSY", "DEGRADED"}, 5)
    if kind == "blocks":
        assert time.monotonic() - began < 2 * PERIOD + 0.5
    call.result(30)
    eventually(lambda: states(app, "busy") == {"HEALTHY"} == states(witness, "busy"), 10)
    assert gone == []
    assert child.process.poll() is None


def test_a_full_pool_loses_nobody(world: World) -> None:
    """With every thread of the pool taken for twelve periods heartbeats go on, and the node shows that it has no room."""
    body = "import time\ndef work(seconds: float) -> None:\n    time.sleep(seconds)"
    world.serve("busy", '[capability("work", handler=work, max_concurrent=2)]', body, config={**FAST, "pool_threads": 2})
    app = world.node("app", config=FAST)
    gone: list[str] = []
    app.on("peer_lost", lambda event: gone.append(event.reason))
    app.wait_for("work", timeout=10)
    calls = [app.reach("work", timeout=30, retries=0).submit(seconds=12 * PERIOD) for _ in range(2)]
    eventually(lambda: states(app, "busy") == {"BUSY"}, 2 * PERIOD + 0.5)
    for call in calls:
        call.result(30)
    assert gone == []


def test_a_wait_does_not_count_who_was_just_killed(world: World) -> None:
    """Right after a kill -9 `wait_for` waits for the next provider, on threads and on loops, and the call that follows is answered."""
    app = world.node()
    child = world.serve("who", "{'who': lambda: 'here'}")
    app.wait_for("who", timeout=10)
    waits: list[Callable[[], None]] = [
        lambda: app.wait_for("who", timeout=10),
        lambda: asyncio.run(app.wait_for_async("who", timeout=10)),
    ]
    for wait in waits:
        assert app.reach("who", retries=0).call() == "here"
        child.kill()
        eventually(lambda: not app._driver.ask(lambda now: app._driver.engine.links.linked()))
        with ThreadPoolExecutor(1) as threads:
            successor = threads.submit(world.serve, "who", "{'who': lambda: 'here'}")
            wait()
            assert app.reach("who", retries=0).call() == "here"
            child = successor.result(20)


def test_a_wait_does_not_count_who_drains_and_names_it(world: World) -> None:
    """A provider that finishes what it has and takes nothing new is no provider to wait for; the error of a wait in vain names it."""
    app = world.node()
    child = world.serve("slow", "{'slow': slow}", "def slow(seconds: float) -> None:\n    time.sleep(seconds)")
    app.wait_for("slow", timeout=10)
    running = app.reach("slow", timeout=20).submit(seconds=3.0)
    eventually(lambda: app._driver.ask(lambda now: app._driver.engine.caller.open))
    child.terminate()
    eventually(lambda: [peer.state.name for peer in app.providers("slow")] == ["DRAINING"])
    with pytest.raises(NoProvider, match=r"0 of 1 .* take no calls now: slow-.* \(DRAINING\)"):
        app.wait_for("slow", timeout=0.2)
    running.result(10)


def test_another_protocol_is_refused_with_both_ranges_on_both_sides(world: World) -> None:
    """A node of another protocol version is told of by an event that names both ranges, here and there, and is no peer."""
    app = world.node("app", config=FAST)
    told: list[str] = []
    app.on("version_refused", lambda event: told.append(event.reason))
    child = world.start(
        """
        import sys, time
        import reachmesh.engine.links as links
        links.PROTOCOL = (7, 9)
        from reachmesh import ReachNode
        node = ReachNode("future", interfaces=["127.0.0.1"], config={"heartbeat_period": 0.5})
        node.on("version_refused", lambda event: print("TOLD", event.reason, flush=True))
        node.start()
        print("READY", node.instance_id, flush=True)
        sys.stdin.read()
        """
    )
    eventually(lambda: told, 10)
    there = child.expect("TOLD (.*)")[1]
    for text in (told[0], there):
        assert "1-1" in text
        assert "7-9" in text
    assert app.peers() == []


def test_all_seeds_down_and_back(world: World) -> None:
    """Two nodes that know only their seed keep each other while it is dead, and take its successor on the same port in."""
    options: dict[str, Any] = {"discovery": ["seeds"], "config": FAST}
    seed = world.serve("seed", "{}", **options)
    address = seed.lines[0].split()[-1].removeprefix("tcp://")
    one, two = (world.node(name, seeds=[address], **options) for name in ("one", "two"))
    names = [{"two", "seed"}, {"one", "seed"}]
    eventually(lambda: [{peer.name for peer in node.peers()} for node in (one, two)] == names, 10)
    old = {peer.instance_id for peer in one.peers() if peer.name == "seed"}
    seed.kill()
    eventually(lambda: [{peer.name for peer in node.peers()} for node in (one, two)] == [{"two"}, {"one"}], 10)
    world.serve("seed", "{}", bind=address, **options)
    eventually(lambda: [{peer.name for peer in node.peers()} for node in (one, two)] == names, 10)
    assert not old & {peer.instance_id for peer in one.peers()}
    late = world.node("late", seeds=[address], **options)
    eventually(lambda: len(late.peers()) == 3, 10)


@pytest.mark.parametrize(
    ("setting", "calls", "state"),
    [({"busy_share": 0.5}, 2, "BUSY"), ({"degraded_queue": 3, "permit_wait": 30}, 8, "DEGRADED"), ({"degraded_p95_ms": 50}, 0, "DEGRADED")],
)
def test_the_thresholds_of_states_are_settings(world: World, setting: dict[str, Any], calls: int, state: str) -> None:
    """What makes a node BUSY or DEGRADED can be set on it, and shows at others with the figure as its reason."""
    body = "import os, time\ndef work(hold: bool = True) -> None:\n    time.sleep(0.1)\n    while hold and not os.path.exists('go'):\n        time.sleep(0.02)"
    world.serve("server", '[capability("work", handler=work, max_concurrent=4)]', body, config={**FAST, **setting})
    app = world.node("app", config=FAST)
    app.wait_for("work", timeout=10)
    for _ in range(0 if calls else 10):
        app.reach("work").call(hold=False)
    waiting = [app.reach("work", timeout=60).submit() for _ in range(calls)]
    eventually(lambda: states(app, "server") == {state}, 5)
    (peer,) = app.peers()
    assert peer.reason
    (world.folder / "go").touch()
    for future in waiting:
        future.result(20)
    if calls:
        eventually(lambda: states(app, "server") == {"HEALTHY"}, 10)


def test_settings_of_one_threshold_keep_the_others_sensible() -> None:
    """A peer is probed before it is suspected and a node is not BUSY again at once, whatever the one figure that is set."""
    for given in ({"suspect_after": 1.5}, {"suspect_after": 100, "preset": "calm"}, {"busy_share": 0.01}, {"busy_share": 1}):
        made = NodeConfig(**given).membership()
        assert made.probe_after < made.suspect_after
        assert made.busy_clear < made.busy_share


def test_a_peer_is_shown_as_it_declared_itself(world: World) -> None:
    """Name, version, weight, zone, tags, host, start and options of its capabilities; and oneself among the providers in the same way."""
    caps = '[capability("work", handler=lambda: 1, idempotent=True, max_concurrent=7, version="3")]'
    began = time.time()
    world.serve("server", caps, version="9", weight=2.5, zone="z1", tags={"gpu": "a100", "cards": 4})
    app = world.node("app", caps={"work": lambda: 1}, weight=0.5)
    app.wait_for("work", count=2, timeout=10)
    mine, peer = app.providers("work")
    assert (peer.name, peer.version, peer.weight, peer.zone) == ("server", "9", 2.5, "z1")
    assert peer.tags == {"gpu": "a100", "cards": 4, "zone": "z1"}
    options = peer.capabilities["work"]
    assert (options["idempotent"], options["max_concurrent"], options["version"]) == (True, 7, "3")
    assert peer.host == mine.host != ""
    assert began - 1 < peer.started < time.time() + 1
    assert mine.weight == 0.5
    assert abs(mine.since - peer.since) < 60
