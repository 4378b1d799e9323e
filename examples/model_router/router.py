"""A model router: short prompts go to the small model, long ones to the large one, and to the other one when the first is away.

Which machine runs a model, and how many do, is nobody's business here: the tag is all that is asked for, and among equals reachmesh
takes the lightest. The next model nobody has heard of needs no change either: `chat(prompt, model="...")`.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

from reachmesh import NoProvider, ReachNode, SemanticError

SHORT = 8

node = ReachNode("router")


@node.capability("chat")
async def chat(prompt: str, model: str | None = None) -> AsyncIterator[str]:
    """The answer of a fitting model, as a stream; its first item names the instance."""
    small = len(prompt.split()) <= SHORT
    wanted = [model] if model else ["small", "large"] if small else ["large", "small"]
    for each in wanted:
        answer = node.reach("complete", tags={"model": each}).stream(prompt=prompt)
        try:
            first = await anext(answer, None)
        except NoProvider:
            continue
        yield answer.instance_id
        if first is not None:
            yield first
        async for word in answer:
            yield word
        return
    raise SemanticError(f"no model of {', '.join(wanted)} is there", code="no_model")


if __name__ == "__main__":
    node.serve()
