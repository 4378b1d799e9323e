"""Runs the newsroom: several processes that find each other, share work and stream to each other. No address is written anywhere.

    python examples/newsroom/run.py                          everything, on 127.0.0.1, in a mesh of its own
    python examples/newsroom/run.py --topic "parse dates"
    python examples/newsroom/run.py --lan search summary     only these, on the LAN, until Ctrl-C; the others run elsewhere

Each agent is a script of this folder and can be started alone as well. This file only starts and ends them.
"""

from __future__ import annotations

import argparse
import os
import secrets
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

HERE = Path(__file__).resolve().parent

AGENTS = {
    "search": [["search.py", "1/2"], ["search.py", "2/2"]],
    "summary": [["summary.py"], ["summary.py"]],
    "writer": [["writer.py"]],
    "press": [["press.py"]],
    "editor": [["editor.py"]],
}
GOODBYE = 5.0


class Agents:
    """Processes of the newsroom, all ended when the `with` block is left, however it is left."""

    def __init__(self, env: dict[str, str]) -> None:
        self._env = env
        self._running: list[tuple[str, subprocess.Popen[bytes]]] = []

    def start(self, command: Sequence[str]) -> subprocess.Popen[bytes]:
        """Run a script of this folder. It gets a session of its own: Ctrl-C is for this process, which then ends the others."""
        process = subprocess.Popen(
            [sys.executable, "-u", str(HERE / command[0]), *command[1:]], env=self._env, stdin=subprocess.DEVNULL, start_new_session=True
        )
        self._running.append((" ".join(command), process))
        return process

    def broken(self) -> str | None:
        """Which agent ended by itself, if one did."""
        return next((f"{name} ended with exit code {each.poll()}" for name, each in self._running if each.poll() is not None), None)

    def stop(self) -> dict[str, int]:
        """Ask each to leave (SIGTERM: they finish what they accepted and say goodbye), insist after `GOODBYE` s; their exit codes."""
        for _, process in self._running:
            process.terminate()
        codes = {}
        for number, (name, process) in enumerate(self._running, start=1):
            try:
                code = process.wait(GOODBYE)
            except subprocess.TimeoutExpired:
                process.kill()
                code = process.wait()
            codes[f"{number} {name}"] = code
        self._running.clear()
        return codes

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def environment(lan: bool, mesh: str | None) -> dict[str, str]:
    """Settings of the agents' nodes: on the LAN the defaults, else loopback only and a mesh that nobody else is in."""
    env = dict(os.environ)
    if lan:
        env["REACHMESH_MESH"] = mesh or "newsroom"
    else:
        env["REACHMESH_MESH"] = mesh or f"newsroom-{secrets.token_hex(4)}"
        env["REACHMESH_INTERFACES"] = "127.0.0.1"
    return env


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", metavar="PART", help=f"{', '.join(AGENTS)} or reader; default: all")
    parser.add_argument("--lan", action="store_true", help="meet others on the LAN")
    parser.add_argument("--mesh", help="name of the mesh to join")
    parser.add_argument("--topic", default="read compressed archive files", help="what the article is about")
    options = parser.parse_args()
    parts = options.parts or [*AGENTS, "reader"]
    if unknown := set(parts) - {*AGENTS, "reader"}:
        parser.error(f"no such part: {', '.join(sorted(unknown))}")

    ended = threading.Event()
    for name in ("SIGTERM", "SIGINT", "SIGHUP"):
        if hasattr(signal, name):
            signal.signal(getattr(signal, name), lambda *_: ended.set())
    with Agents(environment(options.lan, options.mesh)) as agents:
        for part in parts:
            for command in AGENTS.get(part, ()):
                agents.start(command)
        reader = agents.start(["reader.py", options.topic]) if "reader" in parts else None
        while not ended.wait(0.05):
            if reader is not None and reader.poll() is not None:
                break
            if problem := agents.broken():
                print(problem, file=sys.stderr)
                return 1
        codes = agents.stop()
    if ended.is_set() and reader is not None:
        return 130
    failed = {name: code for name, code in codes.items() if code}
    print(f"{len(codes)} processes ended; not with exit code 0: {failed or 'none'}", flush=True)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
