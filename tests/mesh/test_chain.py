"""Retries along a chain of calls."""

from __future__ import annotations

import time
from typing import Any

import pytest

from reachmesh import BadRequest, Overloaded, RemoteError
from tests.support import World

FAST: dict[str, Any] = {"heartbeat_period": 0.5, "warmup": 0}
LEAF = """
import pytest

from reachmesh import BadRequest, Overloaded, RemoteError
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


def test_an_error_is_told_as_it_was_raised_however_many_nodes_are_between(world: World) -> None:
    """A ValueError four calls down: its type and its text arrive unchanged, and no longer than they were."""
    world.serve("end", "{'hop0': hop}", "def hop() -> None:\n    raise ValueError('no such row')\n", config=FAST)
    for level in range(1, 4):
        body = f"def hop() -> None:\n    node.wait_for('hop{level - 1}', timeout=10)\n    node.reach('hop{level - 1}', timeout=5).call()\n"
        world.serve(f"between{level}", f"{{'hop{level}': hop}}", body, config=FAST)
    app = world.node("app", config=FAST)
    app.wait_for("hop3", timeout=10)
    with pytest.raises(RemoteError) as caught:
        app.reach("hop3", timeout=15).call()
    assert (caught.value.type_name, caught.value.message, caught.value.executed) == ("ValueError", "no such row", "yes")
    assert str(caught.value).count("ValueError") == 1


def test_a_range_for_a_plain_parameter_says_what_to_pass(world: World) -> None:
    """What is streamed by mistake into a handler that takes no stream: the error says to make a list of it."""
    world.serve("adder", "{'total': total}", "def total(numbers: list[int]) -> int:\n    return sum(numbers)\n")
    app = world.node("app")
    app.wait_for("total", timeout=10)
    with pytest.raises(BadRequest) as caught:
        app.reach("total").call(numbers=range(3))
    assert "list(...)" in caught.value.hint
    assert app.reach("total").call(numbers=list(range(3))) == 3
