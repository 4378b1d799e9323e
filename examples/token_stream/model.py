"""A "language model" that streams: word after word, each chosen by the two before it, learned from the Zen of Python.

The handler is a generator, so what it yields is a stream. When the reader leaves, the generator is closed where it stands, in this
process: `finally` is where a real model would free its slot.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import io
import random
from collections import defaultdict
from collections.abc import AsyncIterator

from reachmesh import Context, ReachNode

with contextlib.redirect_stdout(io.StringIO()):  # the module prints its text when it is imported
    import this

WORDS = codecs.decode(this.s, "rot13").split()
FOLLOWERS: dict[tuple[str, str], list[str]] = defaultdict(list)
for first, second, third in zip(WORDS, WORDS[1:] + WORDS[:1], WORDS[2:] + WORDS[:2], strict=True):
    FOLLOWERS[first, second].append(third)

node = ReachNode("model")


@node.capability("generate")
async def generate(seed: int, ctx: Context, pause: float = 0.02) -> AsyncIterator[str]:
    """Words without end: how many are made is the reader's decision."""
    choose = random.Random(seed).choice
    state = choose(list(FOLLOWERS))
    count = 0
    try:
        while True:
            word = choose(FOLLOWERS[state])
            state = state[1], word
            count += 1
            yield word
            await asyncio.sleep(pause)
    finally:
        print(f"closed after {count} words for {ctx.caller.name}", flush=True)


if __name__ == "__main__":
    node.serve()
