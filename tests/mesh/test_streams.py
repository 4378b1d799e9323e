"""Streams between real processes: memory stays flat behind a slow reader, and bulk does not delay small calls."""

from __future__ import annotations

import os
import random
import threading
import time
from contextlib import suppress

import psutil

from reachmesh import Cancelled
from tests.network import SlowLink
from tests.support import World

MIB = 1 << 20

SOURCE = """
import os
def pour(count: int, size: int):
    block = os.urandom(size)
    for _ in range(count):
        yield block
def ping(x): return x
def drink(blocks: Iterator[bytes]) -> int:
    total = 0
    for each in blocks:
        total += len(each)
        if total % (1 << 24) < len(each): time.sleep(0.02)
    return total
"""
SOURCE = "from collections.abc import Iterator\n" + SOURCE


def peak(process: psutil.Process, into: list[int], over: threading.Event) -> None:
    while not over.wait(0.02):
        into.append(process.memory_info().rss)


def test_a_big_stream_through_a_slow_reader_stays_flat(world: World) -> None:
    """256 MiB in items of 1 MiB, and as many the other way, read with pauses: neither process grows by 64 MiB."""
    child = world.serve("source", "{'pour': pour, 'drink': drink}", SOURCE)
    app = world.node()
    app.wait_for("pour", timeout=10)
    total = int(os.environ.get("TEST_STREAM_MIB", "128"))
    sum(map(len, app.reach("pour").stream(count=4, size=MIB)))
    both = [psutil.Process(), psutil.Process(child.pid)]
    before = [each.memory_info().rss for each in both]
    over = threading.Event()
    seen: list[list[int]] = [[], []]
    watchers = [threading.Thread(target=peak, args=(each, into, over)) for each, into in zip(both, seen, strict=True)]
    for each in watchers:
        each.start()
    got = 0
    for item in app.reach("pour").stream(count=total, size=MIB):
        got += len(item)
        if got % (16 * MIB) == 0:
            time.sleep(0.02)
    block = bytes(MIB)
    taken = app.reach("drink", timeout=60).call(block for _ in range(total))
    over.set()
    for each in watchers:
        each.join()
    assert got == taken == total * MIB
    for rss, start in zip(seen, before, strict=True):
        assert max(rss) - start < 64 * MIB


def test_small_calls_are_quick_beside_bulk_on_a_slow_link(world: World) -> None:
    """At 10 MiB/s with a stream that fills the link, a small call takes at most 60 ms at the 99th percentile."""
    child = world.serve("source", "{'pour': pour, 'ping': ping}", SOURCE, discovery=())
    address = child.lines[0].split()[-1].removeprefix("tcp://")
    with SlowLink(address, rate=10 * MIB) as link:
        app = world.node(discovery=["seeds"], seeds=[link.address])
        app.wait_for("ping", timeout=10)
        stream = app.reach("pour").stream(count=100_000, size=MIB // 4)
        moved = 0

        def read() -> None:
            nonlocal moved
            with suppress(Cancelled):
                for item in stream:
                    moved += len(item)

        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        ping = app.reach("ping", timeout=5)
        for _ in range(20):
            ping.call(x=0)
        took = []
        began, at_first = time.monotonic(), moved
        while time.monotonic() - began < 4.0:
            start = time.monotonic()
            ping.call(x=1)
            took.append(time.monotonic() - start)
        rate = (moved - at_first) / (time.monotonic() - began)
        stream.close()
        reader.join(5)
        assert link.connections == 1
    took.sort()
    assert rate > 4 * MIB
    at_rate = 0.060 * max(1.0, 10 * MIB / rate)  # what a busy machine does not carry counts as a slower link
    assert took[int(len(took) * 0.99)] <= at_rate, (len(took), took[-5:], rate / MIB)


def test_payloads_of_every_size_come_and_go_whole(world: World) -> None:
    """Around every limit of parts, frames and chunks, on a link that is known to be fast: the answer is the argument."""
    world.serve("mirror", "{'mirror': mirror}", "def mirror(data: bytes) -> bytes:\n    return data\n")
    app = world.node()
    app.wait_for("mirror", timeout=10)
    mirror, rng = app.reach("mirror", timeout=20), random.Random(1)
    mirror.call(data=bytes(4 * MIB))
    limits = [128, 16 * 1024, 64 * 1024, 128 * 1024, 256 * 1024, 512 * 1024, MIB]
    for _ in range(12):
        sent = [rng.randbytes(rng.choice(limits) + rng.randint(-100, 100)) for _ in range(16)]
        futures = [mirror.submit(data=data) for data in sent]
        assert all(future.result(20) == data for future, data in zip(futures, sent, strict=True))
