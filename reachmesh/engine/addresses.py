"""Where boots may be reached: hints of discovery and of their own records. What is in here is dialled, never believed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

ADDRESSES_PER_BOOT = 16
"""Addresses kept of one boot; the newest push the oldest out."""

HINTED_BOOTS = 16_384
"""Boots with addresses; hints about further ones are dropped, so that a forger cannot fill the memory."""


class AddressBook:
    """Addresses by boot, best guess first.

    Attributes:
        own: this node's own addresses, which nobody else can be at.
    """

    def __init__(self) -> None:
        self.own: frozenset[str] = frozenset()
        self._known: dict[bytes, dict[str, None]] = {}

    def __len__(self) -> int:
        return len(self._known)

    def learn(self, boot: bytes, addresses: Sequence[str]) -> None:
        """Remember where a boot may be reached; newer hints go before older ones."""
        if boot not in self._known and len(self._known) >= HINTED_BOOTS:
            return
        known = self._known.get(boot, {})
        merged = {address: None for address in addresses if address not in self.own} | known
        self._known[boot] = dict(list(merged.items())[:ADDRESSES_PER_BOOT])

    def forget(self, boot: bytes) -> None:
        """Drop the addresses of a boot that is gone for good."""
        self._known.pop(boot, None)

    def of(self, boot: bytes) -> list[str]:
        """The addresses of a boot in the order to try them: loopback (same host), then those that share most with one of our own."""
        return sorted(self._known.get(boot, ()), key=lambda address: (not address.startswith("127."), -nearness(address, self.own)))


def nearness(address: str, others: Iterable[str]) -> int:
    """How many leading parts an address shares with the one of `others` that shares most; 0 when there is none."""
    parts = _parts(address)
    return max((_shared(parts, _parts(other)) for other in others), default=0)


def _parts(address: str) -> list[str]:
    return address.rpartition(":")[0].split(".")


def _shared(left: Sequence[str], right: Sequence[str]) -> int:
    """How many leading parts two addresses share."""
    shared = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        shared += 1
    return shared
