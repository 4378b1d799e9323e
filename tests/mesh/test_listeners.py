"""Who listens to a node: waits, event iterators and functions do not hold each other up, and all of them end."""

from __future__ import annotations

import asyncio
import os
import socket
import threading
import time

import pytest

from reachmesh import NodeStopped, NoProvider, ReachNode
from tests.support import eventually


@pytest.fixture
def mesh() -> str:
    return f"listeners-{os.getpid()}-{time.monotonic_ns()}"


def node(name: str, mesh: str, **options: object) -> ReachNode:
    return ReachNode(name, mesh=mesh, interfaces=["127.0.0.1"], **options)  # type: ignore[arg-type]


def test_a_slow_listener_holds_up_nobody_who_waits(mesh: str) -> None:
    """While a function that was given to `on` blocks, `wait_for` and event iterators hear of a new peer at once."""
    stuck = threading.Event()
    with node("a", mesh) as a:
        a.on("*", lambda event: stuck.wait(20))
        with node("first", mesh):
            a.wait_for("none", count=0)

            async def joined() -> str:
                async with asyncio.timeout(10):
                    async for event in a.events():
                        if event.kind == "peer_joined" and event.peer is not None and event.peer.name == "b":
                            return event.peer.name
                return ""

            async def watch() -> str:
                waiting = asyncio.create_task(joined())
                began = time.monotonic()
                await asyncio.sleep(0)
                b = node("b", mesh, caps={"echo": lambda x: x})
                await asyncio.to_thread(b.start)
                try:
                    await a.wait_for_async("echo", timeout=10)
                    await asyncio.to_thread(a.wait_for, "echo", 1, 10)
                    assert time.monotonic() - began < 5
                    return await waiting
                finally:
                    await asyncio.to_thread(b.stop)

            assert asyncio.run(watch()) == "b"
        stuck.set()


def test_an_iterator_hears_all_from_its_making_on_and_ends_with_the_node(mesh: str) -> None:
    """What happens between `events()` and the first `async for` is not lost; after the stop the loop is over."""
    kinds: list[str] = []

    async def listen(a: ReachNode) -> None:
        events = a.events()
        b = node("b", mesh, caps={"echo": lambda x: x})
        await asyncio.to_thread(b.start)
        await a.wait_for_async("echo", timeout=10)
        await asyncio.to_thread(b.stop)
        stop = asyncio.create_task(a.stop_async())
        async with asyncio.timeout(10):
            async for event in events:
                kinds.append(event.kind)
        await stop
        async for _ in a.events():
            raise AssertionError("a stopped node has no events")

    with node("a", mesh) as a:
        asyncio.run(listen(a))
    assert kinds[0] == "peer_joined"


def test_a_wait_ends_with_the_node(mesh: str) -> None:
    """Who waits for ever for a capability is told when the node stops, on a thread and on a loop."""
    ends: list[str] = []
    waiting: list[str] = []
    a = node("a", mesh).start()

    def wait() -> None:
        waiting.append("thread")
        with pytest.raises(NodeStopped):
            a.wait_for("never")
        ends.append("thread")

    async def wait_on_loop() -> None:
        waiting.append("loop")
        with pytest.raises(NodeStopped):
            await a.wait_for_async("never")
        ends.append("loop")

    threads = [threading.Thread(target=wait), threading.Thread(target=lambda: asyncio.run(wait_on_loop()))]
    for thread in threads:
        thread.start()
    eventually(lambda: len(waiting) == 2)
    a.stop()
    for thread in threads:
        thread.join(10)
    assert sorted(ends) == ["loop", "thread"]


def test_a_refused_link_is_told_to_whoever_waits_and_in_the_log(mesh: str, caplog: pytest.LogCaptureFixture) -> None:
    """With different secrets a wait in vain names the reason on both sides, and so does a warning; neither holds a secret."""
    with node("a", mesh, secret="first-secret") as a, node("b", mesh, secret="other-secret", caps={"echo": lambda x: x}) as b:
        for each in (a, b):
            eventually(lambda each=each: each._driver.engine.refusals)  # type: ignore[misc]
            with pytest.raises(NoProvider, match="another secret"):
                each.wait_for("nothing", timeout=0.1)
            with pytest.raises(NoProvider, match="another secret"):
                each.reach("nothing", timeout=0.1).call()
        eventually(lambda: caplog.text.count("a link was refused") >= 2)
    assert "first-secret" not in caplog.text
    assert "other-secret" not in caplog.text


@pytest.mark.parametrize(("mine", "theirs"), [(None, "a-secret"), ("a-secret", None), ("a-secret", "another-secret")])
def test_whoever_dials_is_told_of_secrets_that_differ(mesh: str, mine: str | None, theirs: str | None) -> None:
    """Each time, at once, on both sides, whichever of them has a secret: not only when libzmq happens to say why."""
    with node("server", mesh, secret=theirs, discovery=(), bind="127.0.0.1:0") as server:
        seed = server.endpoints[0].removeprefix("tcp://")
        for _ in range(5):
            with node("caller", mesh, secret=mine, discovery=("seeds",), seeds=[seed]) as caller:
                eventually(lambda: caller._driver.engine.refusals, 2)
        assert server._driver.engine.refusals


def test_a_seed_that_is_no_node_is_not_taken_for_one_with_a_secret(mesh: str) -> None:
    """A web server's port refuses in its own words, and nobody is told of secrets."""
    with socket.create_server(("127.0.0.1", 0)) as web:
        seed = f"127.0.0.1:{web.getsockname()[1]}"
        with node("caller", mesh, discovery=("seeds",), seeds=[seed]) as caller:
            for _ in range(3):
                asked, _ = web.accept()
                with asked:
                    asked.recv(10)
                    asked.sendall(b"HTTP/1.1 400 Bad Request\r\n\r\n")
            assert caller._driver.engine.refusals == []
