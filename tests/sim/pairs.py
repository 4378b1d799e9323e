"""The two nodes that most tests of a world begin with."""

from __future__ import annotations

import asyncio
from typing import Any

from reachmesh.testing import SimulatedNode, World


def double(x: int) -> int:
    return 2 * x


async def nap(seconds: float) -> float:
    await asyncio.sleep(seconds)
    return asyncio.get_running_loop().time()


def pair(seed: int = 1, caps: Any = None, **options: Any) -> tuple[World, SimulatedNode, SimulatedNode]:
    """A world with a node that calls and one that serves."""
    world = World(seed)
    return world, world.node("app"), world.node("server", caps or {"double": double, "nap": nap}, **options)
