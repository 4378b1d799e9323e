"""Calls and answers that come in quick succession share messages, but are not all held back for the last of them."""

from __future__ import annotations

import asyncio
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest

from reachmesh import ReachNode, capability

MANY = 256


def double(x: int) -> int:
    return 2 * x


async def triple(x: int) -> int:
    return 3 * x


@pytest.fixture
def pair() -> Iterator[tuple[ReachNode, ReachNode]]:
    """A serving node and a calling one that serves too."""
    mesh = f"together-{secrets.token_hex(6)}"
    options: dict[str, Any] = {"mesh": mesh, "interfaces": ["127.0.0.1"]}
    caps = [capability("double", handler=double, domain="inline"), capability("triple", handler=triple)]
    with ReachNode("server", caps=caps, **options) as server, ReachNode("client", **options) as client:
        client.wait_for("triple", timeout=15)
        client.reach("double").call(x=1)
        yield server, client


class Sent:
    """Counts the messages that a node sends while calls or answers of so many bytes are in them."""

    def __init__(self, node: ReachNode, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sizes: list[int] = []
        transport = node._driver._transport
        send = transport.send

        def counted(key: int, batch: bytes, parts: Any) -> None:
            if len(batch) > 40:
                self.sizes.append(len(batch))
            send(key, batch, parts)

        monkeypatch.setattr(transport, "send", counted)


async def gather(node: ReachNode, cap: str, count: int) -> list[int]:
    reach = node.reach(cap, timeout=20)
    return await asyncio.gather(*(reach.submit(x=x) for x in range(count)))


@pytest.mark.parametrize("cap", ["double", "triple"])
def test_calls_of_one_round_leave_in_a_few_messages(pair: tuple[ReachNode, ReachNode], monkeypatch: pytest.MonkeyPatch, cap: str) -> None:
    """256 calls that a loop makes at once: far fewer messages than calls, and more than one, so that the other side begins early."""
    server, client = pair
    calls, answers = Sent(client, monkeypatch), Sent(server, monkeypatch)
    factor = {"double": 2, "triple": 3}[cap]
    assert asyncio.run(gather(client, cap, MANY)) == [factor * x for x in range(MANY)]
    assert 4 <= len(calls.sizes) <= MANY / 4
    assert 2 <= len(answers.sizes) <= MANY / 4


def test_calls_of_a_thread_leave_together_when_it_does_not_wait(pair: tuple[ReachNode, ReachNode], monkeypatch: pytest.MonkeyPatch) -> None:
    """A thread that makes 256 calls and then asks for the answers does not send each in a message of its own."""
    client = pair[1]
    reach = client.reach("double", timeout=20)
    best = MANY
    for _ in range(5):  # a thread that is held up between two calls sends the second one alone
        sent = Sent(client, monkeypatch)
        futures = [reach.submit(x=x) for x in range(MANY)]
        assert [future.result() for future in futures] == [2 * x for x in range(MANY)]
        best = min(best, len(sent.sizes))
    assert best <= MANY / 3


def test_a_call_that_nobody_waits_for_leaves_at_once(pair: tuple[ReachNode, ReachNode]) -> None:
    """Neither a lone call nor one right behind another needs its thread for anything more: it is answered while that thread sleeps."""
    reach = pair[1].reach("double", timeout=20)
    for quick in (False, True):
        slowest = []
        for _ in range(20):
            answered = threading.Event()
            if quick:
                reach.submit(x=1)
            reach.submit(x=2).add_done_callback(lambda _, answered=answered: answered.set())  # type: ignore[misc]  # bound now
            started = time.monotonic()
            assert answered.wait(5.0)
            slowest.append(time.monotonic() - started)
            time.sleep(0.01)
        assert sorted(slowest)[10] < 0.1


def test_inline_handlers_do_not_run_in_the_middle_of_code_on_a_loop(pair: tuple[ReachNode, ReachNode]) -> None:
    """A loop that makes many calls sends some of them at once; what others want of its node runs between its steps, not inside `submit`."""
    server, client = pair
    inside, caught = threading.local(), []

    def watch(x: int) -> int:
        if getattr(inside, "submit", False):
            caught.append(x)
        return x

    client.capability("watch", domain="inline")(watch)
    server.wait_for("watch", timeout=15)
    over = threading.Event()

    def flood() -> None:
        reach = server.reach("watch", timeout=20)
        while not over.is_set():
            for future in [reach.submit(x=x) for x in range(64)]:
                future.result()

    async def calls() -> None:
        reach = client.reach("double", timeout=20)
        until = time.monotonic() + 1.0
        while time.monotonic() < until:
            futures = []
            for x in range(64):
                inside.submit = True
                futures.append(reach.submit(x=x))
                inside.submit = False
            await asyncio.gather(*futures)

    flooding = threading.Thread(target=flood)
    flooding.start()
    try:
        asyncio.run(calls())
    finally:
        over.set()
        flooding.join()
    assert not caught


def test_the_first_of_many_inline_answers_does_not_wait_for_the_last(pair: tuple[ReachNode, ReachNode]) -> None:
    """200 inline handlers of a quarter of a millisecond that are asked for together: the first answers are there long before the last handler has run."""
    server, client = pair

    @server.capability("nap", domain="inline")
    def nap(x: int) -> int:
        time.sleep(0.00025)
        return x

    client.wait_for("nap", timeout=15)
    reach = client.reach("nap", timeout=20)

    async def main() -> tuple[float, float]:
        started = time.monotonic()
        futures = [asyncio.ensure_future(reach.submit(x=x)) for x in range(200)]
        await futures[0]
        first = time.monotonic() - started
        await asyncio.gather(*futures)
        return first, time.monotonic() - started

    first, last = asyncio.run(main())
    assert first < last / 2
