"""The benchmark runs; what it finds is nobody's promise here."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
WORKS = ["one", "out-64", "out-1000", "threads-4", "stream", "payload-1", "numpy-64", "beside-bulk"]


def test_quick_bench_measures_reachmesh_and_the_floor() -> None:
    """A short run of reachmesh beside raw pyzmq gives a figure for every work, and nothing fails."""
    command = [sys.executable, "-m", "tools.bench", "--quick", "--seconds", "0.05", "--json", "--only", "reachmesh-loop", "--works", *WORKS]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=100, check=False)
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout)
    assert result["absent"] == {}
    reasons = {row["work"]: row["variants"].get("reachmesh-loop", {}).get("why_not", "no figure") for row in result["works"]}
    figures = {row["work"] for row in result["works"] if row["variants"].get("reachmesh-loop", {}).get("rounds")}
    assert {work: why for work, why in reasons.items() if work not in figures} == {}
