"""What a peer has to bring: a server and a client, each a small class. What a client does not define is shown as not offered."""

from __future__ import annotations

import itertools
import socket
import struct
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any, NamedTuple

HOLD = 600.0
"""Seconds that a held call takes, if nobody ends it."""

STREAM_REQUEST = struct.Struct(">II")
"""How peers without typed arguments ask for a stream: number of items, bytes in each."""

Ready = Callable[[list[str]], None]


class Variant(NamedTuple):
    """One row of the tables: a peer used in one way."""

    name: str
    module: str
    server: str
    client: str
    distributions: tuple[str, ...]
    handler: str
    """Where the server's function runs, so that like is compared with like."""
    note: str = ""
    """Where the peer does less, or something else, than a mesh call."""
    programs: tuple[str, ...] = ()
    options: dict[str, Any] = {}  # noqa: RUF012 (a NamedTuple's default, never changed)


class Server:
    """The serving process. It offers `echo` (body back), `produce` (a stream) and `upload` (answers the length)."""

    def __init__(self, **options: Any) -> None:
        self.options = options

    def run(self, instances: int, ready: Ready) -> None:
        """Serve `instances` instances for ever; tell their addresses through `ready` once they can be called."""
        raise NotImplementedError


class Client:
    """The calling process. A verb beginning with `a` is for asyncio callers; `NOT_OFFERED` are the ones left as they are here."""

    fans_out = False
    """Whether one client can spread its calls over several instances."""
    shared_by_threads = True
    """Whether threads may use one client at the same time."""

    def __init__(self, addresses: list[str], **options: Any) -> None:
        self.addresses = addresses
        self.options = options

    async def open(self) -> None:
        """What has to happen on the event loop before the first call."""

    def call(self, body: bytes) -> bytes:
        raise NotImplementedError

    async def acall(self, body: bytes) -> bytes:
        raise NotImplementedError

    def thread_caller(self) -> Callable[[bytes], bytes]:
        """A function to call with from the thread that asks, for peers whose clients threads cannot share."""
        return self.call

    def outstanding(self, limit: int, seconds: float) -> float:
        """Calls per second with `limit` of them on the way, for peers with a way of their own that is no coroutine."""
        raise NotImplementedError

    def stream(self, count: int, size: int) -> Iterator[Any]:
        raise NotImplementedError

    def astream(self, count: int, size: int) -> AsyncIterator[Any]:
        raise NotImplementedError

    def upload(self, body: bytes) -> int:
        raise NotImplementedError

    async def aupload(self, body: bytes) -> int:
        raise NotImplementedError

    def upload_array(self, array: Any) -> int:
        """Send a numpy array that arrives as one."""
        raise NotImplementedError

    async def hold_calls(self, count: int) -> None:
        """Have `count` calls on the way that are not answered for minutes, all of them begun at the server."""
        raise NotImplementedError

    async def hold_streams(self, count: int) -> None:
        """Have `count` streams open, the first item of each received."""
        raise NotImplementedError


def by_callbacks(begin: Callable[[Callable[[Any], None]], Any], limit: int, seconds: float) -> float:
    """Calls per second with `limit` on the way, for clients that tell through a callback: `begin` starts a call with it."""
    room, done = threading.Semaphore(limit), itertools.count()

    def answered(_: Any) -> None:
        next(done)
        room.release()

    start = time.perf_counter()
    while (spent := time.perf_counter() - start) < seconds:
        room.acquire()
        begin(answered)
    rate = next(done) / spent
    for _ in range(limit):
        room.acquire()
    return rate


def offers(client: Client, verb: str) -> bool:
    """Whether a client has its own form of a verb."""
    return getattr(type(client), verb) is not getattr(Client, verb)


def items(count: int, size: int) -> Iterator[bytes]:
    """What every server's stream is made of."""
    return itertools.repeat(bytes(size), count)


def free_port() -> int:
    """A port that was free a moment ago, for peers that do not say which one they took."""
    with socket.create_server(("127.0.0.1", 0)) as probe:
        port: int = probe.getsockname()[1]
    return port
