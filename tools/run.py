#!/usr/bin/env python3
"""One command for whoever has just cloned the repository: makes the environment it needs, then does the thing.

    python3 tools/run.py demo            examples/newsroom, end to end on 127.0.0.1
    python3 tools/run.py test [ARGS]     the test suite; ARGS go to pytest
    python3 tools/run.py lint            ruff, mypy, pyright
    python3 tools/run.py bench [ARGS]    reachmesh beside its peers; ARGS go to tools/bench (--quick, --json, ...)

Needs Python 3.11 with pip and nothing else: only the standard library is used here. Each environment is made once, in `.venv`
(`.venv-bench` for the peers of the benchmark), and made anew when pyproject.toml asks for other packages. Every command is printed
before it runs; the exit code is that of the first one that failed.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = (3, 11)
PIP_TRIES = 3


class CommandFailed(Exception):
    """A command ended with `code`, which becomes our own exit code."""

    def __init__(self, code: int) -> None:
        super().__init__(f"exit code {code}")
        self.code = code


def run(command: list[str]) -> None:
    """Print a command, run it in the checkout, raise `CommandFailed` when it fails."""
    print("+", shlex.join(command), flush=True)
    env = {**os.environ, "PYTHONUNBUFFERED": "1", "PIP_DISABLE_PIP_VERSION_CHECK": "1"}
    if (folder := Path(command[0]).parent) != Path():  # an environment's own programs first: pyright looks packages up through PATH
        env["PATH"] = f"{folder}{os.pathsep}{env.get('PATH', os.defpath)}"
    code = subprocess.run(command, cwd=ROOT, env=env, check=False).returncode
    if code:
        raise CommandFailed(code if code > 0 else 128 - code)


def pip_install(python: Path, arguments: list[str]) -> None:
    """`pip install`, tried again after a while: an index now and then refuses a connection."""
    command = [str(python), "-m", "pip", "install", "--quiet", *arguments]
    for left in reversed(range(PIP_TRIES)):
        try:
            return run(command)
        except CommandFailed:
            if not left:
                raise
            print(f"pip failed; trying again ({left} left)", flush=True)
            time.sleep(3)


def environment(folder: str = ".venv", extras: tuple[str, ...] = ()) -> Path:
    """The python of a virtual environment that holds the project with `extras`, made or renewed only if it must be.

    A stamp inside the environment holds the digest of what it was made from and the extras it has; extras add up, so that
    `demo` and `test` share one environment.
    """
    import tomllib  # here, so that an older Python gets as far as being told that it is too old

    venv = ROOT / folder
    python = venv / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = venv / "reachmesh.stamp"
    with (ROOT / "pyproject.toml").open("rb") as file:
        described = tomllib.load(file)
    origin = [described["build-system"], described["project"], sys.version, str(ROOT)]
    digest = hashlib.sha256(json.dumps(origin).encode()).hexdigest()
    made_from, *present = stamp.read_text().split() if stamp.exists() else [""]
    current = made_from == digest and python.exists()
    if current and set(extras) <= set(present):
        return python
    if not current:
        run([sys.executable, "-m", "venv", "--clear", str(venv)])
    wanted = sorted({*extras, *present})
    pip_install(python, ["--editable", f".[{','.join(wanted)}]" if wanted else "."])
    stamp.write_text(" ".join([digest, *wanted]))
    return python


def demo(arguments: list[str]) -> None:
    """Install the project and run the newsroom example from start to end."""
    run([str(environment()), "examples/newsroom/run.py", *arguments])


def test(arguments: list[str]) -> None:
    """Run the test suite."""
    run([str(environment(extras=("dev",))), "-m", "pytest", *arguments])


def lint(arguments: list[str]) -> None:
    """Run every checker even if one has found something; fail if any did."""
    python = str(environment(extras=("dev",)))
    checks = [
        ["ruff", "check", "."],
        ["ruff", "format", "--check", "."],
        ["mypy"],
        ["pyright"],
    ]
    failed = 0
    for check in checks:
        try:
            run([python, "-m", *check, *arguments])
        except CommandFailed as error:
            failed = error.code
    if failed:
        raise CommandFailed(failed)


def bench(arguments: list[str]) -> None:
    """Install the peers, as many as can be had, and compare."""
    python = environment(".venv-bench", ("numpy",))
    run([str(python), "-m", "tools.bench", *arguments])


def main() -> int:
    """Read the command line; return the exit code."""
    if sys.version_info < OLDEST:
        print(f"reachmesh needs Python {OLDEST[0]}.{OLDEST[1]} or newer; this is {sys.version.split()[0]}", file=sys.stderr)
        return 2
    commands = {"demo": demo, "test": test, "lint": lint, "bench": bench}
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=commands)
    chosen = parser.parse_args(sys.argv[1:2])
    try:
        commands[chosen.command](sys.argv[2:])
    except CommandFailed as error:
        print(f"{chosen.command}: failed, {error}", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main())
