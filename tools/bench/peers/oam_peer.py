"""openagentmesh over nats-server: typed functions as agents; values are JSON, so bodies are text of the same length."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

from openagentmesh import AgentMesh, AgentSpec

from tools.bench.interface import Client, Ready, Server
from tools.bench.peers.nats_peer import connect, start_broker

LARGEST = 16 * 1024 * 1024


class OamServer(Server):
    def run(self, instances: int, ready: Ready) -> None:
        asyncio.run(self._run(ready))

    async def _run(self, ready: Ready) -> None:
        _, url = start_broker()
        await (await connect(url)).close()
        mesh = AgentMesh(url)

        @mesh.agent(AgentSpec(name="echo", description="The text back."))  # type: ignore[untyped-decorator]
        async def echo(req: str) -> str:
            return req

        @mesh.agent(AgentSpec(name="upload", description="The length of the text."))  # type: ignore[untyped-decorator]
        async def upload(req: str) -> int:
            return len(req)

        @mesh.agent(AgentSpec(name="produce", description="Texts of one length."))  # type: ignore[untyped-decorator]
        async def produce(req: list[int]) -> str:  # type: ignore[misc]  # it wants the type of one item
            count, size = req
            for _ in range(count):
                yield "x" * size

        async with mesh:
            ready([url])
            await asyncio.Event().wait()


class OamClient(Client):
    async def open(self) -> None:
        self.mesh = AgentMesh(self.addresses[0])
        await self.mesh.__aenter__()

    async def acall(self, body: bytes) -> bytes:
        await self.mesh.call("echo", body.decode("ascii"))
        return body

    async def astream(self, count: int, size: int) -> AsyncIterator[Any]:
        async for item in self.mesh.stream("produce", [count, size]):
            yield item

    async def aupload(self, body: bytes) -> int:
        if len(body) > LARGEST:
            raise NotImplementedError("over the broker's largest message once it is JSON")
        await self.mesh.call("upload", body.decode("ascii"))
        return len(body)
