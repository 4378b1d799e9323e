"""Where a node listens, what it tells others of that, and whom it remembers."""

from __future__ import annotations

import ipaddress
import logging
import os
import signal
from pathlib import Path

import pytest

from reachmesh import ConfigError, ReachNode
from tests.support import World, eventually


@pytest.mark.parametrize("host", ["127.0.0.1", "[::1]", "::1", "localhost", "lo", "*", "0.0.0.0", "[::]", "::"])
def test_any_way_to_name_an_address_is_told_as_an_address(world: World, host: str) -> None:
    """`bind=` takes addresses, bracketed or not, names and interfaces; what others are told is an address, and they get through to it."""
    with (
        ReachNode("app", mesh=world.mesh, bind=f"{host}:0", discovery=("local",)) as app,
        ReachNode("other", mesh=world.mesh, bind="127.0.0.1:0", discovery=("local",), caps={"who": lambda: "other"}) as other,
    ):
        for endpoint in app.endpoints:
            told, _, port = endpoint.removeprefix("tcp://").rpartition(":")
            address = ipaddress.ip_address(told[1:-1] if told.startswith("[") else told)
            assert not address.is_unspecified
            assert int(port) > 0
        eventually(lambda: [peer.name for peer in other.peers()] == ["app"])
        app.wait_for("who", timeout=10)
        assert app.reach("who").call() == "other"


def test_a_name_without_an_address_cannot_be_listened_on() -> None:
    """The error names it, and comes from `start`."""
    node = ReachNode("app", bind="no-such-host.invalid:0", discovery=())
    with pytest.raises(ConfigError, match="no-such-host"):
        node.start()


def test_a_killed_process_remembers_its_peers(world: World, tmp_path: Path) -> None:
    """Who came is written down at once, not at a clean stop or a heartbeat later."""
    server = world.serve("server", '{"who": who}', "def who() -> str:\n    return node.instance_id\n", discovery=(), bind="127.0.0.1:0")
    _, instance, endpoint = server.lines[0].split()
    options = f"state_dir={str(tmp_path)!r}, seeds=[{endpoint!r}]"
    killed = world.start(
        f"from reachmesh import ReachNode\nnode = ReachNode('app', discovery=('seeds',), {options}).start()\n"
        "node.wait_for('who', timeout=10)\nprint('READY', flush=True)\nimport time\ntime.sleep(60)"
    )
    eventually(lambda: any(instance in each.read_text() for each in tmp_path.glob("peers-*.json")), 2)
    os.kill(killed.pid, signal.SIGKILL)
    with world.node("app", discovery=("state",), state_dir=tmp_path) as app:
        app.wait_for("who", timeout=10)
        assert app.reach("who").call() == instance


def test_a_zone_may_be_given_as_a_tag(world: World) -> None:
    """`tags={"zone": ...}` is the zone, for routing and for alarms; `zone=` goes before it."""
    with world.node("a", tags={"zone": "z1"}), world.node("b", zone="z2", tags={"zone": "z1"}), world.node("app") as app:
        eventually(lambda: len(app.peers()) == 2)
        assert {peer.name: (peer.zone, peer.tags["zone"]) for peer in app.peers()} == {"a": ("z1", "z1"), "b": ("z2", "z2")}


def test_an_open_node_says_so_in_the_log(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """One line a node, by level "info" on this host alone and "warning" where others can reach it; none with a secret or from an observer."""
    caplog.set_level(logging.INFO, "reachmesh")
    for options in ({}, {"secret": "correct-horse"}, {"observer": True}):
        world.node("app", **options)
    assert [record.levelname for record in caplog.records if "OPEN" in record.getMessage()] == ["INFO"]
