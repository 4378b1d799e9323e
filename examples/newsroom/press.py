"""The press: words stream in, finished lines stream out, while the writer is still at work."""

from __future__ import annotations

from collections.abc import AsyncIterator

from reachmesh import ReachNode


async def typeset(words: AsyncIterator[str], width: int = 76) -> AsyncIterator[str]:
    """Lines of at most `width` characters; the parameter hinted AsyncIterator is what the caller streams."""
    line = ""
    async for word in words:
        if word == "\n" or (line and len(line) + 1 + len(word) > width):
            yield line
            line = ""
        if word != "\n":
            line = f"{line} {word}" if line else word
    yield line


if __name__ == "__main__":
    ReachNode("press", caps={"typeset": typeset}).serve()
