"""Where a node listens, and what it tells others about that."""

from __future__ import annotations

from typing import NamedTuple

from reachmesh.node.settings import Settings
from reachmesh.transport.interfaces import list_interfaces, reachable_addresses
from reachmesh.transport.sockets import Transport

_ANY = ("*", "0.0.0.0", "::")


class Listening(NamedTuple):
    """`addresses`: "host:port" for the LAN; `local_address`: for this host; `any_interface`: they change with the host's."""

    addresses: tuple[str, ...]
    local_address: str
    any_interface: bool


def listen(transport: Transport, settings: Settings) -> Listening:
    """Bind where the settings say: an address of one's own, given interfaces, or all of them.

    Raises:
        ConfigError: the port is taken, or an interface does not exist.
    """
    interfaces = list_interfaces(settings.interfaces)
    if settings.bind is not None:
        hosts, wanted = [settings.bind[0]], settings.bind[1]
    elif settings.interfaces is not None:
        hosts, wanted = list(dict.fromkeys(each.address for each in interfaces)), 0
    else:
        hosts, wanted = ["*"], 0
    port = transport.bind(hosts, wanted)
    if hosts[0] in _ANY:
        return Listening(reachable_addresses(interfaces, port), f"127.0.0.1:{port}", True)
    addresses = tuple(f"{f'[{host}]' if ':' in host else host}:{port}" for host in hosts)
    return Listening(addresses, addresses[0], False)
