"""zerorpc: gevent on both sides, outstanding calls as greenlets."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import gevent
import zerorpc

from tools.bench.interface import Client, Ready, Server, free_port, items


class _Service:
    def echo(self, body: bytes) -> bytes:
        return body

    def upload(self, body: bytes) -> int:
        return len(body)

    @zerorpc.stream  # type: ignore[untyped-decorator]
    def produce(self, count: int, size: int) -> Iterator[bytes]:
        return items(count, size)


class ZerorpcServer(Server):
    def run(self, instances: int, ready: Ready) -> None:
        address = f"tcp://127.0.0.1:{free_port()}"
        server = zerorpc.Server(_Service())
        server.bind(address)
        ready([address])
        server.run()


class ZerorpcClient(Client):
    shared_by_threads = False

    def __init__(self, addresses: list[str], **options: Any) -> None:
        super().__init__(addresses, **options)
        self.client = zerorpc.Client(addresses[0], timeout=60)

    def call(self, body: bytes) -> bytes:
        answer: bytes = self.client.echo(body)
        return answer

    def outstanding(self, limit: int, seconds: float) -> float:
        done, end = 0, time.perf_counter() + seconds

        def caller() -> None:
            nonlocal done
            while time.perf_counter() < end:
                self.client.echo(bytes(100))
                done += 1

        start = time.perf_counter()
        gevent.joinall([gevent.spawn(caller) for _ in range(limit)], raise_error=True)
        return done / (time.perf_counter() - start)

    def stream(self, count: int, size: int) -> Iterator[Any]:
        return iter(self.client.produce(count, size))

    def upload(self, body: bytes) -> int:
        return int(self.client.upload(body))
