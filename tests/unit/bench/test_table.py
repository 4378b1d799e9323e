"""The benchmark's report: medians, ratios to the floor of the same round, and what is missing."""

from __future__ import annotations

from tools.bench.peers import VARIANTS
from tools.bench.table import Cell, Cells, as_data, as_text, ratio

CELLS: Cells = {
    "one-blocking": {"raw": Cell([100.0, 200.0, 100.0]), "reachmesh-inline": Cell([120.0, 240.0, 150.0])},
    "one-asyncio": {"raw": Cell([], "not offered"), "reachmesh-loop": Cell([150.0, 300.0, 160.0])},
    "out-64": {"raw": Cell([50_000.0]), "zenoh": Cell([], "RuntimeError: gone")},
}


def test_ratio_compares_within_a_round() -> None:
    """The ratio is the median over rounds of figure / raw: a slow round is slow for both and changes nothing."""
    assert ratio(CELLS, "one-blocking", "reachmesh-inline") == 1.2
    assert ratio(CELLS, "one-blocking", "raw") == 1.0


def test_asyncio_calls_are_compared_with_the_blocking_floor() -> None:
    """Raw has no asyncio form; its blocking figure is the floor of both."""
    assert ratio(CELLS, "one-asyncio", "reachmesh-loop") == 1.5


def test_no_figure_no_ratio() -> None:
    """What was not measured has neither a ratio nor a row, and the report says why."""
    assert ratio(CELLS, "out-64", "zenoh") is None
    text = as_text(CELLS, list(VARIANTS), {"nats": "no program nats-server"})
    assert "| reachmesh-inline | the receiving loop | 150 (1.20x) | - |" in text
    assert "- nats: absent, no program nats-server" in text
    assert "- zenoh, out-64: RuntimeError: gone" in text
    assert "| zenoh" not in text


def test_data_keeps_every_round() -> None:
    """The JSON form has the single rounds, so that somebody else can judge the spread."""
    row = as_data(CELLS)[0]["variants"]["reachmesh-inline"]
    assert (row["median"], row["rounds"], row["to_raw"]) == (150.0, [120.0, 240.0, 150.0], 1.2)
