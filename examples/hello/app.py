"""The other half: a process that calls the function, whoever offers it and wherever that runs."""

from __future__ import annotations

from reachmesh import ReachNode

with ReachNode("app") as node:
    node.wait_for("translate", timeout=5)
    print(node.reach("translate").call(text="hola"))
