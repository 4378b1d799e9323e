"""Middleware around real calls, on both sides."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from typing import Any

import pytest

from reachmesh import AccessDenied, Context, ReachError, RemoteError
from tests.support import World, eventually


class Log:
    """A middleware that notes what passes."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.seen: list[tuple[Any, ...]] = []

    def __call__(self, call: Any) -> Iterator[None]:
        self.seen.append((call.side, call.capability, *call.args, *call.kwargs.items()))
        if call.side == "caller":
            call.metadata["user"] = self.name
        try:
            yield
        except ReachError as error:
            self.seen.append((call.side, error.code))
            raise
        except ValueError as error:
            self.seen.append((call.side, str(error)))
            raise
        self.seen.append((call.side, call.answer))


async def aecho(text: str, ctx: Context) -> str:
    return f"{text} {ctx.metadata.get('user')}"


def echo(text: str, ctx: Context) -> str:
    if text == "bad":
        raise ValueError("bad text")
    return f"{text} {ctx.metadata.get('user')}"


async def count(n: int) -> AsyncIterator[int]:
    for i in range(n):
        yield i


CAPS = {"echo": echo, "aecho": aecho, "count": count}


@pytest.mark.parametrize("cap", ["echo", "aecho"])
def test_the_same_function_serves_both_sides_sync_and_async(world: World, cap: str) -> None:
    """Arguments, metadata and answer pass through it where the call is made and where it is served, from threads and loops."""
    server, app = world.node("server", CAPS), world.node("app")
    served, made = Log("s"), Log("ann")
    server.use(served)
    app.use(made)
    app.wait_for(cap, timeout=10)
    assert app.reach(cap).call("a") == "a ann"
    assert app.reach(cap).call(text="b") == "b ann"

    async def on_a_loop() -> Any:
        return await app.reach(cap).submit(text="c")

    assert asyncio.run(on_a_loop()) == "c ann"
    assert made.seen[:2] == [("caller", cap, "a"), ("caller", "a ann")]
    assert served.seen[0][:2] == ("handler", cap)
    assert ("handler", "b ann") in served.seen


def test_failures_pass_through_and_may_be_replaced(world: World) -> None:
    """The handler's own exception is seen where it is served, the remote one where it was made; an answer set instead is the answer."""
    server, app = world.node("server", CAPS), world.node("app")
    served, made = Log("s"), Log("ann")
    server.use(served)
    app.use(made)
    app.wait_for("echo", timeout=10)
    with pytest.raises(RemoteError, match="bad text") as caught:
        app.reach("echo").call(text="bad")
    assert caught.value.type_name == "ValueError"
    assert served.seen[-1] == ("handler", "bad text")
    assert made.seen[-1] == ("caller", "remote_error")
    assert app.reach("echo", fallback="plan b").call(text="bad") == "plan b"

    @server.use
    def replaces(call: Any) -> Iterator[None]:
        try:
            yield
        except ValueError:
            call.answer = "mended"

    assert app.reach("echo").call(text="bad") == "mended"


def test_a_server_refuses_by_middleware_before_the_handler(world: World) -> None:
    """What is raised before the yield reaches the caller as it is, and nothing ran; an answer set there is given without running."""
    ran: list[str] = []

    def work(text: str) -> str:
        ran.append(text)
        return text

    server, app = world.node("server", {"work": work}), world.node("app")

    @server.use
    def guard(call: Any) -> Iterator[None]:
        text = (call.args or list(call.kwargs.values()))[0]
        if text == "barred":
            raise AccessDenied("not for you")
        if text == "broken":
            raise KeyError("a mistake")
        if text == "known":
            call.answer = "from memory"
            return
        yield

    app.wait_for("work", timeout=10)
    with pytest.raises(AccessDenied, match="not for you") as denied:
        app.reach("work").call("barred")
    with pytest.raises(RemoteError, match="a mistake") as broken:
        app.reach("work").call("broken")
    assert (denied.value.executed, broken.value.executed) == ("no", "no")
    assert app.reach("work").call(text="known") == "from memory"
    assert app.reach("work").call(text="new") == "new"
    assert ran == ["new"]


def test_streams_and_notifies_pass_too(world: World) -> None:
    """Around a stream the yield returns at its end on both sides; a notify passes on its way out and where it runs."""
    server, app = world.node("server", CAPS), world.node("app")
    served, made = Log("s"), Log("ann")
    server.use(served)
    app.use(made)
    app.wait_for("count", timeout=10)
    assert list(app.reach("count").stream(n=3)) == [0, 1, 2]
    eventually(lambda: len(made.seen) == 2 and len(served.seen) == 2)
    assert made.seen[0] == ("caller", "count", ("n", 3))
    app.reach("echo").notify("x")
    eventually(lambda: ("handler", "x ann") in served.seen)


def test_nested_calls_from_handlers_do_not_deadlock(world: World) -> None:
    """A handler whose node has middleware calls on while the pool is small."""
    node = world.node("own", config={"pool_threads": 2})
    node.use(Log("own"))
    node.capability("leaf")(lambda n: n)
    node.capability("twice")(lambda n: node.reach("leaf", timeout=10).call(n) * 2)
    futures = [node.reach("twice", timeout=10).submit(n) for n in range(20)]
    assert [future.result(10) for future in futures] == [2 * n for n in range(20)]
