"""Multicast DNS: a thread that announces this node on each interface with that interface's own address, and hears others.

One socket per interface address, bound to the multicast group, so that what is heard and said on one network never mixes with another.
Loopback takes no part. Names hold the boot id and are therefore unique: no probing, the first packet leaves at once. Who listens hears
the announcement of whoever starts later, so packets flow at starts and changes, and next to nothing flows in between. What is heard
is bounded in rate, in number and in time, and is a hint for an address, never a sign of life. Sources: RFC 6762, RFC 6763.
"""

from __future__ import annotations

import logging
import random
import selectors
import socket
import threading
import time
from collections import deque

from reachmesh.discovery.dns import MARKER, build_answer, build_query, mesh_mark, read_packet
from reachmesh.discovery.group import has_carrier, open_group_socket, send_to_group
from reachmesh.discovery.heard import Allowance, PeerBook, Report
from reachmesh.discovery.source import Announcement, Candidate, Found, Interfaces, NetworkInterface

READ_RATE, PARSE_RATE = 4000.0, 300_000.0
"""Packets read and bytes parsed a second (two seconds' worth at once). Beyond that packets are dropped, so that no flood costs more than
a tenth of a core (the worst packet takes 0.25 us a byte to parse; an announcement has 250 bytes). Lower makes a flood cheaper, and
hides nodes on a busy network."""

SCAN_PERIOD = 2.0
"""Seconds between looks at the list of interfaces (0.2 ms each)."""

_ANNOUNCE_AT = (0.0, 1.0, 3.0)
_ANNOUNCE_PERIOD, _ANNOUNCE_PERIOD_PER_PEER = 30.0, 0.1
_QUERY_FIRST, _QUERY_LAST = 1.0, 3600.0
_ANSWER_DELAY = (0.02, 0.12)
_ANSWER_GAP = 1.0
_MAX_LINKS = 32
_BATCH = 64
_PAUSE = 0.05

_log = logging.getLogger(__name__)


class _Link:
    """One interface address: its socket, and what is to be sent there when."""

    def __init__(self, interface: NetworkInterface, sock: socket.socket, now: float) -> None:
        self.interface = interface
        self.sock = sock
        self.has_carrier = True
        self.answer_at: float | None = None
        self.said: tuple[Announcement, int] | None = None
        self.said_at = float("-inf")
        self.begin(now)

    def begin(self, now: float) -> None:
        """Announce and ask as on the first day: the network behind the interface may be another one."""
        self.announce_at = [now + delay for delay in _ANNOUNCE_AT]
        self.query_at, self.query_delay = now, _QUERY_FIRST

    def next_at(self) -> float:
        return min(self.announce_at[0], self.query_at, float("inf") if self.answer_at is None else self.answer_at)


class MdnsSource:
    """Finds and tells nodes on the networks of this host.

    Args:
        mesh: only nodes of this mesh are reported.
        interfaces: lists the interfaces to use; asked every two seconds.
    """

    name = "mdns"

    def __init__(self, mesh: str, interfaces: Interfaces) -> None:
        self._mark = mesh_mark(mesh)
        self._interfaces = interfaces
        self._random = random.Random()
        self._announcement: Announcement | None = None
        self._found: Found | None = None
        self._thread: threading.Thread | None = None
        self._changed = self._refreshed = False
        self._wake: socket.socket | None = None
        self._stopping = threading.Event()
        self._links: dict[NetworkInterface, _Link] = {}
        self._sent: deque[bytes] = deque(maxlen=16)
        self._failures: dict[NetworkInterface, str] = {}
        self.dropped = 0
        """Packets left unread or unparsed."""
        self.problem = ""

    def start(self, announcement: Announcement | None, found: Found) -> None:
        """Start the thread; it announces within milliseconds. Without any interface but loopback it waits for one."""
        if self._thread is not None:
            return
        self._announcement, self._found = announcement, found
        self._launch()

    def _launch(self) -> None:
        self._changed = self._refreshed = False
        self._stopping = threading.Event()
        self._wake, waiting = socket.socketpair()
        for each in (self._wake, waiting):
            each.setblocking(False)
        self._thread = threading.Thread(target=self._run, args=(waiting,), name="reachmesh-mdns", daemon=True)
        self._thread.start()

    def announce(self, announcement: Announcement) -> None:
        """Say the new thing on every interface; addresses that are no longer in it are taken back."""
        self._announcement, self._changed = announcement, True
        self._poke()

    def refresh(self) -> None:
        """Look at the interfaces again, and report nodes that have not been reported for a while."""
        if self._thread is not None and not self._thread.is_alive():
            self._close_wake()
            self._launch()
        self._refreshed = True
        self._poke()

    def stop(self) -> None:
        """Take the announcement back and end."""
        thread, self._thread = self._thread, None
        self._found = None
        if thread is None:
            return
        self._stopping.set()
        self._poke()
        if thread is not threading.current_thread():
            thread.join(1.0)
        self._close_wake()

    def _close_wake(self) -> None:
        wake, self._wake = self._wake, None
        if wake is not None:
            wake.close()

    def _poke(self) -> None:
        wake = self._wake
        if wake is not None:
            try:
                wake.send(b".")
            except OSError:
                pass  # full: the thread is about to wake anyway; closed: it has ended

    def _run(self, waiting: socket.socket) -> None:
        """Body of the thread."""
        self._selector = selectors.DefaultSelector()
        self._selector.register(waiting, selectors.EVENT_READ)
        now = time.monotonic()
        self._reads, self._parses = Allowance(READ_RATE, 2 * READ_RATE, now), Allowance(PARSE_RATE, 2 * PARSE_RATE, now)
        self._book = PeerBook(self._mark, self._announcement.boot if self._announcement else b"", now)
        self._scan_at = now
        try:
            while not self._stopping.is_set():
                self._follow_commands(now)
                if now >= self._scan_at:
                    self._follow_interfaces(now)
                for link in list(self._links.values()):
                    self._say_what_is_due(link, now)
                until = min([self._scan_at, *(link.next_at() for link in self._links.values())])
                events = self._selector.select(max(0.0, until - time.monotonic()))
                now = time.monotonic()
                for key, _ in events:
                    if key.fileobj is waiting:
                        waiting.recv(4096)
                    elif not self._listen(key.data, now):
                        self._stopping.wait(_PAUSE)
                        break
        except Exception as error:
            self.problem = f"ended by an error: {error}"
            _log.exception("multicast discovery has ended")
        finally:
            self._end(waiting)

    def _end(self, waiting: socket.socket) -> None:
        for link in self._links.values():
            self._take_back(link)
            link.sock.close()
        self._links.clear()
        self._selector.close()
        waiting.close()

    def _follow_commands(self, now: float) -> None:
        """Do what other threads asked for."""
        if self._changed:
            self._changed = False
            for link in self._links.values():
                link.announce_at = [now + delay for delay in _ANNOUNCE_AT]
                if self._announcement and not _port_at(self._announcement, link.interface):
                    self._take_back(link)
        if self._refreshed:
            self._refreshed = False
            self._scan_at = now
            self._report(self._book.handle_refresh(now))

    def _follow_interfaces(self, now: float) -> None:
        """Open what has come, close what has gone."""
        self._scan_at = now + SCAN_PERIOD
        try:
            listed = self._interfaces()
        except Exception as error:  # the list is somebody else's; the next one may be whole
            self.problem = f"the interfaces cannot be listed: {error}"
            return
        present = dict.fromkeys([each for each in listed if not each.is_loopback][:_MAX_LINKS])
        for gone in [each for each in self._links if each not in present]:
            self._drop(gone)
        self._failures = {each: why for each, why in self._failures.items() if each in present}
        for each in present:
            link = self._links.get(each)
            if link is None:
                self._open(each, now)
                continue
            had_carrier, link.has_carrier = link.has_carrier, has_carrier(link.sock, each)
            if link.has_carrier and not had_carrier:
                link.begin(now)
        self._judge()

    def _open(self, interface: NetworkInterface, now: float) -> None:
        try:
            sock = open_group_socket(interface)
        except OSError as error:
            self._failures[interface] = f"{interface.name} {interface.address}: {error}"
            return
        self._failures.pop(interface, None)
        self._links[interface] = link = _Link(interface, sock, now)
        link.has_carrier = has_carrier(sock, interface)
        self._selector.register(sock, selectors.EVENT_READ, link)

    def _judge(self) -> None:
        """It is a problem when no interface works; that one of several has no multicast is usual."""
        working = [each for each in self._links if each not in self._failures]
        self.problem = "" if working else "; ".join(self._failures.values())

    def _drop(self, interface: NetworkInterface) -> None:
        link = self._links.pop(interface)
        self._selector.unregister(link.sock)
        link.sock.close()

    def _say_what_is_due(self, link: _Link, now: float) -> None:
        if link.announce_at and now >= link.announce_at[0]:
            link.announce_at.pop(0)
            self._say(link, now)
            if not link.announce_at:
                period = _ANNOUNCE_PERIOD + _ANNOUNCE_PERIOD_PER_PEER * len(self._book)
                link.announce_at.append(now + period * self._random.uniform(0.9, 1.1))
        if link.answer_at is not None and now >= link.answer_at:
            link.answer_at = None
            self._say(link, now)
        if now >= link.query_at:
            link.query_at = now + link.query_delay * self._random.uniform(0.9, 1.1)
            link.query_delay = min(2 * link.query_delay, _QUERY_LAST)
            # With oneself among the known, no two nodes send the same bytes, and `_listen` can tell its own.
            own = [self._announcement.boot] if self._announcement else []
            self._send(link, build_query(own + self._book.boots()[::-1]))

    def _say(self, link: _Link, now: float) -> None:
        """Announce this node on one interface, if it can be reached there."""
        announcement = self._announcement
        port = _port_at(announcement, link.interface) if announcement else 0
        if announcement and port:
            link.said, link.said_at = (announcement, port), now
            self._send(link, build_answer(announcement, link.interface.address, port))

    def _take_back(self, link: _Link) -> None:
        """Say goodbye for what was announced on one interface."""
        if link.said is not None:
            announcement, port = link.said
            link.said = None
            self._send(link, build_answer(announcement, link.interface.address, port, goodbye=True))

    def _send(self, link: _Link, packet: bytes) -> None:
        """Send, or note that the interface does not let us; the next time is due anyway."""
        self._sent.append(packet)
        try:
            send_to_group(link.sock, link.interface, packet)
        except BlockingIOError:
            return
        except OSError as error:
            self._failures[link.interface] = f"{link.interface.name} {link.interface.address}: {error}"
        else:
            self._failures.pop(link.interface, None)
        self._judge()

    def _listen(self, link: _Link, now: float) -> bool:
        """Read what has come by one interface; False when it is too much, and a pause is due."""
        for _ in range(_BATCH):
            if not self._reads.take(now):
                self.dropped += 1
                return False
            try:
                data = link.sock.recv(9001)
            except BlockingIOError:
                return True
            except OSError as error:
                self._failures[link.interface] = f"{link.interface.name} {link.interface.address}: {error}"
                self._drop(link.interface)
                return True
            if MARKER not in data.lower() or data in self._sent:
                continue
            if len(data) > 9000 or not self._parses.take(now, len(data)):
                self.dropped += 1
                continue
            self._take_in(link, data, now)
        return True

    def _take_in(self, link: _Link, data: bytes, now: float) -> None:
        own = self._announcement.boot if self._announcement else b""
        packet = read_packet(data)
        if packet.asked and own and own not in packet.known and (not packet.asked_for or own in packet.asked_for):
            due = max(now + self._random.uniform(*_ANSWER_DELAY), link.said_at + _ANSWER_GAP)
            link.answer_at = due if link.answer_at is None else min(due, link.answer_at)
        for heard in packet.heard:
            self._report(self._book.handle_heard(heard, now))

    def _report(self, reports: list[Report]) -> None:
        for boot, address in reports:
            found = self._found
            if found is not None:
                found(Candidate(address, boot, self.name))


def _port_at(announcement: Announcement, interface: NetworkInterface) -> int:
    """The port by which the node is reached at this interface, or 0 when it is not."""
    for each in announcement.addresses:
        host, _, port = each.rpartition(":")
        if host.strip("[]") == interface.address:
            return int(port)
    if announcement.any_interface:
        return int(announcement.local_address.rpartition(":")[2])
    return 0
