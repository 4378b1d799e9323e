"""Multicast DNS (being built): announces nothing yet."""

from __future__ import annotations

from collections.abc import Sequence

from reachmesh.discovery.source import Announcement, Found


class MdnsSource:
    """Finds nodes of the LAN."""

    name = "mdns"
    problem = ""

    def __init__(self, mesh: str, interfaces: Sequence[str] | None) -> None:
        self._mesh, self._interfaces = mesh, interfaces

    def start(self, announcement: Announcement | None, found: Found) -> None:
        """Nothing yet."""

    def announce(self, announcement: Announcement) -> None:
        """Nothing yet."""

    def refresh(self) -> None:
        """Nothing yet."""

    def stop(self) -> None:
        """Nothing yet."""
