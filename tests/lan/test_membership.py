"""Real nodes on hosts of their own while cables are cut, parted and healed: what their tables say, and how often they change their minds.

All scenes start together and each test waits for its own, because most of them are waiting: some take place in real time at the
default settings. Nodes are asked by their standard input.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import pytest

from tests.network import Lan
from tests.support import Child, World, eventually

pytestmark = pytest.mark.lan

AGENT = """
import json, sys, time
from reachmesh import ReachNode, capability

def where():
    return node.instance_id

def table():
    return {peer.instance_id: [peer.name, peer.state.name, peer.suspected, sorted(peer.capabilities), peer.endpoints] for peer in node.peers()}

def connected():
    rows = [line.split() for table in ("tcp", "tcp6") for line in open("/proc/net/" + table).readlines()[1:]]
    ends = {row[2].partition(":")[0][-8:] for row in rows if row[3] == "01"}  # of an IPv4 address within an IPv6 one, the last four bytes
    return sorted(".".join(str(each) for each in bytes.fromhex(end)[::-1]) for end in ends)

node = ReachNode(sys.argv[1], {"where": where}, **json.loads(sys.argv[2]))
began, seen = time.monotonic(), []
node.on("*", lambda event: seen.append([event.kind, event.peer and event.peer.instance_id, event.reason, event.at]))
node.start()
print("READY", node.instance_id, flush=True)
for line in sys.stdin:
    try:
        answer = eval(line)
    except Exception as error:
        answer = {"raised": f"{type(error).__name__}: {error}"}
    print("ANSWER", json.dumps(answer), flush=True)
node.stop()
"""

CHANGES = ("peer_suspected", "peer_cleared", "peer_state", "peer_lost", "peer_left", "peer_joined")


class Agent:
    """A node on a host, asked from outside."""

    def __init__(self, net: Lan, host: int, name: str, **options: Any) -> None:
        self.child: Child = net.start(host, AGENT, name, json.dumps(options), ready=None)
        self.host, self.name = host, name
        self.instance_id = ""

    def started(self) -> Agent:
        """Wait for it."""
        self.instance_id = self.child.expect("READY (.*)", timeout=40)[1]
        return self

    def ask(self, what: str) -> Any:
        """The value of an expression over there."""
        self.child.say(what)
        return json.loads(self.child.expect("ANSWER (.*)")[1])

    def table(self) -> dict[str, list[Any]]:
        """Who is present, by instance id: name, state, whether suspected, capabilities, endpoints."""
        answer: dict[str, list[Any]] = self.ask("table()")
        return answer

    def knows(self) -> set[str]:
        """Instance ids of those present and not suspected."""
        return {each for each, entry in self.table().items() if not entry[2]}

    def changes(self, since: int = 0) -> list[list[Any]]:
        """What this node was told of others, from the given event on."""
        return [event for event in self.ask("seen")[since:] if event[0] in CHANGES]

    def leave(self) -> None:
        """A clean stop."""
        assert self.child.process.stdin is not None
        self.child.process.stdin.close()
        assert self.child.wait() == 0


def start(net: Lan, names: Mapping[int, str], **options: Any) -> list[Agent]:
    """A node on each host, all of which know each other."""
    agents = [Agent(net, host, name, **options) for host, name in names.items()]
    for agent in agents:
        agent.started()
    eventually(lambda: together(agents), 30, every=0.1)
    return agents


def together(agents: list[Agent]) -> bool:
    """Whether every table holds exactly the others, in good health."""
    ids = {agent.instance_id for agent in agents}
    return all(agent.knows() | {agent.instance_id} == ids == {agent.instance_id, *agent.table()} for agent in agents)


def pause(seconds: float) -> None:
    """Let real time pass for the nodes."""
    until = time.monotonic() + seconds
    eventually(lambda: time.monotonic() > until, seconds + 1, every=0.05)


def partition(net: Lan) -> dict[str, Any]:
    """Two and three hosts apart; one leaves, one restarts, one changes what it offers; then healed."""
    period = 1.0
    options = {"config": {"preset": "fast", "heartbeat_period": period}}
    agents = start(net, {host: f"n{host}" for host in range(1, 6)}, **options)
    one, two, three, four, five = agents
    net.part((1, 2), (3, 4, 5))
    eventually(lambda: one.knows() == {two.instance_id} and three.knows() == {four.instance_id, five.instance_id}, 30, every=0.1)
    eventually(lambda: two.knows() == {one.instance_id} and not set(three.table()) & {one.instance_id, two.instance_id}, 10, every=0.1)
    pause(12 * period)
    two.leave()
    four.child.kill()
    reborn = Agent(net, 4, "n4", **options).started()
    five.ask("node.capability('new')(where) and 1")
    now = [one, three, reborn, five]
    eventually(lambda: together(now[1:]), 10)
    for host in range(1, 6):
        net.heal(host)
    healed = time.monotonic()
    eventually(lambda: together(now), 20)
    took = time.monotonic() - healed
    table = sorted([entry[0], entry[3]] for entry in one.table().values())
    gone = two.instance_id, four.instance_id
    back = [event for agent in now for event in agent.changes() if event[1] in gone and event[2] == "it is back"]
    return {"took": took, "period": period, "table": table, "back": back}


def deaf(net: Lan) -> dict[str, Any]:
    """Nothing passes from host 1 to host 2 any more, while the way back and all other ways work; then healed. Real time."""
    agents = start(net, {host: f"n{host}" for host in range(1, 5)})
    before = [len(agent.ask("seen")) for agent in agents]
    net.deafen(2, to=1)
    pause(34)
    during = [agent.changes(since) for agent, since in zip(agents, before, strict=True)]
    net.undeafen(2, to=1)
    eventually(lambda: together(agents), 20, every=0.2)
    eventually(lambda: agents[0].ask("node.reach('where', target='n2', timeout=5).call()") == agents[1].instance_id, 15)
    return {"changes": during}


def flapping(net: Lan) -> dict[str, Any]:
    """One host's cable is out for seven seconds of every fourteen. Real time."""
    agents = start(net, {host: f"n{host}" for host in range(1, 5)})
    before = [len(agent.ask("seen")) for agent in agents]
    for _ in range(3):
        net.cut(2)
        pause(7)
        net.heal(2)
        pause(7)
    eventually(lambda: together(agents), 20, every=0.2)
    during = [agent.changes(since) for agent, since in zip(agents, before, strict=True)]
    called = agents[0].ask("node.reach('where', target='n2', timeout=10).call()")
    return {"changes": during, "called": called == agents[1].instance_id}


def cut_cable(net: Lan) -> dict[str, Any]:
    """A pulled cable at the default settings. Real time."""
    one, two, three = start(net, {host: f"n{host}" for host in range(1, 4)})
    pause(2)
    net.cut(3)
    cut = time.monotonic()
    eventually(lambda: three.instance_id not in one.knows() | two.knows(), 40, every=0.05)
    return {"took": time.monotonic() - cut, "table": one.knows() == {two.instance_id}}


def one_seed(net: Lan) -> dict[str, Any]:
    """No multicast anywhere; two hosts are told of the first, which is told of nobody."""
    for host in (1, 2, 3):
        net.ip(host, "link", "set", "eth0", "multicast", "off")
    seeds = {"seeds": ["10.88.0.1:7400"], "discovery": ["seeds"]}
    agents = [Agent(net, 1, "n1", bind="10.88.0.1:7400", discovery=["mdns"]), *(Agent(net, host, f"n{host}", **seeds) for host in (2, 3))]
    for agent in agents:
        agent.started()
    began = time.monotonic()
    eventually(lambda: together(agents), 20)
    took = time.monotonic() - began
    called = agents[2].ask("node.reach('where', target='n2', timeout=5).call()")
    return {"took": took, "called": called == agents[1].instance_id}


def two_networks(net: Lan) -> dict[str, Any]:
    """Host 1 is on both networks, host 2 on the first alone, host 3 on the second alone."""
    net.ip(2, "link", "set", "eth1", "down")
    net.ip(3, "addr", "flush", "dev", "eth0")
    net.ip(3, "link", "set", "eth0", "down")
    options = {"config": {"heartbeat_period": 1.0}}
    both, first, second = agents = [Agent(net, host, f"n{host}", **options) for host in (1, 2, 3)]
    for agent in agents:
        agent.started()
    eventually(lambda: {first.instance_id, second.instance_id} <= both.knows(), 20)
    eventually(lambda: both.instance_id in first.knows() and both.instance_id in second.knows(), 20)
    asked = [(first, "n1", both), (second, "n1", both), (both, "n2", first), (both, "n3", second)]
    calls = [agent.ask(f"node.reach('where', target='{name}', timeout=5).call()") == meant.instance_id for agent, name, meant in asked]
    pause(6)
    return {
        "calls": calls,
        "connected": [agent.ask("connected()") for agent in agents],
        "changes": [[event for event in agent.changes() if event[0] != "peer_joined"] for agent in agents],
        "each other": [second.instance_id in first.table(), first.instance_id in second.table()],
        "endpoints": first.table()[both.instance_id][4],
    }


def one_network(net: Lan) -> dict[str, Any]:
    """Hosts on two networks, the one that their links go by is cut."""
    agents = start(net, {1: "n1", 2: "n2", 3: "n3"}, config={"heartbeat_period": 0.5})
    ends = [each for each in agents[0].ask("connected()") if each.startswith("10.88.")]
    used = 0 if any(each.startswith("10.88.0.") for each in ends) else 1
    for host in (1, 2, 3):
        net.cut(host, used)
    began = time.monotonic()

    def reached() -> bool:
        return all(
            agent.ask(f"node.reach('where', target='{other.name}', timeout=1, retries=0).call()") == other.instance_id
            for agent in agents
            for other in agents
            if other is not agent
        )

    eventually(reached, 40)
    took = time.monotonic() - began
    lost = [event for agent in agents for event in agent.changes() if event[0] == "peer_lost"]
    return {"took": took, "lost": lost, "together": together(agents)}


def moved(net: Lan, **options: Any) -> dict[str, Any]:
    """A running node's host gets another address."""
    options |= {"config": {"preset": "fast", "heartbeat_period": 0.5}}
    agents = start(net, {host: f"n{host}" for host in (1, 2, 3)}, **options)
    net.ip(2, "addr", "flush", "dev", "eth0")
    net.ip(2, "addr", "add", "10.88.0.77/24", "dev", "eth0")
    net.ip(2, "route", "add", "default", "dev", "eth0")
    began = time.monotonic()
    eventually(lambda: all("10.88.0.77:" in str(agent.table().get(agents[1].instance_id)) for agent in (agents[0], agents[2])), 40)
    eventually(lambda: together(agents), 20)
    took = time.monotonic() - began
    late = Agent(net, 3, "late", **options).started()
    eventually(lambda: together([*agents, late]), 20)
    called = late.ask("node.reach('where', target='n2', timeout=5).call()")
    loopback = any("127." in str(endpoints) for endpoints in late.table().values())
    return {"took": took, "called": called == agents[1].instance_id, "loopback": loopback}


def named(net: Lan) -> dict[str, Any]:
    """The same, of nodes that were given their interfaces by name."""
    return moved(net, interfaces=["lo", "eth0"])


SCENES: dict[str, tuple[Callable[[Lan], dict[str, Any]], dict[str, Any]]] = {
    "flapping": (flapping, {"hosts": 4}),
    "deaf": (deaf, {"hosts": 4}),
    "cut_cable": (cut_cable, {"hosts": 3}),
    "partition": (partition, {"hosts": 5}),
    "one_seed": (one_seed, {"hosts": 3}),
    "one_network": (one_network, {"hosts": 3, "segments": 2}),
    "two_networks": (two_networks, {"hosts": 3, "segments": 2}),
    "moved": (moved, {"hosts": 3}),
    "named": (named, {"hosts": 3}),
}


@pytest.fixture(scope="module")
def played(request: pytest.FixtureRequest) -> Iterator[Callable[[str], dict[str, Any]]]:
    """Plays all scenes whose tests are to run, at once; asked for one by name, waits for what it showed."""
    wanted = [item.name.removeprefix("test_") for item in request.session.items if item.path == request.path]
    with ExitStack() as made, ThreadPoolExecutor(len(SCENES)) as pool:
        playing: dict[str, Future[dict[str, Any]]] = {}
        for name, (scene, shape) in SCENES.items():
            if any(each.startswith(name) for each in wanted):
                world = made.enter_context(World())
                playing[name] = pool.submit(scene, made.enter_context(Lan(world, **shape)))
        yield lambda name: playing[name].result(120)


def test_partition_of_two_and_three_hosts_heals_to_equal_and_right_tables(played: Callable[[str], dict[str, Any]]) -> None:
    """Within three periods, with a leave, a restart and a change of capabilities meanwhile; the gone never come back."""
    shown = played("partition")
    assert shown["took"] <= 3 * shown["period"]
    assert shown["table"] == [["n3", ["where"]], ["n4", ["where"]], ["n5", ["new", "where"]]]
    assert shown["back"] == []


def test_deaf_in_one_direction_a_link_changes_nobodys_state(played: Callable[[str], dict[str, Any]]) -> None:
    """Others vouch for both ends, also when the connection breaks of it; once it is healed calls pass again."""
    shown = played("deaf")
    assert all(len(changes) <= 3 for changes in shown["changes"]), shown["changes"]


def test_flapping_every_seven_seconds_a_cable_changes_nobodys_state(played: Callable[[str], dict[str, Any]]) -> None:
    """A host that is away for seven seconds of every fourteen stays a member, and is called when the cable stays in."""
    shown = played("flapping")
    assert all(len(changes) <= 3 for changes in shown["changes"]), shown["changes"]
    assert shown["called"]


def test_cut_cable_is_noticed_within_fifteen_seconds_and_a_period(played: Callable[[str], dict[str, Any]]) -> None:
    """At the default settings the host is unrouted, and the others keep each other."""
    shown = played("cut_cable")
    assert shown["took"] <= 15 + 5
    assert shown["table"]


def test_one_seed_on_one_side_is_enough_without_multicast(played: Callable[[str], dict[str, Any]]) -> None:
    """Two hosts that know the third's address, which knows nobody's, have whole tables and call each other."""
    shown = played("one_seed")
    assert shown["took"] < 5
    assert shown["called"]


def test_two_networks_a_host_is_reached_on_the_right_one(played: Callable[[str], dict[str, Any]]) -> None:
    """Each neighbour uses the address on its own network; two that have no way to each other are no trouble, and not listed."""
    shown = played("two_networks")
    assert shown["calls"] == [True] * 4
    assert shown["connected"] == [["10.88.0.2", "10.88.1.3"], ["10.88.0.1"], ["10.88.1.1"]]
    assert shown["changes"] == [[], [], []]
    assert shown["each other"] == [False, False]
    assert [endpoint.rpartition(":")[0] for endpoint in shown["endpoints"]] == ["tcp://10.88.0.1", "tcp://10.88.1.1"]


def test_one_network_of_two_cut_calls_go_by_the_other(played: Callable[[str], dict[str, Any]]) -> None:
    """Links that took the cut way are found dead and made anew within seconds, long before TCP gives up, and nobody is lost for it."""
    shown = played("one_network")
    assert shown["took"] < 15, shown
    assert shown["lost"] == []
    assert shown["together"]


def test_moved_to_another_address_a_running_node_is_reached_there(played: Callable[[str], dict[str, Any]]) -> None:
    """All tables hold the new address within seconds, newcomers too, and it stays the same instance."""
    shown = played("moved")
    assert shown["took"] < 10
    assert shown["called"]


def test_named_interfaces_are_followed_to_other_addresses(played: Callable[[str], dict[str, Any]]) -> None:
    """A node given interfaces by name listens at the new address as well; the loopback one among them is told to nobody."""
    shown = played("named")
    assert shown["took"] < 10
    assert shown["called"]
    assert not shown["loopback"]
