"""What discovery is told and what it tells: the announcement of this node, and candidates to dial.

A candidate is a hint, never a fact: records outlive crashes, addresses get reused and multicast can be forged. The handshake decides
who is there; a boot id in a candidate only saves dialling a node that is already linked. Sources repeat themselves on purpose
(at most once a refresh, or by their own schedule), so that a peer lost and back is met again; the receiver drops what it has.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

import msgspec


class Announcement(msgspec.Struct, frozen=True, kw_only=True):
    """What a node says of itself so that others can dial it.

    Attributes:
        mesh: name of the mesh; nodes of another mesh are not reported.
        instance_id: `name-host-pid-random`.
        boot: 8 random bytes of this start of the node.
        name: the logical name.
        addresses: `host:port` each that another host may use; no wildcard, and no loopback where the node has a LAN address.
        local_address: `host:port` for nodes of this host.
        protocol: lowest and highest protocol version spoken.
        incarnation: the node's incarnation at this time.
        any_interface: the node listens on every interface, so that one that appears later may be announced with the same port.
    """

    mesh: str
    instance_id: str
    boot: bytes
    name: str
    addresses: tuple[str, ...]
    local_address: str
    protocol: tuple[int, int]
    incarnation: int
    any_interface: bool = False


class Candidate(msgspec.Struct, frozen=True):
    """An address where a node of this mesh may be.

    Attributes:
        address: `host:port`, an IPv6 host in brackets.
        boot: who is said to be there, or None where the source cannot know.
        source: name of the source that says so.
    """

    address: str
    boot: bytes | None
    source: str


Found = Callable[[Candidate], None]
"""Takes one candidate; may be called from any thread, and quickly returns."""


class NetworkInterface(Protocol):
    """One address of one network interface; hashable, equal when name and address are."""

    @property
    def name(self) -> str:
        """The system's name for it, e.g. `eth0`."""
        ...

    @property
    def address(self) -> str:
        """One address of it, without prefix or brackets."""
        ...

    @property
    def is_loopback(self) -> bool:
        """Whether the address reaches this host only."""
        ...

    @property
    def is_ipv6(self) -> bool:
        """Whether the address is an IPv6 one."""
        ...


Interfaces = Callable[[], Sequence[NetworkInterface]]
"""Lists the interfaces to use as they are now; called again and again, for they come and go."""


class Source(Protocol):
    """One way to find others. Nothing here blocks its caller for more than some milliseconds; `stop` may take up to a second.

    `start` may raise: the source is then broken, reported, and started again at a later refresh.
    """

    @property
    def name(self) -> str:
        """The name by which `discovery=` chooses it."""
        ...

    @property
    def problem(self) -> str:
        """What keeps the running source from working, or ""."""
        ...

    def start(self, announcement: Announcement | None, found: Found) -> None:
        """Announce this node (None: a silent observer) and report others from now on."""
        ...

    def announce(self, announcement: Announcement) -> None:
        """Replace what is announced."""
        ...

    def refresh(self) -> None:
        """Look again; cheap, called about once a heartbeat period."""
        ...

    def stop(self) -> None:
        """Take the announcement back and end; `found` is not called afterwards. Safe to call twice, or without a start."""
        ...
