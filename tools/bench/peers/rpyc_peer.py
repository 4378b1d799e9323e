"""RPyC: a threaded server; outstanding calls by `rpyc.async_`, streams by `buffiter`, which fetches items in growing batches."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any

import rpyc
from rpyc.utils.helpers import buffiter
from rpyc.utils.server import ThreadedServer

from tools.bench.interface import Client, Ready, Server, items


class _Service(rpyc.Service):  # type: ignore[misc]
    def exposed_echo(self, body: bytes) -> bytes:
        return body

    def exposed_upload(self, body: bytes) -> int:
        return len(body)

    def exposed_produce(self, count: int, size: int) -> Iterator[bytes]:
        return items(count, size)


class RpycServer(Server):
    def run(self, instances: int, ready: Ready) -> None:
        server = ThreadedServer(_Service(), hostname="127.0.0.1", port=0)
        ready([f"127.0.0.1:{server.port}"])
        server.start()


class RpycClient(Client):
    shared_by_threads = False

    def __init__(self, addresses: list[str], **options: Any) -> None:
        super().__init__(addresses, **options)
        self.connection = self._connect()
        self.echo = self.connection.root.echo

    def _connect(self) -> Any:
        host, _, port = self.addresses[0].rpartition(":")
        return rpyc.connect(host, int(port), config={"sync_request_timeout": 60})

    def call(self, body: bytes) -> bytes:
        answer: bytes = self.echo(body)
        return answer

    def thread_caller(self) -> Callable[[bytes], bytes]:
        connection = self._connect()
        self.__dict__.setdefault("kept", []).append(connection)
        echo: Callable[[bytes], bytes] = connection.root.echo
        return echo

    def outstanding(self, limit: int, seconds: float) -> float:
        echo, body = rpyc.async_(self.echo), bytes(100)
        waiting: deque[Any] = deque(echo(body) for _ in range(limit))
        count, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            waiting.popleft().wait()
            waiting.append(echo(body))
            count += 1
        for answer in waiting:
            answer.wait()
        return count / spent

    def stream(self, count: int, size: int) -> Iterator[Any]:
        return iter(buffiter(self.connection.root.produce(count, size), chunk=100, max_chunk=1000))

    def upload(self, body: bytes) -> int:
        return int(self.connection.root.upload(body))
