"""reachmesh itself, as its README shows it: discovery on, every default policy on; only the domain of the handlers differs."""

from __future__ import annotations

import asyncio
import secrets
import threading
from collections.abc import AsyncIterator, Iterator
from typing import Any

from reachmesh import ReachNode, capability
from tools.bench.interface import HOLD, Client, Ready, Server, by_callbacks, items

OPTIONS: dict[str, Any] = {"interfaces": ["127.0.0.1"], "discovery": ("local",)}
LONG = 60.0
"""Seconds that a payload of 64 MiB may take on a slow machine."""


def echo(body: bytes) -> bytes:
    return body


async def echo_on_loop(body: bytes) -> bytes:
    return body


def upload(body: bytes) -> int:
    return len(body)


def upload_array(array: Any) -> int:
    return int(array.nbytes)


def produce(count: int, size: int) -> Iterator[bytes]:
    yield from items(count, size)


async def produce_on_loop(count: int, size: int) -> AsyncIterator[bytes]:
    for item in items(count, size):
        yield item


async def hold(seconds: float) -> None:
    await asyncio.sleep(seconds)


class MeshServer(Server):
    def run(self, instances: int, ready: Ready) -> None:
        domain = self.options["domain"]
        on_loop = domain == "loop"
        mesh = self.options.get("mesh") or f"bench-{secrets.token_hex(6)}"
        for _ in range(instances):
            caps = [
                capability("echo", handler=echo_on_loop if on_loop else echo, domain=domain),
                capability("hold", handler=hold),
                capability("upload", handler=upload),
                capability("upload_array", handler=upload_array),
                capability("produce", handler=produce_on_loop if on_loop else produce),
            ]
            ReachNode("bench-server", caps=caps, mesh=mesh, secret=self.options.get("secret"), **OPTIONS).start()
        ready([mesh])
        threading.Event().wait()


class MeshClient(Client):
    fans_out = True

    def __init__(self, addresses: list[str], **options: Any) -> None:
        super().__init__(addresses, **options)
        self.node = ReachNode("bench-client", mesh=addresses[0], secret=options.get("secret"), **OPTIONS)
        self.node.start()
        self.node.wait_for("echo", count=options.get("instances", 1), timeout=30)
        self.echo = self.node.reach("echo")
        self.produce = self.node.reach("produce")

    def call(self, body: bytes) -> bytes:
        answer: bytes = self.echo.call(body)
        return answer

    async def acall(self, body: bytes) -> bytes:
        answer: bytes = await self.echo.submit(body)
        return answer

    def outstanding(self, limit: int, seconds: float) -> float:
        body = bytes(100)
        return by_callbacks(lambda answered: self.echo.submit(body).add_done_callback(answered), limit, seconds)

    def stream(self, count: int, size: int) -> Iterator[Any]:
        return iter(self.produce.stream(count, size))

    def astream(self, count: int, size: int) -> AsyncIterator[Any]:
        return aiter(self.produce.stream(count, size))

    def upload(self, body: bytes) -> int:
        return int(self.node.reach("upload", timeout=LONG).call(body))

    def upload_array(self, array: Any) -> int:
        return int(self.node.reach("upload_array", timeout=LONG).call(array))

    async def hold_calls(self, count: int) -> None:
        self.held = [self.node.reach("hold", timeout=HOLD).submit(HOLD) for _ in range(count)]
        await self.acall(b"")

    async def hold_streams(self, count: int) -> None:
        self.streams = [aiter(self.produce.stream(10**9, 100)) for _ in range(count)]
        for each in self.streams:
            await anext(each)
