"""A user's program, written to be read by type checkers only: mypy and pyright, both strict, have to accept it as it stands.

It touches every name of the public face once. Whoever changes a public type sees here what users will see.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import assert_type

import reachmesh
from reachmesh import (
    Capability,
    Channel,
    Context,
    Event,
    NodeConfig,
    PeerInfo,
    Reach,
    ReachError,
    ReachNode,
    SemanticError,
    Stream,
    capability,
)


def translate(text: str, to: str = "en") -> str:
    return f"[{to}] {text}"


async def generate(prompt: str) -> AsyncIterator[str]:
    for word in prompt.split():
        yield word


def total(numbers: Iterator[int], ctx: Context) -> int:
    with ctx.subtask("add"):
        return sum(numbers)


@capability("double", domain="inline", idempotent=True)
def double(number: int) -> int:
    return 2 * number


async def refuse(text: str, ctx: Context) -> str:
    ctx.log.info("asked by %s with %.1f s left", ctx.caller, ctx.remaining() or 0.0)
    raise SemanticError(text)


def serve() -> None:
    declared = capability("refuse", handler=refuse, max_concurrent=8, semantic_errors=["refused"], requires=["double"])
    assert_type(declared, Capability)
    node = ReachNode("writer", caps={"translate": translate, "generate": generate}, tags={"gpu": "a100"}, seeds=["10.0.0.1:7400"])

    @node.capability("summarize", profile="medium", max_concurrent=8, idempotent=True)
    def summarize(text: str, ctx: Context) -> str:
        return text[:10]

    assert_type(double(2), int)  # a decorated handler keeps its signature
    assert_type(summarize("text", Context.__new__(Context)), str)
    node.serve()
    ReachNode("other", caps=[declared, capability("total", handler=total)], config=NodeConfig()).serve()


def call() -> None:
    with ReachNode("app", mesh="blue", config={"preset": "fast"}) as node:
        assert_type(node, ReachNode)
        node.wait_for("translate", timeout=5)
        reach = node.reach("translate", timeout=2, retries=1, fallback=None, tags={"gpu": "a100"}, version={"1": 0.9, "2": 0.1})
        assert_type(reach, Reach)
        assert_type(reach.options(priority=10), Reach)
        try:
            print(reach.call(text="hola"))
        except reachmesh.NoProvider as missing:
            print(missing.hint)
        except ReachError as error:
            print(error.code, error.retryable, error.executed, error.hint, error.trace_id, error.attempts)
        future = reach.submit(text="hola")
        print(future.result(5), future.done(), future.cancel())
        with node.reach("generate").stream(prompt="hi") as stream:
            assert_type(stream, Stream)
            for token in stream:
                print(token)
        with node.reach("total").channel() as channel:
            assert_type(channel, Channel)
            channel.send(1)
            channel.end()
        for answer in reach.all("hola"):
            print(answer.instance_id, answer.value, answer.error)
        assert_type(node.peers(), list[PeerInfo])
        assert_type([peer.instance_id for peer in node.providers("translate")], list[str])
        node.on("peer_lost", lambda event: print(event.reason))
        endpoints: Sequence[str] = node.endpoints
        print(endpoints, node.instance_id, node.state, node.is_running, node.explain("translate").candidates)


async def call_async() -> None:
    async with ReachNode("app") as node:
        await node.wait_for_async("translate", count=2)
        print(await node.reach("translate").submit("hola"))
        async for token in node.reach("generate").stream("hi"):
            print(token)
        async for event in node.events():
            assert_type(event, Event)
            break
