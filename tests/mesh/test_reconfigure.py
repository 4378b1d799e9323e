"""Settings changed on a running node."""

from __future__ import annotations

import logging
import threading
from collections import Counter
from typing import Any

import pytest

from reachmesh import ConfigError, QuotaExceeded, capability
from tests.support import World, eventually

FAST: dict[str, Any] = {"heartbeat_period": 0.5, "warmup": 0}


def test_a_weight_changed_at_run_time_moves_the_calls(world: World) -> None:
    """Callers follow a node's new weight within moments; 0 takes it out while there are others."""
    one = world.node("one", {"who": lambda: "one"}, config=FAST)
    world.node("two", {"who": lambda: "two"}, config=FAST)
    app = world.node("app", config={**FAST, "strategy": "weighted_random"})
    app.wait_for("who", count=2, timeout=10)
    assert {app.reach("who").call() for _ in range(40)} == {"one", "two"}
    one.reconfigure(weight=0)
    eventually(lambda: Counter(app.reach("who").call() for _ in range(40)) == {"two": 40})
    one.reconfigure(weights={"who": 1.0})
    eventually(lambda: {app.reach("who").call() for _ in range(40)} == {"one", "two"})
    assert {each.name: each.origin for each in one.settings()}["weight"] == "reconfigure"


def test_limits_changed_at_run_time_hold_at_once(world: World) -> None:
    """A lowered `max_concurrent` refuses what is over it, a raised one lets waiting calls in; the wait itself can be changed too."""
    gate = threading.Event()
    node = world.node("own", [capability("hold", handler=lambda: gate.wait(20), max_concurrent=1)], config={**FAST, "permit_wait": 30})
    held = [node.reach("hold", timeout=30).submit() for _ in range(3)]
    eventually(lambda: node._driver.ask(lambda now: node._driver.engine.callee.admission.queued) == 2)
    node.reconfigure(max_concurrent={"hold": 3})
    eventually(lambda: node._driver.ask(lambda now: node._driver.engine.callee.admission.queued) == 0)
    held.append(node.reach("hold", timeout=30).submit())
    eventually(lambda: node._driver.ask(lambda now: node._driver.engine.callee.admission.queued) == 1)
    node.reconfigure(permit_wait=0)
    with pytest.raises(QuotaExceeded):
        node.reach("hold", timeout=30, retries=0).call()
    node.reconfigure(max_concurrent={"hold": None})
    eventually(lambda: node._driver.ask(lambda now: node._driver.engine.callee.admission.queued) == 0)
    gate.set()
    assert [future.result(10) for future in held] == [True] * 4


def test_all_or_nothing(world: World) -> None:
    """One wrong change leaves every setting as it was; what cannot change at run time says so."""
    node = world.node("own", {"who": len}, config=FAST)
    logger, before = logging.getLogger("reachmesh"), logging.getLogger("reachmesh").level
    for wrong in (
        {"retries": 2, "heartbeat_period": 1.0},
        {"retries": 2, "weight": -1},
        {"retries": 2, "weights": {"nobody": 1.0}},
        {"retries": 2, "max_concurrent": {"who": 0}},
        {"retries": 2, "log_level": "LOUD"},
        {"retries": 2, "strategy": "sideways"},
        {"retries": 7},
    ):
        with pytest.raises(ConfigError):
            node.reconfigure(**wrong)
        assert node.config.retries == 1
    try:
        node.reconfigure(retries=2, log_level="debug", strategy="round_robin")
        assert (node.config.retries, logger.level) == (2, logging.DEBUG)
        shown = {each.name: (each.value, each.origin) for each in node.settings()}
        assert (shown["log_level"], shown["retries"]) == (("DEBUG", "reconfigure"), (2, "reconfigure"))
        assert shown["max_concurrent"] == ({}, "default")
        node.reconfigure(max_concurrent={"who": 3})
        shown = {each.name: (each.value, each.origin) for each in node.settings()}
        assert shown["max_concurrent"] == ({"who": 3}, "reconfigure")
    finally:
        logger.setLevel(before)
