"""What multicast has told: nodes, their addresses, until when, and when each is to be reported (again).

Pure: time comes in as `now` (monotonic seconds), what to report goes out as a list. States of an address: unknown, known, over. Anybody
on the network can make entries and take them away, so there are at most `MAX_PEERS` nodes of `MAX_ADDRESSES` addresses, unknown
addresses are believed at a bounded rate, and a goodbye only removes the entry: liveness is not decided here.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass

from reachmesh.discovery.dns import PTR_TTL, Heard

MAX_PEERS = 1024
"""Nodes remembered; of more, the ones unheard for longest are forgotten. One that answers brings the rest by gossip."""

MAX_ADDRESSES = 8
"""Addresses remembered of one node."""

NEW_RATE, NEW_BURST = 20.0, 256.0
"""Unknown addresses believed a second, and at once. Each is dialled, so a forger could otherwise make a mesh knock on every door."""

REPORT_GAP, REPORT_FIRST, REPORT_LAST = 1.0, 5.0, 300.0
"""Seconds: at least between two reports of a node that is heard again and again; until the first repetition of one that is not heard
again, and at most between repetitions, each twice as late as the one before."""

Report = tuple[bytes, str]
"""Boot id and `host:port`."""


class Allowance:
    """So much a second, and so much at once (a token bucket)."""

    def __init__(self, rate: float, burst: float, now: float) -> None:
        self._rate, self._burst, self._left, self._at = rate, burst, burst, now

    def take(self, now: float, amount: float = 1.0) -> bool:
        """Use up `amount`, or answer False and use nothing."""
        self._left = min(self._burst, self._left + (now - self._at) * self._rate)
        self._at = now
        if self._left < amount:
            return False
        self._left -= amount
        return True


@dataclass
class _Entry:
    """A node: its addresses with the end of their time."""

    addresses: dict[str, float]
    heard_at: float
    report_at: float
    delay: float = REPORT_FIRST


class PeerBook:
    """Keeps what was heard about one mesh; `mark` stands for its name, `own` is this node's boot id or b""."""

    def __init__(self, mark: str, own: bytes, now: float) -> None:
        self._mark, self._own = mark, own
        self._entries: OrderedDict[bytes, _Entry] = OrderedDict()
        self._new = Allowance(NEW_RATE, NEW_BURST, now)
        self.dropped = 0

    def __len__(self) -> int:
        return len(self._entries)

    def boots(self) -> list[bytes]:
        """Who is known, the one heard last at the end."""
        return list(self._entries)

    def handle_heard(self, heard: Heard, now: float) -> list[Report]:
        """Take in what a packet says about one node; what is to be reported of it."""
        if heard.boot == self._own:
            return []
        if heard.ttl == 0:
            self._entries.pop(heard.boot, None)
            return []
        if heard.mesh != self._mark:
            return []
        until = now + min(heard.ttl, PTR_TTL)
        entry = self._entries.get(heard.boot)
        may_repeat = entry is not None and now >= entry.heard_at + REPORT_GAP
        reports = []
        for address in heard.addresses:
            if entry is not None and address in entry.addresses:
                if may_repeat:
                    reports.append((heard.boot, address))
            elif self._new.take(now):
                if entry is None:
                    entry = self._entries[heard.boot] = _Entry({}, now, now + REPORT_FIRST)
                reports.append((heard.boot, address))
            else:
                self.dropped += 1
                continue
            entry.addresses[address] = until
            if len(entry.addresses) > MAX_ADDRESSES:
                del entry.addresses[min(entry.addresses, key=entry.addresses.__getitem__)]
        if entry is not None:
            if may_repeat:
                entry.heard_at, entry.report_at, entry.delay = now, now + REPORT_FIRST, REPORT_FIRST
            self._entries.move_to_end(heard.boot)
        if len(self._entries) > MAX_PEERS:
            self._entries.popitem(last=False)
        return reports

    def handle_refresh(self, now: float) -> list[Report]:
        """Forget addresses whose time is over; what is to be reported again by now. O(known nodes)."""
        reports: list[Report] = []
        for boot, entry in list(self._entries.items()):
            entry.addresses = {address: until for address, until in entry.addresses.items() if now < until}
            if not entry.addresses:
                del self._entries[boot]
            elif now >= entry.report_at:
                entry.delay = min(2 * entry.delay, REPORT_LAST)
                entry.report_at = now + entry.delay
                reports += [(boot, address) for address in entry.addresses]
        return reports
