"""Suspicions: who accuses whom, and when that makes a loss.

States of one accused: not suspected -> suspected (one vote) -> lost, or back by refutation. A vote counts for one
incarnation. Source: Lifeguard (Dadgar, Phillips, Currey 2018) for the votes, Rapid for distinct observers.
"""

from __future__ import annotations

from .config import MembershipConfig
from .messages import Vote

ACCUSED_LIMIT = 4096
"""Accused at once; further accusations are dropped until some are decided."""


class Suspicion:
    """Votes against one incarnation of one member."""

    __slots__ = ("incarnation", "since", "votes")

    def __init__(self, incarnation: int, now: float) -> None:
        self.incarnation = incarnation
        self.since = now
        self.votes: dict[bytes, bool] = {}


def loss_due(suspicion: Suspicion, needed: int, config: MembershipConfig) -> float:
    """When a suspicion becomes a loss if nothing else happens.

    Enough votes that saw the process die: at once. Enough votes: `confirm_after` periods after the first. Fewer:
    `suspicion_wait` periods after it. With the `lan` figures and a first vote at 15.0: 15.0, 17.0, 25.0.
    """
    if sum(suspicion.votes.values()) >= needed:
        return suspicion.since
    periods = config.confirm_after if len(suspicion.votes) >= needed else max(config.suspicion_wait, config.confirm_after)
    return suspicion.since + periods * config.heartbeat_period


class Suspicions:
    """All open suspicions by accused boot."""

    def __init__(self, config: MembershipConfig) -> None:
        self._config = config
        self._open: dict[bytes, Suspicion] = {}
        self._next = float("inf")
        self._next_needed = 0

    def __contains__(self, boot: object) -> bool:
        return boot in self._open

    def __len__(self) -> int:
        return len(self._open)

    def add(self, vote: Vote, now: float) -> bool:
        """Count a vote; whether it says anything new: a new voter, or one who now saw the process die.

        Votes beyond the number that decides say nothing new, so they are not passed on: when half a large mesh falls silent
        that is most of the traffic.
        """
        suspicion = self._open.get(vote.boot)
        if suspicion is None or suspicion.incarnation < vote.incarnation:
            if suspicion is None and len(self._open) >= ACCUSED_LIMIT:
                return False
            suspicion = self._open[vote.boot] = Suspicion(vote.incarnation, now)
        elif suspicion.incarnation > vote.incarnation:
            return False
        known = suspicion.votes.get(vote.voter)
        enough = sum(suspicion.votes.values()) if vote.dead else len(suspicion.votes)
        if (known is None and enough < self._config.votes) or (vote.dead and known is False):
            suspicion.votes[vote.voter] = vote.dead
            self._next = min(self._next, loss_due(suspicion, self._next_needed, self._config))
            return True
        return False

    def votes(self, boot: bytes) -> list[Vote]:
        """The votes against one member."""
        suspicion = self._open.get(boot)
        if suspicion is None:
            return []
        return [Vote(boot, suspicion.incarnation, voter, dead) for voter, dead in suspicion.votes.items()]

    def clear(self, boot: bytes) -> bool:
        """Drop a suspicion; whether there was one."""
        return self._open.pop(boot, None) is not None

    def next_due(self, living: int) -> float:
        """When the first of them may become a loss, never late; inf without any. O(1) while the votes needed stay the same."""
        if not self._open:
            return float("inf")
        needed = self._needed(living)
        if needed != self._next_needed:
            self._refresh(needed)
        return self._next

    def decided(self, living: int, now: float) -> list[tuple[bytes, str]]:
        """Those lost by now, with the reason. `living` counts all living nodes, oneself and the suspected included."""
        if now < self.next_due(living) or not self._open:
            return []
        needed = self._needed(living)
        lost = []
        for boot, suspicion in self._open.items():
            if loss_due(suspicion, needed, self._config) <= now:
                dead = any(suspicion.votes.values())
                what = "its connection dropped and its port refuses" if dead else "no heartbeat and no answer to probes"
                lost.append((boot, f"{what}, say {len(suspicion.votes)} observers"))
        if not lost:
            self._refresh(needed)
        return lost

    def _refresh(self, needed: int) -> None:
        """Look at all of them for the next instant."""
        self._next_needed = needed
        self._next = min((loss_due(suspicion, needed, self._config) for suspicion in self._open.values()), default=float("inf"))

    def _needed(self, living: int) -> int:
        """Votes for a loss: `votes`, or all who are left to cast one."""
        return max(1, min(self._config.votes, living - len(self._open)))

    def start_over(self, now: float) -> None:
        """This node itself was away: give everybody the full time again, for a refutation may have been missed."""
        for suspicion in self._open.values():
            suspicion.since = now
        self._refresh(self._next_needed)
