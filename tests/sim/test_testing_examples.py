"""The examples of `reachmesh/testing/README.md`."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "reachmesh" / "testing" / "README.md"


@pytest.mark.parametrize(
    "example", re.findall(r"^```python\n(.*?)^```", README.read_text(), re.MULTILINE | re.DOTALL), ids=["kill", "halves", "cable"]
)
def test_an_example_holds_what_it_says(example: str) -> None:
    """Each example runs, and its assertions are true."""
    exec(compile(example, str(README), "exec"), {})
