"""The way of a stream's items from who makes them to the engine: encoded at once, handed over many at a time.

Place in the data path: behind a handler that yields (`served`) and behind a caller that streams in (`feeder`). The first item of a
quiet stream leaves in the thread that made it. While the engine has not come for it, those that follow join it, and cost no more
than being encoded and appended to a list.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from msgpack import Packer

from reachmesh.calls.flows import Buffer, Gathered, Outflow
from reachmesh.calls.incoming import IncomingCall
from reachmesh.calls.outgoing import OutgoingCall
from reachmesh.node.driver import QUIET, Driver
from reachmesh.wire.limits import LIMITS
from reachmesh.wire.values import dump
from reachmesh.wire.writer import SCALARS

MANY_ITEMS = 256
"""Items that wait for the engine before their maker takes the turn itself. Fewer cost turns, more keep the reader waiting."""

MANY_BYTES = 256 * 1024
"""The same in bytes."""

_INLINE = LIMITS.inline


class Outlet:
    """Sends the items of one stream. One thread or task at a time; what an item is made of may change once it was put.

    Args:
        take: the engine's verb that takes `Gathered` items for the call.
    """

    __slots__ = ("_call", "_driver", "_gathered", "_pack", "_sent_at", "_take", "_unsent", "bytes", "items")

    def __init__(self, driver: Driver, take: Callable[..., None], call: IncomingCall | OutgoingCall) -> None:
        self._driver, self._take, self._call = driver, take, call
        self._gathered = Gathered()
        self._pack = Packer(strict_types=True, buf_size=1024).pack
        self._sent_at = 0.0
        self._unsent = 0
        self.items = self.bytes = 0

    def put(self, item: Any) -> bool:
        """Send one item; false when the credit is used up with it.

        Raises:
            PayloadError: it cannot travel; nothing was sent.
        """
        self.send(self.encode(item))
        return self.has_credit()

    def encode(self, item: Any) -> Buffer | list[Buffer]:
        """The item as one small buffer, or as segments. Raises PayloadError."""
        kind = type(item)
        if kind in SCALARS or (kind is bytes and len(item) < _INLINE):
            try:
                body: bytes = self._pack(item)
            except Exception:  # whatever it was, `dump` finds it again and names its path
                return dump(item, "item")
            return body if len(body) < _INLINE else [body]
        segments = dump(item, "item")
        return segments[0] if len(segments) == 1 and len(segments[0]) < _INLINE else segments

    def send(self, encoded: Buffer | list[Buffer]) -> None:
        """Send what `encode` gave."""
        size = sum(map(len, encoded)) if type(encoded) is list else len(encoded)
        self.items += 1
        self.bytes += size
        self._unsent += size
        gathered = self._gathered
        gathered.put(encoded)
        if not gathered.asked:
            gathered.asked = True
            now = time.monotonic()
            driver = self._driver
            post = driver.post if now - self._sent_at > QUIET else driver.post_soon
            self._sent_at, self._unsent = now, 0
            post(self._take, self._call, gathered)
        elif not self.items % MANY_ITEMS or self._unsent >= MANY_BYTES:
            self._unsent = 0
            self._driver.flush()

    def has_credit(self) -> bool:
        """Whether one more item may be put before the reader has taken any."""
        outflow: Outflow | None = self._call.outflow
        return outflow is not None and self.items < outflow.granted_items and self.bytes < outflow.granted_bytes
