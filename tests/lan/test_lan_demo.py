"""The newsroom on three hosts: `examples/lan_demo`, with the LAN that it makes for itself."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support import World

LAN_DEMO = Path(__file__).parents[2] / "examples" / "lan_demo" / "run.py"


@pytest.mark.lan
def test_three_hosts_make_an_article(world: World) -> None:
    """Agents on three hosts meet by multicast, work together, and their namespaces are gone afterwards."""
    done = world.run(sys.executable, str(LAN_DEMO), timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    hosts = dict(re.findall(r"met +([a-z]+)-[a-z]+-\S+ at tcp://10\.99\.0\.(\d):\d+, offers", done.stdout))
    assert hosts == {"editor": "1", "search": "2", "summary": "3", "writer": "3", "press": "3"}, done.stdout
    assert len(re.findall(r"s +line ", done.stdout)) >= 5
    assert "exit codes: {'library': 0, 'studio': 0, 'desk': 0}" in done.stdout
    made = re.search(r"namespaces (rmdemo\w+)-", done.stdout)
    assert made is not None
    assert made[1] not in subprocess.run(["ip", "netns"], capture_output=True, text=True, check=True).stdout


def test_where_no_lan_can_be_made_it_says_why(world: World) -> None:
    """Without the `ip` command the demo explains itself, and its exit code differs from that of a failure."""
    done = world.run(sys.executable, str(LAN_DEMO), env={"PATH": str(world.folder)})
    assert done.returncode == 77
    assert "no `ip` command" in done.stderr
