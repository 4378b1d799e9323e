"""Seeds: addresses the user gave, as numbers or as names with any number of addresses behind them.

One seed on one side is enough; gossip brings the rest. Seeds are reported again and again, since the other side may start later and
a name may get new addresses. Names are resolved in threads of their own, because a resolver may block for half a minute.
"""

from __future__ import annotations

import contextlib
import ipaddress
import random
import re
import socket
import threading
import time
from collections.abc import Sequence

from reachmesh.discovery.source import Announcement, Candidate, Found
from reachmesh.errors import ConfigError, shown

FIRST_DELAY = 0.2
"""Seconds before the first repetition; each following delay is twice the one before."""

EAGER_DELAY, EAGER_TIME = 1.0, 60.0
"""Longest delay (s) while the node is younger than the second value (s): services of one deployment start within a minute."""

LATE_DELAY = 10.0
"""Longest delay (s) afterwards. Shorter loads the resolver, longer makes a late seed wait."""

MAX_ADDRESSES = 64
"""Addresses used of one name."""

_RESOLVERS = 8
_HOST = re.compile(r"(?!-)[A-Za-z0-9_-]{1,63}(\.(?!-)[A-Za-z0-9_-]{1,63})*\.?", re.ASCII)

Seed = tuple[str, int]


def parse_seed(text: str) -> Seed:
    """Host and port of `host:port`, `a.b.c.d:port` or `[ipv6]:port`.

    Raises:
        ConfigError: anything else, naming the seed.
    """
    if not isinstance(text, str):
        raise ConfigError(f"a seed is a text such as 'host:port', not {shown(text)}")
    host, colon, port_text = text.strip().removeprefix("tcp://").rpartition(":")
    bad = ConfigError(f"malformed seed {shown(text)}", hint="write host:port, or [address]:port for IPv6")
    if not colon or not (port_text.isascii() and port_text.isdigit()) or not 0 < int(port_text[:6]) < 65536:
        raise bad
    if host.startswith("[") and host.endswith("]"):
        try:
            return str(ipaddress.IPv6Address(host[1:-1])), int(port_text)
        except ValueError:
            raise bad from None
    if len(host) > 253 or not _HOST.fullmatch(host):
        raise bad
    if host.rpartition(".")[2].isdigit() and _numeric(host) is None:
        raise bad
    return host, int(port_text)


class SeedSource:
    """Reports seeds at delays of 0.2 s, 0.4 s, ... for ever, numeric ones at once inside `start`.

    Args:
        seeds: (host, port) each, as `parse_seed` gives them.
        seed: of the jitter (10 %) that keeps many nodes from asking a resolver in step.
    """

    name = "seeds"

    def __init__(self, seeds: Sequence[Seed], seed: int | None = None) -> None:
        self._seeds = tuple(dict.fromkeys(seeds))
        self._random = random.Random(seed)
        self._lock = threading.Lock()
        self._found: Found | None = None
        self._stopped = threading.Event()
        self._threads: list[threading.Thread] = []
        self._known: dict[Seed, tuple[str, ...]] = {each: (numeric,) for each in self._seeds if (numeric := _numeric_address(each))}
        self._unresolved: dict[Seed, str] = {}

    @property
    def problem(self) -> str:
        """The names that do not resolve."""
        with self._lock:
            return "; ".join(f"{host}: {why}" for (host, _), why in sorted(self._unresolved.items()))

    def start(self, announcement: Announcement | None, found: Found) -> None:
        """Report numeric seeds, and begin to resolve the others."""
        self._found = found
        self._stopped = threading.Event()
        self.refresh()
        numeric = [each for each in self._seeds if each in self._known]
        named = [each for each in self._seeds if each not in self._known]
        shares = [numeric, *(named[index::_RESOLVERS] for index in range(_RESOLVERS))]
        self._threads = [
            threading.Thread(target=self._repeat, args=(share, self._stopped), name="reachmesh-seeds", daemon=True)
            for share in shares
            if share
        ]
        for thread in self._threads:
            thread.start()

    def announce(self, announcement: Announcement) -> None:
        """Seeds learn of this node by being dialled."""

    def refresh(self) -> None:
        """Report the addresses known so far, without asking the resolver."""
        with self._lock:
            known = [address for each in self._seeds for address in self._known.get(each, ())]
        self._report(known)

    def stop(self) -> None:
        """Report nothing more. A thread inside the resolver ends when that returns."""
        self._found = None
        self._stopped.set()
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(0.2)
        self._threads = []

    def _repeat(self, share: Sequence[Seed], stopped: threading.Event) -> None:
        """Body of a thread: resolve and report its share, wait, again."""
        began, delay = time.monotonic(), FIRST_DELAY
        if all(map(_numeric_address, share)):
            stopped.wait(delay)  # `start` has reported these
        while not stopped.is_set():
            for each in share:
                addresses = self._resolve(each)
                if stopped.is_set():
                    return
                self._report(addresses)
            stopped.wait(delay * self._random.uniform(0.9, 1.0))
            delay = min(delay * 2, EAGER_DELAY if time.monotonic() - began < EAGER_TIME else LATE_DELAY)

    def _resolve(self, each: Seed) -> tuple[str, ...]:
        """Every address of one seed; those of last time when the resolver fails now."""
        if _numeric_address(each):
            return self._known[each]
        host, port = each
        try:
            answers = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)
        except (OSError, UnicodeError) as error:
            with self._lock:
                self._unresolved[each] = getattr(error, "strerror", None) or str(error)
                return self._known.get(each, ())
        addresses = dict.fromkeys(_text(str(answer[4][0]), port) for answer in answers)
        with self._lock:
            self._unresolved.pop(each, None)
            self._known[each] = tuple(addresses)[:MAX_ADDRESSES]
            return self._known[each]

    def _report(self, addresses: Sequence[str]) -> None:
        for address in addresses:
            found = self._found
            if found is not None:
                found(Candidate(address, None, self.name))


def _numeric(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host)
    return None


def _numeric_address(each: Seed) -> str | None:
    """The address of a seed that needs no resolver."""
    return _text(*each) if _numeric(each[0]) else None


def _text(host: str, port: int) -> str:
    """`host:port`, an IPv6 host in brackets."""
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
