"""Who observes whom: pseudo-random rings over boot ids.

On each ring the living nodes stand in the order of a mixed boot id; the successor on a ring observes me, and I observe
my predecessors. Every node computes the same from the same table, with no agreement round. Source: Rapid (Suresh et al.
2018, section 4.1) for the k-ring topology.

Only the own neighbours are kept: a join costs O(rings), the loss of a neighbour one pass over the table.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable

_MASK = 0xFFFFFFFFFFFFFFFF


def ring_key(ring: int, boot: bytes) -> int:
    """Position of a boot id on a ring, 0 to 2**64 - 1: a bijective 64-bit mix (splitmix64's finaliser), so ties cannot occur."""
    x = (int.from_bytes(boot, "big") + (ring + 1) * 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


class SortedRings:
    """All positions sorted once, shared by many nodes of a simulation to find their first neighbours quickly."""

    def __init__(self, boots: Iterable[bytes], rings: int) -> None:
        everyone = list(boots)
        self.rings = [sorted((ring_key(ring, boot), boot) for boot in everyone) for ring in range(rings)]

    def neighbours(self, boot: bytes) -> tuple[list[bytes], list[bytes]]:
        """(successors, predecessors) of a boot id that is among those sorted."""
        successors, predecessors = [], []
        for ring, order in enumerate(self.rings):
            at = bisect_left(order, (ring_key(ring, boot), boot))
            successors.append(order[(at + 1) % len(order)][1])
            predecessors.append(order[at - 1][1])
        return successors, predecessors


class Rings:
    """My neighbours on every ring.

    Invariant: `observers` (successors, to whom I report) and `observed` (predecessors, whom I watch) are those that a
    full sort of the living would give.
    """

    def __init__(self, me: bytes, rings: int) -> None:
        self._me = me
        self._keys = [ring_key(ring, me) for ring in range(rings)]
        self._successors: list[tuple[int, bytes] | None] = [None] * rings
        self._predecessors: list[tuple[int, bytes] | None] = [None] * rings
        self.observers: dict[bytes, None] = {}
        self.observed: dict[bytes, None] = {}

    def preset(self, successors: list[bytes], predecessors: list[bytes]) -> None:
        """Take neighbours computed elsewhere."""
        for ring, key in enumerate(self._keys):
            self._successors[ring] = ((ring_key(ring, successors[ring]) - key) & _MASK, successors[ring])
            self._predecessors[ring] = ((key - ring_key(ring, predecessors[ring])) & _MASK, predecessors[ring])
        self._collect()

    def add(self, boot: bytes) -> bool:
        """A node lives now; whether a neighbour of mine changed."""
        changed = False
        for ring, key in enumerate(self._keys):
            position = ring_key(ring, boot)
            ahead, behind = (position - key) & _MASK, (key - position) & _MASK
            successor, predecessor = self._successors[ring], self._predecessors[ring]
            if successor is None or ahead < successor[0]:
                self._successors[ring] = (ahead, boot)
                changed = True
            if predecessor is None or behind < predecessor[0]:
                self._predecessors[ring] = (behind, boot)
                changed = True
        if changed:
            self._collect()
        return changed

    def remove(self, boot: bytes, living: Iterable[bytes]) -> bool:
        """A node lives no more; `living` are the others that do. Whether a neighbour of mine changed."""
        rings = [
            ring
            for ring in range(len(self._keys))
            if any(entry is not None and entry[1] == boot for entry in (self._successors[ring], self._predecessors[ring]))
        ]
        if not rings:
            return False
        for ring in rings:
            self._successors[ring] = self._predecessors[ring] = None
        for other in living:
            if other == boot or other == self._me:
                continue
            for ring in rings:
                key, position = self._keys[ring], ring_key(ring, other)
                ahead, behind = (position - key) & _MASK, (key - position) & _MASK
                successor, predecessor = self._successors[ring], self._predecessors[ring]
                if successor is None or ahead < successor[0]:
                    self._successors[ring] = (ahead, other)
                if predecessor is None or behind < predecessor[0]:
                    self._predecessors[ring] = (behind, other)
        self._collect()
        return True

    def _collect(self) -> None:
        self.observers = {entry[1]: None for entry in self._successors if entry}
        self.observed = {entry[1]: None for entry in self._predecessors if entry}
