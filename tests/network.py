"""Networks for the tests: hosts made of network namespaces, and a slow, cuttable TCP link in front of one port."""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Mapping
from types import TracebackType
from typing import Any, Self

from tests.support import Child, World

_ENTER = """
import ctypes, os, socket, sys
space, name, *command = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
if libc.setns(os.open("/run/netns/" + space, os.O_RDONLY), 0x40000000):
    raise OSError(ctypes.get_errno(), "setns")
if libc.unshare(0x04000000) == 0:
    socket.sethostname(name)
os.execvp(command[0], command)
"""


def _ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"ip {' '.join(arguments)}: {done.stderr.strip()}")


class Lan:
    """Hosts on Ethernet segments, all inside namespaces of their own: the machine's own interfaces are not touched.

    Host n (from 1) has the address 10.88.<segment>.<n>/24 on its interface eth<segment>. A segment is a bridge in a namespace
    of its own that no host can see. A cut cable loses packets silently: no connection is closed by it.
    """

    def __init__(self, world: World, *, hosts: int = 2, segments: int = 1, discovery: str = "mdns") -> None:
        self._world = world
        self._tag = f"rm{secrets.token_hex(3)}"
        self._switch = f"{self._tag}sw"
        self._spaces: list[str] = []
        self._env = {"REACHMESH_DISCOVERY": discovery, "REACHMESH_INTERFACES": ""}
        try:
            self._space(self._switch)
            for segment in range(segments):
                self._bridge(f"br{segment}")
            for host in range(1, hosts + 1):
                self._host(host, segments)
        except BaseException:
            self.close()
            raise

    def _space(self, name: str) -> None:
        _ip("netns", "add", name)
        self._spaces.append(name)
        _ip("-n", name, "link", "set", "lo", "up")

    def _bridge(self, name: str) -> None:
        _ip("-n", self._switch, "link", "add", name, "type", "bridge", "mcast_snooping", "0")
        _ip("-n", self._switch, "link", "set", name, "up")

    def _host(self, host: int, segments: int) -> None:
        space = self._host_space(host)
        self._space(space)
        for segment in range(segments):
            port, card = self._port(host, segment), f"eth{segment}"
            _ip("-n", self._switch, "link", "add", port, "type", "veth", "peer", "name", card, "netns", space)
            _ip("-n", self._switch, "link", "set", port, "master", f"br{segment}", "up")
            _ip("-n", space, "addr", "add", f"{self.address(host, segment)}/24", "dev", card)
            _ip("-n", space, "link", "set", card, "up")
        _ip("-n", space, "route", "add", "default", "dev", "eth0")

    def _host_space(self, host: int) -> str:
        return f"{self._tag}h{host}"

    @staticmethod
    def _port(host: int, segment: int) -> str:
        return f"h{host}s{segment}"

    @staticmethod
    def address(host: int, segment: int = 0) -> str:
        return f"10.88.{segment}.{host}"

    def cut(self, host: int, segment: int = 0) -> None:
        """Pull a host's cable."""
        _ip("-n", self._switch, "link", "set", self._port(host, segment), "down")

    def heal(self, host: int, segment: int = 0) -> None:
        """Put a host's cable back, and the host back on its segment's common bridge."""
        _ip("-n", self._switch, "link", "set", self._port(host, segment), "master", f"br{segment}", "up")

    def part(self, *groups: tuple[int, ...]) -> None:
        """Divide segment 0 so that each group of hosts hears only itself; hosts not named stay where they are."""
        for group in groups:
            bridge = f"part{secrets.token_hex(3)}"
            self._bridge(bridge)
            for host in group:
                _ip("-n", self._switch, "link", "set", self._port(host, 0), "master", bridge)

    def deafen(self, host: int, *, to: int, segment: int = 0) -> None:
        """What host `to` sends to `host` is lost on the way, without a word; the way back works."""
        nobody = ["lladdr", "02:00:00:00:00:01", "nud", "permanent"]  # a card that no host has: the bridge floods it, and nobody takes it
        self.ip(to, "neigh", "replace", self.address(host, segment), *nobody, "dev", f"eth{segment}")

    def undeafen(self, host: int, *, to: int, segment: int = 0) -> None:
        """`host` hears `to` again."""
        self.ip(to, "neigh", "del", self.address(host, segment), "dev", f"eth{segment}")

    def ip(self, host: int, *arguments: str) -> None:
        """An `ip` command on a host, e.g. to add an address or take one away."""
        _ip("-n", self._host_space(host), *arguments)

    def before(self, host: int) -> list[str]:
        """The command under which a process runs on a host; its process id stays the same."""
        return [sys.executable, "-I", "-S", "-c", _ENTER, self._host_space(host), f"host{host}"]

    def env(self, host: int) -> dict[str, str]:
        """Environment of a host's processes: its folders are its own, so that hosts share the wire and nothing else."""
        folder = self._world.folder / f"host{host}"
        folder.mkdir(exist_ok=True)
        return self._env | {"TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder), "HOME": str(folder)}

    def start(self, host: int, source: str, *arguments: str, ready: str | None = "READY", env: Mapping[str, str] | None = None) -> Child:
        """`World.start` on a host."""
        return self._world.start(source, *arguments, ready=ready, env=self.env(host) | dict(env or {}), before=self.before(host))

    def serve(self, host: int, name: str, caps: str, body: str = "", *, env: Mapping[str, str] | None = None, **options: Any) -> Child:
        """`World.serve` on a host."""
        return self._world.serve(name, caps, body, env=self.env(host) | dict(env or {}), before=self.before(host), **options)

    def close(self) -> None:
        for space in reversed(self._spaces):
            subprocess.run(["ip", "netns", "del", space], capture_output=True, check=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()


class SlowLink:
    """A TCP relay on 127.0.0.1 that delays, limits or stops what passes through, each way alike.

    Args:
        target: "host:port" of what it stands in front of.
        delay: seconds that every byte spends on the way.
        rate: bytes per second each way, shared by all connections of the link; None = as fast as it goes.

    Buffers are small (64 KiB a connection and way, in the kernel as in here, beyond what is in flight for `delay`), so that a
    writer feels the slowness as it would on a real link.
    """

    LATE = 0.005
    """Seconds a sleep may come late without slowing the link: what follows is sent the sooner."""
    BUFFER = 65536
    PIECE = 8192

    def __init__(self, target: str, *, delay: float = 0.0, rate: float | None = None) -> None:
        host, _, port = target.rpartition(":")
        self._target = (host.removeprefix("tcp://").strip("[]"), int(port))
        self.delay = delay
        self.rate = rate
        self.connections = 0
        """How many were ever made."""
        self._free_at = [0.0, 0.0]
        self._tasks: set[asyncio.Task[None]] = set()
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self._listener.getsockname()[1]}"
        self._loop = asyncio.new_event_loop()
        self._passing = asyncio.Event()
        self._passing.set()
        self._thread = threading.Thread(target=self._run, name="test-slow-link", daemon=True)
        self._thread.start()

    def cut(self) -> None:
        """From now on nothing passes, and nobody is told: connections stay open."""
        self._loop.call_soon_threadsafe(self._passing.clear)

    def heal(self) -> None:
        """Whatever is held up goes on its way."""
        self._loop.call_soon_threadsafe(self._passing.set)

    def drop(self) -> None:
        """Close every connection; new ones are taken."""
        self._loop.call_soon_threadsafe(self._cancel_all)

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _run(self) -> None:
        asyncio.set_event_loop(self._loop)
        server = self._loop.run_until_complete(asyncio.start_server(self._connected, sock=self._listener, limit=self.PIECE))
        self._loop.run_forever()
        server.close()
        tasks = list(self._tasks)
        self._cancel_all()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_asyncgens())
        self._loop.close()

    def _cancel_all(self) -> None:
        for task in self._tasks:
            task.cancel()

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        self.connections += 1
        try:
            far_reader, far_writer = await asyncio.open_connection(*self._target, limit=self.PIECE)
        except OSError:
            writer.transport.abort()
            self._tasks.discard(task)
            return
        for end in (writer, far_writer):
            end.transport.set_write_buffer_limits(high=self.PIECE)
            raw = end.get_extra_info("socket")
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, self.BUFFER)
            raw.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, self.BUFFER)
            raw.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        ways = [asyncio.create_task(self._way(reader, far_writer, 0)), asyncio.create_task(self._way(far_reader, writer, 1))]
        try:
            await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            pass  # drop() or close(): the connection ends here as if the link had reset it
        finally:
            for way in ways:
                way.cancel()
            await asyncio.gather(*ways, return_exceptions=True)
            writer.transport.abort()
            far_writer.transport.abort()
            self._tasks.discard(task)

    async def _way(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, way: int) -> None:
        """Carry one direction: a reading half stamps each piece with its arrival, this half delivers it when due."""
        capacity = self.BUFFER + int(self.delay * (self.rate or 64 * 1024 * 1024))
        pieces: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(maxsize=max(1, capacity // self.PIECE))

        async def read() -> None:
            while piece := await reader.read(self.PIECE):
                await pieces.put((self._loop.time(), piece))
            await pieces.put((self._loop.time(), b""))

        reading = asyncio.create_task(read())
        try:
            while True:
                arrived, piece = await pieces.get()
                start = max(self._free_at[way], arrived, self._loop.time() - self.delay - self.LATE)
                self._free_at[way] = start + (len(piece) / self.rate if self.rate else 0.0)
                await asyncio.sleep(max(0.0, self._free_at[way] + self.delay - self._loop.time()))
                await self._passing.wait()
                if not piece:
                    return
                writer.write(piece)
                await writer.drain()
        finally:
            reading.cancel()
            with contextlib.suppress(asyncio.CancelledError, OSError):
                await reading
