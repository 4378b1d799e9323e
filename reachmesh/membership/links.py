"""Established connections to verified boots, and the dials that are under way."""

from __future__ import annotations

from .outbox import Outbox

DIAL_LIMIT = 64
"""Dials under way at once; more wait for the next round."""

DIAL_TIMEOUT = 10.0
"""Seconds after which a dial nobody answered for counts as silent."""


class Link:
    """One connection.

    Attributes:
        since: when it came up.
        heard: when any frame came over it last.
        beat: when a heartbeat came over it last, or 0.0: the other side holds me for its observer.
        told: when I last told the other side what is said against it.
        close_asked: whether its closing was proposed.
    """

    __slots__ = ("beat", "close_asked", "heard", "since", "told")

    def __init__(self, now: float) -> None:
        self.since = now
        self.heard = now
        self.beat = 0.0
        self.told = float("-inf")
        self.close_asked = False


class Links(dict[bytes, Link]):
    """Links by boot. A dial is asked for at most once at a time for each boot, and `DIAL_LIMIT` at once in all."""

    def __init__(self, outbox: Outbox) -> None:
        super().__init__()
        self._outbox = outbox
        self.dialing: dict[bytes, float] = {}

    def dial(self, boot: bytes, now: float) -> bool:
        """Ask the driver for a connection unless there is one or it is being made; whether it was asked for now."""
        if boot in self or boot in self.dialing or len(self.dialing) >= DIAL_LIMIT:
            return False
        self.dialing[boot] = now + DIAL_TIMEOUT
        self._outbox.dials.append(boot)
        return True

    def overdue(self, now: float) -> list[bytes]:
        """Dials without an outcome for too long; they are given up."""
        late = [boot for boot, until in self.dialing.items() if until <= now]
        for boot in late:
            del self.dialing[boot]
        return late
