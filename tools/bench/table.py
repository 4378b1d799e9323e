"""The report of a run: medians and ratios as data, and as Markdown tables."""

from __future__ import annotations

import statistics
from typing import Any, NamedTuple

from tools.bench.interface import Variant
from tools.bench.works import WORKS

EXTRA = {
    "import": ("import, fresh process", "ms"),
    "first-call": ("first answer after the import", "ms"),
    "idle": ("idle server and client, of one core", "%"),
    "memory": ("server and client after the work", "MiB"),
    "kib-per-call": ("an outstanding call, both sides", "KiB"),
    "kib-per-stream": ("an open stream, both sides", "KiB"),
    "kib-per-peer": ("a peer, at the client", "KiB"),
    "idle-50": ("idle client of 50 instances, of one core", "%"),
}
GROUPS = (
    ("Calls one at a time", ("one-blocking", "one-asyncio")),
    ("Many calls", ("out-64", "out-1000", "out-64-native", "threads-4", "fan-50")),
    ("Streams", ("stream-100B", "stream-64K", "beside-bulk")),
    ("Payloads", ("payload-1", "payload-16", "payload-64", "numpy-64")),
    ("Standing costs", ("import", "first-call", "idle", "memory")),
    ("What each thing kept costs", ("kib-per-call", "kib-per-stream", "kib-per-peer", "idle-50")),
)


class Cell(NamedTuple):
    """One variant at one work: the values of the rounds, or why there is none."""

    values: list[float]
    why_not: str = ""

    @property
    def median(self) -> float | None:
        return statistics.median(self.values) if self.values else None


Cells = dict[str, dict[str, Cell]]
"""work name -> variant name -> cell."""


def title_of(work: str) -> tuple[str, str]:
    """Title and unit of a work or of an extra."""
    if work in EXTRA:
        return EXTRA[work]
    found = next(each for each in WORKS if each.name == work)
    return found.title, found.unit


def ratio(cells: Cells, work: str, variant: str) -> float | None:
    """Median over the rounds of this variant's figure divided by raw's of the same round; None where raw has none."""
    floor = next((each.floor for each in WORKS if each.name == work and each.floor), work)
    mine, raw = cells.get(work, {}).get(variant), cells.get(floor, {}).get("raw")
    if mine is None or raw is None or not mine.values or not raw.values or work in EXTRA or work == "beside-bulk":
        return None
    pairs = list(zip(mine.values, raw.values, strict=False))
    return statistics.median(value / base for value, base in pairs if base)


def as_data(cells: Cells) -> list[dict[str, Any]]:
    """All results as plain JSON values."""
    listed = []
    for work, row in cells.items():
        title, unit = title_of(work)
        variants = {
            name: {"median": cell.median, "rounds": cell.values, "to_raw": ratio(cells, work, name), "why_not": cell.why_not or None}
            for name, cell in row.items()
        }
        listed.append({"work": work, "title": title, "unit": unit, "variants": variants})
    return listed


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.1f}"


def _shown(cells: Cells, work: str, variant: str) -> str:
    cell = cells[work].get(variant)
    if cell is None or cell.median is None:
        return "-"
    compared = ratio(cells, work, variant)
    return _number(cell.median) + (f" ({compared:.2f}x)" if compared is not None else "")


def as_text(cells: Cells, variants: list[Variant], absent: dict[str, str]) -> str:
    """Markdown: one table a group, the ratio to raw in brackets, what is missing and why at the end."""
    lines: list[str] = []
    for heading, names in GROUPS:
        works = [name for name in names if name in cells]
        if not works:
            continue
        columns = ["{} ({})".format(*title_of(work)) for work in works]
        lines += ["", f"**{heading}**", "", f"| | handler runs in | {' | '.join(columns)} |", f"|---|---|{'---:|' * len(works)}"]
        for variant in variants:
            shown = [_shown(cells, work, variant.name) for work in works]
            if any(text != "-" for text in shown):
                lines.append(f"| {variant.name} | {variant.handler} | {' | '.join(shown)} |")
    notes = [f"- {variant.name}: {variant.note}" for variant in variants if variant.note and variant.name not in absent]
    lines += ["", "Where a peer's mode differs:", "", *notes]
    problems = [f"- {name}: absent, {why}" for name, why in absent.items()]
    problems += [
        f"- {variant}, {work}: {cell.why_not}"
        for work, row in cells.items()
        for variant, cell in row.items()
        if cell.why_not and cell.why_not != "not offered"
    ]
    return "\n".join([*lines, *(["", "Missing:", "", *problems] if problems else [])])
