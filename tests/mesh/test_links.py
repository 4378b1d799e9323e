"""Links between real processes: made from both sides at once, broken, and made again, with calls flowing all the while."""

from __future__ import annotations

import socket
import time
from contextlib import ExitStack

from reachmesh import PeerLost, ReachError
from tests.network import SlowLink
from tests.support import World, eventually

BOTH = """
import sys, threading, time
from reachmesh import ReachNode
mine, other, target = sys.argv[1:]
def echo(x): return [target, x]
node = ReachNode(target, {"echo": echo}, bind="127.0.0.1:" + mine, discovery=["seeds"], seeds=["127.0.0.1:" + other])
print("READY", flush=True)
sys.stdin.readline()
node.start()
peer = "two" if target == "one" else "one"
node.wait_for("echo", count=2, timeout=10)
failed = 0
end = time.monotonic() + 3.5
reach = node.reach("echo", target=peer, retries=0, timeout=5)
made = 0
def work():
    global failed, made
    while time.monotonic() < end:
        try:
            assert reach.call(x=1) == [peer, 1]
        except Exception as error:
            failed += 1
            print("FAILED", repr(error), flush=True)
        made += 1
threads = [threading.Thread(target=work) for _ in range(2)]
[each.start() for each in threads]
[each.join() for each in threads]
print("DONE", made, failed, len(node.peers()), flush=True)
sys.stdin.readline()
node.stop()
"""


def free_ports(count: int) -> list[int]:
    with ExitStack() as taken:
        sockets = [taken.enter_context(socket.create_server(("127.0.0.1", 0))) for _ in range(count)]
        return [each.getsockname()[1] for each in sockets]


def test_two_that_dial_each_other_at_once_lose_no_call(world: World) -> None:
    """Started in the same instant with each other as seeds, calling from the first moment and while one link is retired: nothing fails."""
    one, two = map(str, free_ports(2))
    children = [world.start(BOTH, one, two, "one"), world.start(BOTH, two, one, "two")]
    for each in children:
        each.say("go")
    for each in children:
        done = each.expect("DONE (.*)", timeout=30)[1].split()
        assert int(done[0]) > 20
        assert done[1:] == ["0", "1"], each.lines
    for each in children:
        each.say("stop")
        assert each.wait(10) == 0


def test_calls_go_on_after_a_broken_connection(world: World) -> None:
    """What was under way fails at once as PeerLost, maybe executed; the link is made again and nobody is lost for it."""
    child = world.serve("slow", "{'slow': slow}", "def slow(x, seconds: float):\n    time.sleep(seconds)\n    return x", discovery=())
    address = child.lines[0].split()[-1].removeprefix("tcp://")
    with SlowLink(address) as link:
        app = world.node(discovery=["seeds"], seeds=[link.address])
        app.wait_for("slow", timeout=10)
        lost: list[str] = []
        app.on("peer_lost", lambda event: lost.append(event.reason))
        reach = app.reach("slow", retries=0, timeout=10)
        waiting = [reach.submit(x=n, seconds=5.0) for n in range(5)]
        time_left = eventually(lambda: link.connections)
        assert time_left == 1
        assert reach.call(x="there", seconds=0.0) == "there"
        start = time.monotonic()
        link.drop()
        errors = [each.exception(5) for each in waiting]
        assert time.monotonic() - start < 1.0
        assert {type(each) for each in errors} == {PeerLost}
        assert {each.executed for each in errors if isinstance(each, ReachError)} == {"maybe"}
        assert reach.call(x="again", seconds=0.0) == "again"
        assert lost == []


def test_a_seed_that_dialled_first_is_not_dialled_again_and_again(world: World) -> None:
    """Refreshing a seed that is linked already makes no further connections."""
    often = {"heartbeat_period": 0.5}
    child = world.serve("far", "{'echo': lambda x: x}", discovery=(), config=often)
    address = child.lines[0].split()[-1].removeprefix("tcp://")
    with SlowLink(address) as link:
        app = world.node(discovery=["seeds"], seeds=[link.address], config=often)
        app.wait_for("echo", timeout=10)
        until = time.monotonic() + 2.0
        eventually(lambda: app.reach("echo").call(x=1) and time.monotonic() > until)
        assert link.connections == 1
