"""The sending end of a stream: encoded when it is put, handed over many at a time, none left lying."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from reachmesh import PayloadError
from reachmesh.calls.flows import MOST_ITEMS, WINDOW_BYTES, WINDOW_ITEMS, Gathered, Outflow
from reachmesh.node.outlet import MANY_BYTES, MANY_ITEMS, Outlet
from reachmesh.wire.limits import LIMITS
from reachmesh.wire.values import load


class Call:
    def __init__(self) -> None:
        self.outflow: Outflow | None = Outflow(LIMITS.chunk)


class Engine:
    """Stands for the driver: remembers who is to be come for, and comes when told to."""

    def __init__(self) -> None:
        self.asked: list[Gathered] = []
        self.items: list[Any] = []
        self.flushed = 0

    def post(self, action: Callable[..., None], *args: Any) -> None:
        action(*args)

    post_soon = post

    def flush(self) -> None:
        self.flushed += 1

    def take(self, call: Call, gathered: Gathered) -> None:
        self.asked.append(gathered)

    def come(self) -> None:
        asked, self.asked = self.asked, []
        for gathered in asked:
            self.items += [load(item if type(item) is list else [item]) for item in gathered.take()]


@pytest.fixture
def engine() -> Engine:
    return Engine()


@pytest.fixture
def outlet(engine: Engine) -> Outlet:
    return Outlet(engine, engine.take, Call())  # type: ignore[arg-type]


VALUES: list[Any] = [1, "a", None, b"x" * 100, b"y" * 20_000, [1, {"a": b""}], {"k": (1, 2)}, 2**80, 1.5, "z" * 40_000, bytearray(3)]


def test_items_are_sent_as_they_were_put(engine: Engine, outlet: Outlet) -> None:
    """Quick values and careful ones, small and big, keep their order and type; what they are made of may change once they are put."""
    changing = [1]
    for value in [*VALUES, changing]:
        outlet.put(value)
    changing.append(2)
    engine.come()
    assert engine.items == [*VALUES, [1]]


def test_the_engine_is_asked_once_for_all_that_waits(engine: Engine, outlet: Outlet) -> None:
    """However many items come before it does; when that is many, or many bytes, their maker sees to it that it comes."""
    for index in range(MANY_ITEMS):
        outlet.put(index)
    assert (len(engine.asked), engine.flushed) == (1, 0)
    outlet.put(MANY_ITEMS)
    assert (len(engine.asked), engine.flushed) == (1, 1)
    engine.come()
    outlet.put(b"")
    assert len(engine.asked) == 1
    for _ in range(MANY_BYTES // 10_000 + 1):
        outlet.put(bytes(10_000))
    assert engine.flushed == 2


def test_credit_is_counted_in_items_and_in_bytes(engine: Engine) -> None:
    """A maker that nobody reads is told to wait with the 64th item, or the first one beyond 256 KiB."""
    for item, most in ((1, WINDOW_ITEMS), (bytes(10_000), WINDOW_BYTES // 10_000 + 1), (bytes(100_000), 3)):
        call = Call()
        outlet = Outlet(engine, engine.take, call)  # type: ignore[arg-type]
        put = 1
        while outlet.put(item):
            put += 1
        assert put == most
        assert not outlet.has_credit()
        assert call.outflow is not None
        call.outflow.grant(MOST_ITEMS, WINDOW_BYTES)
        assert outlet.has_credit()


def test_what_cannot_travel_is_refused_and_the_rest_goes_on(engine: Engine, outlet: Outlet) -> None:
    """The error names the item; items before and after it are sent."""
    outlet.put(1)
    for wrong in ("\ud800", object(), [object()]):
        with pytest.raises(PayloadError, match="item"):
            outlet.put(wrong)
    outlet.put(2)
    engine.come()
    assert engine.items == [1, 2]
    assert outlet.items == 2
