"""What cannot be meant is refused where it is written, and nothing that is refused hangs."""

from __future__ import annotations

import asyncio
import math
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from reachmesh import BadRequest, Cancelled, ConfigError, DeadlineExceeded, PayloadError, ReachNode, UsageError
from tests.support import eventually


async def doubled(items: AsyncIterator[int]) -> AsyncIterator[int]:
    async for item in items:
        yield 2 * item


async def drip(n: int) -> AsyncIterator[int]:
    for number in range(n):
        await asyncio.sleep(0.01)
        yield number


async def mute(first: int) -> AsyncIterator[int]:
    for number in range(first):
        yield number
    await asyncio.sleep(60)


@pytest.fixture
def node() -> Iterator[ReachNode]:
    caps: dict[str, Any] = {"echo": lambda value: value, "doubled": doubled, "drip": drip}
    with ReachNode("solo", caps=caps, mesh="misuse-" + secrets.token_hex(4), interfaces=["127.0.0.1"], discovery=()) as made:
        yield made


@pytest.mark.parametrize("timeout", [math.inf, 1e12, 5])
def test_a_limit_of_for_ever_is_none(node: ReachNode, timeout: float) -> None:
    """Infinite and absurd limits mean no limit, in calls, streams and waits."""
    assert node.reach("echo", timeout=timeout).call(value=1) == 1
    assert list(node.reach("drip", timeout=timeout, idle_timeout=timeout).stream(n=2)) == [0, 1]
    node.wait_for("echo", timeout=timeout)
    assert node.reach("echo").submit(value=2).result(timeout) == 2


@pytest.mark.parametrize("timeout", [math.nan, -1, "5", True])
def test_a_limit_that_is_no_number_is_refused(node: ReachNode, timeout: Any) -> None:
    """NaN, negative numbers and text are errors at once."""
    with pytest.raises(ConfigError):
        node.reach("echo", timeout=timeout)
    with pytest.raises(ConfigError):
        node.reach("echo", idle_timeout=timeout)
    with pytest.raises(UsageError):
        node.wait_for("nobody", timeout=timeout)


@pytest.mark.parametrize(
    "options",
    [
        {"metadata": {"a": object()}},
        {"metadata": {"a": "x" * 70_000}},
        {"session": "x" * 70_000},
        {"session": "\ud800"},
        {"correlation_id": "x" * 70_000},
        {"dedup_key": "x" * 70_000},
        {"reply_to": "x" * 70_000},
    ],
)
def test_what_does_not_fit_the_header_is_refused_at_the_caller(node: ReachNode, options: dict[str, Any]) -> None:
    """Metadata and ids that cannot travel are a PayloadError when they are given, not a call that never ends."""
    with pytest.raises(PayloadError):
        node.reach("echo", **options)
    with pytest.raises(PayloadError):
        node.reach("echo").options(**options)


def test_a_channel_takes_no_stream(node: ReachNode) -> None:
    """What a channel sends is given to send(); an argument for the same parameter is refused, here or by the handler's side."""
    with pytest.raises(UsageError, match="send"):
        node.reach("doubled").channel(iter([1, 2]))
    with pytest.raises(BadRequest, match="twice"):
        list(node.reach("doubled").channel([1, 2]))
    with node.reach("doubled").channel() as channel:
        channel.send(4)
        channel.end()
        assert list(channel) == [8]


def test_a_second_reader_is_told(node: ReachNode) -> None:
    """Two tasks that read one stream: the second is an error, the first gets everything."""

    async def main() -> None:
        stream = node.reach("drip").stream(n=5)

        async def read() -> list[int]:
            return [item async for item in stream]

        first, second = await asyncio.wait_for(asyncio.gather(read(), read(), return_exceptions=True), 10)
        assert first == [0, 1, 2, 3, 4]
        assert isinstance(second, UsageError)

    asyncio.run(main())


def test_a_fault_of_ours_ends_the_call(node: ReachNode, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Should the engine itself fail while it makes a call, the call ends with an error and the node goes on."""

    def broken(*args: object, **kwargs: object) -> None:
        raise RuntimeError("a mistake of ours")

    assert node._life.engine is not None
    with monkeypatch.context() as patch:
        patch.setattr(node._life.engine.router, "pick", broken)
        error = node.reach("echo").submit(value=1).exception(5)
    assert type(error).__name__ == "ProtocolError"
    assert "a mistake of ours" in caplog.text
    assert node.reach("echo").call(value=1) == 1


def test_a_stream_that_was_left_is_not_an_empty_one(node: ReachNode) -> None:
    """A loop that is left closes the stream: reading on is an error, for threads and loops, and not the end of the items."""
    reach = node.reach("drip")
    for leave in (lambda stream: next(iter(stream)), lambda stream: list(zip(range(2), stream, strict=False))):
        stream = reach.stream(n=5)
        leave(stream)
        with pytest.raises(UsageError):
            list(stream)

    async def on_a_loop() -> None:
        stream = reach.stream(n=5)
        async for _ in stream:
            break
        with pytest.raises(UsageError):
            await anext(stream)

    asyncio.run(on_a_loop())
    stream = reach.stream(n=3)
    assert (list(stream), list(stream)) == ([0, 1, 2], [])
    stream = reach.stream(n=3)
    assert (next(stream), stream.next(), list(stream)) == (0, 1, [2])
    stream = reach.stream(n=3)
    next(stream)
    stream.close()
    assert list(stream) == []


def test_a_stream_that_never_gave_an_item_says_that_its_handler_may_not_have_begun(node: ReachNode) -> None:
    """`executed` of an idle timeout is "yes" only once an item has come."""
    node.capability("mute")(mute)
    with pytest.raises(DeadlineExceeded) as silent:
        node.reach("mute", idle_timeout=0.1).stream(first=0).next()
    stream = node.reach("mute", idle_timeout=0.3).stream(first=1)
    assert stream.next() == 0
    with pytest.raises(DeadlineExceeded) as later:
        stream.next()
    assert (silent.value.executed, later.value.executed) == ("maybe", "yes")


def test_a_listener_that_would_never_be_awaited_is_refused(node: ReachNode) -> None:
    """`on` takes functions that are called, and says so to an async one."""

    async def listener(event: Any) -> None:
        raise AssertionError(event)

    with pytest.raises(UsageError, match="plain function"):
        node.on("*", listener)


def test_a_cancelled_handler_that_begins_to_call_is_told_so(node: ReachNode) -> None:
    """The first call of a handler whose own caller has gone ends at once as cancelled, and does not wait for ever."""
    begun, cancelled, told = threading.Event(), threading.Event(), []

    def outer() -> None:
        begun.set()
        assert cancelled.wait(10)
        with pytest.raises(Cancelled):
            node.reach("echo").call(value=1)
        told.append(True)

    node.capability("outer")(outer)
    future = node.reach("outer", timeout=20).submit()
    assert begun.wait(10)
    future.cancel()
    eventually(lambda: all(call.closed for call in node._driver.engine.callee.all() if call.capability == "outer"))
    cancelled.set()
    eventually(lambda: told == [True])
