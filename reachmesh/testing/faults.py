"""What goes wrong on a path, as both networks in memory draw it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What goes wrong on every path.

    Attributes:
        delay: seconds of one way, least.
        jitter: seconds added at random, uniform.
        loss: share of segments lost; each costs the frame a retransmission.
        retransmission: seconds a lost segment costs, doubling for each further loss.
        drop: share of frames that vanish for good.
        duplicate: share of frames that arrive twice.
        reorder: share of frames that later ones may overtake; they take up to ten times as long.
        dial_timeout: seconds after which a dial into silence gives up.
        break_after: seconds without acknowledgement after which a link with data under way breaks (TCP_MAXRT).
    """

    delay: float = 0.0002
    jitter: float = 0.0008
    loss: float = 0.0
    retransmission: float = 0.2
    drop: float = 0.0
    duplicate: float = 0.0
    reorder: float = 0.0
    dial_timeout: float = 2.0
    break_after: float = 20.0

    def latency(self, rng: Random) -> float:
        """Seconds that one segment takes."""
        latency = self.delay + self.jitter * rng.random()
        if self.loss:
            wait = self.retransmission
            while rng.random() < self.loss:
                latency += wait
                wait *= 2
        return latency

    def detour(self, rng: Random) -> float:
        """Seconds more for a frame that others may overtake, 0.0 for most."""
        if self.reorder and rng.random() < self.reorder:
            return 10.0 * (self.delay + self.jitter) * rng.random()
        return 0.0
