"""The last good answer of a call, for the time when there is no better one: `fallback=LAST_GOOD`.

What is kept: the answers of calls made with this fallback, as the bytes they came in, so that nobody's changes to a value show in a later
one. An answer stands in for a call of the same capability, version, tags, target, session, metadata and arguments only. The store belongs to
one node, is bounded in entries, bytes and age (`NodeConfig.last_good_age`), and is gone with the process.
"""

from __future__ import annotations

import hashlib
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from reachmesh.errors import ReachError
from reachmesh.resilience.cache import MISS, CacheConfig, ResultCache
from reachmesh.routing import RouteRequest
from reachmesh.wire.values import load_body

ENTRIES = 10_000
"""Answers kept at most; the least used go first."""

BYTES = 32 * 1024 * 1024
"""Bytes of all answers; one of more than a quarter of it is not kept."""


class _LastGood:
    """A fallback by name; a node puts its own store in its place."""

    def __repr__(self) -> str:
        return "LAST_GOOD"

    def __call__(self, error: ReachError) -> Any:
        """Nothing was ever kept for this call."""
        raise error


LAST_GOOD: Final = _LastGood()
"""`fallback=LAST_GOOD`: in place of an error, the answer that the same call gave last, if it is not older than `last_good_age`; else the error."""


class LastGood:
    """The store of one node, used from any thread."""

    def __init__(self, entries: int = ENTRIES, size: int = BYTES, *, now: Callable[[], float] = time.monotonic) -> None:
        self._now = now
        self._kept = ResultCache(CacheConfig(entries=entries, size=size))
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return len(self._kept)

    @staticmethod
    def key(request: RouteRequest, arguments: Sequence[Any]) -> bytes:
        """What two calls must share for one's answer to do for the other: a digest, so that big arguments are not kept."""
        asked = (request.capability, request.version, request.tags, request.target, request.session, request.metadata)
        digest = hashlib.blake2b(digest_size=16)
        digest.update(repr([sorted(each.items()) if isinstance(each, Mapping) else each for each in asked]).encode())
        for each in arguments:
            digest.update(each)
        return digest.digest()

    def put(self, key: bytes, age: float, payload_format: int, segments: Sequence[Any]) -> None:
        """Keep an answer for `age` seconds."""
        answer = [bytes(each) for each in segments]
        with self._lock:
            self._kept.put(key, (payload_format, answer), sum(map(len, answer)), self._now(), age)

    def fallback(self, key: bytes) -> Callable[[ReachError], Any]:
        """What answers in place of an error, or raises it."""

        def instead(error: ReachError) -> Any:
            with self._lock:
                found = self._kept.get(key, self._now())
            if found is MISS:
                raise error
            return load_body(*found)

        return instead
