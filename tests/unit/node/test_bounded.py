"""Errors and logs stay short and say what they mean, whatever is in them; arguments have any name."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Iterator
from typing import Any

import pytest

from reachmesh import BadRequest, Context, PayloadError, ReachNode, RemoteError, capability
from reachmesh.node.future import CallFuture
from reachmesh.observe.stacks import STACK_LIMIT
from tests.support import eventually


def keyed(self: int, args: int, kwargs: int, capability: int, timeout: int, cap: int, target: int, fn: int, node: int, call: int) -> int:
    return self + args + kwargs + capability + timeout + cap + target + fn + node + call


def keyed_stream(self: int, args: int) -> Iterator[int]:
    yield self + args


def relay(items: Iterator[int], self: int) -> Iterator[int]:
    for item in items:
        yield item + self


def shout(size: int) -> None:
    raise ValueError("x" * size)


def unsendable(deep: bool) -> Any:
    return {"rows": [1, {"when": object()}]} if deep else object()


def unsendable_items() -> Iterator[Any]:
    yield 1
    yield [object()]


@pytest.fixture(scope="module")
def node() -> Iterator[ReachNode]:
    caps: list[Any] = [
        capability("keyed", handler=keyed),
        capability("keyed_stream", handler=keyed_stream),
        capability("relay", handler=relay),
        capability("shout", handler=shout),
        capability("unsendable", handler=unsendable, domain="process"),
        capability("unsendable_items", handler=unsendable_items, domain="process"),
        capability("echo", handler=lambda value: value),
    ]
    with ReachNode("solo", caps=caps, mesh="bounded-" + secrets.token_hex(4), interfaces=["127.0.0.1"], discovery=()) as made:
        yield made


def test_a_parameter_may_have_any_name(node: ReachNode) -> None:
    """`self`, `args`, `timeout` and the like are passed by keyword as any other, by every verb, with a middleware too."""
    names = ("self", "args", "kwargs", "capability", "timeout", "cap", "target", "fn", "node", "call")
    arguments: dict[str, Any] = dict.fromkeys(names, 1)

    def use_all() -> None:
        reach = node.reach("keyed")
        assert reach.call(**arguments) == 10
        assert reach.submit(**arguments).result(5) == 10
        assert [each.value for each in reach.all(**arguments)] == [10]
        reach.notify(**arguments)
        assert list(node.reach("keyed_stream").stream(self=1, args=2)) == [3]
        with node.reach("relay").channel(self=1) as channel:
            channel.send(1)
            channel.end()
            assert list(channel) == [2]

    use_all()

    class Quiet:
        def before(self, call: Any) -> None:
            pass

    node.use(Quiet())
    use_all()


def test_the_path_of_a_circle_is_short(node: ReachNode) -> None:
    """A value that contains itself is refused with the first and the last steps of the path, not all 128."""
    circle: list[Any] = []
    circle.append(circle)
    with pytest.raises(PayloadError) as caught:
        node.reach("echo").call(value={"rows": circle})
    assert caught.value.path.startswith("value.rows[0][0]")
    assert "..." in caught.value.path
    assert len(str(caught.value)) < 200


def test_a_huge_text_is_cut_in_the_log(node: ReachNode, caplog: pytest.LogCaptureFixture) -> None:
    """Ten megabytes in an exception are some kilobytes in the log and in the error, which both say that they were cut."""
    with caplog.at_level(logging.ERROR, "reachmesh"), pytest.raises(RemoteError) as caught:
        node.reach("shout").call(size=10_000_000)
    assert "cut from" in caught.value.message
    assert len(caplog.text) < 2 * STACK_LIMIT
    assert "cut from" in caplog.text
    assert "in shout" in caplog.text
    record = next(each for each in caplog.records if each.name == "reachmesh.handler")
    assert record.exc_info is not None
    assert record.exc_info[0] is ValueError


def test_a_callbacks_huge_failure_is_cut_in_the_log(node: ReachNode, caplog: pytest.LogCaptureFixture) -> None:
    """The same for what a done-callback raises."""
    future = CallFuture(node._life.callbacks)
    future.add_done_callback(lambda done: shout(1_000_000))
    future.set_result(1)
    eventually(lambda: "a callback of" in caplog.text, 5)
    assert 0 < len(caplog.text) < 2 * STACK_LIMIT


@pytest.mark.parametrize("name", ["x" * 100_000, "\n" * 50])
def test_unknown_names_are_shown_short(node: ReachNode, name: str) -> None:
    """What a caller may make as long as it likes is shown by its beginning."""
    with pytest.raises(BadRequest) as caught:
        node.reach("shout").call(size=1, **{name: 1})
    assert len(str(caught.value)) < 1000


def test_an_answer_of_a_worker_process_that_cannot_travel_is_told_with_its_path(node: ReachNode) -> None:
    """As in every other domain: a PayloadError at the caller, with the path."""
    with pytest.raises(PayloadError) as caught:
        node.reach("unsendable", timeout=10).call(deep=True)
    assert (caught.value.path, caught.value.executed) == ("value.rows[1].when", "yes")
    stream = node.reach("unsendable_items").stream()
    assert stream.next() == 1
    with pytest.raises(PayloadError, match="object"):
        stream.next()


def test_a_context_is_no_argument_of_the_caller(node: ReachNode) -> None:
    """A parameter that asks for the context keeps its name, `self` or not."""

    def who(self: Context) -> str:
        return self.caller.name

    node.capability("who")(who)
    assert node.reach("who").call() == "solo"
