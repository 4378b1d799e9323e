#!/usr/bin/env python3
"""Policies measured as ratios, between real processes: what the reports from the field complained of, played again.

    python -m tools.fleet [mixed | failures | breaker | slow | overload | idle] ...

mixed     20 agents, 500 calls/s, nine short ones (5 ms) to one medium (0.6 s): P50 of the short ones beside the same without the medium ones
slow      one of ten instances is 10x slower: P99 of each strategy, beside that of the nine healthy ones alone
failures  20 % of executions fail retryably, everywhere or at one of five instances: success of idempotent calls and extra load; then all fail
overload  three times the capacity: success of high priority, goodput, memory of the server
breaker   a provider that takes 2 s a call, 50 at once: P99 with breaker and fallback, and P99 of other agents beside it
idle      fifty nodes at the default settings that do nothing: share of a core, bytes, memory and connections of each; bytes are those of
          the whole loopback interface, so run it alone: unshare -n sh -c "ip link set lo up && python -m tools.fleet idle"

Absolute times depend on the machine; each figure is printed beside the one it is to be compared with.
"""

from __future__ import annotations

import json
import os
import secrets
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from reachmesh import ReachError, ReachNode
from reachmesh.routing import STRATEGIES

ROOT = Path(__file__).resolve().parent.parent
FAST: dict[str, Any] = {"heartbeat_period": 0.5, "warmup": 0}

SERVER = """
import asyncio, random, sys, time
from reachmesh import Overloaded, ReachNode, capability
mesh, pace, failing, limit = sys.argv[1], float(sys.argv[2]), float(sys.argv[3]), int(sys.argv[4]) or None
ran = 0
async def work() -> str:
    global ran
    ran += 1
    if random.random() < failing:
        raise Overloaded("no room")
    await asyncio.sleep(pace)
    return node.instance_id
async def other() -> None:
    await asyncio.sleep(0.005)
def short() -> None:
    time.sleep(0.005)
def medium() -> None:
    time.sleep(0.6)
def count() -> int:
    return ran
caps = [capability("work", handler=work, idempotent=True, max_concurrent=limit)]
caps += [capability(each.__name__, handler=each) for each in (other, count, short)]
caps.append(capability("medium", handler=medium, profile="medium"))
node = ReachNode("worker", caps, mesh=mesh, interfaces=["127.0.0.1"], config=%r)
print("READY", flush=True)
node.serve()
"""


class Fleet(AbstractContextManager["Fleet"]):
    """Serving processes, each with a pace, a share of failures and a limit (0 = none), and one node that calls them."""

    def __init__(self, *workers: tuple[float, float, int], config: dict[str, Any] | None = None) -> None:
        self.mesh = f"fleet-{secrets.token_hex(6)}"
        self.workers = [
            subprocess.Popen([sys.executable, "-c", SERVER % FAST, self.mesh, *map(str, each)], cwd=ROOT, stderr=subprocess.DEVNULL)
            for each in workers
        ]
        self.node = ReachNode("caller", mesh=self.mesh, interfaces=["127.0.0.1"], config={**FAST, **(config or {})})

    def __enter__(self) -> Self:
        self.node.start()
        self.node.wait_for("work", count=len(self.workers), timeout=60)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.node.stop(drain=0)
        for worker in self.workers:
            worker.kill()
            worker.wait(10)

    def ran(self) -> int:
        """Executions of `work` so far, all workers together."""
        return sum(answer.value for answer in self.node.reach("count", timeout=10).all() if answer.error is None)

    def offer(self, rate: float, seconds: float, *, beside: str = "", **options: Any) -> tuple[list[float], Counter[str]]:
        """Call at a steady rate, whatever comes back; durations in ms and outcomes. With `beside`, one call to that after every nine."""
        done: list[tuple[float, str]] = []
        other, others = self.node.reach(beside or "other", timeout=20), []
        reach = self.node.reach(options.pop("cap", "work"), **options)

        def note(began: float) -> Callable[[Any], None]:
            return lambda future: done.append(((time.monotonic() - began) * 1000, outcome(future)))

        start, count = time.monotonic(), int(rate * seconds)
        futures = []
        for n in range(count):
            while (left := start + n / rate - time.monotonic()) > 0:
                time.sleep(min(left, 0.005))
            future = reach.submit()
            future.add_done_callback(note(time.monotonic()))
            futures.append(future)
            if beside and n % 9 == 8:
                others.append(other.submit())
        for future in (*futures, *others):
            future.exception(60)
        while len(done) < count:
            time.sleep(0.01)
        return sorted(took for took, _ in done), Counter(code for _, code in done)


def outcome(future: Any) -> str:
    """The code of a call: ok, or that of its error."""
    error = future.exception(0)
    return "ok" if error is None else error.code if isinstance(error, ReachError) else type(error).__name__


def percentile(values: list[float], share: float) -> float:
    """Of sorted values."""
    return round(values[min(len(values) - 1, int(share * len(values)))], 1)


def mixed() -> dict[str, Any]:
    """Short calls with and without medium ones beside them; one process is an agent."""
    with Fleet(*[(0.0, 0.0, 0)] * 20) as fleet:
        fleet.offer(450, 2, cap="short")
        fleet.offer(50, 2, cap="medium", timeout=20)
        alone, _ = fleet.offer(450, 8, cap="short")
        among, codes = fleet.offer(450, 8, cap="short", beside="medium")
        p50 = percentile(alone, 0.5), percentile(among, 0.5)
        return {"short p50 ms alone": p50[0], "among medium ones": p50[1], "ratio": round(p50[1] / p50[0], 2), "outcomes": dict(codes)}


def slow() -> dict[str, Any]:
    """One of ten instances 10x slower."""
    with Fleet(*[(0.02, 0.0, 0)] * 9) as fleet:
        healthy, _ = fleet.offer(100, 6)
    report: dict[str, Any] = {"nine healthy p99 ms": percentile(healthy, 0.99)}
    with Fleet(*[(0.02, 0.0, 0)] * 9, (0.2, 0.0, 0)) as fleet:
        for strategy in STRATEGIES:
            fleet.offer(100, 1, strategy=strategy)
            took, _ = fleet.offer(100, 6, strategy=strategy)
            p99 = percentile(took, 0.99)
            report[strategy] = {"p99 ms": p99, "ratio": round(p99 / percentile(healthy, 0.99), 2)}
    return report


def failures() -> dict[str, Any]:
    """20 % of executions fail retryably; then all."""
    config = {"breaker_consecutive": 1000, "breaker_min_calls": 100_000}
    report: dict[str, Any] = {}
    everywhere, one = [(0.005, 0.2, 0)] * 5, [(0.005, 0.0, 0)] * 4 + [(0.005, 1.0, 0)]
    for name, workers in (("20 % everywhere", everywhere), ("one of five", one), ("all failing", [(0.005, 1.0, 0)] * 5)):
        with Fleet(*workers, config=config if workers is not one else None) as fleet:
            before = fleet.ran()
            took, codes = fleet.offer(100, 8, retries=2, timeout=10)
            extra = (fleet.ran() - before) / len(took) - 1
            report[name] = {"success": round(codes["ok"] / len(took), 4), "extra load": round(extra, 3)}
    return report


def overload() -> dict[str, Any]:
    """Three times the capacity: 10 % high priority, 90 % low."""
    with Fleet((0.04, 0.0, 4)) as fleet:
        pid, high, low = fleet.workers[0].pid, [], []
        before, start = _mib(pid), time.monotonic()
        ran = fleet.ran()
        for n in range(1800):
            while (left := start + n / 300 - time.monotonic()) > 0:
                time.sleep(min(left, 0.005))
            if n % 10 == 0:
                high.append(fleet.node.reach("work", priority=10, timeout=10).submit())
            else:
                low.append(fleet.node.reach("work", priority=200, timeout=10, retries=0).submit())
        seconds = time.monotonic() - start
        codes = [Counter(outcome(future) for future in each if future.exception(60) or True) for each in (high, low)]
        goodput = (fleet.ran() - ran) / (seconds * 100)
        return {
            "high priority success": round(codes[0]["ok"] / len(high), 4),
            "goodput of capacity": round(goodput, 3),
            "low": dict(codes[1]),
            "server grew MiB": round(_mib(pid) - before, 1),
        }


def breaker() -> dict[str, Any]:
    """A provider that takes 2 s a call where 0.5 s are given, 50 at once; two others offer another capability beside it."""
    with Fleet((2.0, 0.0, 0)) as fleet, Fleet((0.0, 0.0, 0), (0.0, 0.0, 0)) as others:
        alone, _ = others.offer(50, 4, cap="other")
        slow_took, _ = fleet.offer(25, 3, timeout=3)
        reach = fleet.node.reach("work", timeout=0.5, retries=0, fallback="plan b")
        took: list[float] = []

        def agent() -> None:
            """One of 50 callers: the next call follows the last."""
            until = time.monotonic() + 6
            while time.monotonic() < until:
                began = time.monotonic()
                reach.call()
                took.append((time.monotonic() - began) * 1000)
                time.sleep(0.5)

        agents = [threading.Thread(target=agent) for _ in range(50)]
        for each in agents:
            each.start()
        beside, _ = others.offer(50, 4, cap="other")
        opened = [each.reason for each in fleet.node.explain("work").candidates]
        for each in agents:
            each.join()
        took.sort()
        return {
            "p99 ms without": percentile(slow_took, 0.99),
            "p99 ms with breaker and fallback": percentile(took, 0.99),
            "p50 ms with": percentile(took, 0.5),
            "calls in the same time": len(took),
            "state": opened,
            "others' p99 ms": [percentile(alone, 0.99), percentile(beside, 0.99)],
            "others' p99 ratio": round(percentile(beside, 0.99) / percentile(alone, 0.99), 2),
        }


IDLE = """
import sys
from reachmesh import ReachNode
with ReachNode("idle", {"work": lambda: 1}, mesh=sys.argv[1], interfaces=["127.0.0.1"]) as node:
    print("READY", flush=True)
    for _ in sys.stdin:
        print(len(node.peers()), flush=True)
"""


def idle(size: int = 50, seconds: float = 40) -> dict[str, Any]:
    """Nodes that do nothing; the first one's memory alone and among all tells what a peer costs."""
    mesh, pipe, nodes, alone = f"idle-{secrets.token_hex(6)}", subprocess.PIPE, [], 0.0
    try:
        for _ in range(size):
            node = subprocess.Popen([sys.executable, "-c", IDLE, mesh], cwd=ROOT, stdin=pipe, stdout=pipe, text=True)
            nodes.append(node)
            assert node.stdout is not None
            node.stdout.readline()
            if len(nodes) == 1:
                alone = _mib(node.pid)
        time.sleep(30)  # links that are not needed are closed after some periods
        before = [_processor_seconds(node.pid) for node in nodes], _loopback()
        time.sleep(seconds)
        shares = sorted(_processor_seconds(node.pid) - began for node, began in zip(nodes, before[0], strict=True))
        bytes_, packets = (now - then for now, then in zip(_loopback(), before[1], strict=True))
        known = []
        for node in nodes:
            assert node.stdin is not None
            assert node.stdout is not None
            print(file=node.stdin, flush=True)
            known.append(int(node.stdout.readline()))
        return {
            "peers known, least": min(known),
            "% of a core, median and most": [round(100 * share / seconds, 2) for share in (shares[size // 2], shares[-1])],
            "bytes a node and second, headers included": round(bytes_ / seconds / size),
            "packets a node and second": round(packets / seconds / size, 2),
            "KiB a peer": round((_mib(nodes[0].pid) - alone) * 1024 / (size - 1), 1),
            "descriptors": len(list(Path(f"/proc/{nodes[0].pid}/fd").iterdir())),
        }
    finally:
        for node in nodes:
            node.kill()
            node.wait(10)


def _processor_seconds(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def _loopback() -> tuple[int, int]:
    """Bytes and packets that passed the loopback interface so far."""
    fields = next(line for line in Path("/proc/net/dev").read_text().splitlines() if line.strip().startswith("lo:")).split()
    return int(fields[1]), int(fields[2])


def _mib(pid: int) -> float:
    status = Path(f"/proc/{pid}/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmRSS")).split()[1]) / 1024


def main() -> None:
    scenes = {each.__name__: each for each in (mixed, failures, breaker, slow, overload, idle)}
    for name in sys.argv[1:] or scenes:
        print(json.dumps({name: scenes[name]()}), flush=True)


if __name__ == "__main__":
    main()
