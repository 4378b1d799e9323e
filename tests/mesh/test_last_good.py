"""`fallback=LAST_GOOD` between processes."""

from __future__ import annotations

from typing import Any

import pytest

from reachmesh import LAST_GOOD, ConfigError, ReachError, SemanticError, UsageError
from reachmesh.node.middleware import Exchange
from tests.support import World, eventually

FAST: dict[str, Any] = {"heartbeat_period": 0.5, "grace": 0}
BODY = """
from pathlib import Path
from reachmesh import SemanticError
asked = 0
def price(of: str) -> list:
    global asked
    asked += 1
    if Path("broken").exists():
        raise SemanticError("broken", code="no_price")
    return [of, asked]
def stream():
    yield 1
"""


def serve(world: World) -> Any:
    return world.serve("shop", '{"price": price, "stream": stream}', BODY, config=FAST)


def test_the_last_good_answer_stands_in_for_a_failure_and_for_a_lost_provider(world: World) -> None:
    """The same question gets its last answer while the handler fails and when nobody is left; another question, or none so far, gets the error."""
    shop, node = serve(world), world.node("app", config=FAST)
    node.wait_for("price", timeout=10)
    price = node.reach("price", fallback=LAST_GOOD)
    assert price.call(of="tea") == ["tea", 1]
    first = price.call(of="tea")
    first.append("changed by its reader")
    (world.folder / "broken").touch()
    assert price.call(of="tea") == ["tea", 2]
    assert price.submit(of="tea").result(5) == ["tea", 2]
    with pytest.raises(SemanticError):
        price.call(of="coffee")
    with pytest.raises(SemanticError):
        node.reach("price").call(of="tea")
    with pytest.raises(SemanticError):
        price.options(session="alice").call(of="tea")
    shop.process.kill()
    eventually(lambda: not node.providers("price"), 10)
    assert price.call(of="tea") == ["tea", 2]
    with pytest.raises(ReachError):
        price.call(of="milk")


def test_an_answer_that_is_too_old_does_not_stand_in(world: World) -> None:
    """After `last_good_age` the error is raised again."""
    serve(world)
    node = world.node("app", config={**FAST, "last_good_age": 0.4})
    node.wait_for("price", timeout=10)
    price = node.reach("price", fallback=LAST_GOOD)
    price.call(of="tea")
    (world.folder / "broken").touch()
    assert price.call(of="tea") == ["tea", 1]

    def raised() -> bool:
        return isinstance(price.submit(of="tea").exception(5), ReachError)  # the breaker may have opened meanwhile

    eventually(raised, 5)


def test_through_middleware_it_is_what_the_caller_saw(world: World) -> None:
    """With a middleware on the calling side the answer that stands in is the one it made."""
    serve(world)
    node = world.node("app", config=FAST)

    class Doubling:
        def after(self, exchange: Exchange, error: BaseException | None) -> None:
            if error is None:
                exchange.answer = exchange.answer * 2

    node.use(Doubling())
    node.wait_for("price", timeout=10)
    price = node.reach("price", fallback=LAST_GOOD)
    assert price.call(of="tea") == ["tea", 1, "tea", 1]
    (world.folder / "broken").touch()
    assert price.call(of="tea") == ["tea", 1, "tea", 1]


def test_streams_and_reply_to_have_no_last_good_answer(world: World) -> None:
    """A stream, a streamed argument and a `reply_to` call are refused where they are made."""
    serve(world)
    node = world.node("app", config=FAST)
    node.wait_for("stream", timeout=10)
    with pytest.raises(UsageError, match="LAST_GOOD"):
        node.reach("stream", fallback=LAST_GOOD).stream()
    with pytest.raises(UsageError, match="LAST_GOOD"):
        node.reach("price", fallback=LAST_GOOD).submit(iter("ab"))
    with pytest.raises(ConfigError, match="LAST_GOOD"):
        node.reach("price", fallback=LAST_GOOD, reply_to="other")


def test_a_fallback_function_is_asked_once(world: World) -> None:
    """Callbacks, `exception()` and two `result()` of one failed call see one fallback value, made once."""
    node = world.node("app", config=FAST)
    made: list[ReachError] = []

    def instead(error: ReachError) -> int:
        made.append(error)
        return len(made)

    future = node.reach("nobody", fallback=instead).submit()
    assert [future.result(5), future.result(5), future.exception(5)] == [1, 1, None]
