"""Runs the comparison: `python3 tools/run.py bench [--quick] [--json] [--only NAME ...] [--works NAME ...]`.

All variants are up at the same time, each as a server and a client process on 127.0.0.1, and take turns: for each round, for each
work, every variant once. So what the machine does meanwhile hits them alike, and a ratio compares figures taken within seconds.
Idle variants wait in their event loops; what that costs is measured too (idle). No peer that cannot be installed stops a run.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

from tools.bench.interface import Variant
from tools.bench.machine import Usage, bring, machine, versions
from tools.bench.peers import VARIANTS
from tools.bench.table import Cell, Cells, as_data, as_text
from tools.bench.works import WORKS, Work

START_LIMIT = 60.0
ANSWER_LIMIT = 60.0
IDLE_SECONDS = 5.0
QUICK_IDLE_SECONDS = 2.0
PER_SERVER = 10
"""Instances in one server process when there are many."""


class WorkerFailed(Exception):
    """A worker process ended, or did not answer in time."""


class Worker:
    """A worker process, its answers, and an end to it."""

    def __init__(self, role: str, variant: Variant, *arguments: str) -> None:
        command = [sys.executable, "-m", "tools.bench.worker", role, variant.name, *arguments]
        self.errors: list[str] = []
        self.process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1, start_new_session=True
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors = [*self.errors[-20:], line.rstrip()]

    def answer(self, limit: float) -> Any:
        """The next line it prints."""
        try:
            line = self._lines.get(timeout=limit)
        except queue.Empty:
            raise WorkerFailed(f"no answer within {limit:.0f} s") from None
        if line is None:
            raise WorkerFailed(f"ended: {self.errors[-1] if self.errors else 'without a word'}")
        return json.loads(line)

    def ask(self, question: dict[str, Any], limit: float) -> Any:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
        except BrokenPipeError:
            raise WorkerFailed(f"ended: {self.errors[-1] if self.errors else 'without a word'}") from None
        return self.answer(limit)

    def close(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(10)


class Pair:
    """A variant that is up: its servers and its client."""

    def __init__(self, variant: Variant, instances: int = 1) -> None:
        self.variant = variant
        self.workers: list[Worker] = []
        try:
            self.addresses: list[str] = []
            while instances > 0:
                self.addresses += self._serve(min(instances, PER_SERVER))
                instances -= PER_SERVER
            self.client = self._start("client", *self.addresses)
            self.client.answer(START_LIMIT)
        except BaseException:
            self.close()
            raise

    def _start(self, role: str, *arguments: str) -> Worker:
        worker = Worker(role, self.variant, *arguments)
        self.workers.append(worker)
        return worker

    def _serve(self, instances: int) -> list[str]:
        addresses: list[str] = self._start("serve", str(instances)).answer(START_LIMIT)
        return addresses

    def measure(self, work: Work, seconds: float) -> Cell:
        """One round of one work; a variant that hangs is given up for this run."""
        answer = self.client.ask({"work": work.name, "seconds": seconds}, ANSWER_LIMIT + 20 * seconds)
        if "value" in answer:
            return Cell([answer["value"]])
        return Cell([], answer.get("absent") or answer["failed"])

    def first_call(self) -> dict[str, float]:
        """Import time and time to the first answer, each in a fresh process."""
        worker = self._start("first", *self.addresses)
        found: dict[str, float] = worker.answer(START_LIMIT)
        worker.close()
        self.workers.remove(worker)
        return found

    def usage(self) -> tuple[float, int]:
        """CPU seconds so far and resident bytes of all its processes."""
        used = [Usage(worker.process.pid) for worker in self.workers]
        return sum(each.cpu for each in used), sum(each.memory for each in used)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()


class Run:
    """One whole comparison."""

    def __init__(self, variants: list[Variant], works: list[Work], rounds: int, seconds: float, idle_seconds: float) -> None:
        self.variants, self.works, self.rounds, self.seconds, self.idle_seconds = variants, works, rounds, seconds, idle_seconds
        self.absent: dict[str, str] = {}
        self.pairs: dict[str, Pair] = {}
        self.cells: Cells = {}

    def go(self) -> None:
        """Bring the peers in, start them, measure, and end them again."""
        for variant in self.variants:
            if reason := bring(variant):
                self.absent[variant.name] = reason
            else:
                self._start(variant)
        try:
            for turn in range(self.rounds):
                for work in self.works:
                    say(f"round {turn + 1} of {self.rounds}: {work.title}")
                    for variant in self.variants:
                        self._measure(work, variant)
                for name in list(self.pairs):
                    self._extra(name)
            self._idle()
        finally:
            for pair in self.pairs.values():
                pair.close()

    def _start(self, variant: Variant) -> None:
        say(f"starting {variant.name}")
        try:
            self.pairs[variant.name] = Pair(variant)
        except WorkerFailed as error:
            self.absent[variant.name] = str(error)

    def _put(self, work: str, variant: str, cell: Cell) -> None:
        row = self.cells.setdefault(work, {})
        before = row.get(variant, Cell([]))
        row[variant] = Cell([*before.values, *cell.values], cell.why_not or before.why_not)

    def _measure(self, work: Work, variant: Variant) -> None:
        if variant.name not in self.pairs:
            return
        try:
            if work.instances == 1:
                cell = self.pairs[variant.name].measure(work, self.seconds)
            elif self.cells.get(work.name, {}).get(variant.name, Cell([])).why_not:
                return
            else:
                many = Pair(variant, work.instances)
                try:
                    cell = many.measure(work, self.seconds)
                finally:
                    many.close()
        except WorkerFailed as error:
            cell = Cell([], str(error))
            if work.instances == 1:
                self.pairs.pop(variant.name).close()
                self._start(variant)
        self._put(work.name, variant.name, cell)

    def _extra(self, name: str) -> None:
        try:
            for work, value in self.pairs[name].first_call().items():
                self._put(work, name, Cell([value]))
        except WorkerFailed as error:
            self._put("first-call", name, Cell([], str(error)))

    def _idle(self) -> None:
        say("all idle")
        before = {name: pair.usage()[0] for name, pair in self.pairs.items()}
        time.sleep(self.idle_seconds)
        for name, pair in self.pairs.items():
            cpu, memory = pair.usage()
            self._put("idle", name, Cell([100 * (cpu - before[name]) / self.idle_seconds]))
            self._put("memory", name, Cell([memory / 2**20]))


def say(text: str) -> None:
    """Progress, apart from the result."""
    print(text, file=sys.stderr, flush=True)


def chosen(every: tuple[Any, ...], names: list[str] | None, parser: argparse.ArgumentParser) -> list[Any]:
    """Those of `every` whose name is in `names` or begins with one of them; all without names."""
    if not names:
        return list(every)
    picked = [each for each in every if any(each.name == name or each.name.startswith(f"{name}-") for name in names)]
    if not picked:
        parser.error(f"nothing is called {' or '.join(names)}; there are {', '.join(each.name for each in every)}")
    return picked


def main() -> int:
    """Read the command line, run, report; 0 unless not even raw could be measured."""
    parser = argparse.ArgumentParser(prog="python3 tools/run.py bench", description="reachmesh beside its peers, on this machine")
    parser.add_argument("--quick", action="store_true", help="one short round, under two minutes")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="the whole result as JSON, in FILE or instead of the tables")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these variants (raw is always there), e.g. reachmesh grpc-aio")
    parser.add_argument("--works", nargs="+", metavar="NAME", help="these works, e.g. one-blocking out stream")
    parser.add_argument("--rounds", type=int, help="rounds to take the median of (default 3, quick 1)")
    parser.add_argument("--seconds", type=float, help="seconds a work and round (default 1, quick 0.2)")
    options = parser.parse_args()
    variants = chosen(VARIANTS, [*options.only, "raw"] if options.only else None, parser)
    works = [work for work in chosen(WORKS, options.works, parser) if work.quick or not options.quick or options.works]
    run = Run(
        variants,
        works,
        rounds=options.rounds or (1 if options.quick else 3),
        seconds=options.seconds or (0.2 if options.quick else 1.0),
        idle_seconds=QUICK_IDLE_SECONDS if options.quick else IDLE_SECONDS,
    )
    facts = machine()
    started = time.monotonic()
    run.go()
    used = versions([variant for variant in variants if variant.name not in run.absent])
    took = time.monotonic() - started
    result = {
        "machine": facts,
        "versions": used,
        "rounds": run.rounds,
        "seconds": run.seconds,
        "took": took,
        "absent": run.absent,
        "works": as_data(run.cells),
    }
    if options.json == "-":
        print(json.dumps(result, indent=1))
    elif options.json:
        Path(options.json).write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if options.json != "-":
        print(as_text(run.cells, variants, run.absent))
        print("\nMachine: " + ", ".join(f"{key} {value}" for key, value in facts.items()))
        print("Versions: " + ", ".join(f"{key} {value}" for key, value in used.items()))
        print(f"Medians of {run.rounds} interleaved rounds of {run.seconds:g} s a work; in brackets, the ratio to raw. Took {took:.0f} s.")
    return 0 if "raw" in run.pairs else 1


if __name__ == "__main__":
    sys.exit(main())
