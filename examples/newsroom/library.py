"""The text the newsroom works on: the documentation strings of the Python that runs it, read from source without importing anything."""

from __future__ import annotations

import ast
import re
import sysconfig
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

PACKAGES = {"asyncio", "collections", "concurrent", "dbm", "email", "html", "http", "json", "logging", "sqlite3", "urllib", "zoneinfo"}
LEFT_OUT = {"antigravity.py", "pydoc.py", "this.py", "turtle.py"}
COMMON = {
    "a",
    "an",
    "and",
    "are",
    "as",
    "be",
    "by",
    "for",
    "from",
    "if",
    "in",
    "is",
    "it",
    "not",
    "of",
    "on",
    "or",
    "that",
    "the",
    "this",
    "to",
}
WORD = re.compile(r"[a-z][a-z0-9]+")


@dataclass(frozen=True)
class Document:
    """One documentation string: the dotted name of what it describes, and its text."""

    title: str
    text: str


def read_shelf(shelf: int, shelves: int) -> Iterator[Document]:
    """Documents of one of `shelves` equal parts of the standard library; `shelf` counts from 1."""
    root = Path(sysconfig.get_path("stdlib"))
    files = sorted(path for path in (*root.glob("*.py"), *root.glob("*/*.py")) if _is_public(path.relative_to(root)))
    for path in files[shelf - 1 :: shelves]:
        module = ".".join(path.relative_to(root).with_suffix("").parts).removesuffix(".__init__")
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, OSError):
            continue
        yield from _documents(module, tree)


def _is_public(path: Path) -> bool:
    known = path.parent.name in PACKAGES or (path.parent == Path() and path.name not in LEFT_OUT)
    return known and (path.name == "__init__.py" or not path.name.startswith("_"))


def _documents(name: str, node: ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[Document]:
    text = ast.get_docstring(node)
    if text and len(text) >= 80:
        yield Document(name, text)
    for child in node.body:
        if isinstance(child, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and not child.name.startswith("_"):
            yield from _documents(f"{name}.{child.name}", child)


def words_of(text: str) -> list[str]:
    """Words in lower case without the commonest, a plural's `s` taken off so that "files" finds "file"."""
    words = (word for word in WORD.findall(text.lower()) if word not in COMMON)
    return [word[:-1] if len(word) > 3 and word.endswith("s") and not word.endswith("ss") else word for word in words]
