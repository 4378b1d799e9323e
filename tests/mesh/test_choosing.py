"""Which instance gets a call, where users have a say in it; and what comes in place of a failure."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

import pytest

from reachmesh import ConfigError, NoProvider, ReachError, SemanticError, VersionMismatch, capability
from tests.support import World, eventually

FAST: dict[str, Any] = {"heartbeat_period": 0.5, "warmup": 0}
WHO = """
def who(*words: str) -> str:
    with open(node.instance_id, "a") as file:
        file.write("x")
    return node.instance_id
"""
CAPS = "{'who': who}"


def served(world: World, **options: Any) -> str:
    """Instance id of a new provider of `who`."""
    return world.serve("worker", CAPS, WHO, config=FAST, **options).lines[0].split()[1]


def ran(world: World, instance_id: str) -> int:
    """Executions at an instance so far."""
    path = world.folder / instance_id
    return len(path.read_text()) if path.exists() else 0


class Fixed:
    """Always the instance it was made for."""

    def __init__(self, instance_id: str) -> None:
        self.instance_id = instance_id

    def pick(self, candidates: Any, request: Any) -> Any:
        return self.instance_id


class Broken:
    """A strategy with a mistake in it."""

    def pick(self, candidates: Any, request: Any) -> Any:
        raise KeyError("oops")


def test_a_strategy_of_ones_own_chooses_and_its_mistakes_are_its_users(world: World) -> None:
    """An object with `pick` decides; when it raises or names a stranger, that is a ConfigError at the verb, and nothing was sent."""
    ids = [served(world) for _ in range(2)]
    node = world.node(config=FAST)
    node.wait_for("who", count=2, timeout=10)
    for each in ids:
        assert {node.reach("who", strategy=Fixed(each)).call() for _ in range(5)} == {each}
    before = [ran(world, each) for each in ids]
    with pytest.raises(ConfigError, match="oops"):
        node.reach("who", strategy=Broken()).call()
    with pytest.raises(ConfigError, match="nobody-at-all"):
        node.reach("who", strategy=Fixed("nobody-at-all")).submit()
    assert [ran(world, each) for each in ids] == before


def test_a_content_predicate_bars_instances_by_metadata(world: World) -> None:
    """`predicate` decides by a call's metadata who may have it; one that raises bars, and when all are barred the call fails unsent."""
    plain, trusted = served(world), served(world, tags={"trust": "high"})

    def predicate(candidate: Any, metadata: Mapping[str, Any]) -> bool:
        if metadata["kind"] == "broken":
            raise ValueError("a mistake")
        return bool(metadata["kind"] != "secret" or candidate.tags.get("trust") == "high")

    node = world.node(config={**FAST, "predicate": predicate})
    node.wait_for("who", count=2, timeout=10)
    assert {node.reach("who", metadata={"kind": "secret"}).call() for _ in range(10)} == {trusted}
    assert {node.reach("who", metadata={"kind": "open"}, strategy="round_robin").call() for _ in range(10)} == {plain, trusted}
    with pytest.raises(NoProvider, match="a mistake"):
        node.reach("who", metadata={"kind": "broken"}).call()


def test_shadow_calls_are_copied_to_shadow_instances_only(world: World) -> None:
    """A shadow instance takes no ordinary call; with `shadow=True` it gets a copy, and the answer used is a normal instance's."""
    normal, shadow = served(world), served(world, tags={"shadow": "true"})
    node = world.node(config=FAST)
    node.wait_for("who", count=2, timeout=10)
    assert {node.reach("who").call() for _ in range(10)} == {normal}
    assert ran(world, shadow) == 0
    assert {node.reach("who", shadow=True).call() for _ in range(10)} == {normal}
    eventually(lambda: ran(world, shadow) == 10)
    assert ran(world, normal) == 20


def test_a_server_refuses_a_version_it_does_not_speak(world: World) -> None:
    """`version=` within compatible_from..version is served, outside it is VersionMismatch."""
    caps = [capability("who", handler=lambda: "me", version="3", compatible_from="2")]
    node = world.node(caps=caps, config=FAST)
    assert [node.reach("who", version=each).call() for each in ("2", "2.5", "3")] == ["me"] * 3
    for each in ("1", "4"):
        with pytest.raises(VersionMismatch):
            node.reach("who", version=each).call()


def test_declared_semantic_errors_alone_count_as_failures(world: World) -> None:
    """Where a capability declares its failure codes, other semantic errors are answers: they open no breaker."""

    def judge(code: str) -> None:
        raise SemanticError("no", code=code)

    caps = [capability("judge", handler=judge, semantic_errors=["broken"])]
    node = world.node(caps=caps, config={**FAST, "breaker_consecutive": 3})
    for code, opened in (("declined", False), ("broken", True)):
        for _ in range(6):
            with pytest.raises(ReachError):
                node.reach("judge").call(code)
        reason = node.explain("judge").candidates[0].reason
        assert ("breaker" in reason) is opened


def test_a_fallback_stands_in_for_a_stream_that_never_began(world: World) -> None:
    """Before the first item a fallback gives its items or itself; after it the error comes through."""

    def count(n: int):  # type: ignore[no-untyped-def]
        yield from range(n)
        raise ValueError("broken")

    node = world.node(caps={"count": count}, config=FAST)
    assert list(node.reach("nobody", fallback=lambda error: iter([error.code, 2])).stream()) == ["no_provider", 2]
    assert list(node.reach("nobody", fallback=[1, 2]).stream()) == [[1, 2]]
    assert list(node.reach("count", fallback=None).stream(0)) == [None]
    stream = node.reach("count", fallback="b").stream(2)
    assert [stream.next(), stream.next()] == [0, 1]
    with pytest.raises(ReachError, match="broken"):
        stream.next()

    async def read() -> list[Any]:
        return [item async for item in node.reach("nobody", fallback=lambda error: iter("ab")).stream()]

    assert asyncio.run(read()) == ["a", "b"]
