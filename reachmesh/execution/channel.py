"""Values over a stream socket between the node and its worker processes.

Place in the data path: the process domain only. A message is one value, dumped and loaded by the functions the node
injects (the codec of the wire): `u8 kind, u32 count, count x u64 lengths`, then the segments. Nothing is ever pickled.

The other end may be dead or mad (a handler can overwrite anything in its own process): every way of that is `ChannelLost`.
"""

from __future__ import annotations

import select
import socket
import struct
from collections.abc import Callable, Sequence
from typing import Any

Buffer = bytes | bytearray | memoryview

Dump = Callable[[Any], Sequence[Any]]
"""Value -> segments (buffers); raises PayloadError for what cannot travel."""

Load = Callable[[Sequence[Any]], Any]
"""Segments -> value."""

_START = struct.Struct(">BI")
CALL, NEXT, CLOSE = 1, 2, 3
"""Kinds of messages to a worker: [handler's key, args, kwargs]; one more item, please; no more items."""

DONE, ITEM, FAILED = 4, 5, 6
"""Kinds of messages from a worker: the answer, or the end of the stream; an item; what `worker.describe_failure` tells."""

_MAX_SEGMENTS = 1 << 16
_MAX_BYTES = 1 << 30


class ChannelLost(Exception):
    """The other end is gone or talks nonsense."""


class Channel:
    """One end of the socket, for one thread."""

    def __init__(self, sock: socket.socket, dump: Dump, load: Load) -> None:
        self.sock = sock
        self._dump = dump
        self._load = load
        self._poll = select.poll()
        self._poll.register(sock, select.POLLIN)

    def send(self, kind: int, value: Any = None) -> None:
        """Send one message.

        Raises:
            PayloadError: from `dump`; nothing was sent.
            ChannelLost: the other end is gone.
        """
        segments = [memoryview(segment).cast("B") for segment in self._dump(value)]
        header = struct.pack(f">BI{len(segments)}Q", kind, len(segments), *map(len, segments))
        try:
            if sum(map(len, segments)) <= 65536:
                self.sock.sendall(b"".join([header, *segments]))
                return
            self.sock.sendall(header)
            for segment in segments:
                self.sock.sendall(segment)
        except OSError as error:
            raise ChannelLost(str(error)) from None

    def ready(self, seconds: float) -> bool:
        """Whether there is something to read (or the end) within so many seconds."""
        return bool(self._poll.poll(seconds * 1000))

    def receive(self) -> tuple[int, Any]:
        """Kind and value of the next message; blocks.

        Raises:
            ChannelLost: the other end is gone, or what it sent is no message.
        """
        kind, count = _START.unpack(self._exactly(_START.size))
        if count > _MAX_SEGMENTS:
            raise ChannelLost("no message")
        lengths = struct.unpack(f">{count}Q", self._exactly(8 * count))
        if sum(lengths) > _MAX_BYTES:
            raise ChannelLost("a message beyond all limits")
        segments = [self._exactly(length) for length in lengths]
        try:
            return kind, self._load(segments)
        except Exception as error:
            raise ChannelLost(f"a message that cannot be read: {error}") from None

    def close(self) -> None:
        """Close this end."""
        self.sock.close()

    def _exactly(self, size: int) -> bytearray:
        data = bytearray(size)
        view = memoryview(data)
        got = 0
        while got < size:
            try:
                step = self.sock.recv_into(view[got:])
            except OSError as error:
                raise ChannelLost(str(error)) from None
            if step == 0:
                raise ChannelLost("the other end is closed")
            got += step
        return data
