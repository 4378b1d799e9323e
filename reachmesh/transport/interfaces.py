"""The network interfaces of this host and the addresses peers may use: the first thing a node asks, before it binds.

Reads the kernel's list, never sends a packet and never asks a resolver. On Linux it takes three ioctls and a file of /proc (0.2 ms),
because importing `ifaddr` costs 60 ms and runs `ldconfig` in a child; other systems use that.
The invariant: a loopback or wildcard address is never among the addresses given to a LAN while a LAN address exists.
"""

from __future__ import annotations

import contextlib
import ipaddress
import socket
import struct
import sys
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from reachmesh.errors import ConfigError, shown

IPNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_SIOCGIFCONF, _SIOCGIFFLAGS, _SIOCGIFNETMASK = 0x8912, 0x8913, 0x891B
_IFF_UP = 1
_IFA_F_DADFAILED, _IFA_F_TENTATIVE, _SCOPE_LINK = 0x08, 0x40, 0x20
_MAX_ENTRIES = 1024
_HOST_NAME_LIMIT = 63


class Interface(NamedTuple):
    """One address of one network interface.

    Attributes:
        name: the system's name of the interface, e.g. `eth0`.
        address: one address of it as text, without prefix or brackets.
        network: the network that address is in; whoever is inside can be reached without a router.
    """

    name: str
    address: str
    network: IPNetwork

    @property
    def is_loopback(self) -> bool:
        """Whether the address reaches this host only."""
        return ipaddress.ip_address(self.address).is_loopback

    @property
    def is_ipv6(self) -> bool:
        """Whether the address is an IPv6 one."""
        return ":" in self.address


def list_interfaces(wanted: Sequence[str] | None = None) -> list[Interface]:
    """The interfaces to use, in the order asked for (else the system's), loopback last.

    Args:
        wanted: names (`eth0`) or addresses (`10.0.0.7`, `::1`); None or empty takes every interface that is up.
            An interface taken by name or by default gives its IPv4 addresses, and its routable IPv6 ones only if it
            has no IPv4 at all; an IPv6 address asked for is taken as it is.

    Raises:
        ConfigError: a wanted interface does not exist; the message lists those that do.
    """
    ipv4 = _list_ipv4()
    if not wanted:
        found = ipv4 if any(not each.is_loopback for each in ipv4) else _one_family(ipv4 + _list_ipv6())
    else:
        known, have_ipv6, found = ipv4, False, []
        for each in wanted:
            matches = _matching(known, each)
            if not matches and not have_ipv6:
                known, have_ipv6 = ipv4 + _list_ipv6(), True
                matches = _matching(known, each)
            if not matches:
                present = ", ".join(f"{one.name} {one.address}" for one in known) or "none"
                raise ConfigError(f"there is no network interface {shown(each)}", hint=f"present are: {present}")
            found.extend(matches)
    return sorted(dict.fromkeys(found), key=lambda each: each.is_loopback)


def present_interfaces(wanted: Sequence[str] | None = None) -> list[Interface]:
    """`list_interfaces` without the error: what is wanted and not there now is left out. For following changes."""
    if not wanted:
        return list_interfaces()
    found: list[Interface] = []
    for each in wanted:
        with contextlib.suppress(ConfigError):
            found += list_interfaces([each])
    return list(dict.fromkeys(found))


def reachable_addresses(interfaces: Iterable[Interface], port: int) -> tuple[str, ...]:
    """`host:port` of each interface others may use: the LAN ones, or loopback when there is nothing else."""
    listed = list(interfaces)
    chosen = [each for each in listed if not each.is_loopback] or listed
    return tuple(join_address(each.address, port) for each in chosen)


def join_address(host: str, port: int) -> str:
    """`host:port` as one text, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def host_name() -> str:
    """The first label of this host's name with anything but letters, digits and hyphens made a hyphen; never empty."""
    label = socket.gethostname().partition(".")[0][:_HOST_NAME_LIMIT]
    return "".join(each if each.isascii() and each.isalnum() else "-" for each in label).strip("-") or "host"


def _matching(known: Sequence[Interface], wanted: str) -> list[Interface]:
    """The entries with that address, or of the interface with that name (one family)."""
    try:
        address = str(ipaddress.ip_address(wanted.strip("[]")))
    except ValueError:
        return _one_family([each for each in known if each.name == wanted])
    return [each for each in known if each.address == address]


def _one_family(entries: Sequence[Interface]) -> list[Interface]:
    """Per interface its IPv4 entries, or its routable (or loopback) IPv6 ones where it has no IPv4."""
    with_ipv4 = {each.name for each in entries if not each.is_ipv6}
    return [each for each in entries if not each.is_ipv6 or (each.name not in with_ipv4 and not _is_link_local(each.address))]


def _is_link_local(address: str) -> bool:
    return ipaddress.ip_address(address).is_link_local


def _entry(name: str, address: str, prefix: int | str) -> Interface | None:
    """An entry, or None for an address nobody could connect to (wildcard, multicast, unparsable)."""
    try:
        parsed = ipaddress.ip_interface(f"{address}/{prefix}")
    except ValueError:
        return None
    if parsed.ip.is_unspecified or parsed.ip.is_multicast:
        return None
    return Interface(name, str(parsed.ip), parsed.network)


def _list_ipv4() -> list[Interface]:
    """Every IPv4 address of an interface that is up."""
    if sys.platform == "linux":
        with contextlib.suppress(OSError):
            return _list_ipv4_linux()
    return _list_by_ifaddr(ipv6=False)


def _list_ipv4_linux() -> list[Interface]:
    """IPv4 by ioctl: alias labels (`eth0:1`) are given as the interface they are on."""
    import array
    import fcntl

    size = struct.calcsize("16s16s8x") if struct.calcsize("P") == 8 else 32
    buffer = array.array("B", bytes(size * _MAX_ENTRIES))
    found: list[Interface] = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as asker:
        answer = fcntl.ioctl(asker, _SIOCGIFCONF, struct.pack("iP", len(buffer), buffer.buffer_info()[0]))
        (used,) = struct.unpack_from("i", answer)
        for start in range(0, used, size):
            label = bytes(buffer[start : start + 16]).partition(b"\0")[0]
            request = struct.pack("16s24x", label)
            (flags,) = struct.unpack_from("H", fcntl.ioctl(asker, _SIOCGIFFLAGS, request), 16)
            if not flags & _IFF_UP:
                continue
            # The kernel matches label and address, so that each of several addresses gets its own netmask.
            request = struct.pack("16s", label) + bytes(buffer[start + 16 : start + 32]) + bytes(8)
            mask = socket.inet_ntoa(fcntl.ioctl(asker, _SIOCGIFNETMASK, request)[20:24])
            address = socket.inet_ntoa(bytes(buffer[start + 20 : start + 24]))
            if entry := _entry(label.decode("utf-8", "replace").partition(":")[0], address, mask):
                found.append(entry)
    return found


def _list_ipv6() -> list[Interface]:
    """Every IPv6 address without a scope (link-local ones need the interface in the address and do not travel)."""
    with contextlib.suppress(OSError):
        return _list_ipv6_linux() if sys.platform == "linux" else _list_by_ifaddr(ipv6=True)
    return []


def _list_ipv6_linux() -> list[Interface]:
    """IPv6 as the kernel lists it for this thread's network namespace; addresses still on trial are left out."""
    found: list[Interface] = []
    with open("/proc/thread-self/net/if_inet6", encoding="ascii", errors="replace") as lines:
        for line in lines:
            digits, _, prefix, scope, flags, name = line.split()
            if int(flags, 16) & (_IFA_F_TENTATIVE | _IFA_F_DADFAILED) or int(scope, 16) == _SCOPE_LINK:
                continue
            if entry := _entry(name, str(ipaddress.IPv6Address(bytes.fromhex(digits))), int(prefix, 16)):
                found.append(entry)
    return found


def _list_by_ifaddr(*, ipv6: bool) -> list[Interface]:
    """The same by `ifaddr`, for one family."""
    import ifaddr

    found = []
    for adapter in ifaddr.get_adapters():
        name = str(adapter.name)
        for each in adapter.ips:
            if each.is_IPv6 != ipv6:
                continue
            address = each.ip if isinstance(each.ip, str) else each.ip[0]
            entry = _entry(name, address.partition("%")[0], each.network_prefix)
            if entry and not (ipv6 and _is_link_local(entry.address)):
                found.append(entry)
    return found
