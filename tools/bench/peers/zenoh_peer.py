"""Eclipse zenoh, two peers on TCP, queries with consolidation off (on, it holds answers back to merge them)."""

from __future__ import annotations

import asyncio
import itertools
import json
import threading
import time
from collections.abc import Iterator
from typing import Any

import zenoh

from tools.bench.interface import STREAM_REQUEST, Client, Ready, Server, by_callbacks, free_port, items

PLAIN = zenoh.ConsolidationMode.NONE


def _session(mode: str, **endpoints: list[str]) -> Any:
    config = zenoh.Config()
    config.insert_json5("mode", json.dumps(mode))
    config.insert_json5("scouting/multicast/enabled", "false")
    config.insert_json5("scouting/gossip/enabled", "false")
    for kind, value in endpoints.items():
        config.insert_json5(f"{kind}/endpoints", json.dumps(value))
    return zenoh.open(config)


class ZenohServer(Server):
    def run(self, instances: int, ready: Ready) -> None:
        addresses, kept = [], []
        for _ in range(instances):
            port = free_port()
            session = _session("peer", listen=[f"tcp/127.0.0.1:{port}"])
            kept += [
                session,
                session.declare_queryable(f"bench/{port}/echo", self._echo),
                session.declare_queryable(f"bench/{port}/upload", self._upload),
                session.declare_queryable(f"bench/{port}/produce", self._produce),
            ]
            addresses.append(f"tcp/127.0.0.1:{port}")
        ready(addresses)
        threading.Event().wait()

    def _echo(self, query: Any) -> None:
        query.reply(query.key_expr, query.payload)
        query.drop()

    def _upload(self, query: Any) -> None:
        query.reply(query.key_expr, b"%d" % len(query.payload.to_bytes()))
        query.drop()

    def _produce(self, query: Any) -> None:
        for item in items(*STREAM_REQUEST.unpack(query.payload.to_bytes())):
            query.reply(query.key_expr, item, congestion_control=zenoh.CongestionControl.BLOCK)
        query.drop()


class ZenohClient(Client):
    fans_out = True

    def __init__(self, addresses: list[str], **options: Any) -> None:
        super().__init__(addresses, **options)
        self.session = _session("peer", connect=addresses)
        ports = [address.rpartition(":")[2] for address in addresses]
        self.queriers = [self._querier(f"bench/{port}/echo") for port in ports]
        self.echo = self.queriers[0]
        self.next_echo = itertools.cycle(self.queriers)
        self.uploads, self.produce = self._querier(f"bench/{ports[0]}/upload"), self._querier(f"bench/{ports[0]}/produce")
        while not all(querier.matching_status.matching for querier in [*self.queriers, self.uploads, self.produce]):
            time.sleep(0.002)

    def _querier(self, key: str) -> Any:
        return self.session.declare_querier(key, consolidation=PLAIN, timeout=60.0)

    def call(self, body: bytes) -> bytes:
        for reply in self.echo.get(payload=body):
            return bytes(reply.ok.payload.to_bytes())
        raise RuntimeError("no answer")

    async def open(self) -> None:
        self.loop = asyncio.get_running_loop()

    async def acall(self, body: bytes) -> bytes:
        future: asyncio.Future[bytes] = self.loop.create_future()
        next(self.next_echo).get(lambda reply: self.loop.call_soon_threadsafe(future.set_result, reply.ok.payload.to_bytes()), payload=body)
        return await future

    def outstanding(self, limit: int, seconds: float) -> float:
        body = bytes(100)
        return by_callbacks(lambda answered: next(self.next_echo).get(answered, payload=body), limit, seconds)

    def stream(self, count: int, size: int) -> Iterator[Any]:
        for reply in self.produce.get(payload=STREAM_REQUEST.pack(count, size)):
            yield reply.ok.payload.to_bytes()

    def upload(self, body: bytes) -> int:
        for reply in self.uploads.get(payload=body):
            return int(reply.ok.payload.to_bytes())
        raise RuntimeError("no answer")
