"""What the documents show has to be true: their code compiles, their links lead somewhere, their commands exist."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[2]
FENCE = re.compile(r"^```(\w*)[^\n]*\n(.*?)^```", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\(([^)#\s]+)(?:#[^)]*)?\)")


class Block(NamedTuple):
    """A fenced block of a document."""

    document: Path
    line: int
    language: str
    text: str

    def __str__(self) -> str:
        return f"{self.document.relative_to(ROOT)}:{self.line}"


def documents() -> list[Path]:
    """The Markdown files of the project, without those of environments and caches beside it."""
    kept = [path for folder in ("reachmesh", "examples", "tools", "tests") for path in (ROOT / folder).rglob("*.md")]
    return sorted([*ROOT.glob("*.md"), *kept])


def blocks(language: str) -> list[Block]:
    found = []
    for document in documents():
        text = document.read_text(encoding="utf-8")
        for match in FENCE.finditer(text):
            if match[1] == language:
                found.append(Block(document, text.count("\n", 0, match.start()) + 1, match[1], match[2]))
    return found


@pytest.mark.parametrize("block", blocks("python"), ids=str)
def test_python_blocks_compile(block: Block) -> None:
    """Every Python block of every document is valid Python."""
    compile("\n" * block.line + block.text, str(block.document), "exec")


@pytest.mark.parametrize("document", documents(), ids=lambda path: str(path.relative_to(ROOT)))
def test_links_lead_somewhere(document: Path) -> None:
    """A relative link of a document names a file of the repository."""
    text = FENCE.sub("", document.read_text(encoding="utf-8"))
    links = [link for link in LINK.findall(text) if "://" not in link and not link.startswith("mailto:")]
    assert [link for link in links if not (document.parent / link).exists()] == []


def test_readme_commands_exist() -> None:
    """The files that the README tells people to run are there."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"python3? ((?:tools|examples)/[\w/.-]+\.py)", text))
    assert "tools/run.py" in named
    assert [name for name in sorted(named) if not (ROOT / name).exists()] == []


def test_top_level_is_the_agreed_set() -> None:
    """Long documents live beside what they describe; the top level holds nothing else."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("not a git checkout")
    agreed = {"pyproject.toml", "README.md", "LICENSE", "CHANGELOG.md", ".gitignore", "reachmesh", "tests", "examples", "tools", ".ci"}
    assert {name.partition("/")[0] for name in listed.stdout.splitlines()} <= agreed
