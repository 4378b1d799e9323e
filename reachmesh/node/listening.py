"""Where a node listens, and what it tells others about that."""

from __future__ import annotations

import ipaddress
import logging
import socket
from typing import NamedTuple

from reachmesh.errors import ConfigError, shown
from reachmesh.node.settings import Settings
from reachmesh.transport.interfaces import join_address, list_interfaces, reachable_addresses
from reachmesh.transport.sockets import ANY_HOST, Transport

_log = logging.getLogger(__name__)


class Listening(NamedTuple):
    """`addresses`: "host:port" for the LAN; `local_address`: for this host; `any_interface`: it listens on whatever the host gets."""

    addresses: tuple[str, ...]
    local_address: str
    any_interface: bool


def listen(transport: Transport, settings: Settings) -> Listening:
    """Bind where the settings say: an address of one's own, given interfaces, or all of them.

    Raises:
        ConfigError: the port is taken, an interface does not exist, or a name has no address.
    """
    interfaces = list_interfaces(settings.interfaces)
    if settings.bind is not None:
        hosts, wanted = _hosts(settings.bind[0]), settings.bind[1]
    elif settings.interfaces is not None:
        hosts, wanted = list(dict.fromkeys(each.address for each in interfaces)), 0
    else:
        hosts, wanted = ["*"], 0
    port = transport.bind(hosts, wanted)
    if hosts[0] in ANY_HOST:
        return Listening(reachable_addresses(interfaces, port), f"127.0.0.1:{port}", True)
    if settings.bind is None:
        addresses = reachable_addresses(interfaces, port)
    else:
        addresses = tuple(join_address(host, port) for host in hosts)
    return Listening(addresses, addresses[0], False)


def tell_open(settings: Settings, listening: Listening) -> None:
    """Log that whoever reaches the node may use it, if that is so: a warning where other hosts can reach it."""
    if settings.secret is None:
        beyond = any(not _is_loopback(each) for each in listening.addresses)
        text = "mesh %r is OPEN: without a secret whoever reaches %s may join and call %r"
        _log.log(logging.WARNING if beyond else logging.INFO, text, settings.mesh, ", ".join(listening.addresses), settings.name)


def _is_loopback(address: str) -> bool:
    return ipaddress.ip_address(address.rpartition(":")[0].strip("[]")).is_loopback


def _hosts(host: str) -> list[str]:
    """The addresses meant by the host of `bind`: an address itself, those of an interface, or those a name has (IPv4 if there are any).

    Others are told addresses only: a name such as localhost means something else to each of them.
    """
    if host in ANY_HOST:
        return [host]
    try:
        return [str(ipaddress.ip_address(host))]
    except ValueError:
        pass
    try:
        return [each.address for each in list_interfaces([host])]
    except ConfigError:
        pass
    try:
        found = socket.getaddrinfo(host, None, type=socket.SOCK_STREAM)
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot listen on {shown(host)}: {getattr(error, 'strerror', None) or error}") from None
    ipv4 = [each for each in found if each[0] is socket.AF_INET]
    return list(dict.fromkeys(str(each[4][0]) for each in ipv4 or found))
