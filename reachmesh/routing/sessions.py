"""Sessions: which instance a session belongs to.

A new session goes to the winner of a weighted rendezvous hash (Thaler and Ravishankar 1998; weights after Schindelhauer and Schomaker
2005), so that every caller who sees the same instances chooses the same one without talking. From then on this caller remembers it:
a session stays while its instance is usable, even when a newcomer would win the hash. The memory is bounded; a session
that falls out of it is placed by the hash again.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from hashlib import blake2b
from math import log

from reachmesh.routing.entry import Entry


class Sessions:
    """Places of sessions, the least recently used forgotten first."""

    def __init__(self, limit: int) -> None:
        self._limit = max(limit, 1)
        self._places: OrderedDict[tuple[str, str], bytes] = OrderedDict()

    def __len__(self) -> int:
        return len(self._places)

    def home(self, capability: str, session: str) -> bytes | None:
        """Boot the session is at, if remembered; using it keeps it remembered."""
        key = (capability, session)
        boot = self._places.get(key)
        if boot is not None:
            self._places.move_to_end(key)
        return boot

    def settle(self, capability: str, session: str, boot: bytes) -> None:
        """Remember where the session is."""
        self._places[capability, session] = boot
        if len(self._places) > self._limit:
            self._places.popitem(last=False)


def point(session: str, salt: bytes = b"") -> float:
    """A number in [0, 1) that every process computes alike from session and salt."""
    digest = blake2b(session.encode("utf-8", "surrogatepass"), digest_size=8, key=salt[:64]).digest()
    return int.from_bytes(digest, "big") / 2.0**64


def rendezvous(session: str, pool: Sequence[Entry]) -> Entry:
    """Winner of the weighted rendezvous hash: the greatest -weight / ln(u), u a hash of session and instance. O(n) hashes.

    When an instance goes, only its own sessions move; when one comes, it wins about its share from all others.
    """
    return max(pool, key=lambda each: (_score(session, each), each.instance_id))


def _score(session: str, entry: Entry) -> float:
    hashed = min(max(point(session, entry.boot), 1e-18), 1.0 - 1e-16)
    return -max(entry.weight, 1e-6) / log(hashed)
