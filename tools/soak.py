#!/usr/bin/env python3
"""A mesh under trouble for a bounded time, and the promises that must hold all along.

    python -m tools.soak --seconds 60 --seed 1

Six serving processes; every 20 s one is killed (kill -9 and clean in turn) and started again under the same name and port. Among
the handlers: one that blocks, one that holds the interpreter lock, an endless stream that is dropped every 5 s, one whose run time lies
around the timeout. Payloads from 10 bytes to 1 MiB. Checked: every call ends exactly once and by its deadline, no answer is another
call's, no expired call is executed, the tables of all nodes hold the living processes and no others within seconds, and descriptors,
threads, tasks and memory stay flat, in the caller and in each server.

Exit code 0 = all held; 1 = the report says what did not.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import hashlib
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

from reachmesh import BadRequest, PayloadError, ProtocolError, ReachError, ReachNode, RemoteError, UsageError

ROOT = Path(__file__).resolve().parent.parent
SERVERS = 6
CALLERS = 4
LATE = 0.25
"""Seconds beyond its deadline by which a call has ended; the machine's own stalls are measured beside it."""

GRACE = 1.5
"""Seconds added for a loaded machine."""

SETTLED = 20.0
"""Seconds after a restart by which every table is right."""

OURS = (BadRequest, PayloadError, ProtocolError, RemoteError, UsageError)
"""Errors that none of these calls deserves, whatever happens to processes and links."""

FAST: dict[str, Any] = {"heartbeat_period": 0.5, "warmup": 0, "breaker_consecutive": 1000, "breaker_min_calls": 100_000}

SERVER = """
import asyncio, hashlib, sys, time
from reachmesh import Context, ReachNode, capability
from tools.soak import usage
name, mesh, port = sys.argv[1:]
late = []
def started(ctx: Context) -> None:
    if ctx.deadline is not None and ctx.remaining() < %r:
        late.append(ctx.remaining())
def echo(token: str, data: bytes, ctx: Context) -> list:
    started(ctx)
    return [token, hashlib.blake2b(data, digest_size=8).hexdigest()]
async def aecho(token: str, data: bytes, ctx: Context) -> list:
    started(ctx)
    return [token, hashlib.blake2b(data, digest_size=8).hexdigest()]
def block(token: str, ctx: Context) -> str:
    started(ctx)
    time.sleep(0.5)
    return token
def hold_lock(token: str, ctx: Context) -> str:
    started(ctx)
    end = time.perf_counter() + 0.15
    while time.perf_counter() < end:
        sum(range(20000))
    return token
def around(token: str, ctx: Context) -> list:
    started(ctx)
    left = ctx.remaining()
    time.sleep(0.2)
    return [token, left]
def endless():
    n = 0
    while True:
        yield n
        n += 1
async def report() -> dict:
    peers = [peer.instance_id for peer in node.peers()]
    return {**usage(), "tasks": len(asyncio.all_tasks()), "late": late, "peers": peers}
caps = [capability(f.__name__, handler=f, idempotent=f is not block) for f in (echo, aecho, block, hold_lock, around, endless, report)]
node = ReachNode(name, caps, mesh=mesh, interfaces=["127.0.0.1"], bind=f"127.0.0.1:{port}", config=%r)
node.serve()
"""


class Mesh:
    """The serving processes."""

    def __init__(self, mesh: str) -> None:
        self.mesh = mesh
        self.ports = [_free_port() for _ in range(SERVERS)]
        self.processes: list[subprocess.Popen[bytes]] = [self._start(n) for n in range(SERVERS)]

    def _start(self, number: int) -> subprocess.Popen[bytes]:
        command = [sys.executable, "-c", SERVER % (-LATE, FAST), f"server-{number}", self.mesh, str(self.ports[number])]
        return subprocess.Popen(command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)

    def restart(self, number: int, how: signal.Signals) -> None:
        """End one and start it again under its name and port."""
        process = self.processes[number]
        process.send_signal(how)
        process.wait(30)
        self.processes[number] = self._start(number)

    def lives(self, instance_id: str) -> bool:
        """Whether an instance id is that of one of the processes; it ends in the process id and a random part."""
        return int(instance_id.split("-")[-2]) in {process.pid for process in self.processes}

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
        self.watched: list[tuple[str, float, float, list[float]]] = []
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
            self._check(kind, token, timeout, future, arguments.get("data"))
            self.watched.append((kind, timeout, began, ended))
            with self._lock:
                self.open -= 1

        return future, finish

    def _check(self, kind: str, token: str, timeout: float, future: Any, data: bytes | None) -> None:
        error = future.exception(0)
        code = "ok" if error is None else getattr(error, "code", type(error).__name__)
        with self._lock:
            self.ends[f"{kind} {code}"] += 1
        if isinstance(error, OURS):
            self.faults.append(f"{kind} {token} of {len(data or b'')} bytes: {error!r} after {len(error.attempts)} attempts")
        if error is None:
            answer = future.result(0)
            given = answer if isinstance(answer, str) else answer[0]
            if given != token:
                self.faults.append(f"{kind} {token} got the answer of {given}")
            if data is not None and answer[1] != hashlib.blake2b(data, digest_size=8).hexdigest():
                self.faults.append(f"{kind} {token} of {len(data)} bytes arrived as something else")
            if kind == "around" and answer[1] <= -LATE:
                self.faults.append(f"{kind} {token} was executed when its time was over")

    def ends_once(self) -> None:
        """Look at the calls that have ended a while ago: each once, and in time. What was looked at is dropped."""
        watched, self.watched = self.watched, []
        for kind, timeout, began, ended in watched:
            if len(ended) != 1:
                self.faults.append(f"{kind} ended {len(ended)} times")
            elif (took := ended[0] - began) > timeout + LATE + GRACE:
                self.faults.append(f"{kind} with {timeout:.2f} s ended after {took:.2f} s")
            else:
                self.latest = max(self.latest, took - timeout)

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


def settle(node: ReachNode, mesh: Mesh) -> dict[str, Any]:
    """Wait until every table is right; the reports of the servers by instance id, with what is wrong under "wrong"."""
    limit = time.monotonic() + SETTLED
    while True:
        reports = {each.instance_id: each.value for each in node.reach("report", timeout=5).all() if each.error is None}
        known = {each.instance_id for each in node.providers("echo")}
        wrong = ""
        if len(known) != SERVERS or not all(map(mesh.lives, known)):
            wrong = f"the caller knows {sorted(known)}"
        elif set(reports) != known:
            wrong = f"{sorted(known - set(reports))} do not answer"
        for instance_id, report in reports.items():
            if set(report["peers"]) != (known | {node.instance_id}) - {instance_id}:
                wrong = f"{instance_id} knows {sorted(report['peers'])}"
        if not wrong or time.monotonic() > limit:
            return {"wrong": wrong, **reports}
        time.sleep(0.2)


def grown(first: dict[str, float], last: dict[str, float]) -> bool:
    """Whether anything is not flat."""
    more = any(last[what] > first[what] + 20 for what in ("fds", "threads", "tasks") if what in first)
    return more or last["mib"] > first["mib"] * 1.3 + 30


def run(seconds: float, seed: int, every: float) -> dict[str, Any]:
    """One soak; gives its report."""
    rng = random.Random(seed)
    mesh = Mesh(f"soak-{secrets.token_hex(6)}")
    node = ReachNode("soak", mesh=mesh.mesh, interfaces=["127.0.0.1"], config=FAST)
    faults: list[str] = []
    marks: dict[str, list[dict[str, float]]] = {"soak": []}
    with node:
        soak = Soak(node, seed)

        def look() -> None:
            reports = settle(node, mesh)
            if wrong := reports.pop("wrong"):
                faults.append(f"after {time.monotonic() - began:.0f} s a table is wrong: {wrong}")
            marks["soak"].append(usage())
            for instance_id, report in reports.items():
                faults.extend(f"{instance_id} began a call {-late:.3f} s after its time" for late in report.pop("late"))
                del report["peers"]
                marks.setdefault(instance_id, []).append(report)
            soak.ends_once()

        try:
            node.wait_for("echo", count=SERVERS, timeout=60)
            threads = [threading.Thread(target=soak.caller, args=(n,), daemon=True) for n in range(CALLERS)]
            threads.append(threading.Thread(target=soak.streamer, daemon=True))
            for thread in threads:
                thread.start()
            began, number = time.monotonic(), 0
            while (left := began + seconds - time.monotonic()) > 0:
                soak.over.wait(min(every, left))
                look()
                if time.monotonic() < began + seconds:
                    mesh.restart(rng.randrange(SERVERS), signal.SIGKILL if number % 2 == 0 else signal.SIGTERM)
                    number += 1
                    look()
            soak.over.set()
            for thread in threads:
                thread.join(40)
                if thread.is_alive():
                    faults.append("a call did not end within 40 s")
            time.sleep(LATE)
            look()
            open_now = node._driver.ask(lambda now: node._driver.engine.caller.open)
            if soak.open or open_now:
                faults.append(f"{soak.open} calls without an end, {open_now} open in the engine")
        finally:
            mesh.close()
    faults += soak.faults
    for who, seen in marks.items():
        if len(seen) > 2 and grown(seen[1], seen[-1]):
            faults.append(f"{who} is not flat: {seen[1]} became {seen[-1]}")
    return {
        "seconds": seconds,
        "seed": seed,
        "restarts": number,
        "calls": sum(soak.ends.values()),
        "ends": dict(sorted(soak.ends.items())),
        "latest end after a deadline, s": round(soak.latest, 3),
        "caller": [marks["soak"][0], marks["soak"][-1]],
        "longest server": max((each for who, each in marks.items() if who != "soak"), key=len)[:: max(1, len(marks["soak"]) // 6)],
        "faults": list(dict.fromkeys(faults))[:50],
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
