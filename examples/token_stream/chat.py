"""Reads a stream word by word as it is made, and leaves it after three sentences: the model stops there too."""

from __future__ import annotations

import sys
import time

from reachmesh import ReachNode

SENTENCES = 3


def main(seed: int) -> None:
    with ReachNode("chat") as node:
        node.wait_for("generate", timeout=10)
        began, first, sentences = time.perf_counter(), 0.0, 0
        with node.reach("generate", idle_timeout=5).stream(seed=seed) as words:
            for word in words:
                first = first or time.perf_counter() - began
                print(word, end=" ", flush=True)
                sentences += word.endswith((".", "!"))
                if sentences == SENTENCES:
                    break
        print(f"\n(first word after {first * 1000:.0f} ms, from {words.instance_id})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 1)
