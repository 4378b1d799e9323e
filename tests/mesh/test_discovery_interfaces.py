"""The interfaces of this very host, as the kernel lists them."""

from __future__ import annotations

import ipaddress
import socket

import pytest

from reachmesh.errors import ConfigError
from reachmesh.transport.interfaces import Interface, host_name, join_address, list_interfaces, present_interfaces, reachable_addresses

LAN = Interface("eth0", "10.0.0.7", ipaddress.ip_network("10.0.0.0/24"))
LAN_IPV6 = Interface("eth1", "fd00::7", ipaddress.ip_network("fd00::/64"))
LOOPBACK = Interface("lo", "127.0.0.1", ipaddress.ip_network("127.0.0.0/8"))


def test_loopback_is_there_and_comes_last() -> None:
    """Every host has a loopback interface, after all others; each address is in its own network."""
    found = list_interfaces()
    assert "127.0.0.1" in [each.address for each in found]
    assert [each.is_loopback for each in found] == sorted(each.is_loopback for each in found)
    assert all(ipaddress.ip_address(each.address) in each.network for each in found)


def test_the_list_agrees_with_that_of_ifaddr() -> None:
    """The kernel's own list and the portable library name the same IPv4 addresses and prefixes, of interfaces that are up."""
    import ifaddr

    portable = {(each.ip, each.network_prefix) for card in ifaddr.get_adapters() for each in card.ips if each.is_IPv4}
    listed = {(each.address, each.network.prefixlen) for each in list_interfaces() if not each.is_ipv6}
    assert listed <= portable
    assert ("127.0.0.1", 8) in listed


def test_interfaces_are_chosen_by_address_or_name() -> None:
    """An address, a bracketed one and a name all choose; asking twice gives one."""
    (by_address,) = list_interfaces(["127.0.0.1"])
    assert list_interfaces([by_address.name, "127.0.0.1"])[0] == by_address
    assert len(list_interfaces(["127.0.0.1", "127.0.0.1"])) == 1


@pytest.mark.parametrize("wanted", ["nosuch0", "203.0.113.77", "", "2001:db8::77"])
def test_an_interface_that_does_not_exist_is_a_configuration_error(wanted: str) -> None:
    """The message has what was asked for, and the hint what there is; when following changes it is left out instead."""
    with pytest.raises(ConfigError) as caught:
        list_interfaces(["127.0.0.1", wanted])
    assert repr(wanted) in caught.value.message
    assert "127.0.0.1" in caught.value.hint
    assert [each.address for each in present_interfaces([wanted, "127.0.0.1"])] == ["127.0.0.1"]


def test_loopback_is_never_given_to_a_lan() -> None:
    """With a LAN address there is no loopback among the addresses for others; without one, loopback is what there is."""
    assert reachable_addresses([LAN, LAN_IPV6, LOOPBACK], 7000) == ("10.0.0.7:7000", "[fd00::7]:7000")
    assert reachable_addresses([LOOPBACK], 7000) == ("127.0.0.1:7000",)
    assert reachable_addresses([], 7000) == ()
    assert join_address("::1", 1) == "[::1]:1"


@pytest.mark.parametrize(
    ("name", "label"), [("web-1.example.com", "web-1"), ("Büro PC", "B-ro-PC"), ("", "host"), ("---", "host"), ("x" * 200, "x" * 63)]
)
def test_the_host_name_is_one_plain_label(name: str, label: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever the host is called, its label has letters, digits and hyphens and is not empty."""
    monkeypatch.setattr(socket, "gethostname", lambda: name)
    assert host_name() == label
