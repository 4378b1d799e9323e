"""Real processes for the tests: start scripts, read what they print, signal them, and wait for things with a deadline.

Each `World` is a mesh of its own on 127.0.0.1, so tests never meet each other's nodes. A test waits in one of two ways only:
`Child.expect` for a line of a child, `eventually` for anything else.
"""

from __future__ import annotations

import ctypes
import os
import re
import secrets
import shutil
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self, TypeVar

if TYPE_CHECKING:
    from reachmesh import ReachNode

T = TypeVar("T")

PATIENCE = float(os.environ.get("TEST_PATIENCE", "1"))
"""Multiplies the limits of waiting, never a promise under test; for slow machines."""

CLONE_NEWNET = 0x40000000


def eventually(check: Callable[[], T], timeout: float = 10.0, every: float = 0.01) -> T:
    """Ask `check` until it answers something true, and return that; fail the test after `timeout` seconds."""
    limit = time.monotonic() + timeout * PATIENCE
    while True:
        answer = check()
        if answer:
            return answer
        if time.monotonic() > limit:
            raise AssertionError(f"still {answer!r} after {timeout} s")
        time.sleep(every)


class Child:
    """A running script. Its output is collected from the start; `expect` consumes it line by line, in order."""

    def __init__(self, command: Sequence[str], *, env: Mapping[str, str], cwd: Path) -> None:
        pipe = subprocess.PIPE
        self.process = subprocess.Popen(list(command), env=dict(env), cwd=cwd, stdin=pipe, stdout=pipe, stderr=pipe, text=True, bufsize=1)
        self.lines: list[str] = []
        self.errors: list[str] = []
        self._next = 0
        self._more = threading.Condition()
        self._open = 2
        self._readers = [
            threading.Thread(target=self._collect, args=args, name="test-child-reader", daemon=True)
            for args in ((self.process.stdout, self.lines), (self.process.stderr, self.errors))
        ]
        for reader in self._readers:
            reader.start()

    def _collect(self, pipe: Any, into: list[str]) -> None:
        for line in pipe:
            with self._more:
                into.append(line.rstrip("\n"))
                self._more.notify_all()
        with self._more:
            self._open -= 1
            self._more.notify_all()

    @property
    def pid(self) -> int:
        return self.process.pid

    @property
    def stderr(self) -> str:
        """What the child has written to its stderr so far."""
        with self._more:
            return "\n".join(self.errors)

    def report(self) -> str:
        """All that is known about the child, for a failure's message."""
        return f"exit {self.process.poll()}; stdout {self.lines[-20:]}; stderr {self.stderr[-3000:]}"

    def expect(self, pattern: str, timeout: float = 20.0) -> re.Match[str]:
        """The match of the next stdout line that holds `pattern`; lines before it are skipped for good."""
        limit = time.monotonic() + timeout * PATIENCE
        with self._more:
            while True:
                while self._next < len(self.lines):
                    self._next += 1
                    if match := re.search(pattern, self.lines[self._next - 1]):
                        return match
                left = limit - time.monotonic()
                if self._open == 0 or left <= 0:
                    break
                self._more.wait(left)
        raise AssertionError(f"no line with {pattern!r}: {self.report()}")

    def say(self, line: str) -> None:
        """Write one line to the child's stdin."""
        assert self.process.stdin is not None
        self.process.stdin.write(line + "\n")
        self.process.stdin.flush()

    def signal(self, number: int) -> None:
        self.process.send_signal(number)

    def freeze(self) -> None:
        self.signal(signal.SIGSTOP)

    def thaw(self) -> None:
        self.signal(signal.SIGCONT)

    def terminate(self) -> None:
        self.signal(signal.SIGTERM)

    def kill(self) -> None:
        """End it by SIGKILL, and wait until the kernel has closed its sockets."""
        self.process.kill()
        self.process.wait(10)

    def wait(self, timeout: float = 20.0) -> int:
        """The exit code, once the child has ended and all of its output is read."""
        try:
            code = self.process.wait(timeout * PATIENCE)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"still running after {timeout} s: {self.report()}") from None
        for reader in self._readers:
            reader.join(2)
        return code

    def close(self) -> None:
        """End the child whatever state it is in. A pipe that a grandchild holds open is left to its reader."""
        if self.process.poll() is None:
            self.thaw()
            self.process.kill()
        self.process.wait(10)
        if self.process.stdin is not None:
            try:
                self.process.stdin.close()
            except BrokenPipeError:
                pass
        for reader, pipe in zip(self._readers, (self.process.stdout, self.process.stderr), strict=True):
            reader.join(1)
            if pipe is not None and not reader.is_alive():
                pipe.close()


SERVE = """
import signal, sys, threading, time
from reachmesh import Context, ReachNode, capability

{body}

node = ReachNode({name!r}, caps={caps}, **{options!r})

def tell_when_signals_are_handled():
    while signal.getsignal(signal.SIGTERM) == signal.SIG_DFL:
        time.sleep(0.002)
    print("READY", node.instance_id, *node.endpoints, flush=True)

node.start()
threading.Thread(target=tell_when_signals_are_handled, daemon=True).start()
node.serve()
print("STOPPED", flush=True)
"""


class World:
    """One mesh on loopback: children, nodes and command lines that see only each other; all ended by `close`."""

    def __init__(self) -> None:
        self.mesh = f"test-{secrets.token_hex(6)}"
        self.folder = Path(tempfile.mkdtemp(prefix="reachmesh-test-"))
        self.env = {key: value for key, value in os.environ.items() if not key.startswith("REACHMESH_")}
        self.env |= {"REACHMESH_MESH": self.mesh, "REACHMESH_INTERFACES": "127.0.0.1", "PYTHONUNBUFFERED": "1"}
        self.env["PATH"] = os.pathsep.join([str(Path(sys.executable).parent), self.env.get("PATH", os.defpath)])
        self._children: list[Child] = []
        self._nodes: list[ReachNode] = []

    def start(
        self, source: str, *arguments: str, ready: str | None = "READY", env: Mapping[str, str] | None = None, before: Sequence[str] = ()
    ) -> Child:
        """Run Python source as a process; with `ready`, return once it has printed that. `before` is a command to run it under."""
        command = [*before, sys.executable, "-u", "-c", textwrap.dedent(source), *arguments]
        child = Child(command, env=self.env | dict(env or {}), cwd=self.folder)
        self._children.append(child)
        if ready is not None:
            child.expect(ready)
        return child

    def serve(
        self,
        name: str,
        caps: str,
        body: str = "",
        *,
        env: Mapping[str, str] | None = None,
        before: Sequence[str] = (),
        **options: Any,
    ) -> Child:
        """A node in a process of its own: `caps` is the source of its capabilities, `body` what they need defined.

        Returns once `serve()` handles signals; its READY line holds the instance id and the endpoints.
        """
        source = SERVE.format(name=name, caps=caps, body=textwrap.dedent(body), options=options)
        return self.start(source, env=env, before=before)

    def node(self, name: str = "app", caps: Any = None, **options: Any) -> ReachNode:
        """A started node in the test's own process."""
        from reachmesh import ReachNode  # not before a test needs it: pure tests run without the package's sockets

        node = ReachNode(name, caps, **{"mesh": self.mesh, "interfaces": ["127.0.0.1"], **options})
        self._nodes.append(node)
        node.start()
        return node

    def run(self, *command: str, timeout: float = 30.0, env: Mapping[str, str] | None = None) -> subprocess.CompletedProcess[str]:
        """Run a command line of the project to its end, e.g. `run("reachmesh-inspect", "peers", "--json")`."""
        return subprocess.run(
            command,
            env=self.env | dict(env or {}),
            cwd=self.folder,
            text=True,
            capture_output=True,
            timeout=timeout * PATIENCE,
            check=False,
        )

    def close(self) -> None:
        for node in self._nodes:
            node.stop(drain=0)
        for child in self._children:
            child.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


def namespaces_refused() -> str | None:
    """Why hosts cannot be made out of network namespaces here, or None if they can."""
    if sys.platform != "linux":
        return "network namespaces are Linux's"
    if shutil.which("ip") is None:
        return "there is no `ip` command (package iproute2)"
    name = f"rmtry{secrets.token_hex(3)}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return f"`ip netns add` says: {made.stderr.strip()}" if made.returncode else None


def kernel_permits_namespaces() -> bool:
    """Whether this process may make a network namespace at all, asked of the kernel itself in a child."""
    ask = f"import ctypes, sys; sys.exit(ctypes.CDLL(None, use_errno=True).unshare({CLONE_NEWNET}) != 0)"
    return hasattr(ctypes.CDLL(None), "unshare") and subprocess.run([sys.executable, "-I", "-c", ask], check=False).returncode == 0
