"""DNS-SD packets of one service type: what we say is built here, what others say is read with `zeroconf`'s parser.

Pure: bytes in, values out. Building is our own because importing `zeroconf` takes 0.04 to 0.2 s of CPU, and a node is to be announced within
0.3 s of its start; reading, the part that strangers can reach, is left to a parser that has met them. `read_packet` is total: whatever
the bytes, it returns a value. Sources: RFC 1035 (packets), RFC 6762 (multicast), RFC 6763 (service discovery).
"""

from __future__ import annotations

import hashlib
import ipaddress
import struct
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from reachmesh.discovery.source import Announcement

SERVICE = "_reachmesh._tcp.local."
MARKER = b"\x0a_reachmesh"
"""In every packet that concerns us, in any case of letters: everything else is dropped before it is parsed."""

PTR_TTL, HOST_TTL = 4500, 120
"""Seconds others may keep records: RFC 6762 section 10."""

MAX_PACKET = 1400
"""Bytes of a packet we send: one Ethernet frame."""

_TYPES = "_services._dns-sd._udp.local."
_A, _PTR, _TXT, _AAAA, _SRV, _ANY = 1, 12, 16, 28, 33, 255
_IN, _FLUSH = 1, 0x8000
_RESPONSE = 0x8400
_MAX_HEARD = 64
_MAX_KNOWN = 40


class Heard(NamedTuple):
    """A node that a packet speaks of; `ttl` 0 says that it goes."""

    boot: bytes
    addresses: tuple[str, ...]
    mesh: str
    ttl: int


class Packet(NamedTuple):
    """What a packet means to us.

    Attributes:
        asked: it asks for our service type, or, by name, for one of the boots in `asked_for`.
        asked_for: boots it asks for by name.
        known: boots its sender knows already and wants no answer from.
        heard: nodes it announces.
    """

    asked: bool = False
    asked_for: frozenset[bytes] = frozenset()
    known: frozenset[bytes] = frozenset()
    heard: tuple[Heard, ...] = ()


NOTHING = Packet()


def mesh_mark(mesh: str) -> str:
    """What stands for the mesh's name in packets anybody can read: 16 hex digits of its hash."""
    return hashlib.sha256(b"reachmesh " + mesh.encode("utf-8", "surrogatepass")).hexdigest()[:16]


def build_query(known: Sequence[bytes] = ()) -> bytes:
    """Ask for every node, except those whose boot is given (as many of them as fit one packet)."""
    known = known[:_MAX_KNOWN]
    writer = _Writer(0, questions=1, answers=len(known))
    writer.question(SERVICE, _PTR)
    for boot in known:
        writer.pointer(SERVICE, f"{boot.hex()}.{SERVICE}", PTR_TTL)
    return bytes(writer.packet)


def build_answer(announcement: Announcement, address: str, port: int, *, goodbye: bool = False) -> bytes:
    """Announce a node at one address; the answer to every question about it too.

    Args:
        announcement: says id, mesh, protocol range and incarnation; no other text of the user is in the packet.
        address: numeric; the address of the interface that the packet leaves by.
        port: TCP port of the node.
        goodbye: take it back (time to live 0).
    """
    ip = ipaddress.ip_address(address)
    label = announcement.boot.hex()
    instance, host = f"{label}.{SERVICE}", f"{label}-{ip.packed.hex()}.local."
    low, high = announcement.protocol
    text = {
        "id": announcement.instance_id,
        "port": str(port),
        "inc": str(announcement.incarnation),
        "proto": f"{low}-{high}",
        "mesh": mesh_mark(announcement.mesh),
    }
    long, short = (0, 0) if goodbye else (PTR_TTL, HOST_TTL)
    writer = _Writer(_RESPONSE, answers=5)
    writer.pointer(SERVICE, instance, long)
    writer.service(instance, host, port, short)
    writer.text(instance, text, long)
    writer.record(host, _A if ip.version == 4 else _AAAA, _IN | _FLUSH, short, ip.packed)
    writer.pointer(_TYPES, SERVICE, PTR_TTL)
    return bytes(writer.packet)


def read_packet(data: bytes) -> Packet:
    """What a packet says about our service type; `NOTHING` for whatever else it is. Never raises."""
    from zeroconf import DNSIncoming  # type: ignore[attr-defined]  # takes 0.04 to 0.2 s the first time

    if MARKER not in data.lower():
        return NOTHING
    try:
        packet = DNSIncoming(data)
        if not packet.valid:
            return NOTHING
        if packet.is_response():
            return Packet(heard=_read_heard(packet.answers()))
        asked_for = frozenset(boot for each in packet.questions if (boot := _boot_of(each.name)))
        asked = any(each.name.lower() == SERVICE and each.type in (_PTR, _ANY) for each in packet.questions)
        known = {boot for each in packet.answers() if each.type == _PTR and each.ttl >= PTR_TTL // 2 and (boot := _boot_of(each.alias))}  # type: ignore[attr-defined]
        return Packet(asked or bool(asked_for), asked_for, frozenset(known))
    except Exception:  # the parser's own promise is the same; a slip in it must not end the thread that listens
        return NOTHING


def _read_heard(records: Sequence[object]) -> tuple[Heard, ...]:
    """Nodes whose service, text and address records are all in one packet: those of other kinds are not ours."""
    pointers: dict[bytes, int] = {}
    services: dict[bytes, tuple[str, int]] = {}
    texts: dict[bytes, str] = {}
    hosts: dict[str, list[str]] = {}
    for each in records:
        kind, name = each.type, each.name  # type: ignore[attr-defined]
        if kind == _PTR and name.lower() == SERVICE and (boot := _boot_of(each.alias)):  # type: ignore[attr-defined]
            pointers[boot] = each.ttl  # type: ignore[attr-defined]
        elif kind == _SRV and (boot := _boot_of(name)):
            services[boot] = (each.server.lower(), each.port)  # type: ignore[attr-defined]
        elif kind == _TXT and (boot := _boot_of(name)):
            texts[boot] = _mesh_in(each.text)  # type: ignore[attr-defined]
        elif kind in (_A, _AAAA) and (address := _usable(each.address)):  # type: ignore[attr-defined]
            hosts.setdefault(name.lower(), []).append(address)
    heard = []
    for boot, ttl in list(pointers.items())[:_MAX_HEARD]:
        server, port = services.get(boot, ("", 0))
        found = tuple(f"{host}:{port}" for host in hosts.get(server, ())[:4]) if 0 < port < 65536 else ()
        if ttl == 0 or (found and boot in texts):
            heard.append(Heard(boot, found, texts.get(boot, ""), int(ttl)))
    return tuple(heard)


def _boot_of(name: str) -> bytes | None:
    """The boot id that is the first label of an instance name of our type."""
    label, dot, rest = name.lower().partition(".")
    if not dot or rest != SERVICE or len(label) != 16:
        return None
    try:
        boot = bytes.fromhex(label)
    except ValueError:
        return None
    return boot if len(boot) == 8 else None


def _usable(packed: bytes) -> str:
    """An address another host may have, in brackets for IPv6, or ""."""
    try:
        ip = ipaddress.ip_address(packed)
    except ValueError:
        return ""
    if ip.is_loopback or ip.is_unspecified or ip.is_multicast or ip.is_reserved or (ip.version == 6 and ip.is_link_local):
        return ""
    return str(ip) if ip.version == 4 else f"[{ip}]"


def _mesh_in(text: bytes) -> str:
    """The value of `mesh` in a TXT record's strings, or ""."""
    at = 0
    while at < len(text):
        one = text[at + 1 : at + 1 + text[at]]
        if one.startswith(b"mesh="):
            return one[5:].decode("ascii", "replace")
        at += 1 + text[at]
    return ""


class _Writer:
    """Appends to a packet; names are compressed against those before."""

    def __init__(self, flags: int, *, questions: int = 0, answers: int = 0) -> None:
        self.packet = bytearray(struct.pack(">6H", 0, flags, questions, answers, 0, 0))
        self._places: dict[str, int] = {}

    def question(self, name: str, kind: int) -> None:
        self._name(name)
        self.packet += struct.pack(">HH", kind, _IN)

    def pointer(self, name: str, target: str, ttl: int) -> None:
        length_at = self._head(name, _PTR, _IN, ttl)
        self._name(target)
        self._close(length_at)

    def service(self, name: str, host: str, port: int, ttl: int) -> None:
        length_at = self._head(name, _SRV, _IN | _FLUSH, ttl)
        self.packet += struct.pack(">HHH", 0, 0, port)
        self._name(host)
        self._close(length_at)

    def text(self, name: str, pairs: Mapping[str, str], ttl: int) -> None:
        strings = [f"{key}={value}".encode("utf-8", "replace")[:255] for key, value in pairs.items()]
        self.record(name, _TXT, _IN | _FLUSH, ttl, b"".join(bytes([len(each)]) + each for each in strings))

    def record(self, name: str, kind: int, kind_class: int, ttl: int, data: bytes) -> None:
        length_at = self._head(name, kind, kind_class, ttl)
        self.packet += data
        self._close(length_at)

    def _head(self, name: str, kind: int, kind_class: int, ttl: int) -> int:
        self._name(name)
        self.packet += struct.pack(">HHIH", kind, kind_class, ttl, 0)
        return len(self.packet) - 2

    def _close(self, length_at: int) -> None:
        struct.pack_into(">H", self.packet, length_at, len(self.packet) - length_at - 2)

    def _name(self, name: str) -> None:
        rest = name
        while rest and rest != ".":
            if place := self._places.get(rest):
                self.packet += struct.pack(">H", 0xC000 | place)
                return
            if len(self.packet) < 0x3FFF:
                self._places[rest] = len(self.packet)
            label, _, rest = rest.partition(".")
            encoded = label.encode()
            self.packet += bytes([len(encoded)]) + encoded
        self.packet.append(0)
