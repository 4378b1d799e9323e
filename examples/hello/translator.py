"""Half of the shortest pair: a process that offers one function. Start it, then `hello/app.py` anywhere on the same LAN."""

from __future__ import annotations

from reachmesh import ReachNode


def translate(text: str, to: str = "en") -> str:
    return f"[{to}] {text}"


ReachNode("translator", caps={"translate": translate}).serve()
