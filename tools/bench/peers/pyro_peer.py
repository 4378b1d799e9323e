"""Pyro5 with its msgpack serializer (the default one turns bytes into text). A proxy belongs to one thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import Pyro5.api

from tools.bench.interface import Client, Ready, Server, items

Pyro5.config.SERIALIZER = "msgpack"
Pyro5.config.THREADPOOL_SIZE = 200
MOST_THREADS = 100


@Pyro5.api.expose
class Service:
    def echo(self, body: bytes) -> bytes:
        return body

    def upload(self, body: bytes) -> int:
        return len(body)

    def produce(self, count: int, size: int) -> Iterator[bytes]:
        yield from items(count, size)


class PyroServer(Server):
    def run(self, instances: int, ready: Ready) -> None:
        daemon = Pyro5.api.Daemon(host="127.0.0.1")
        ready([str(daemon.register(Service()))])
        daemon.requestLoop()


class PyroClient(Client):
    shared_by_threads = False

    def __init__(self, addresses: list[str], **options: Any) -> None:
        super().__init__(addresses, **options)
        self.proxy = Pyro5.api.Proxy(addresses[0])

    def call(self, body: bytes) -> bytes:
        answer: bytes = self.proxy.echo(body)
        return answer

    def thread_caller(self) -> Callable[[bytes], bytes]:
        proxy = Pyro5.api.Proxy(self.addresses[0])
        return lambda body: proxy.echo(body)

    def outstanding(self, limit: int, seconds: float) -> float:
        if limit > MOST_THREADS:
            raise NotImplementedError("a thread and a connection for each")
        counts: list[int] = []

        def caller() -> None:
            call, body, count = self.thread_caller(), bytes(100), 0
            while time.perf_counter() < end:
                call(body)
                count += 1
            counts.append(count)

        start = time.perf_counter()
        end = start + seconds
        threads = [threading.Thread(target=caller) for _ in range(limit)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        return sum(counts) / (time.perf_counter() - start)

    def stream(self, count: int, size: int) -> Iterator[Any]:
        return iter(self.proxy.produce(count, size))

    def upload(self, body: bytes) -> int:
        return int(self.proxy.upload(body))
