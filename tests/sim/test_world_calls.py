"""Calls and streams between whole nodes in a world of virtual time: what real nodes do, in the world's time."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from reachmesh import Context, capability
from reachmesh.errors import (
    BadRequest,
    Cancelled,
    DeadlineExceeded,
    NoProvider,
    PayloadError,
    RemoteError,
    UsageError,
)
from reachmesh.testing import World
from tests.sim.pairs import double, nap, pair


def test_arguments_and_values_are_checked_as_in_production() -> None:
    """Hints are enforced, values travel by the real codec, errors carry what they carry: a bad argument, a raise, a thing that cannot travel."""
    ran: list[int] = []

    def serve(x: int, ctx: Context) -> tuple[int, str]:
        ran.append(x)
        if x < 0:
            raise ValueError("negative")
        return x, ctx.caller.name

    _, app, _ = pair(caps={"serve": serve})
    reach = app.reach("serve")
    assert reach.call(1) == (1, "app")
    with pytest.raises(BadRequest, match="'x'"):
        reach.call("one")
    with pytest.raises(RemoteError, match="negative") as failure:
        reach.call(-1)
    assert (failure.value.type_name, failure.value.executed) == ("ValueError", "yes")
    with pytest.raises(PayloadError):
        reach.call(object())
    with pytest.raises(NoProvider):
        app.reach("nothing").call()
    assert ran == [1, -1]


def test_deadlines_pass_in_virtual_time() -> None:
    """A call ends at its deadline, the handler is cancelled there, and the context counts down by the world's clock."""
    ended: list[str] = []
    left: list[float] = []

    async def hang(ctx: Context) -> None:
        left.append(ctx.remaining())
        try:
            await asyncio.sleep(1000)
        except asyncio.CancelledError:
            left.append(ctx.remaining())
            ended.append("cancelled")
            raise

    world, app, _ = pair(caps={"hang": hang})
    with pytest.raises(DeadlineExceeded):
        app.reach("hang", timeout=7).call()
    world.run(0.1)
    assert world.now == pytest.approx(7.1, abs=0.01)
    assert ended == ["cancelled"]
    assert left == [pytest.approx(7, abs=0.1), pytest.approx(0, abs=0.01)]


def test_cancel_reaches_the_handler() -> None:
    """A cancelled future ends at once, and the handler hears of it wherever it sleeps."""
    ended: list[float] = []
    world, app, _ = pair(caps={"hang": capability("hang", handler=_hang(ended))})
    future = app.reach("hang", timeout=100).submit()
    world.run(5)
    assert future.cancel()
    with pytest.raises(Cancelled):
        future.result()
    world.run(0.1)
    assert ended == [pytest.approx(5, abs=0.01)]


def _hang(ended: list[float]) -> Any:
    async def hang() -> None:
        try:
            await asyncio.sleep(1000)
        finally:
            ended.append(asyncio.get_running_loop().time())

    return hang


def test_a_slow_reader_slows_the_writer() -> None:
    """A stream is bounded by credit: a handler of either kind is at most a window ahead of its reader, and closed when that leaves."""
    made: list[int] = []
    closed: list[str] = []

    def count() -> Iterator[int]:
        try:
            for number in range(100_000):
                made.append(number)
                yield number
        finally:
            closed.append("plain")

    async def acount() -> AsyncIterator[int]:
        try:
            for number in range(100_000):
                made.append(number)
                yield number
        finally:
            closed.append("async")

    world, app, _ = pair(caps={"plain": count, "async": acount})
    for kind in ("plain", "async"):
        made.clear()
        with app.reach(kind).stream() as stream:
            got = []
            for item in stream:
                got.append(item)
                world.run(0.5)
                if len(got) == 40:
                    break
        assert got == list(range(40))
        assert len(made) < 2000
        world.run(0.1)
    assert closed == ["plain", "async"]


def test_streams_flow_in_both_directions() -> None:
    """Iterables given to a call, channels, and handlers of both kinds that read them; in order, whole, and larger than a window."""

    def total(numbers: Iterator[int]) -> int:
        return sum(numbers)

    async def echo(items: AsyncIterator[str]) -> AsyncIterator[str]:
        async for item in items:
            yield item.upper()

    def doubled(numbers: Iterator[int]) -> Iterator[int]:
        for number in numbers:
            yield 2 * number

    world, app, _ = pair(caps={"total": total, "echo": echo, "doubled": doubled})
    assert app.reach("total", timeout=60).call(iter(range(5000))) == sum(range(5000))
    assert list(app.reach("doubled").stream(range(20))) == list(range(0, 40, 2))
    with app.reach("echo").channel() as channel:
        for word in ("a", "b"):
            channel.send(word)
            assert channel.next() == word.upper()
        channel.end()
        assert list(channel) == []

    async def talk() -> list[str]:
        async with app.reach("echo").channel() as channel:
            await channel.asend("x")
            first = await channel.anext()
            channel.end()
            return [first] + [item async for item in channel]

    assert world.run_async(talk()) == ["X"]


def test_plain_handlers_call_on() -> None:
    """Plain handlers call other nodes, and back, as on real ones; the trace and the deadline go along."""
    world = World(4)
    traces: list[str] = []

    def top(x: int, ctx: Context) -> int:
        traces.append(ctx.trace_id)
        return int(b.reach("middle").call(x=x)) + 1

    def middle(x: int, ctx: Context) -> int:
        traces.append(ctx.trace_id)
        assert ctx.remaining() < 2
        return int(a.reach("double").call(x=x)) + 1

    a = world.node("a", {"top": top, "double": double})
    b = world.node("b", {"middle": middle})
    c = world.node("c")
    assert c.reach("top", timeout=2).call(5) == 12
    assert len(set(traces)) == 1


def test_a_wait_that_could_not_end_is_refused() -> None:
    """What only the code below could do is no silent hang: the test fails, and says what to do."""

    def doubled(numbers: Iterator[int]) -> Iterator[int]:
        for number in numbers:
            yield 2 * number

    _, app, _ = pair(caps={"doubled": doubled})
    with app.reach("doubled").channel() as channel:
        channel.send(1)
        assert channel.next() == 2
        channel.send(2)
        with pytest.raises(RemoteError, match="only the code that waits"):
            list(channel)

    app.capability("relay")(lambda: app.reach("nap", timeout=50).call(1))
    app.capability("nap")(nap)

    async def relay_all() -> list[Any]:
        futures = [app.reach("relay", timeout=60).submit() for _ in range(200)]
        return await asyncio.gather(*futures, return_exceptions=True)

    ends = app._world.run_async(relay_all())
    assert len([end for end in ends if isinstance(end, float)]) >= 40
    assert all("wait on top of each other" in str(end) for end in ends if not isinstance(end, float))

    async def never() -> None:
        await asyncio.get_running_loop().create_future()

    with pytest.raises(UsageError, match="nothing ended this wait"):
        World(1).run_async(never())


def test_notify_all_and_reply_to() -> None:
    """The other verbs: one-way calls, all providers, answers that go elsewhere and tasks to ask for."""
    world = World(5)
    got: list[Any] = []
    app = world.node("app", {"inbox": got.append})
    for name in ("one", "two"):
        world.node(name, {"who": lambda name=name: name, "note": got.append})
    app.wait_for("who", count=2, timeout=5)
    assert sorted(answer.value for answer in app.reach("who").all()) == ["one", "two"]
    app.reach("note").notify("hello")
    world.run(0.1)
    assert got == ["hello"]
    accepted = app.reach("who", target="two", reply_to="inbox").submit().result()
    world.run(0.1)
    assert got == ["hello", "two"]
    assert app.task(accepted.task_id).state == "done"
