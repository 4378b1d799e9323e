"""A writer: streams an article word by word, the way a language model would."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import dataclass

from reachmesh import ReachNode

LINKS = ["To begin with,", "Then there is", "Next comes", "Also worth knowing:", "And finally,"]


@dataclass(frozen=True)
class Note:
    """What is known about one thing. Callers may send plain mappings: they are checked and converted on arrival."""

    title: str
    summary: str


async def write(topic: str, notes: list[Note], pause: float = 0.01) -> AsyncIterator[str]:
    """An article on `topic` from `notes`, as words; a newline among them ends a paragraph."""
    for word in f"How to {topic}, in the words of the Python standard library.".split():
        yield word
        await asyncio.sleep(pause)
    for number, note in enumerate(notes):
        yield "\n"
        link = LINKS[min(number, len(LINKS) - 1)] if number < len(notes) - 1 else LINKS[-1]
        for word in f"{link} {note.title}. {note.summary}".split():
            yield word
            await asyncio.sleep(pause)


if __name__ == "__main__":
    ReachNode("writer", caps={"write": write}).serve()
