"""News on its way to the neighbours: each item once over each control link, several together.

The first item after a calm leaves with the turn that brought it; what follows within `gossip_delay` is sent together. A
neighbour that told us an item is not told it back.
"""

from __future__ import annotations

from collections.abc import Iterable

from reachmesh.wire.control import Control

from .messages import Claim, Item, encode_items, item_size
from .outbox import Outbox

BATCH_BYTES = 64 * 1024
"""About the most bytes of items in one frame."""


class Gossip:
    """The queue of news."""

    def __init__(self, delay: float, outbox: Outbox) -> None:
        self._delay = delay
        self._outbox = outbox
        self._pending: dict[tuple[bytes, bytes | None], tuple[Item, set[bytes]]] = {}
        self._last = float("-inf")

    def add(self, item: Item, source: bytes | None) -> None:
        """Queue an item that `source` told us; a newer claim about the same member replaces one still queued."""
        key = (item.boot, None if isinstance(item, Claim) else item.voter)
        queued = self._pending.pop(key, None)
        if queued is not None and isinstance(item, Claim) and item.record is None:
            kept = queued[0]
            if isinstance(kept, Claim) and kept.record is not None and kept.serial == item.serial:
                item = item._replace(record=kept.record)  # the record is still news
        self._pending[key] = (item, {source} if source is not None else set())

    def known_by(self, item: Item, source: bytes) -> None:
        """`source` told us what is queued already: it need not be told."""
        queued = self._pending.get((item.boot, None if isinstance(item, Claim) else item.voter))
        if queued is not None:
            kept = queued[0]
            if not isinstance(kept, Claim) or (
                isinstance(item, Claim) and (kept.incarnation, kept.state, kept.serial) == (item.incarnation, item.state, item.serial)
            ):
                queued[1].add(source)

    def due(self) -> float:
        """When to flush; inf when there is nothing."""
        return self._last + self._delay if self._pending else float("inf")

    def flush(self, targets: Iterable[bytes], now: float) -> None:
        """Send everything queued to all targets."""
        pending, self._pending = list(self._pending.values()), {}
        self._last = now
        everything: list[bytes] | None = None
        sends = self._outbox.sends
        for target in targets:
            items = [item for item, knowing in pending if target not in knowing and not _is_own_news(item, target)]
            if len(items) == len(pending):
                if everything is None:
                    everything = encode_batches(items)
                bodies = everything
            else:
                bodies = encode_batches(items)
            for body in bodies:
                sends.append((target, Control.GOSSIP, body))


def _is_own_news(item: Item, target: bytes) -> bool:
    """Whether the target itself said this; what is said against it, it must hear."""
    return item.boot == target and isinstance(item, Claim) and not item.state.gone


def encode_batches(items: list[Item]) -> list[bytes]:
    """Bodies of GOSSIP frames of bounded size for all items."""
    bodies, batch, size = [], [], 0
    for item in items:
        batch.append(item)
        size += item_size(item)
        if size >= BATCH_BYTES:
            bodies.append(encode_items(batch))
            batch, size = [], 0
    if batch:
        bodies.append(encode_items(batch))
    return bodies
