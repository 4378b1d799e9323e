"""What is measured. Each work runs inside a client process against a server that is already up, and answers one number.

Bodies are 100 bytes unless the name says otherwise. Blocking works use the client's blocking verb and asyncio works the asyncio
one; works that do not care take the blocking one if there is one. A work that a client cannot do raises `NotImplementedError`.
"""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any, NamedTuple

from tools.bench.interface import Client, offers

BODY = b"x" * 100
MIB = 1024 * 1024
THREADS = 4
CHUNK = 65536
BULK_ITEMS = 200
WARM = 0.2
"""Share of the time that goes by before anything counts."""


class Bench:
    """A connected client, and the event loop its coroutines run on."""

    def __init__(self, client: Client, runner: asyncio.Runner) -> None:
        self.client = client
        self.runner = runner

    def need(self, *verbs: str) -> None:
        for verb in verbs:
            if not offers(self.client, verb):
                raise NotImplementedError("not offered")

    def run(self, coroutine: Coroutine[Any, Any, float]) -> float:
        return self.runner.run(coroutine)


Measure = Callable[[Bench, float], float]


class Work(NamedTuple):
    """One column of the tables."""

    name: str
    title: str
    unit: str
    measure: Measure
    floor: str = ""
    """The work whose raw figure is the floor of this one, if it is not the same work."""
    instances: int = 1
    quick: bool = True
    """Whether `--quick` has it too."""

    @property
    def lower_is_better(self) -> bool:
        return self.unit in ("us", "ms", "x", "%")


def percentile(values: list[int], share: float) -> float:
    """The value that `share` of them do not exceed, in microseconds from nanoseconds."""
    return sorted(values)[min(len(values) - 1, int(len(values) * share))] / 1000


def one_blocking(bench: Bench, seconds: float) -> float:
    bench.need("call")
    return percentile(_blocking_times(bench.client.call, seconds), 0.5)


def _blocking_times(call: Callable[[bytes], bytes], seconds: float) -> list[int]:
    clock, times = time.perf_counter_ns, []
    start = clock()
    warm, end = start + int(WARM * seconds * 1e9), start + int(seconds * 1e9)
    while (before := clock()) < end:
        call(BODY)
        if before > warm:
            times.append(clock() - before)
    return times


def one_asyncio(bench: Bench, seconds: float) -> float:
    bench.need("acall")
    return percentile(bench.runner.run(_asyncio_times(bench.client.acall, seconds)), 0.5)


async def _asyncio_times(call: Callable[[bytes], Coroutine[Any, Any, bytes]], seconds: float) -> list[int]:
    clock, times = time.perf_counter_ns, []
    start = clock()
    warm, end = start + int(WARM * seconds * 1e9), start + int(seconds * 1e9)
    while (before := clock()) < end:
        await call(BODY)
        if before > warm:
            times.append(clock() - before)
    return times


async def _many_asyncio(call: Callable[[bytes], Coroutine[Any, Any, bytes]], limit: int, seconds: float) -> float:
    done, running = 0, True

    async def caller() -> None:
        nonlocal done
        while running:
            await call(BODY)
            done += 1

    callers = [asyncio.create_task(caller()) for _ in range(limit)]
    await asyncio.sleep(WARM * seconds)
    before, start = done, time.perf_counter()
    await asyncio.sleep(seconds)
    rate = (done - before) / (time.perf_counter() - start)
    running = False
    await asyncio.gather(*callers)
    return rate


def outstanding(limit: int) -> Measure:
    """Calls per second with `limit` on the way: by coroutines if the client is an asyncio one, else in its own way."""

    def measure(bench: Bench, seconds: float) -> float:
        if offers(bench.client, "acall"):
            return bench.run(_many_asyncio(bench.client.acall, limit, seconds))
        return native_outstanding(limit)(bench, seconds)

    return measure


def native_outstanding(limit: int) -> Measure:
    """The same without asyncio: callbacks, futures, greenlets or threads, whichever the peer has."""

    def measure(bench: Bench, seconds: float) -> float:
        bench.need("outstanding")
        bench.client.outstanding(limit, WARM * seconds)
        return bench.client.outstanding(limit, seconds)

    return measure


def threads(bench: Bench, seconds: float) -> float:
    """Calls per second of several threads that each wait for their answer."""
    bench.need("call")
    if not offers(bench.client, "thread_caller") and not bench.client.shared_by_threads:
        raise NotImplementedError("its client belongs to one thread")
    counts: list[int] = []
    begin, end = threading.Barrier(THREADS + 1), [0.0]

    def caller() -> None:
        call, count = bench.client.thread_caller(), 0
        call(BODY)
        begin.wait()
        while time.perf_counter() < end[0]:
            call(BODY)
            count += 1
        counts.append(count)

    crew = [threading.Thread(target=caller) for _ in range(THREADS)]
    for thread in crew:
        thread.start()
    end[0] = time.perf_counter() + 3600  # nobody may see the end before it is set for good
    begin.wait(30)
    start = time.perf_counter()
    end[0] = start + seconds
    for thread in crew:
        thread.join()
    return sum(counts) / (time.perf_counter() - start)


def stream(size: int, first: int) -> Measure:
    """Items per second of one stream, request included; as many items as fill the time."""

    def measure(bench: Bench, seconds: float) -> float:
        count = first
        while True:
            spent = _drain(bench, count, size)
            if spent >= seconds / 2:
                return count / spent
            count = int(count * min(20.0, max(1.5, seconds / max(spent, 1e-6))))

    return measure


def stream_bandwidth(bench: Bench, seconds: float) -> float:
    return stream(CHUNK, 100)(bench, seconds) * CHUNK / MIB


def _drain(bench: Bench, count: int, size: int) -> float:
    start = time.perf_counter()
    if offers(bench.client, "astream"):
        bench.runner.run(_adrain(bench.client, count, size))
    else:
        bench.need("stream")
        got = sum(1 for _ in bench.client.stream(count, size))
        assert got == count, f"{got} of {count} items"
    return time.perf_counter() - start


async def _adrain(client: Client, count: int, size: int) -> None:
    got = 0
    async for _ in client.astream(count, size):
        got += 1
    assert got == count, f"{got} of {count} items"


def payload(mebibytes: int) -> Measure:
    """MiB per second of one argument on its way to the server, the short answer included."""

    def measure(bench: Bench, seconds: float) -> float:
        body = b"x" * (mebibytes * MIB)
        if offers(bench.client, "upload"):
            return _bandwidth(lambda: bench.client.upload(body), len(body), seconds)
        bench.need("aupload")
        return _bandwidth(lambda: bench.runner.run(bench.client.aupload(body)), len(body), seconds)

    return measure


def array(mebibytes: int) -> Measure:
    """The same of a numpy array that arrives as one."""

    def measure(bench: Bench, seconds: float) -> float:
        bench.need("upload_array")
        import numpy as np

        values = np.zeros(mebibytes * MIB // 8)
        return _bandwidth(lambda: bench.client.upload_array(values), values.nbytes, seconds)

    return measure


def _bandwidth(send: Callable[[], int], size: int, seconds: float) -> float:
    assert send() == size
    times: list[float] = []
    end = time.perf_counter() + seconds
    while len(times) < 3 or time.perf_counter() < end:
        start = time.perf_counter()
        assert send() == size
        times.append(time.perf_counter() - start)
    return size / MIB / statistics.median(times)


def beside_bulk(bench: Bench, seconds: float) -> float:
    """P99 of small calls while streams of 64 KiB items come from the same server, divided by their P99 in silence."""
    alone, beside = (_aside if offers(bench.client, "astream") else _blocking_aside)(bench, seconds)
    return percentile(beside, 0.99) / percentile(alone, 0.99)


def _aside(bench: Bench, seconds: float) -> tuple[list[int], list[int]]:
    bench.need("acall", "astream")

    async def both() -> tuple[list[int], list[int]]:
        client = bench.client

        running = True

        async def bulk() -> None:
            while running:
                await _adrain(client, BULK_ITEMS, CHUNK)

        alone = await _asyncio_times(client.acall, seconds)
        task = asyncio.create_task(bulk())
        beside = await _asyncio_times(client.acall, seconds)
        running = False
        await task
        return alone, beside

    return bench.runner.run(both())


def _blocking_aside(bench: Bench, seconds: float) -> tuple[list[int], list[int]]:
    bench.need("call", "stream")
    client = bench.client
    if not client.shared_by_threads:
        raise NotImplementedError("its client belongs to one thread")
    alone = _blocking_times(client.call, seconds)
    stop = threading.Event()

    def bulk() -> None:
        while not stop.is_set():
            for _ in client.stream(BULK_ITEMS, CHUNK):
                pass

    thread = threading.Thread(target=bulk)
    thread.start()
    beside = _blocking_times(client.call, seconds)
    stop.set()
    thread.join()
    return alone, beside


WORKS = (
    Work("one-blocking", "one at a time, blocking caller, p50", "us", one_blocking),
    Work("one-asyncio", "one at a time, asyncio caller, p50", "us", one_asyncio, floor="one-blocking"),
    Work("out-64", "64 outstanding", "calls/s", outstanding(64)),
    Work("out-1000", "1,000 outstanding", "calls/s", outstanding(1000)),
    Work("out-64-native", "64 outstanding, without asyncio", "calls/s", native_outstanding(64), quick=False),
    Work("threads-4", "4 caller threads", "calls/s", threads),
    Work("fan-50", "64 outstanding, 1 caller to 50 instances", "calls/s", outstanding(64), instances=50, quick=False),
    Work("stream-100B", "stream of 100-byte items", "items/s", stream(100, 2000)),
    Work("stream-64K", "stream of 64 KiB items", "MiB/s", stream_bandwidth),
    Work("payload-1", "1 MiB argument", "MiB/s", payload(1)),
    Work("payload-16", "16 MiB argument", "MiB/s", payload(16)),
    Work("payload-64", "64 MiB argument", "MiB/s", payload(64), quick=False),
    Work("numpy-64", "64 MiB numpy array", "MiB/s", array(64)),
    Work("beside-bulk", "small calls beside a bulk stream, P99 / P99 without", "x", beside_bulk),
)
