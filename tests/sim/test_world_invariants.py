"""What the library promises about calls, under random faults of a world of whole nodes."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from random import Random
from typing import Any

import pytest

from reachmesh.errors import ReachError
from reachmesh.testing import Faults, World


@pytest.mark.parametrize("seed", range(8))
@pytest.mark.parametrize("hostile", [False, True], ids=["tcp", "hostile"])
def test_every_call_ends_once_and_in_time(seed: int, hostile: bool) -> None:
    """Under random kills, restarts, freezes, cuts and losses each call ends once, by its deadline, and says truly whether it ran.

    `hostile`: messages vanish, come twice and overtake each other as well, which TCP never does.
    """
    faults = Faults(loss=0.05, drop=0.02, duplicate=0.05, reorder=0.05) if hostile else Faults(loss=0.1)
    world = World(seed, faults=faults)
    dice = Random(seed)
    ran: Counter[int] = Counter()

    async def work(token: int, seconds: float) -> int:
        ran[token] += 1
        await asyncio.sleep(seconds)
        return token

    def count(token: int, upto: int) -> Any:
        ran[token] += 1
        for number in range(upto):
            yield [token, number]

    async def total(token: int, items: AsyncIterator[int]) -> list[int]:
        ran[token] += 1
        return [token, sum([item async for item in items])]

    nodes = [world.node(f"n{index}", {"work": work, "count": count, "total": total}, config={"preset": "fast"}) for index in range(4)]
    world.run(1)

    def misfortune() -> None:
        one, other = dice.sample(nodes, 2)
        what = dice.randrange(6)
        if what == 0:
            world.kill(one, silent=dice.random() < 0.3)
            world.after(dice.uniform(0.1, 4), world.restart, one)
        elif what == 1:
            world.freeze(one, dice.uniform(0.1, 6))
        elif what == 2:
            world.cut(one, other, one_way=dice.random() < 0.5)
            world.after(dice.uniform(0.1, 8), world.heal, one, other)
        elif what == 3:
            world.jump(one, dice.uniform(-1e4, 1e4))
        elif what == 4:
            world.degrade(one, other, Faults(delay=dice.uniform(0, 0.5), loss=0.3))
            world.after(3, world.degrade, one, other, None)
        else:
            world.disconnect(one, other)

    for _ in range(15):
        world.after(dice.uniform(0, 30), misfortune)

    ends: list[tuple[int, str]] = []

    async def ask(token: int) -> None:
        await asyncio.sleep(dice.uniform(0, 30))
        node = dice.choice(nodes)
        began, timeout = world.now, dice.uniform(0.2, 5)
        verb = dice.randrange(4)
        error: ReachError | None = None
        try:
            if verb == 0:
                assert await node.reach("work", timeout=timeout).submit(token, dice.uniform(0, 3)) == token
            elif verb == 1:
                upto = dice.randrange(600)
                items = [item async for item in node.reach("count", timeout=timeout).stream(token, upto)]
                assert items == [[token, number] for number in range(upto)]
            elif verb == 2:
                many = dice.randrange(600)
                assert await node.reach("total", timeout=timeout).submit(token, iter(range(many))) == [token, sum(range(many))]
            else:
                future = node.reach("work", timeout=timeout).submit(token, 10)
                world.after(dice.uniform(0, 1), future.cancel)
                await future
        except ReachError as failure:
            error = failure
        ends.append((token, "ok" if error is None else error.code))
        assert world.now <= began + timeout + 6.5, (token, error)
        if error is None or error.executed == "yes":
            assert ran[token] >= 1, (token, error)
        elif error.executed == "no":
            assert ran[token] == 0, (token, error)
        assert ran[token] <= 1 or hostile, "nothing here may run twice"

    async def ask_all() -> None:
        await asyncio.gather(*map(ask, range(150)))

    world.run_async(ask_all())
    assert sorted(token for token, _ in ends) == list(range(150))
    assert sum(code == "ok" for _, code in ends) > 40
    world.faults = Faults()
    world.heal()
    for node in nodes:
        world.thaw(node)
        if not node.is_running:
            world.restart(node)
    world.run_until(lambda: all(len(node.peers()) == 3 for node in nodes), limit=30)
    world.run(10)
    for node in nodes:
        assert node._driver.engine.caller.open == node._driver.engine.callee.open == 0
