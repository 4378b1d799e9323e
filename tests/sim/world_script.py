"""A run of calls and faults, printed: `test_world` compares it between processes."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from reachmesh.errors import ReachError
from reachmesh.testing import Faults, World


async def work(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return seconds


async def count(upto: int) -> AsyncIterator[int]:
    for number in range(upto):
        await asyncio.sleep(0.01)
        yield number


def main(seed: int) -> None:
    world = World(seed, faults=Faults(loss=0.05))
    nodes = [world.node(f"n{index}", {"work": work, "count": count}, tags={"a": 1, "b": "x"}) for index in range(5)]
    world.after(3, world.freeze, nodes[1], 4)
    world.after(4, world.kill, nodes[2])
    world.after(5, world.partition, nodes[:2], nodes[3:])
    world.after(9, world.restart, nodes[2])
    world.after(20, world.heal)

    async def ask(index: int) -> str:
        await asyncio.sleep(index * 0.1)
        node = nodes[index % 2]
        try:
            if index % 3:
                return repr(await node.reach("work", timeout=2).submit(index % 5 / 10))
            return repr([item async for item in node.reach("count", timeout=2).stream(index % 7)])
        except ReachError as error:
            return f"{error.code} {error.executed} {error}"

    async def ask_all() -> list[str]:
        return await asyncio.gather(*map(ask, range(120)))

    for line in world.run_async(ask_all()):
        print(line)
    world.run(30)
    for node in nodes:
        print(node.instance_id, [(event.kind, event.peer and event.peer.instance_id, event.at) for event in node.seen])
    print(world.transcript())


if __name__ == "__main__":
    main(int(sys.argv[1]))
