"""How much a writer may have on the way: a fixed little until its reader has shown how fast it takes.

Place in the data path: the receiving end of each flow (`flows.Inflow`) holds two of these, one of items and one of bytes, and gives
credit by them. A window is the time that what is on the way needs to be taken, `HORIZON` seconds at the measured rate: large enough
that a fast link never runs dry, small enough that a small call behind it waits no longer on a slow link than on a fast one (the
bandwidth-delay product with the delay fixed, as BBR does for the sender: draft-cardwell-iccrg-bbr-congestion-control, section 4.6).

Invariants: `least <= size <= most`; it grows at most twofold, and only after `patience` whole windows were taken at the higher rate;
it falls at once. A reader that takes nothing, or a little at a time, stays at `least`.
"""

from __future__ import annotations

HORIZON = 0.008
"""Seconds that a full window takes to drain. Longer lets small calls wait longer behind bulk, shorter lets a fast link run dry while its
other side is busy for some milliseconds."""

SHORT_HORIZON = 0.001
"""The same for the bytes of a stream, which may go on for ever beside small calls, where a body is over soon. The P99 of small calls beside
a stream of 64 KiB items was 2.8 times what it is without one; with 2 ms 4.2 times, for a third more of the stream."""

_MOMENT = 1e-6


class Window:
    """One figure of credit, and how it follows the reader.

    Args:
        horizon: seconds that a full one takes to drain.
        least: what a reader has that nothing is known of; also what a slow one falls back to.
        most: never more than that.
        patience: windows to be taken in one go before it may grow. Fewer trust a reader sooner that takes a little and stops.
    """

    __slots__ = ("_horizon", "_patience", "_since", "_taken", "judged", "least", "most", "size")

    def __init__(self, least: int, most: int, patience: int, now: float, horizon: float = HORIZON) -> None:
        self.least, self.most = least, max(least, most)
        self.size = least
        self.judged = False
        self._patience, self._horizon = patience, horizon
        self._taken, self._since = 0, now

    def take(self, amount: int, now: float) -> int:
        """The reader took so much; gives by how much the window grew (or shrank, below 0)."""
        self._taken += amount
        elapsed = now - self._since
        enough = self._taken >= self._patience * self.size
        if not enough and elapsed <= 2 * self._patience * self._horizon:
            return 0
        sustained = int(self._taken / max(elapsed, _MOMENT) * self._horizon)
        before = self.size
        self.size = max(self.least, min(sustained, 2 * before if enough else before, self.most))
        self._taken, self._since, self.judged = 0, now, True
        return self.size - before


class Pace:
    """What is known of one link's speed from the big bodies that went by it, either way: the next one need not begin small.

    Also what the link's windows may hold together beyond their `least`, so that a peer with many flows gets no more than one.
    """

    __slots__ = ("_at", "_lent", "_offered", "_opened_at", "_unconfirmed", "_window")

    KEPT = 10.0
    """Seconds for which a speed counts as known."""

    LENT = 8 * 1024 * 1024
    """Bytes beyond the least of each, of all windows of a link together."""

    TRUSTED = 5.0
    """Seconds between two bodies that are sent, for which the reader's first credit for the one holds for the other."""

    UNCONFIRMED = 4
    """Bodies that are begun on one such credit at most: short ones end before theirs comes, and a link may have become slow."""

    def __init__(self) -> None:
        self._window, self._at, self._lent = 0, float("-inf"), 0
        self._offered, self._opened_at, self._unconfirmed = 0, float("-inf"), 0

    def begin(self, now: float) -> int:
        """The window that the last body ended with, 0 when that is too long ago."""
        return self._window if now - self._at < self.KEPT else 0

    def note(self, window: int, now: float) -> None:
        """A body is complete, and its window was so large in the end."""
        self._window, self._at = window, now

    def offered(self, window: int) -> None:
        """The other side let a body that is sent begin with so much; 0: it knows nothing of this link yet, or that it is slow."""
        self._offered, self._unconfirmed = window, 0

    def open(self, now: float) -> int:
        """A body is to be sent: what it may begin with before any credit comes, 0 when that is not known."""
        lately = now - self._opened_at < self.TRUSTED and self._unconfirmed < self.UNCONFIRMED
        self._opened_at = now
        self._unconfirmed += 1
        return self._offered if lately else 0

    def lend(self, size: int) -> int:
        """Take so many bytes from what is left, or give them back (below 0); answers how many it were."""
        size = min(size, self.LENT - self._lent)
        self._lent += size
        return size
