"""Sockets of the mDNS multicast group, one per interface address: the system calls, and nothing else."""

from __future__ import annotations

import socket
import struct
import sys

from reachmesh.discovery.source import NetworkInterface

GROUP_IPV4, GROUP_IPV6, PORT = "224.0.0.251", "ff02::fb", 5353

_IP_MULTICAST_ALL, _IPV6_MULTICAST_ALL = 49, 29
_RECEIVE_BUFFER = 1 << 18
_SIOCGIFFLAGS, _IFF_RUNNING = 0x8913, 0x40


def open_group_socket(interface: NetworkInterface) -> socket.socket:
    """A non-blocking socket that hears and speaks to the group on one interface, sharing the port with other programs.

    On Linux it is bound to the group and hears this interface alone; elsewhere the system may mix in packets of others.

    Raises:
        OSError: the interface has no multicast, or the port is taken by a program that does not share.
    """
    sock = socket.socket(socket.AF_INET6 if interface.is_ipv6 else socket.AF_INET, socket.SOCK_DGRAM)
    try:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # On Linux SO_REUSEADDR alone shares a multicast port, with avahi and the like too. With SO_REUSEPORT beside it, sockets of one
        # port form a group and the kernel (seen on 6.18) gives a packet to one of them by a hash, whichever interface it came by.
        if sys.platform != "linux" and hasattr(socket, "SO_REUSEPORT"):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, _RECEIVE_BUFFER)
        (_join_ipv6 if interface.is_ipv6 else _join_ipv4)(sock, interface)
    except BaseException:
        sock.close()
        raise
    return sock


def send_to_group(sock: socket.socket, interface: NetworkInterface, packet: bytes) -> None:
    """Send one packet to the group; raises OSError, BlockingIOError when the interface is busy."""
    if interface.is_ipv6:
        sock.sendto(packet, (GROUP_IPV6, PORT, 0, socket.if_nametoindex(interface.name)))
    else:
        sock.sendto(packet, (GROUP_IPV4, PORT))


def has_carrier(sock: socket.socket, interface: NetworkInterface) -> bool:
    """Whether the interface has a network at its other end, where the system can tell (Linux); else True."""
    if sys.platform != "linux":
        return True
    import fcntl

    try:
        answer = fcntl.ioctl(sock, _SIOCGIFFLAGS, struct.pack("16s24x", interface.name.encode()[:15]))
    except OSError:
        return False
    return bool(struct.unpack_from("H", answer, 16)[0] & _IFF_RUNNING)


def _join_ipv4(sock: socket.socket, interface: NetworkInterface) -> None:
    address = socket.inet_aton(interface.address)
    sock.bind((GROUP_IPV4 if sys.platform == "linux" else "", PORT))
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_IP, _IP_MULTICAST_ALL, 0)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_IF, address)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_TTL, 255)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_MULTICAST_LOOP, 1)
    sock.setsockopt(socket.IPPROTO_IP, socket.IP_ADD_MEMBERSHIP, socket.inet_aton(GROUP_IPV4) + address)


def _join_ipv6(sock: socket.socket, interface: NetworkInterface) -> None:
    index = socket.if_nametoindex(interface.name)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_V6ONLY, 1)
    sock.bind((GROUP_IPV6, PORT, 0, index) if sys.platform == "linux" else ("", PORT))
    if sys.platform == "linux":
        sock.setsockopt(socket.IPPROTO_IPV6, _IPV6_MULTICAST_ALL, 0)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_IF, index)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_HOPS, 255)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_MULTICAST_LOOP, 1)
    sock.setsockopt(socket.IPPROTO_IPV6, socket.IPV6_JOIN_GROUP, socket.inet_pton(socket.AF_INET6, GROUP_IPV6) + struct.pack("@I", index))
