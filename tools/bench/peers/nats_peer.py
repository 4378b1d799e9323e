"""nats-py through one nats-server on loopback, both set up for messages of 64 MiB. Core NATS: at most once, no flow control."""

from __future__ import annotations

import asyncio
import subprocess
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nats

from tools.bench.interface import STREAM_REQUEST, Client, Ready, Server, free_port, items
from tools.bench.machine import program

PLENTY = 1 << 30
CONFIG = """
listen: "127.0.0.1:{port}"
max_payload: 67108864
max_pending: 1073741824
jetstream: {{ store_dir: "{folder}", max_mem: 67108864, max_file: 67108864 }}
"""


def start_broker() -> tuple[subprocess.Popen[bytes], str]:
    """A nats-server of our own; it ends with the process group of the server that started it."""
    port, folder = free_port(), Path(tempfile.mkdtemp(prefix="bench-nats-"))
    (folder / "nats.conf").write_text(CONFIG.format(port=port, folder=folder))
    path = program("nats-server")
    assert path is not None
    quiet = subprocess.DEVNULL
    return subprocess.Popen([path, "-c", str(folder / "nats.conf")], stdout=quiet, stderr=quiet), f"nats://127.0.0.1:{port}"


async def connect(url: str) -> Any:
    """A connection, as soon as the broker takes one."""
    return await nats.connect(url, max_reconnect_attempts=100, reconnect_time_wait=0.05, allow_reconnect=True, pending_size=PLENTY)


class NatsServer(Server):
    def run(self, instances: int, ready: Ready) -> None:
        asyncio.run(self._run(instances, ready))

    async def _run(self, instances: int, ready: Ready) -> None:
        _, url = start_broker()
        for _ in range(instances):
            connection = await connect(url)
            self.connection = connection
            await connection.subscribe("echo", queue="bench", cb=self._echo)
            await connection.subscribe("upload", queue="bench", cb=self._upload, pending_bytes_limit=PLENTY)
            await connection.subscribe("produce", queue="bench", cb=self._produce)
            await connection.flush()
        ready([url])
        await asyncio.Event().wait()

    async def _echo(self, message: Any) -> None:
        await message.respond(message.data)

    async def _upload(self, message: Any) -> None:
        await message.respond(b"%d" % len(message.data))

    async def _produce(self, message: Any) -> None:
        for item in items(*STREAM_REQUEST.unpack(message.data)):
            await self.connection.publish(message.reply, item)


class NatsClient(Client):
    fans_out = True

    async def open(self) -> None:
        self.connection = await connect(self.addresses[0])

    async def acall(self, body: bytes) -> bytes:
        answer: bytes = (await self.connection.request("echo", body, timeout=30)).data
        return answer

    async def astream(self, count: int, size: int) -> AsyncIterator[Any]:
        inbox = self.connection.new_inbox()
        subscription = await self.connection.subscribe(inbox, pending_msgs_limit=PLENTY, pending_bytes_limit=PLENTY)
        await self.connection.publish("produce", STREAM_REQUEST.pack(count, size), reply=inbox)
        left = count
        async for message in subscription.messages:
            yield message.data
            left -= 1
            if not left:
                break
        await subscription.unsubscribe()

    async def aupload(self, body: bytes) -> int:
        return int((await self.connection.request("upload", body, timeout=60)).data)
