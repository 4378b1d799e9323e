"""The states of a node, and how a node derives its own.

::

    state      who says so   when                                                                   routed to
    STARTING   the node      from its start until its first turn                                    no
    HEALTHY    the node      none of the rules below holds                                          yes
    BUSY       the node      outstanding >= 90 % of its limit; over when under 75 %                 if nobody better
    DEGRADED   the node      failure rate, tail latency, queue or loop lag over its limit;          less
                             over when all are under 70 % of it
    LOST       the others    enough observers suspect it and it did not refute                      no
    DRAINING   the node      it was told to stop and finishes what it accepted                      no
    LEFT       the node      it stopped                                                             no

    STARTING -> HEALTHY <-> BUSY <-> DEGRADED <-> HEALTHY    (each change after the condition held for `state_hold`)
    any working state -> DRAINING -> LEFT;  any but LEFT -> LOST -> (refuted) the state before

DEGRADED goes before BUSY when both hold: failing is worse than full. Suspicion is no state: it is a flag of the
observing side that routing treats as "not now". Each change carries its reason as text for people.
"""

from __future__ import annotations

from enum import Enum

import msgspec

from .config import MembershipConfig

REASON_LIMIT = 200
"""Characters of a reason that travel."""


_FULL = ": its permits are taken"


def full_capability(state: State, reason: str) -> str:
    """The capability a node is BUSY for, or "" when it is for the node as a whole. The reason travels everywhere, a load only to observers."""
    return reason.removesuffix(_FULL) if state is State.BUSY and reason.endswith(_FULL) else ""


class State(Enum):
    """State of a member. The rank travels; within one incarnation the higher rank takes precedence.

    Attributes:
        rank: the number.
        gone: whether this is LOST or LEFT.
    """

    STARTING = 0
    HEALTHY = 1
    BUSY = 2
    DEGRADED = 3
    DRAINING = 4
    LOST = 5
    LEFT = 6

    rank: int
    gone: bool

    def __init__(self, rank: int) -> None:
        self.rank = rank  # plain attributes: an Enum's own `value` is a slow descriptor, and these are asked for very often
        self.gone = rank >= 5


STATE_BY_RANK: dict[int, State] = {state.rank: state for state in State}


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """What a serving node measures about itself; travels with every heartbeat, saturating at the width of its field.

    Attributes:
        outstanding: calls accepted and not answered.
        limit: how many it takes at once; 0 = no limit known.
        queue: calls waiting for their turn.
        failure_rate: failed share of recent calls, 0 to 1.
        p95_ms: tail of recent execution times in ms.
        loop_lag_ms: how late the user's event loop or the handler's domain runs, in ms.
        qps: answered calls per second.
        backpressure: 0 (none) to 255.
        full: name of a capability all of whose permits are taken, or "": a node is busy by one full capability too.
    """

    outstanding: int = 0
    limit: int = 0
    queue: int = 0
    failure_rate: float = 0.0
    p95_ms: float = 0.0
    loop_lag_ms: float = 0.0
    qps: float = 0.0
    backpressure: int = 0
    full: str = ""


class OwnState:
    """Machine that turns loads into this node's state.

    Inputs: `set_load`, `drain`, `leave`, `tick`. Output: `state` and `reason`; `tick` answers whether they changed.
    Invariant: a state other than DRAINING and LEFT changes only after its condition held for `state_hold` seconds.
    """

    def __init__(self, config: MembershipConfig) -> None:
        self._config = config
        self.state = State.STARTING
        self.reason = ""
        self.load = Load()
        self._wanted = State.STARTING
        self._wanted_reason = ""
        self._wanted_since = 0.0

    def set_load(self, load: Load, now: float) -> None:
        """Take a new measurement."""
        self.load = load
        if self.state is not State.DRAINING and self.state is not State.LEFT:
            self._want(*self._judge(load), now)

    def started(self, now: float) -> None:
        """The node's first turn: STARTING ends."""
        if self.state is State.STARTING:
            self.state, self.reason = State.HEALTHY, "started"
            self._want(*self._judge(self.load), now)

    def drain(self) -> None:
        """DRAINING at once, unless already gone."""
        if self.state is not State.LEFT:
            self.state, self.reason = State.DRAINING, "told to stop"

    def leave(self) -> None:
        """LEFT at once, for good."""
        self.state, self.reason = State.LEFT, "stopped"

    def tick(self, now: float) -> bool:
        """Change to the wanted state when it was wanted for long enough; whether it changed."""
        if now < self.due():
            return False
        self.state, self.reason = self._wanted, self._wanted_reason
        return True

    def due(self) -> float:
        """When the next change is due; inf when none is pending."""
        if self._wanted is self.state or self.state.rank >= State.DRAINING.rank or self.state is State.STARTING:
            return float("inf")
        return self._wanted_since + self._config.state_hold

    def _want(self, state: State, reason: str, now: float) -> None:
        if state is not self._wanted:
            self._wanted, self._wanted_since = state, now
        self._wanted_reason = reason

    def _judge(self, load: Load) -> tuple[State, str]:
        """The state this load asks for, with hysteresis by the current one; pure."""
        config = self._config
        share = config.degraded_clear if self.state is State.DEGRADED else 1.0
        for value, limit, what in (
            (load.failure_rate, config.degraded_failure_rate, "failure rate"),
            (load.p95_ms, config.degraded_p95_ms, "p95 ms"),
            (float(load.queue), float(config.degraded_queue), "queue"),
            (load.loop_lag_ms, config.degraded_loop_lag_ms, "loop lag ms"),
        ):
            if limit > 0 and value >= limit * share:
                return State.DEGRADED, f"{what} {value:g} (limit {limit:g})"
        if load.full:
            return State.BUSY, load.full + _FULL
        share = config.busy_clear if self.state is State.BUSY else config.busy_share
        if load.limit > 0 and load.outstanding >= load.limit * share and load.outstanding > 0:
            return State.BUSY, f"{load.outstanding} of {load.limit} in use"
        return State.HEALTHY, "has room"
