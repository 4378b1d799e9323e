"""Runs the comparison: `python3 tools/run.py bench [--quick] [--costs] [--json [FILE]] [--only NAME ...] [--works NAME ...]`.

All variants are up at the same time, each as a server and a client process on 127.0.0.1, and take turns: for each round, for each
work, every variant once. So what the machine does meanwhile hits them alike, and a ratio compares figures taken within seconds.
Idle variants wait in their event loops; what that costs is measured too (idle). No peer that cannot be installed stops a run.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

from tools.bench.costs import costs
from tools.bench.interface import Variant
from tools.bench.machine import bring, machine, versions
from tools.bench.pair import Pair, WorkerFailed
from tools.bench.peers import VARIANTS
from tools.bench.table import Cell, Cells, as_data, as_text
from tools.bench.works import WORKS, Work

IDLE_SECONDS = 5.0
QUICK_IDLE_SECONDS = 2.0


class Run:
    """One whole comparison."""

    def __init__(
        self, variants: list[Variant], works: list[Work], *, rounds: int, seconds: float, idle_seconds: float, with_costs: bool
    ) -> None:
        self.variants, self.works, self.rounds, self.seconds = variants, works, rounds, seconds
        self.idle_seconds, self.with_costs = idle_seconds, with_costs
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
            if self.with_costs:
                for name in list(self.pairs):
                    self._costs(self.pairs[name].variant)
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

    def _costs(self, variant: Variant) -> None:
        say(f"standing costs of {variant.name}")
        try:
            for work, value in costs(variant, self.idle_seconds).items():
                self._put(work, variant.name, Cell([value]))
        except WorkerFailed as error:
            self._put("kib-per-call", variant.name, Cell([], str(error)))

    def _idle(self) -> None:
        say("all idle")
        before = {name: pair.usage()[0] for name, pair in self.pairs.items()}
        time.sleep(self.idle_seconds)
        for name, pair in self.pairs.items():
            cpu, memory = pair.usage()
            self._put("idle", name, Cell([100 * (cpu - before[name]) / self.idle_seconds]))
            self._put("memory", name, Cell([memory / 2**20]))


BEGIN = "<!-- BENCHMARK BEGIN: `python3 tools/run.py bench --readme` writes what follows; numbers are typed nowhere else in this file -->"
END = "<!-- BENCHMARK END -->"


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


def put_into_readme(tables: str) -> None:
    """Replace what is between the two marks in README.md."""
    path = Path(__file__).parents[2] / "README.md"
    before, begin, rest = path.read_text(encoding="utf-8").partition(BEGIN)
    _, end, after = rest.partition(END)
    path.write_text(f"{before}{begin}\n\n{tables.strip()}\n\n{end}{after}", encoding="utf-8")


def main() -> int:
    """Read the command line, run, report; 0 unless not even raw could be measured."""
    parser = argparse.ArgumentParser(prog="python3 tools/run.py bench", description="reachmesh beside its peers, on this machine")
    parser.add_argument("--quick", action="store_true", help="one short round, under two minutes")
    parser.add_argument("--json", nargs="?", const="-", metavar="FILE", help="the whole result as JSON, in FILE or instead of the tables")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="these variants (raw is always there), e.g. reachmesh grpc-aio")
    parser.add_argument("--works", nargs="+", metavar="NAME", help="these works, e.g. one-blocking out stream")
    parser.add_argument("--costs", action="store_true", help="memory per call, stream and peer too (another minute)")
    parser.add_argument("--rounds", type=int, help="rounds to take the median of (default 3, quick 1)")
    parser.add_argument("--seconds", type=float, help="seconds a work and round (default 1, quick 0.2)")
    parser.add_argument("--readme", action="store_true", help="put the tables into README.md, in the place of those of an earlier run")
    options = parser.parse_args()
    variants = chosen(VARIANTS, [*options.only, "raw"] if options.only else None, parser)
    works = [work for work in chosen(WORKS, options.works, parser) if work.quick or not options.quick or options.works]
    run = Run(
        variants,
        works,
        rounds=options.rounds or (1 if options.quick else 3),
        seconds=options.seconds or (0.2 if options.quick else 1.0),
        idle_seconds=QUICK_IDLE_SECONDS if options.quick else IDLE_SECONDS,
        with_costs=options.costs,
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
        shown = [
            as_text(run.cells, variants, run.absent),
            "",
            "Machine: " + ", ".join(f"{key} {value}" for key, value in facts.items()) + "\\",
            "Versions: " + ", ".join(f"{key} {value}" for key, value in used.items()) + "\\",
            f"Medians of {run.rounds} interleaved rounds of {run.seconds:g} s a work; in brackets, the ratio to raw. Took {took:.0f} s.",
        ]
        print("\n".join(shown))
        if options.readme:
            put_into_readme("\n".join(shown))
    return 0 if "raw" in run.pairs else 1


if __name__ == "__main__":
    sys.exit(main())
