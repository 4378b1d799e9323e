"""The life of a node: starts that fail, are stopped half-way, or are repeated many times leave nothing behind."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import socket
import sys
import threading
import time
from functools import partial
from typing import Any

import psutil
import pytest

from reachmesh import ConfigError, NodeStopped, Overloaded, ReachNode
from tests.support import World, eventually

ME = psutil.Process()


def echo(x: Any) -> Any:
    return x


def threads() -> list[str]:
    return sorted(each.name for each in threading.enumerate() if each.name.startswith("reachmesh"))


@pytest.fixture(scope="module", autouse=True)
def warm() -> None:
    """What the first node of a process loads for good is there before anything is counted."""
    with World() as world:
        world.node("warm", {"echo": echo}).reach("echo").call(x=1)


def nothing_left(before: int) -> bool:
    return not threads() and ME.num_fds() <= before


def test_a_stop_during_the_start_leaves_nothing(world: World) -> None:
    """Whenever a second thread stops a node that is starting: both return, and threads and descriptors are as before."""
    before = ME.num_fds()
    rng = random.Random(1)
    for _ in range(25):
        node = ReachNode("app", {"echo": echo}, mesh=world.mesh, interfaces=["127.0.0.1"])
        stopper = threading.Timer(rng.random() * 0.02, node.stop, kwargs={"drain": 0})
        stopper.start()
        try:
            node.start()
            node.reach("echo").call(x=1)
        except (NodeStopped, Overloaded):  # stopped, or draining
            pass
        stopper.join(20)
        assert not stopper.is_alive()
        node.stop(drain=0)
        assert not node.is_running
    eventually(lambda: nothing_left(before))


def broken(x: NoSuchType) -> int:  # type: ignore[name-defined]  # noqa: F821
    return 1


@pytest.mark.parametrize(
    "wrong",
    [
        {"caps": {"a": echo, "b": 3}},
        {"caps": {"a": echo, "b": broken}},
        {"bind": "127.0.0.1"},
        {"interfaces": ["no-such-interface"]},
        {"bind": "192.0.2.1:0"},
        {"discovery": ["pigeons"]},
        {"config": {"warmup": -1}},
    ],
)
def test_a_node_that_cannot_be_made_or_started_leaves_nothing(world: World, wrong: dict[str, Any]) -> None:
    """A bad option is a ConfigError, in the constructor or at the start, and no thread, socket or file stays."""
    before = ME.num_fds()
    options: dict[str, Any] = {"caps": {"echo": echo}, "mesh": world.mesh, "interfaces": ["127.0.0.1"], **wrong}
    with pytest.raises(ConfigError):
        ReachNode("app", **options).start()
    assert nothing_left(before)


def test_a_taken_port_is_said_and_another_start_succeeds(world: World) -> None:
    """The node that could not listen can be started when the port is free."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        node = ReachNode("app", {"echo": echo}, mesh=world.mesh, bind=f"127.0.0.1:{port}")
        with pytest.raises(ConfigError, match="taken"):
            node.start()
    with node:
        assert node.reach("echo").call(x=1) == 1


def test_a_hundred_starts_and_stops_leak_nothing(world: World) -> None:
    """Threads, descriptors and memory of a node that came and went do not stay, with calls in between."""
    other = world.node("other", {"echo": echo})
    for _ in range(5):
        with ReachNode("app", {"twice": echo}, mesh=world.mesh, interfaces=["127.0.0.1"]) as node:
            assert node.reach("echo").call(x=1) == 1
    eventually(lambda: len(other.peers()) == 0)
    before, running = ME.num_fds(), len(threads())
    for _ in range(int(os.environ.get("TEST_STARTS", "30"))):
        with ReachNode("app", {"twice": echo}, mesh=world.mesh, interfaces=["127.0.0.1"]) as node:
            assert node.reach("echo").call(x=1) == 1
            assert list(node.reach("echo").stream(x=2)) == [2]
    eventually(lambda: ME.num_fds() <= before + 2 and len(threads()) <= running)


@pytest.mark.parametrize("name", ["a.b.c", "two words", "søk-日本", "🦊", "x" * 63, "._-", "a/b:c"])
def test_any_name_works(world: World, name: str) -> None:
    """Dots, spaces, emoji and 63 bytes are names of nodes, capabilities and meshes alike."""
    with ReachNode(name, {name: echo}, mesh=f"{world.mesh} {name}", interfaces=["127.0.0.1"]) as one:
        with ReachNode("app", mesh=f"{world.mesh} {name}", interfaces=["127.0.0.1"]) as app:
            assert app.reach(name, target=name).call(x=name) == name
            assert [(peer.name, peer.instance_id) for peer in app.peers()] == [(name, one.instance_id)]


def test_a_notebook_uses_a_node_on_its_running_loop(world: World) -> None:
    """Cells run on a loop that never ends: a node started there, used over several cells and stopped there, blocks it never."""
    world.serve("words", "{'shout': shout, 'count': count}", "def shout(x): return x.upper()\ndef count(n: int):\n    yield from range(n)")
    ticks: list[float] = []

    async def heart() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def cells() -> None:
        beating = asyncio.create_task(heart())
        node = ReachNode("notebook", {"here": echo}, mesh=world.mesh, interfaces=["127.0.0.1"])
        node.start()
        await node.wait_for_async("shout", timeout=10)
        assert await node.reach("shout").submit(x="hi") == "HI"
        assert await node.reach("here").submit(x=1) == 1
        assert [each async for each in node.reach("count").stream(n=100)] == list(range(100))
        answers = await asyncio.gather(*(node.reach("shout").submit(x=str(n)) for n in range(200)))
        assert answers == [str(n) for n in range(200)]
        await node.stop_async()
        beating.cancel()

    asyncio.run(cells())
    assert max(later - earlier for earlier, later in itertools.pairwise(ticks)) < 0.5


REBORN = """
import os, sys, time
from reachmesh import ReachNode
def work(boot): return [boot, GENERATION]
GENERATION = int(sys.argv[1])
node = ReachNode("worker", {"work": work}, bind="127.0.0.1:" + sys.argv[2])
while True:
    try:
        node.start()
        break
    except Exception as error:
        assert "taken" in str(error), error
        time.sleep(0.01)
print("READY", node.instance_id, flush=True)
node.serve()
"""


def test_a_process_reborn_on_its_port_runs_nothing_of_its_predecessor(world: World) -> None:
    """Killed and restarted under load with the same name and port, three times: no answer comes from an instance that was not asked."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    app = world.node("app")
    child = world.start(REBORN, "0", str(port))
    app.wait_for("work", timeout=10)
    over = threading.Event()
    outcomes: list[tuple[str, Any]] = []

    def load() -> None:
        while not over.is_set():
            future = app.reach("work", retries=0, timeout=2).submit(boot=0)
            error = future.exception()
            outcomes.append((future.instance_id, None if error is not None else future.result()[1]))
            if error is not None:
                over.wait(0.002)

    def answered_by(generation: int) -> bool:
        return any(done == generation for _, done in outcomes[-50:])

    workers = [threading.Thread(target=load) for _ in range(8)]
    for each in workers:
        each.start()
    instances: dict[str, int] = {}
    for generation in range(1, 4):
        eventually(lambda: len(outcomes) > 0 and outcomes[-1][1] is not None)
        child.kill()
        child = world.start(REBORN, str(generation), str(port), ready=None)
        instances[child.expect("READY (.*)")[1]] = generation
        eventually(partial(answered_by, generation))
    over.set()
    for each in workers:
        each.join(10)
    assert {done for _, done in outcomes} >= {0, 1, 2, 3}
    assert not [(asked, done) for asked, done in outcomes if done is not None and instances.get(asked, 0) != done]


@pytest.mark.parametrize(
    "source",
    [
        "def fixture():\n    with ReachNode('n', mesh=mesh) as node:\n        yield node\ng = fixture()\nassert next(g).is_running\n",
        "class App:\n    def __del__(self): node.stop()\nnode = ReachNode('n', mesh=mesh).start()\napp = App()\n",
        "class App:\n    def __del__(self):\n        try: ReachNode('n', mesh=mesh).start()\n        except ReachError as error: print(error)\napp = App()\n",
    ],
    ids=["a generator left open", "stop in __del__", "start in __del__"],
)
def test_the_end_of_the_interpreter_waits_for_nobody(world: World, source: str) -> None:
    """A node that is stopped, or started, while the interpreter ends does not keep the process from ending."""
    before = f"from reachmesh import ReachNode, ReachError\nmesh = {world.mesh!r}\n"
    done = world.run(sys.executable, "-c", before + source, env={"REACHMESH_INTERFACES": "127.0.0.1"})
    assert (done.returncode, done.stderr) == (0, "")


def test_a_process_out_of_descriptors_is_told_so(world: World) -> None:
    """A start without sockets to be had is an error of ours, leaves nothing open, and the nodes that run go on."""
    source = f"""
import os, resource
from reachmesh import ConfigError, ReachNode
def node(): return ReachNode("n", {{"f": lambda: 1}}, mesh={world.mesh!r}, interfaces=["127.0.0.1"], discovery=("local",))
node().start().stop()  # all that is imported late is there
first = node().start()
assert first.reach("f", target=first.instance_id).call() == 1
used = len(os.listdir("/proc/self/fd"))
for more in range(1, 16):
    resource.setrlimit(resource.RLIMIT_NOFILE, (used + more, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    try: node().start().stop(drain=0)
    except ConfigError as error: assert "no more sockets" in str(error), error
    assert first.reach("f", target=first.instance_id).call() == 1
first.stop()
"""
    done = world.run(sys.executable, "-c", source)
    assert (done.returncode, done.stderr) == (0, "")
