"""The editor: serves one capability by calling four others. It knows their names, never their addresses.

Fan out: every search agent is asked at once, then one summary per document is ordered at once. Pipe: the writer's stream goes into
the press's, and the press's to whoever asked, item by item.
"""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import Future, as_completed
from typing import Any, TypedDict

from reachmesh import CallFuture, ReachNode

NEEDED = {"search": 2, "summarize": 1, "write": 1, "typeset": 1}
PATIENCE = 60.0
DOCUMENTS = 4

node = ReachNode("editor")


class Progress(TypedDict):
    """One item of the stream: what was done, by which instance, and what came out."""

    step: str
    by: str
    text: str


@node.capability("article")
def article(topic: str) -> Iterator[Progress]:
    """An article on a topic: first how it was made, then its lines as they are written."""
    for capability, count in NEEDED.items():
        node.wait_for(capability, count=count, timeout=PATIENCE)

    hits = []
    for answer in node.reach("search").all(query=topic, limit=DOCUMENTS):
        if answer.error is not None:  # one shelf less is no reason to write nothing
            yield Progress(step="search", by=answer.instance_id, text=f"failed: {answer.error}")
            continue
        hits += answer.value
        yield Progress(step="search", by=answer.instance_id, text=", ".join(hit["title"] for hit in answer.value))
    hits.sort(key=lambda hit: -hit["score"])

    orders: dict[Future[str], tuple[CallFuture, dict[str, Any]]] = {}
    for hit in hits[: 2 * DOCUMENTS]:
        order = node.reach("summarize").submit(text=hit["text"], query=topic)
        orders[order] = order, hit
    notes = []
    for done in as_completed(orders):
        order, hit = orders[done]
        title, summary = hit["title"], done.result()
        yield Progress(step="summarize", by=order.instance_id, text=f"{title}: {summary or 'nothing to quote'}")
        if summary:
            notes.append({"title": title, "summary": summary, "score": hit["score"]})
    notes.sort(key=lambda note: -note["score"])

    words = node.reach("write").stream(
        topic=topic, notes=[{"title": note["title"], "summary": note["summary"]} for note in notes[:DOCUMENTS]]
    )
    lines = node.reach("typeset").stream(word for word in words)
    for line in lines:
        yield Progress(step="line", by=lines.instance_id, text=line)


if __name__ == "__main__":
    node.serve()
