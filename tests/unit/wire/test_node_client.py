"""The client in JavaScript, which shares no code with ours, against the golden vectors."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

CLIENT = Path(__file__).parents[3] / "examples" / "node-client"
GOLDEN = Path(__file__).parent / "golden"


@pytest.mark.skipif(shutil.which("node") is None, reason="needs Node.js")
def test_another_language_passes_the_golden_vectors() -> None:
    """Every vector is read and written alike by another implementation."""
    done = subprocess.run(["node", CLIENT / "check.mjs", GOLDEN], capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert "golden vectors pass" in done.stdout
