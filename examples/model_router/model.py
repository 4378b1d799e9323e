"""A model behind the router: `model.py NAME`. All models offer the same capability; the tag says which one it is."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator

from reachmesh import ReachNode

PAUSE = {"small": 0.01, "large": 0.03}


def main(model: str) -> None:
    async def complete(prompt: str) -> AsyncIterator[str]:
        """The prompt backwards, word by word; what did you expect?"""
        for word in reversed(prompt.split()):
            yield word
            await asyncio.sleep(PAUSE.get(model, 0.02))

    ReachNode(f"model-{model}", caps={"complete": complete}, tags={"model": model}).serve()


if __name__ == "__main__":
    main(sys.argv[1])
