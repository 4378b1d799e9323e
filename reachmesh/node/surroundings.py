"""A node's surroundings: where it can be reached and who else is there, from its start to its stop.

One thread looks again every few seconds: for addresses this host has got or lost, for others, and at who is to be remembered.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence

import msgspec

from reachmesh.discovery import Announcement, Candidate, Discovery
from reachmesh.node.settings import Settings
from reachmesh.transport.interfaces import present_interfaces, reachable_addresses

LOOK_EVERY = 5.0
"""Seconds between two looks at most; heartbeats that come faster mean looks that come faster."""

REMEMBER_AFTER = 0.1
"""Seconds after which a newcomer is written down, and others that came meanwhile: a process that is killed remembers them all the same."""


class Surroundings:
    """Discovery of one node, and what follows from a change of its addresses.

    Args:
        announcement: what others are told; its addresses follow those of the host.
        is_silent: look for others without telling them anything, and remember nobody.
        period: seconds between two heartbeats.
        found: told each address at which somebody may be.
        moved: told the new addresses of this node; false if it is too late for that.
        seen: the peers of now, as (instance id, "host:port").
    """

    def __init__(
        self,
        settings: Settings,
        announcement: Announcement,
        *,
        is_silent: bool,
        period: float,
        found: Callable[[Candidate], None],
        moved: Callable[[tuple[str, ...]], bool],
        seen: Callable[[], Sequence[tuple[str, str]]],
    ) -> None:
        self._settings, self._announcement, self._is_silent = settings, announcement, is_silent
        self._every = min(period, LOOK_EVERY)
        self._found, self._moved, self._seen = found, moved, seen
        self.discovery = Discovery(settings.sources())
        self._over = threading.Event()
        self._wake = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Announce, look, and begin to look again. Does nothing lasting after `stop`."""
        self.discovery.start(None if self._is_silent else self._announcement, self._found)
        if self._over.is_set():
            self.discovery.stop()
            return
        self.notice()  # of those who came while there was nobody to notice
        thread = threading.Thread(target=self._keep, name=f"reachmesh-{self._settings.name}-keeper", daemon=True)
        thread.start()
        self._thread = thread  # once it runs: a stop in another thread joins what it finds here

    def stop(self) -> None:
        """Take back what was announced, look no more."""
        self._over.set()
        self._wake.set()
        self.discovery.stop()

    def join(self) -> None:
        """Wait for the thread to end."""
        thread = self._thread
        if thread is not None and thread is not threading.current_thread():
            thread.join(2.0)

    def remember(self) -> None:
        """Write down who is here, for the next start."""
        if not self._is_silent and self._settings.state_dir is not None and (seen := self._seen()):
            self.discovery.remember(seen)

    def notice(self) -> None:
        """Somebody came; never blocks."""
        if self._settings.state_dir is not None:
            self._wake.set()

    def _keep(self) -> None:
        look_at = time.monotonic() + self._every
        while True:
            if self._wake.wait(max(0.0, look_at - time.monotonic())):
                self._wake.clear()
                self._over.wait(REMEMBER_AFTER)
            if self._over.is_set():
                return
            if time.monotonic() >= look_at:
                look_at = time.monotonic() + self._every
                self._follow_addresses()
                self.discovery.refresh()
            self.remember()

    def _follow_addresses(self) -> None:
        """Tell the mesh when this host has other addresses than before; without any but loopback, the old ones stay.

        That goes for a node that listens everywhere, and for one that was given interfaces; not for one that was given an address.
        """
        told = self._announcement
        if not told.any_interface and (self._settings.bind is not None or self._settings.interfaces is None):
            return
        present = [each for each in present_interfaces(self._settings.interfaces) if not each.is_loopback]
        addresses = reachable_addresses(present, int(told.local_address.rpartition(":")[2]))
        if addresses and set(addresses) != set(told.addresses) and self._moved(addresses):
            local = told.local_address if told.any_interface else addresses[0]
            self._announcement = msgspec.structs.replace(told, addresses=addresses, local_address=local)
            self.discovery.announce(self._announcement)
