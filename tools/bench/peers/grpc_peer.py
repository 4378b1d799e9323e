"""gRPC for Python, both of its faces, with bytes as messages: no protobuf is paid for."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import grpc
import grpc.aio

from tools.bench.interface import HOLD, STREAM_REQUEST, Client, Ready, Server, by_callbacks, items

SERVICE = "bench.Bench"
UNLIMITED = [("grpc.max_send_message_length", -1), ("grpc.max_receive_message_length", -1)]


async def _echo(body: bytes, _: Any) -> bytes:
    return body


async def _upload(body: bytes, _: Any) -> bytes:
    return b"%d" % len(body)


async def _hold(body: bytes, _: Any) -> bytes:
    await asyncio.sleep(HOLD)
    return body


async def _produce(body: bytes, _: Any) -> AsyncIterator[bytes]:
    for item in items(*STREAM_REQUEST.unpack(body)):
        yield item


def _handlers(echo: Any, upload: Any, produce: Any, hold: Any = None) -> Any:
    return grpc.method_handlers_generic_handler(
        SERVICE,
        {
            "hold": grpc.unary_unary_rpc_method_handler(hold),
            "echo": grpc.unary_unary_rpc_method_handler(echo),
            "upload": grpc.unary_unary_rpc_method_handler(upload),
            "produce": grpc.unary_stream_rpc_method_handler(produce),
        },
    )


class AioServer(Server):
    def run(self, instances: int, ready: Ready) -> None:
        asyncio.run(self._run(instances, ready))

    async def _run(self, instances: int, ready: Ready) -> None:
        addresses, servers = [], []
        for _ in range(instances):
            server = grpc.aio.server(options=UNLIMITED)
            server.add_generic_rpc_handlers((_handlers(_echo, _upload, _produce, _hold),))
            addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
            await server.start()
            servers.append(server)
        ready(addresses)
        await asyncio.gather(*(server.wait_for_termination() for server in servers))


class SyncServer(Server):
    def run(self, instances: int, ready: Ready) -> None:
        addresses, servers = [], []
        for _ in range(instances):
            server = grpc.server(ThreadPoolExecutor(8), options=UNLIMITED)
            handlers = _handlers(
                lambda body, _: body, lambda body, _: b"%d" % len(body), lambda body, _: items(*STREAM_REQUEST.unpack(body))
            )
            server.add_generic_rpc_handlers((handlers,))
            addresses.append(f"127.0.0.1:{server.add_insecure_port('127.0.0.1:0')}")
            server.start()
            servers.append(server)
        ready(addresses)
        for server in servers:
            server.wait_for_termination()


class AioClient(Client):
    fans_out = True

    async def open(self) -> None:
        channels = [grpc.aio.insecure_channel(address, options=UNLIMITED) for address in self.addresses]
        self.echoes = itertools.cycle([channel.unary_unary(f"/{SERVICE}/echo") for channel in channels])
        self.uploads = channels[0].unary_unary(f"/{SERVICE}/upload")
        self.hold = channels[0].unary_unary(f"/{SERVICE}/hold")
        self.produce = channels[0].unary_stream(f"/{SERVICE}/produce")

    async def acall(self, body: bytes) -> bytes:
        answer: bytes = await next(self.echoes)(body)
        return answer

    async def astream(self, count: int, size: int) -> AsyncIterator[Any]:
        async for item in self.produce(STREAM_REQUEST.pack(count, size)):
            yield item

    async def aupload(self, body: bytes) -> int:
        return int(await self.uploads(body))

    async def hold_calls(self, count: int) -> None:
        self.held = [self.hold(b"") for _ in range(count)]
        await self.acall(b"")

    async def hold_streams(self, count: int) -> None:
        self.streams = [aiter(self.astream(1_000_000, 100)) for _ in range(count)]
        for each in self.streams:
            await anext(each)


class SyncClient(Client):
    fans_out = True

    def __init__(self, addresses: list[str], **options: Any) -> None:
        super().__init__(addresses, **options)
        channels = [grpc.insecure_channel(address, options=UNLIMITED) for address in addresses]
        self.stubs = [channel.unary_unary(f"/{SERVICE}/echo") for channel in channels]
        self.uploads = channels[0].unary_unary(f"/{SERVICE}/upload")
        self.produce = channels[0].unary_stream(f"/{SERVICE}/produce")

    def call(self, body: bytes) -> bytes:
        answer: bytes = self.stubs[0](body)
        return answer

    def outstanding(self, limit: int, seconds: float) -> float:
        body, stubs = bytes(100), itertools.cycle(self.stubs)
        return by_callbacks(lambda answered: next(stubs).future(body).add_done_callback(answered), limit, seconds)

    def stream(self, count: int, size: int) -> Iterator[Any]:
        return iter(self.produce(STREAM_REQUEST.pack(count, size)))

    def upload(self, body: bytes) -> int:
        return int(self.uploads(body))
