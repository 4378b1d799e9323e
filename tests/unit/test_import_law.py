"""The rooms of the package and what each may import: imports point down only, and the pure rooms stay pure."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

PACKAGE = Path(__file__).parents[2] / "reachmesh"

CORE = ["errors", "wire", "membership", "resilience", "routing", "calls", "engine"]
BELOW_NODE = [*CORE, "transport", "discovery", "execution", "observe"]
MAY_IMPORT: dict[str, set[str]] = {
    "errors": set(),
    "wire": {"errors"},
    "membership": {"errors", "wire"},
    "resilience": {"errors"},
    "routing": {"errors", "wire", "membership", "resilience"},
    "calls": {"errors", "wire", "membership", "resilience", "routing"},
    "engine": {"errors", "wire", "membership", "resilience", "routing", "calls"},
    "transport": {"errors", "wire"},
    "discovery": {"errors", "wire"},
    "execution": {"errors"},
    "observe": {"errors"},
    "node": set(BELOW_NODE),
    "inspect": {*BELOW_NODE, "node"},
    "gateway": {*BELOW_NODE, "node"},
    "testing": {*BELOW_NODE, "node"},
    "__init__": {*BELOW_NODE, "node"},
}

PURE = ["wire", "membership", "resilience", "routing", "calls", "engine"]
IMPURE_MODULES = {
    "asyncio", "concurrent", "multiprocessing", "queue", "sched", "secrets", "select", "selectors", "signal", "socket", "ssl",
    "subprocess", "tempfile", "threading", "time", "zmq",
}  # fmt: skip
IMPURE_CALLS = {
    "date.today", "datetime.now", "datetime.today", "datetime.utcnow", "os.getpid", "os.getrandom", "os.urandom",
    "uuid.uuid1", "uuid.uuid4", "uuid1", "uuid4",
}  # fmt: skip

ONLY_IN = {
    "zmq": {"transport"},
    "zeroconf": {"discovery"},
    "ifaddr": {"transport", "discovery"},
    "typer": {"inspect", "gateway"},
    "rich": {"inspect"},
    "starlette": {"gateway"},
    "uvicorn": {"gateway"},
    "sse_starlette": {"gateway"},
    "mcp": {"gateway"},
    "prometheus_client": {"observe"},
    "opentelemetry": {"observe"},
    "pickle": set(),
    "marshal": set(),
    "shelve": set(),
    "dill": set(),
}

NOT_LOADED = [
    "typer", "rich", "starlette", "uvicorn", "prometheus_client", "opentelemetry", "mcp", "numpy", "pydantic", "zeroconf",
]  # fmt: skip


class Import(NamedTuple):
    """One imported name, absolute, with what surrounds it."""

    target: str
    line: int
    runs_at_import: bool


def name_of(path: Path) -> str:
    """Dotted module name of a file of the package."""
    parts = list(path.relative_to(PACKAGE.parent).with_suffix("").parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def room_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def imports_of(path: Path) -> Iterator[Import]:
    """Every import statement of a file; `from x import y` gives `x.y`, relative ones are made absolute."""
    package = name_of(path) if path.name == "__init__.py" else name_of(path).rpartition(".")[0]

    def walk(node: ast.AST, at_import: bool) -> Iterator[Import]:
        for child in ast.iter_child_nodes(node):
            runs = at_import and not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda) and not is_type_checking(child)
            if isinstance(child, ast.Import):
                for alias in child.names:
                    yield Import(alias.name, child.lineno, runs)
            elif isinstance(child, ast.ImportFrom):
                base = child.module or ""
                if child.level:
                    above = package.split(".")[: len(package.split(".")) - child.level + 1]
                    base = ".".join([*above, *([base] if base else [])])
                for alias in child.names:
                    yield Import(f"{base}.{alias.name}", child.lineno, runs)
            else:
                yield from walk(child, runs)

    yield from walk(ast.parse(path.read_text(encoding="utf-8")), True)


FILES = sorted(PACKAGE.rglob("*.py"))
EACH_FILE = pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))


@EACH_FILE
def test_imports_point_down(path: Path) -> None:
    """A module imports its own room and the rooms below it, not even for types the ones above or beside."""
    room = room_of(path)
    assert room in MAY_IMPORT, f"room {room!r} has no row in MAY_IMPORT"
    wrong = []
    for found in imports_of(path):
        top, _, rest = found.target.partition(".")
        if top != "reachmesh":
            continue
        other = rest.partition(".")[0]
        if other not in MAY_IMPORT[room] | {room}:
            wrong.append(f"{path.name}:{found.line} imports {found.target}")
    assert not wrong


@EACH_FILE
def test_pure_rooms_have_no_world(path: Path) -> None:
    """From wire to engine nothing reads a clock, opens a socket, takes a lock, starts a thread or rolls dice of its own."""
    if room_of(path) not in PURE:
        return
    wrong = [
        f"{path.name}:{found.line} imports {found.target}"
        for found in imports_of(path)
        if found.target.partition(".")[0] in IMPURE_MODULES or (found.target.startswith("random.") and found.target != "random.Random")
    ]
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            text = ast.unparse(node)
            dotted = ".".join(text.split(".")[-2:])
            if dotted in IMPURE_CALLS or (text.startswith("random.") and text != "random.Random"):
                wrong.append(f"{path.name}:{node.lineno} uses {text}")
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in IMPURE_CALLS | {"open", "print", "input"}:
            wrong.append(f"{path.name}:{node.lineno} calls {node.func.id}")
    assert not wrong


@EACH_FILE
def test_third_party_parts_stay_in_their_room(path: Path) -> None:
    """Sockets are the transport's, mDNS is discovery's, pages are the gateway's; nobody can unpickle anything."""
    room = room_of(path)
    wrong = [
        f"{path.name}:{found.line} imports {found.target}"
        for found in imports_of(path)
        if room not in ONLY_IN.get(found.target.partition(".")[0], {room})
    ]
    assert not wrong


def test_no_circles() -> None:
    """Modules can be imported in one order: no two of them need each other at import."""
    modules = {name_of(path): path for path in FILES}
    needs: dict[str, set[str]] = {}
    for name, path in modules.items():
        targets = [found.target for found in imports_of(path) if found.runs_at_import and found.target.startswith("reachmesh")]
        known = {target if target in modules else target.rpartition(".")[0] for target in targets}
        needs[name] = {other for other in known if other in modules and other != name}
    try:
        TopologicalSorter(needs).prepare()
    except CycleError as error:
        pytest.fail(f"circle: {' -> '.join(error.args[1])}")


PROBE = """
import sys, threading, time
spent = time.process_time()
import reachmesh
spent = time.process_time() - spent
print(spent, threading.active_count(), *[name for name in sys.argv[1:] if name in sys.modules])
"""


def probe() -> list[str]:
    command = [sys.executable, "-W", "error", "-c", PROBE, *NOT_LOADED]
    return subprocess.run(command, check=True, capture_output=True, text=True, cwd=PACKAGE.parent, timeout=60).stdout.split()


def test_import_is_light() -> None:
    """`import reachmesh` takes less than 150 ms, loads no optional part and starts no thread."""
    answers = [probe() for _ in range(3)]
    assert answers[0][2:] == [], "loaded by `import reachmesh`"
    assert answers[0][1] == "1", "threads after `import reachmesh`"
    assert min(float(answer[0]) for answer in answers) < 0.150, "CPU seconds of `import reachmesh`, best of three"
