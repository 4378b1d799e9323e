"""Three queues by priority class, strict but for a small share against starvation.

Classes: high 0-50, normal 51-150, low 151-255. After `turns` items in a row that passed over a waiting lower class, one of the
lower class goes; of the two lower ones, the one that was passed over longest. Within a class: first come, first served.
Items are unique hashables, and removing one is O(1), as is everything here.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Generic, TypeVar

Item = TypeVar("Item", bound=Hashable)

HIGHEST_NORMAL, HIGHEST_LOW = 51, 151


def class_of(priority: int) -> int:
    """0 high, 1 normal, 2 low."""
    return 0 if priority < HIGHEST_NORMAL else 1 if priority < HIGHEST_LOW else 2


class PriorityQueues(Generic[Item]):
    """Items waiting by class. Invariant: a waiting item of any class goes after at most `turns` x 2 + 1 pops per item ahead of it."""

    __slots__ = ("_passed", "_queues", "_turns", "_where")

    def __init__(self, turns: int = 8) -> None:
        self._queues: tuple[dict[Item, None], ...] = ({}, {}, {})
        self._where: dict[Item, int] = {}
        self._passed = [0, 0, 0]
        self._turns = max(turns, 1)

    def __len__(self) -> int:
        return len(self._where)

    def __contains__(self, item: object) -> bool:
        return item in self._where

    def __iter__(self) -> Iterator[Item]:
        for queue in self._queues:
            yield from queue

    def waiting(self, kind: int) -> int:
        """Items of one class (0, 1, 2)."""
        return len(self._queues[kind])

    def push(self, item: Item, priority: int) -> None:
        """Append an item; one that waits already keeps its place."""
        if item not in self._where:
            self._where[item] = kind = class_of(priority)
            self._queues[kind][item] = None

    def pop(self) -> Item:
        """Take the next item.

        Raises:
            IndexError: nothing waits.
        """
        kind = self._next_class()
        queue = self._queues[kind]
        item = next(iter(queue))
        del queue[item]
        del self._where[item]
        return item

    def remove(self, item: Item) -> bool:
        """Take an item out of its place; False when it does not wait."""
        kind = self._where.pop(item, None)
        if kind is None:
            return False
        del self._queues[kind][item]
        return True

    def _next_class(self) -> int:
        waiting = [kind for kind in range(3) if self._queues[kind]]
        if not waiting:
            raise IndexError("nothing waits")
        starved = [kind for kind in waiting[1:] if self._passed[kind] >= self._turns]
        chosen = max(starved, key=lambda kind: self._passed[kind]) if starved else waiting[0]
        for kind in range(3):
            self._passed[kind] = (
                self._passed[kind] + 1 if kind > chosen and self._queues[kind] else self._passed[kind] if kind < chosen else 0
            )
        return chosen
