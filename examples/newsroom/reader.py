"""The reader: asks for an article and shows what happens, when, and who did it.

python examples/newsroom/reader.py [TOPIC]
"""

from __future__ import annotations

import sys
import time

from reachmesh import Event, ReachNode

TOPIC = "read compressed archive files"
WIDTH = 120
PATIENCE = 60.0
BEGAN = time.perf_counter()


def say(what: str, text: str) -> None:
    """One line: seconds since the start, what happened, and as much of the text as fits."""
    text = text if len(text) <= WIDTH else text[: WIDTH - 3] + "..."
    print(f"{time.perf_counter() - BEGAN:6.2f} s  {what:<9} {text}", flush=True)


def met(event: Event) -> None:
    if event.peer is not None:
        peer = event.peer
        say("met", f"{peer.instance_id} at {', '.join(peer.endpoints)}, offers {', '.join(peer.capabilities)}")


def main(topic: str) -> None:
    node = ReachNode("reader")
    node.on("peer_joined", met)
    with node:
        say("started", f"{node.instance_id}, knows nobody")
        node.wait_for("article", timeout=PATIENCE)
        say("asks for", f"an article on how to {topic!r}")
        count = 0
        for item in node.reach("article", idle_timeout=PATIENCE).stream(topic=topic):
            who = "" if item["step"] == "line" else f"{item['by']} answered: "
            say(item["step"], who + item["text"])
            count += item["step"] == "line"
        say("done", f"{count} lines, each shown when it came")


if __name__ == "__main__":
    main(" ".join(sys.argv[1:]) or TOPIC)
