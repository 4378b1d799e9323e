"""What a variant costs while it does nothing: memory per outstanding call, open stream and peer, and CPU with many peers.

Each figure comes from a fresh pair of processes: one that has worked before has room in its heap and would seem to cost nothing.
"""

from __future__ import annotations

import time

from tools.bench.interface import Variant
from tools.bench.pair import Pair

CALLS = 2000
STREAMS = 500
PEERS = 50
SETTLE = 1.0
"""Seconds until what was opened has arrived everywhere."""


def per_held(variant: Variant, verb: str, count: int) -> float | None:
    """KiB of resident memory, both sides together, for each held call or stream; None if not offered."""
    pair = Pair(variant)
    try:
        if not pair.hold(verb, 1):
            return None
        before = pair.usage()[1]
        pair.hold(verb, count)
        time.sleep(SETTLE)
        return (pair.usage()[1] - before) / count / 1024
    finally:
        pair.close()


def with_many_peers(variant: Variant, idle_seconds: float) -> tuple[float, float]:
    """KiB of the client's memory for each peer, and the share of a core (%) that the client takes idle with all of them."""
    alone = Pair(variant)
    try:
        time.sleep(SETTLE)
        memory = alone.usage(client_only=True)[1]
    finally:
        alone.close()
    many = Pair(variant, PEERS)
    try:
        time.sleep(SETTLE)
        cpu, used = many.usage(client_only=True)
        time.sleep(idle_seconds)
        return (used - memory) / (PEERS - 1) / 1024, 100 * (many.usage(client_only=True)[0] - cpu) / idle_seconds
    finally:
        many.close()


def costs(variant: Variant, idle_seconds: float) -> dict[str, float]:
    """All standing costs that the variant can be asked for."""
    found = {"kib-per-call": per_held(variant, "hold_calls", CALLS), "kib-per-stream": per_held(variant, "hold_streams", STREAMS)}
    present = {name: value for name, value in found.items() if value is not None}
    if present:
        present["kib-per-peer"], present["idle-50"] = with_many_peers(variant, idle_seconds)
    return present
