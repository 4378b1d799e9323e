"""The examples of `reachmesh/testing/README.md`, and the one of the top README."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PYTHON = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)
TOP = [block for block in PYTHON.findall((ROOT / "README.md").read_text()) if "reachmesh.testing" in block]
OWN = PYTHON.findall((ROOT / "reachmesh" / "testing" / "README.md").read_text())


@pytest.mark.parametrize("example", [*TOP, *OWN], ids=["top", "kill", "halves", "cable"])
def test_an_example_holds_what_it_says(example: str) -> None:
    """Each example runs, and its assertions are true."""
    exec(compile(example, "README.md", "exec"), {})
