"""Retries along a chain of calls."""

from __future__ import annotations

import time
from typing import Any

from reachmesh import Overloaded
from tests.support import World

FAST: dict[str, Any] = {"heartbeat_period": 0.5, "warmup": 0}
LEAF = """
from reachmesh import Overloaded
ran = 0
def leaf() -> None:
    global ran
    ran += 1
    raise Overloaded("dead")
def count() -> int:
    return ran
"""


def test_a_dead_leaf_is_not_asked_more_often_by_every_level_above(world: World) -> None:
    """Three hops, every execution at the leaf fails retryably: the leaf gets at most 1.25 times the calls, as only the level above retries."""
    for _ in range(2):
        world.serve("leaf", "[capability('leaf', handler=leaf, idempotent=True), capability('count', handler=count)]", LEAF, config=FAST)
        body = 'def middle() -> None:\n    node.reach("leaf", retries=2).call()\n'
        world.serve("middle", "[capability('middle', handler=middle, idempotent=True)]", body, config=FAST)
    app = world.node("app", config=FAST)
    app.wait_for("leaf", count=2, timeout=10)
    app.wait_for("middle", count=2, timeout=10)
    futures = []
    for _ in range(300):
        futures.append(app.reach("middle", retries=2, timeout=10).submit())
        time.sleep(0.01)
    errors = [future.exception(15) for future in futures]
    assert all(isinstance(error, Overloaded) and not error.retryable for error in errors)
    assert sum(answer.value for answer in app.reach("count").all()) <= 300 * 1.25
