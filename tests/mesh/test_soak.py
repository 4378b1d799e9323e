"""The soak of `tools/soak.py` in its short form."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.timeout(300)
def test_a_short_soak_finds_nothing() -> None:
    """A minute of kills, restarts, blocked handlers, dropped streams and tight timeouts: every promise holds."""
    command = [sys.executable, "-m", "tools.soak", "--seconds", "60", "--every", "15"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    report = json.loads(done.stdout)
    assert report["calls"] > 100
    assert report["faults"] == []
