"""Multicast discovery between hosts of a virtual LAN: how fast, with which addresses, and what a hostile segment does to it."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

import pytest

from tests.network import Lan
from tests.support import Child, eventually

pytestmark = pytest.mark.lan

NODE = """
import json, resource, sys, threading, time
from reachmesh.discovery import Announcement, make_sources
from reachmesh.discovery.dns import mesh_mark
from reachmesh.transport.interfaces import present_interfaces, reachable_addresses

number, options = int(sys.argv[1]), json.loads(sys.argv[2])
wanted = options.get("interfaces")
def announcement(incarnation=1):
    present = present_interfaces(wanted)
    return Announcement(mesh=options.get("mesh", "m"), instance_id=f"n{number}-host-1-x", boot=bytes([number]) * 8, name="n",
                        addresses=reachable_addresses(present, 7000 + number), local_address=f"127.0.0.1:{7000 + number}",
                        protocol=(1, 1), incarnation=incarnation, any_interface=True)
(source,) = make_sources(["mdns"], mesh=options.get("mesh", "m"), interfaces=lambda: present_interfaces(wanted))
began, found, lock = time.time(), {}, threading.Lock()
def take(candidate):
    with lock:
        found.setdefault(candidate.address, [candidate.boot.hex(), time.time()])
before = time.monotonic()
source.start(None if options.get("observer") else announcement(), take)
blocked = time.monotonic() - before
print("READY", json.dumps([began, blocked]), flush=True)
for line in sys.stdin:
    if line.startswith("stop"):
        source.stop()
        answer = [each.name for each in threading.enumerate() if each.name.startswith("reachmesh")]
    elif line.startswith("found"):
        with lock:
            answer = found
    elif line.startswith("forget"):
        with lock:
            found.clear()
        answer = None
    elif line.startswith("state"):
        usage = resource.getrusage(resource.RUSAGE_SELF)
        answer = {"problem": source.problem, "dropped": source.dropped, "cpu": usage.ru_utime + usage.ru_stime, "rss": usage.ru_maxrss,
                  "now": time.monotonic()}
    else:
        source.refresh()
        answer = None
    print("ANSWER", json.dumps(answer), flush=True)
"""

ZEROCONF = """
import sys, time
from zeroconf import IPVersion, ServiceBrowser, ServiceInfo, Zeroconf
from reachmesh.discovery.dns import mesh_mark
address, mode = sys.argv[1:]
it = Zeroconf(interfaces=[address], ip_version=IPVersion.V4Only)
class Listener:
    def add_service(self, zc, kind, name):
        info = zc.get_service_info(kind, name, 2000)
        print("ADDED", name, info and info.parsed_addresses(), info and info.port,
              info and {key.decode(): (value or b"").decode() for key, value in info.properties.items()}, flush=True)
    def update_service(self, zc, kind, name):
        pass
    def remove_service(self, zc, kind, name):
        print("REMOVED", name, flush=True)
if mode == "register":
    import socket
    it.register_service(ServiceInfo("_reachmesh._tcp.local.", "0909090909090909._reachmesh._tcp.local.", 7009, server="nine.local.",
        addresses=[socket.inet_aton(address)], properties={"mesh": mesh_mark("m")}), cooperating_responders=True)
else:
    browser = ServiceBrowser(it, "_reachmesh._tcp.local.", Listener())
print("READY", flush=True)
sys.stdin.read()
it.close()
"""

LISTENER = """
import ipaddress, sys, threading
from reachmesh.discovery.group import open_group_socket
from reachmesh.transport.interfaces import list_interfaces
from zeroconf import DNSAddress, DNSIncoming
for interface in list_interfaces():
    if not interface.is_loopback:
        def listen(sock=open_group_socket(interface), interface=interface):
            sock.setblocking(True)
            while True:
                data = sock.recv(9000)
                for each in DNSIncoming(data).answers():
                    if isinstance(each, DNSAddress):
                        sys.stdout.write(f"SAID {interface.name} {ipaddress.ip_address(each.address)}\\n")
        threading.Thread(target=listen, daemon=True).start()
print("READY", flush=True)
sys.stdin.read()
"""

FLOOD = """
import os, random, socket, struct, sys, time
from reachmesh.discovery import Announcement
from reachmesh.discovery.dns import MARKER, build_answer, build_query
address, seconds = sys.argv[1], float(sys.argv[2])
sock = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, socket.inet_aton(address))
def spoofed(number):
    return build_answer(Announcement(mesh="m", instance_id="spoofed", boot=struct.pack(">Q", number + 2**40), name="n", addresses=(), local_address="x:1",
                                     protocol=(1, 1), incarnation=1), f"10.99.{number >> 8 & 255}.{number & 255}", 1 + number % 60000)
rng = random.Random(7)
good = spoofed(1)
kinds = [lambda n: spoofed(n), lambda n: rng.randbytes(rng.randrange(1, 1400)), lambda n: MARKER * 100,
         lambda n: good[: rng.randrange(len(good))], lambda n: bytes(each ^ (rng.random() < 0.02) * 255 for each in good),
         lambda n: struct.pack(">6H", 0, 0x8400, 65535, 65535, 65535, 65535) + MARKER + b"\\xc0\\x0c" * 600,
         lambda n: build_query(), lambda n: MARKER + bytes(1300), lambda n: b""]
packets = [kinds[n % len(kinds)](n) for n in range(9000)]
print("READY", flush=True)
end, sent = time.monotonic() + seconds, 0
while time.monotonic() < end:
    for packet in packets[sent % 9000 : sent % 9000 + 100]:
        try:
            sock.sendto(packet, ("224.0.0.251", 5353))
        except OSError:
            pass
    sent += 100
    time.sleep(0.005)
print("SENT", sent, flush=True)
"""


class Node:
    """A source on a host, asked from outside."""

    def __init__(self, lan: Lan, host: int, number: int | None = None, **options: Any) -> None:
        self.number = number or host
        self.child: Child = lan.start(host, NODE, str(self.number), json.dumps(options), ready=None)
        self.began, self.blocked = json.loads(self.child.expect("READY (.*)")[1])

    def ask(self, what: str) -> Any:
        self.child.say(what)
        return json.loads(self.child.expect("ANSWER (.*)")[1])

    def found(self) -> dict[str, tuple[str, float]]:
        return {address: (boot, at) for address, (boot, at) in self.ask("found").items()}

    def finds(self, address: str, number: int, timeout: float = 10.0) -> float:
        """Wait until the address is found, as that node's; wall-clock time of it."""
        entry = eventually(lambda: self.found().get(address), timeout)
        assert entry is not None
        assert entry[0] == (bytes([number]) * 8).hex()
        return entry[1]


def test_a_started_node_is_known_on_the_lan_at_once(lan: Callable[..., Lan]) -> None:
    """A node is announced within 0.3 s of its start and found by those before it; start does not block."""
    net = lan(hosts=2)
    listener = net.start(1, LISTENER)
    early = Node(net, 1)
    warm = Node(net, 2, 3)
    early.finds("10.88.0.2:7003", 3)
    before = time.time()
    late = Node(net, 2)
    listener.expect("SAID eth0 10.88.0.2")
    at = early.finds("10.88.0.2:7002", 2)
    assert at - late.began < 0.3
    assert at > before
    assert max(early.blocked, late.blocked, warm.blocked) < 0.1


def test_two_fresh_nodes_find_each_other(lan: Callable[..., Lan]) -> None:
    """Of two nodes that start together one finds the other well within a second, and soon both do; a host's own nodes too."""
    net = lan(hosts=2)
    first, second, sibling = Node(net, 1), Node(net, 2), Node(net, 2, 3)
    began = max(first.began, second.began)
    times = [first.finds("10.88.0.2:7002", 2), second.finds("10.88.0.1:7001", 1)]
    assert min(times) - began < 1.5
    assert max(times) - began < 5
    second.finds("10.88.0.2:7003", 3)
    sibling.finds("10.88.0.2:7002", 2)
    assert set(first.found()) == {"10.88.0.2:7002", "10.88.0.2:7003"}


def test_an_observer_sees_and_is_not_seen(lan: Callable[..., Lan]) -> None:
    """A source without an announcement finds who was there before it, and nobody finds it."""
    net = lan(hosts=2)
    node = Node(net, 1)
    observer = Node(net, 2, observer=True)
    observer.finds("10.88.0.1:7001", 1)
    assert node.found() == {}


def test_other_meshes_on_the_lan_are_not_reported(lan: Callable[..., Lan]) -> None:
    """Three nodes on one LAN, two of them in one mesh: these two find each other, and nobody else."""
    net = lan(hosts=3)
    stranger, first, second = Node(net, 1, mesh="other"), Node(net, 2), Node(net, 3)
    first.finds("10.88.0.3:7003", 3)
    second.finds("10.88.0.2:7002", 2)
    assert stranger.found() == {}
    assert set(first.found()) == {"10.88.0.3:7003"}


def test_each_interface_has_its_own_address(lan: Callable[..., Lan]) -> None:
    """A host on two networks says on each of them the address of that network alone: no other, no loopback, no wildcard."""
    net = lan(hosts=3, segments=2)
    listener = net.start(3, LISTENER)
    both = Node(net, 1)
    other = Node(net, 2, interfaces=["eth1"])
    other.finds("10.88.1.1:7001", 1)
    both.finds("10.88.1.2:7002", 2)
    both.ask("stop")
    eventually(lambda: len([each for each in listener.lines if each.startswith("SAID")]) >= 4)
    said = {tuple(line.split()[1:]) for line in listener.lines if line.startswith("SAID")}
    assert said == {("eth0", "10.88.0.1"), ("eth1", "10.88.1.1"), ("eth1", "10.88.1.2")}
    assert set(other.found()) == {"10.88.1.1:7001"}


def test_interfaces_are_followed(lan: Callable[..., Lan]) -> None:
    """A node on a host without a network finds others once there is one, is found by its new address, and survives its end."""
    net = lan(hosts=2)
    net.ip(2, "addr", "flush", "dev", "eth0")
    first, second = Node(net, 1), Node(net, 2)
    assert second.ask("state")["problem"] == ""
    net.ip(2, "addr", "add", "10.88.0.77/24", "dev", "eth0")
    first.finds("10.88.0.77:7002", 2)
    second.finds("10.88.0.1:7001", 1)
    net.ip(2, "addr", "flush", "dev", "eth0")
    second.ask("refresh")
    net.ip(2, "addr", "add", "10.88.0.78/24", "dev", "eth0")
    first.finds("10.88.0.78:7002", 2)


def test_a_cable_plugged_in_later_is_noticed(lan: Callable[..., Lan]) -> None:
    """A node that started with its cable out is found within seconds of its being plugged in."""
    net = lan(hosts=2)
    net.cut(2)
    first, second = Node(net, 1), Node(net, 2)
    past_the_first_announcements = time.monotonic() + 4
    eventually(lambda: time.monotonic() > past_the_first_announcements)
    assert first.found() == second.found() == {}
    net.heal(2)
    first.finds("10.88.0.2:7002", 2)
    second.finds("10.88.0.1:7001", 1)


def test_a_stopped_node_says_goodbye_and_leaves_no_thread(lan: Callable[..., Lan]) -> None:
    """After stop another program's browser has seen the service go, and no thread is left."""
    net = lan(hosts=2)
    browser = net.start(1, ZEROCONF, "10.88.0.1", "browse")
    node = Node(net, 2)
    browser.expect(f"ADDED {'02' * 8}")
    assert node.ask("stop") == []
    browser.expect(f"REMOVED {'02' * 8}._reachmesh._tcp.local.")
    assert node.ask("stop") == []


def test_other_implementations_understand_and_are_understood(lan: Callable[..., Lan]) -> None:
    """The python-zeroconf stack resolves our service with the TXT record's fields, we find one it announces, and both share a host."""
    net = lan(hosts=3)
    node = Node(net, 1)
    browser = net.start(2, ZEROCONF, "10.88.0.2", "browse")
    line = browser.expect("ADDED 0101010101010101.*").string
    assert "['10.88.0.1'] 7001" in line
    for field in ("'id': 'n1-host-1-x'", "'port': '7001'", "'inc': '1'", "'proto': '1-1'", "'mesh': '"):
        assert field in line
    net.start(3, ZEROCONF, "10.88.0.3", "register")
    node.finds("10.88.0.3:7009", 9)
    Node(net, 2).finds("10.88.0.1:7001", 1)


def test_a_network_of_ipv6_alone_works(lan: Callable[..., Lan]) -> None:
    """Hosts that have no IPv4 address find each other by their routable IPv6 ones."""
    net = lan(hosts=2)
    for host in (1, 2):
        net.ip(host, "addr", "flush", "dev", "eth0")
        net.ip(host, "link", "set", "eth0", "down")
        net.ip(host, "link", "set", "eth0", "up")
        net.ip(host, "addr", "add", f"fd00:88::{host}/64", "dev", "eth0", "nodad")
    first, second = Node(net, 1), Node(net, 2)
    first.finds("[fd00:88::2]:7002", 2)
    second.finds("[fd00:88::1]:7001", 1)


def test_without_multicast_the_source_is_idle_and_says_so(lan: Callable[..., Lan]) -> None:
    """Kept to loopback a source neither sends nor fails; on an interface that cannot multicast it keeps running."""
    net = lan(hosts=2)
    listener = net.start(2, LISTENER)
    alone = Node(net, 1, interfaces=["127.0.0.1"])
    net.ip(1, "link", "set", "eth0", "multicast", "off")
    muted = Node(net, 1, 3)
    for node in (alone, muted):
        node.ask("refresh")
        assert node.ask("stop") == []
    assert not any("127." in line for line in listener.lines)


def test_a_hostile_segment_costs_little_and_hides_nobody(lan: Callable[..., Lan]) -> None:
    """Under a flood of junk, broken and spoofed packets a node keeps to a share of a core and of memory, and finds
    newcomers afterwards.
    """
    net = lan(hosts=3)
    victim, friend = Node(net, 1), Node(net, 2)
    victim.finds("10.88.0.2:7002", 2)
    before = victim.ask("state")
    flood = net.start(3, FLOOD, "10.88.0.3", "4")
    flood.expect("SENT")
    after = victim.ask("state")
    assert after["problem"] == ""
    assert after["dropped"] > 0
    assert (after["cpu"] - before["cpu"]) / (after["now"] - before["now"]) < 0.35
    assert after["rss"] - before["rss"] < 32 * 1024  # KiB
    spoofed = [address for address in victim.found() if address.startswith("10.99.")]
    assert 0 < len(spoofed) < 600
    Node(net, 3)
    victim.finds("10.88.0.3:7003", 3, timeout=20)
    friend.finds("10.88.0.3:7003", 3, timeout=20)
