"""Nodes on hosts of their own find each other by multicast and call each other over the wire."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.network import Lan

CALLER = """
import sys
from reachmesh import ReachNode
with ReachNode("app") as node:
    node.wait_for("where", timeout=10)
    print("ANSWER", node.reach("where").call(), flush=True)
"""


@pytest.mark.lan
def test_a_call_crosses_the_lan(lan: Callable[..., Lan]) -> None:
    """A node on one host calls a function on another, with nothing configured; the endpoint is the LAN's address."""
    net = lan(hosts=2)
    child = net.serve(2, "server", caps='{"where": where}', body="import socket\ndef where():\n    return socket.gethostname()")
    assert net.address(2) in child.lines[0]
    net.start(1, CALLER, ready=None).expect("ANSWER host2")
