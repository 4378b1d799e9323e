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

    __slots__ = ("_bytes_due", "_call", "_driver", "_gathered", "_items_due", "_pack", "_sent_at", "_take", "bytes", "items")

    def __init__(self, driver: Driver, take: Callable[..., None], call: IncomingCall | OutgoingCall) -> None:
        self._driver, self._take, self._call = driver, take, call
        self._gathered = Gathered()
        self._pack = Packer(strict_types=True, buf_size=1024).pack
        self._sent_at = 0.0
        self._items_due = self._bytes_due = 0
        self.items = self.bytes = 0

    def put(self, item: Any) -> bool:
        """Send one item; false when the credit is used up with it.

        Raises:
            PayloadError: it cannot travel; nothing was sent.
        """
        kind = type(item)
        if kind in SCALARS or (kind is bytes and len(item) < _INLINE):  # as `encode` and `send`, without their calls
            try:
                body: bytes = self._pack(item)
            except Exception:
                body = b""
            if 0 < len(body) < _INLINE:
                gathered = self._gathered
                gathered.items.append(body)
                self.items = items = self.items + 1
                self.bytes = size = self.bytes + len(body)
                if not gathered.asked or items >= self._items_due or size >= self._bytes_due:
                    self._ask()
                outflow = self._call.outflow
                return outflow is not None and items < outflow.granted_items and size < outflow.granted_bytes
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
        self.items += 1
        self.bytes += sum(map(len, encoded)) if type(encoded) is list else len(encoded)
        self._gathered.put(encoded)
        if not self._gathered.asked or self.items >= self._items_due or self.bytes >= self._bytes_due:
            self._ask()

    def _ask(self) -> None:
        """Have the engine come for what is here, if it has not been asked to; at once when that is much."""
        self._items_due, self._bytes_due = self.items + MANY_ITEMS, self.bytes + MANY_BYTES
        if self._gathered.asked:
            return self._driver.flush()
        self._gathered.asked = True
        now = time.monotonic()
        driver = self._driver
        post = driver.post if now - self._sent_at > QUIET else driver.post_soon
        self._sent_at = now
        return post(self._take, self._call, self._gathered)

    def has_credit(self) -> bool:
        """Whether one more item may be put before the reader has taken any."""
        outflow: Outflow | None = self._call.outflow
        return outflow is not None and self.items < outflow.granted_items and self.bytes < outflow.granted_bytes
