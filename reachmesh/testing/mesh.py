"""A whole mesh of memberships on the network in memory.

::

    mesh = Mesh(10, seed=7)                      # ten nodes that know each other
    victim = mesh.nodes[3]
    mesh.network.kill(victim.boot, silent=True)  # its cable is cut
    mesh.run(30)                                 # virtual seconds
    assert mesh.states(victim.boot) == {State.LOST}
    assert mesh.agree()
"""

from __future__ import annotations

from collections.abc import Iterable
from random import Random
from typing import Any

from reachmesh.membership import Membership, MembershipConfig, Record, State
from reachmesh.membership.rings import SortedRings
from reachmesh.membership.table import Member, Table

from .faults import Faults
from .members import SimulatedMember
from .network import Network

STARTED = 2
"""Incarnation of a node right after its start."""


class Mesh:
    """Nodes, their network and their clock.

    Args:
        size: nodes at the start, all linked and in each other's tables.
        seed: of everything random.
        config: of every node.
        faults: of the network.

    Attributes:
        nodes: every node ever started, in order.
        network: for kills, cuts, freezes and time.
    """

    def __init__(self, size: int, *, seed: int = 0, config: MembershipConfig | None = None, faults: Faults | None = None) -> None:
        self.config = config or MembershipConfig()
        self.network = Network(seed, faults)
        self.rng = Random(seed)
        self.nodes: list[SimulatedMember] = []
        records = [self.record(index) for index in range(size)]
        shared = Table()
        for record in records:
            member = Member(record, STARTED, State.HEALTHY, "started", 0.0)
            member.announced = True
            shared.add(member)
        rings = SortedRings((record.boot for record in records), self.config.rings) if size > 1 else None
        for record in records:
            table = shared.over(record.boot)
            self._start(Membership(record.changed(incarnation=STARTED), self.config, self._rng(), now=0.0, table=table, everybody=rings))
        for node in self.nodes:
            for boot in node.membership.take_dials():
                self.network.establish(node.boot, boot)
                node.membership.handle_dial(boot, "up", now=0.0)

    @property
    def now(self) -> float:
        """Virtual seconds since the start."""
        return self.network.now

    @property
    def living(self) -> list[SimulatedMember]:
        """Nodes whose process runs."""
        return [node for node in self.nodes if self.network.hosts[node.boot].alive]

    def record(self, index: int, **fields: Any) -> Record:
        """A record for one more node."""
        known: dict[str, Any] = {
            "boot": self.rng.randbytes(8),
            "instance_id": f"n{index}-host-{index}-{self.rng.getrandbits(32):08x}",
            "name": f"n{index}",
            "host": f"host{index}",
            "endpoints": (f"tcp://10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}:7400",),
            "capabilities": {"echo": {"idempotent": True}},
        }
        return Record(**{**known, **fields})

    def join(self, seeds: Iterable[SimulatedMember], **fields: Any) -> SimulatedMember:
        """A new node starts and dials its seeds."""
        record = self.record(len(self.nodes), **fields)
        node = self._start(Membership(record, self.config, self._rng(), now=self.now))
        for seed in seeds:
            self.network.connect(node.boot, seed.boot)
        return node

    def leave(self, node: SimulatedMember) -> None:
        """A clean stop."""
        node.membership.leave(now=self.now)
        self.network.close(node.boot)

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        self.network.run(seconds)

    def run_until(self, condition: Any, limit: float, step: float = 0.05) -> float:
        """Let time pass until `condition()` holds; the seconds it took.

        Raises:
            AssertionError: it did not hold within `limit` seconds.
        """
        began = self.now
        while not condition():
            assert self.now - began < limit, f"still not true after {limit} virtual seconds"
            self.network.run(step)
        return self.now - began

    def states(self, boot: bytes) -> set[State]:
        """States of one node in the tables of the others that run; LEFT where it has no entry."""
        found = [node.membership.members.get(boot) for node in self.living if node.boot != boot]
        return {member.state if member is not None else State.LEFT for member in found}

    def view(self, node: SimulatedMember) -> set[bytes]:
        """Boots that a node holds for present, itself included."""
        members = node.membership.members
        return {node.boot, *(boot for boot in members if not members[boot].state.gone)}

    def agree(self) -> bool:
        """Whether every running node has the right table: all running nodes, in the same states."""
        digests = {node.membership.table_digest() for node in self.living}
        return len(digests) == 1 and self.view(self.living[0]) == {node.boot for node in self.living}

    def losses(self) -> list[tuple[SimulatedMember, bytes, float]]:
        """(who, whom, when) of every `peer_lost` so far."""
        return [
            (node, event.member.record.boot, event.at)
            for node in self.nodes
            for event in node.events
            if event.kind == "peer_lost" and event.member is not None
        ]

    def _start(self, membership: Membership) -> SimulatedMember:
        node = SimulatedMember(membership)
        self.nodes.append(node)
        self.network.add(node)
        return node

    def _rng(self) -> Random:
        return Random(self.rng.getrandbits(64))
