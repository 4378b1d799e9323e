"""Answers kept for the sake of speed (pure capabilities) or of a fallback (the last good one, `node/last_good`).

Unlike the dedup table these may forget at any time: a missing entry only costs a call. Bounded in entries and bytes, least
recently used first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Hashable
from typing import Any, Final

import msgspec


class CacheConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Figures of the cache; it is off for a capability that declares no time of its own."""

    ttl: float = 30.0
    """Seconds an answer counts, where the capability says no other, > 0."""
    entries: int = 10_000
    """Answers, >= 1."""
    size: int = 64 * 1024 * 1024
    """Bytes of all answers, >= 0; one bigger than a quarter of it is not kept."""


class _Miss:
    def __repr__(self) -> str:
        return "MISS"

    def __bool__(self) -> bool:
        return False


MISS: Final = _Miss()
"""Answer of a lookup that found nothing (None is a value)."""


class ResultCache:
    """Answers by key; the key holds the capability and the encoded arguments."""

    __slots__ = ("_bytes", "_config", "_kept", "hits", "misses")

    def __init__(self, config: CacheConfig | None = None) -> None:
        self._config = config or CacheConfig()
        self._kept: OrderedDict[Hashable, tuple[float, int, Any]] = OrderedDict()
        self._bytes = 0
        self.hits = self.misses = 0

    def __len__(self) -> int:
        return len(self._kept)

    @property
    def size(self) -> int:
        """Bytes of all answers."""
        return self._bytes

    def get(self, key: Hashable, now: float) -> Any:
        """The answer while it counts, else `MISS`."""
        kept = self._kept.get(key)
        if kept is None or kept[0] <= now:
            self.misses += 1
            return MISS
        self._kept.move_to_end(key)
        self.hits += 1
        return kept[2]

    def put(self, key: Hashable, answer: Any, size: int, now: float, ttl: float | None = None) -> None:
        """Keep a good answer of `size` bytes for `ttl` seconds; the oldest make room."""
        self.discard(key)
        if size > self._config.size // 4:
            return
        self._kept[key] = (now + (self._config.ttl if ttl is None else ttl), size, answer)
        self._bytes += size
        while self._bytes > self._config.size or len(self._kept) > self._config.entries:
            _, (_, freed, _) = self._kept.popitem(last=False)
            self._bytes -= freed

    def discard(self, key: Hashable) -> None:
        """Forget one answer."""
        kept = self._kept.pop(key, None)
        if kept is not None:
            self._bytes -= kept[1]
