"""The LAN of namespaces that the other tests here stand on."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable

import pytest

from tests.network import Lan
from tests.support import kernel_permits_namespaces, namespaces_refused

LISTEN = """
import socket
server = socket.create_server(("", 7000))
server.settimeout(20)
print("READY", socket.gethostname(), flush=True)
while True:
    connection, _ = server.accept()
    connection.sendall(b"hello")
    connection.close()
"""

ASK = """
import socket, sys
try:
    print("GOT", socket.create_connection((sys.argv[1], 7000), timeout=float(sys.argv[2])).recv(5).decode())
except OSError as error:
    print("FAILED", type(error).__name__)
"""


def test_continuous_integration_skips_no_lan_test() -> None:
    """Where the kernel permits namespaces, CI has all that is needed to make them."""
    if os.environ.get("CI") != "true":
        pytest.skip("not in CI")
    if not kernel_permits_namespaces():
        pytest.skip("the kernel refuses network namespaces")
    assert namespaces_refused() is None


@pytest.mark.lan
def test_hosts_hear_each_other_until_the_cable_is_cut(lan: Callable[..., Lan]) -> None:
    """Two hosts talk; a cut cable silences one without a word, a healed one speaks again, a parted one is alone."""
    net = lan(hosts=2)
    assert net.start(2, LISTEN).lines == ["READY host2"]
    asked = net.start(1, ASK, net.address(2), "10", ready=None)
    asked.expect("GOT hello")
    net.cut(2)
    net.start(1, ASK, net.address(2), "0.3", ready=None).expect("FAILED TimeoutError")
    net.heal(2)
    net.start(1, ASK, net.address(2), "10", ready=None).expect("GOT hello")
    net.part((1,))
    net.start(1, ASK, net.address(2), "0.3", ready=None).expect("FAILED TimeoutError")
    net.heal(1)
    net.start(1, ASK, net.address(2), "10", ready=None).expect("GOT hello")


@pytest.mark.lan
def test_two_segments_are_two_networks(lan: Callable[..., Lan]) -> None:
    """Hosts have an address on every segment, and the segments are apart."""
    net = lan(hosts=2, segments=2)
    net.start(2, LISTEN)
    net.cut(2, segment=0)
    net.start(1, ASK, net.address(2, 1), "10", ready=None).expect("GOT hello")
    net.start(1, ASK, net.address(2, 0), "0.3", ready=None).expect("FAILED")


@pytest.mark.lan
def test_nothing_is_left_behind(lan: Callable[..., Lan]) -> None:
    """A closed LAN leaves no namespace."""
    net = lan(hosts=1)
    net.close()
    left = subprocess.run(["ip", "netns", "list"], capture_output=True, text=True, check=True).stdout
    assert net.before(1)[-2] not in left
