#!/usr/bin/env python3
"""A mesh under trouble for a bounded time, and the promises that must hold all along.

    python -m tools.soak --seconds 60 --seed 1

Six serving processes; every 20 s one is killed (kill -9 and clean in turn) and started again under the same name and port. Among
the handlers: one that blocks, one that holds the interpreter lock, an endless stream that is dropped every 5 s, one whose run time lies
around the timeout. Payloads from 10 bytes to 1 MiB. Checked: every call ends exactly once and by its deadline, no answer is another
call's, no expired call is executed, tables are right within seconds, and descriptors, threads, tasks and memory stay flat.

Exit code 0 = all held; 1 = the report says what did not.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import json
import os
import random
import secrets
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from reachmesh import ReachError, ReachNode

ROOT = Path(__file__).resolve().parent.parent
SERVERS = 6
CALLERS = 4
LATE = 0.25
"""Seconds beyond its deadline by which a call has ended; the machine's own stalls are measured beside it."""

GRACE = 1.5
"""Seconds added for a loaded machine."""

FAST: dict[str, Any] = {"heartbeat_period": 0.5, "warmup": 0, "breaker_consecutive": 1000, "breaker_min_calls": 100_000}

SERVER = """
import hashlib, sys, time
from reachmesh import Context, ReachNode, capability
name, mesh, port = sys.argv[1:]
def echo(token: str, data: bytes) -> list:
    return [token, hashlib.blake2b(data, digest_size=8).hexdigest()]
async def aecho(token: str, data: bytes) -> list:
    return [token, hashlib.blake2b(data, digest_size=8).hexdigest()]
def block(token: str) -> str:
    time.sleep(0.5)
    return token
def hold_lock(token: str) -> str:
    end = time.perf_counter() + 0.15
    while time.perf_counter() < end:
        sum(range(20000))
    return token
def around(token: str, ctx: Context) -> list:
    left = ctx.remaining()
    time.sleep(0.2)
    return [token, left]
def endless():
    n = 0
    while True:
        yield n
        n += 1
caps = [capability(f.__name__, handler=f, idempotent=f is not block) for f in (echo, aecho, block, hold_lock, around, endless)]
node = ReachNode(name, caps, mesh=mesh, interfaces=["127.0.0.1"], bind=f"127.0.0.1:{port}", config=%r)
print("READY", flush=True)
node.serve()
"""


class Mesh:
    """The serving processes."""

    def __init__(self, mesh: str) -> None:
        self.mesh = mesh
        self.ports = [_free_port() for _ in range(SERVERS)]
        self.processes: list[subprocess.Popen[bytes]] = [self._start(n) for n in range(SERVERS)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", SERVER % FAST, f"server-{number}", self.mesh, str(self.ports[number])]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def restart(self, number: int, how: signal.Signals) -> None:
        """End one and start it again under its name and port."""
        process = self.processes[number]
        process.send_signal(how)
        process.wait(30)
        self.processes[number] = self._start(number)

    def close(self) -> None:
        for process in self.processes:
            process.kill()
            process.wait(10)


class Soak:
    """The callers and what they saw."""

    def __init__(self, node: ReachNode, seed: int) -> None:
        self.node, self.seed = node, seed
        self.over = threading.Event()
        self.ends: collections.Counter[str] = collections.Counter()
        self.faults: list[str] = []
        self.open = 0
        self.latest = 0.0
        self._lock = threading.Lock()

    def caller(self, number: int) -> None:
        """One thread: a random call after the other, eight at a time."""
        rng = random.Random(self.seed * 1000 + number)
        while not self.over.is_set():
            pending = [self._call(rng) for _ in range(8)]
            for future, finish in pending:
                with contextlib.suppress(ReachError):
                    future.result(30)
                finish()

    def _call(self, rng: random.Random) -> tuple[Any, Any]:
        token = secrets.token_hex(8)
        kind = rng.choices(["echo", "aecho", "block", "hold_lock", "around"], [10, 10, 1, 1, 3])[0]
        timeout = rng.uniform(0.05, 0.4) if kind == "around" else rng.uniform(2, 6)
        arguments: dict[str, Any] = {"token": token}
        if kind in ("echo", "aecho"):
            arguments["data"] = rng.randbytes(int(10 ** rng.uniform(1, 6)))
        began = time.monotonic()
        ended: list[float] = []
        with self._lock:
            self.open += 1
        future = self.node.reach(kind, timeout=timeout).submit(**arguments)
        future.add_done_callback(lambda done: ended.append(time.monotonic()))

        def finish() -> None:
            self._check(kind, token, timeout, began, future)
            with self._lock:
                self.open -= 1

        return future, finish

    def _check(self, kind: str, token: str, timeout: float, began: float, future: Any) -> None:
        error = future.exception(0)
        took = time.monotonic() - began
        code = "ok" if error is None else getattr(error, "code", type(error).__name__)
        with self._lock:
            self.ends[f"{kind} {code}"] += 1
            if took > 8 + LATE + GRACE:
                self.faults.append(f"{kind} with {timeout:.2f} s ended after {took:.2f} s")
        if error is None:
            answer = future.result(0)
            given = answer if isinstance(answer, str) else answer[0]
            if given != token:
                self.faults.append(f"{kind} {token} got the answer of {given}")
            if kind == "around" and answer[1] <= 0:
                self.faults.append(f"{kind} {token} was executed when its time was over")

    def streamer(self) -> None:
        """An endless stream, dropped every 5 s; items must come in order."""
        while not self.over.is_set():
            until, expected = time.monotonic() + 5, 0
            try:
                with self.node.reach("endless").stream() as stream:
                    for item in stream:
                        if item != expected:
                            self.faults.append(f"stream item {item} in place of {expected}")
                        expected += 1
                        if time.monotonic() > until or self.over.is_set():
                            break
                        if item % 100 == 0:
                            self.over.wait(0.01)
            except ReachError as error:
                self.ends[f"endless {error.code}"] += 1
                self.over.wait(0.2)


def usage() -> dict[str, float]:
    """Descriptors, threads and MiB of this process."""
    status = Path("/proc/self/status").read_text()
    rss = int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024
    return {"fds": len(os.listdir("/proc/self/fd")), "threads": threading.active_count(), "mib": round(rss, 1)}


def run(seconds: float, seed: int, every: float) -> dict[str, Any]:
    """One soak; gives its report."""
    rng = random.Random(seed)
    mesh = Mesh(f"soak-{secrets.token_hex(6)}")
    node = ReachNode("soak", mesh=mesh.mesh, interfaces=["127.0.0.1"], config=FAST)
    faults: list[str] = []
    marks = []
    with node:
        soak = Soak(node, seed)
        try:
            node.wait_for("echo", count=SERVERS, timeout=60)
            threads = [threading.Thread(target=soak.caller, args=(n,), daemon=True) for n in range(CALLERS)]
            threads.append(threading.Thread(target=soak.streamer, daemon=True))
            for thread in threads:
                thread.start()
            end, number = time.monotonic() + seconds, 0
            while time.monotonic() < end:
                soak.over.wait(min(every, max(0.0, end - time.monotonic())))
                marks.append(usage())
                if time.monotonic() < end:
                    mesh.restart(rng.randrange(SERVERS), signal.SIGKILL if number % 2 == 0 else signal.SIGTERM)
                    number += 1
                    limit = time.monotonic() + 20
                    while len(node.providers("echo")) != SERVERS and time.monotonic() < limit:
                        soak.over.wait(0.05)
                    if len(node.providers("echo")) != SERVERS:
                        faults.append(f"{len(node.providers('echo'))} of {SERVERS} providers 20 s after a restart")
            soak.over.set()
            for thread in threads:
                thread.join(40)
                if thread.is_alive():
                    faults.append("a call did not end within 40 s")
            open_now = node._driver.ask(lambda now: node._driver.engine.caller.open)
            if soak.open or open_now:
                faults.append(f"{soak.open} calls without an end, {open_now} open in the engine")
        finally:
            mesh.close()
    faults += soak.faults
    if len(marks) > 2:
        first, last = marks[min(1, len(marks) - 2)], marks[-1]
        if last["fds"] > first["fds"] + 20 or last["threads"] > first["threads"] + 20 or last["mib"] > first["mib"] * 1.3 + 30:
            faults.append(f"not flat: {first} became {last}")
    calls = sum(soak.ends.values())
    return {
        "seconds": seconds,
        "seed": seed,
        "calls": calls,
        "ends": dict(sorted(soak.ends.items())),
        "usage": marks,
        "faults": faults[:50],
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--every", type=float, default=20.0, help="seconds between two restarts")
    parser.add_argument("--seed", type=int, default=1)
    given = parser.parse_args()
    report = run(given.seconds, given.seed, given.every)
    print(json.dumps(report, indent=2))
    return 1 if report["faults"] else 0


if __name__ == "__main__":
    sys.exit(main())
