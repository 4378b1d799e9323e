"""Participants that lie, invent, repeat or babble: the honest ones stay right, bounded and undisturbed."""

from __future__ import annotations

from random import Random

import msgpack
import pytest

from reachmesh.membership import DialOutcome, Load, Membership, Record, State, preset
from reachmesh.membership.messages import Claim, Heartbeat, Item, Vote, encode_heartbeat, encode_items
from reachmesh.membership.record import INCARNATION_LIMIT
from reachmesh.testing import Mesh, SimulatedMember
from reachmesh.wire.control import Control


class Liar:
    """A participant that passed the handshake and says whatever the test makes it say."""

    def __init__(self, boot: bytes) -> None:
        self.boot = boot
        self.linked: list[bytes] = []
        self.sends: list[tuple[bytes, int, bytes]] = []

    def tell(self, *items: Item) -> None:
        """Gossip items to everybody linked."""
        self.sends += [(boot, int(Control.GOSSIP), encode_items(list(items))) for boot in self.linked]

    def turn_begins(self, now: float) -> None:
        """Nothing."""

    def link_up(self, boot: bytes, now: float) -> None:
        """Remember whom to lie to."""
        self.linked.append(boot)

    def link_down(self, boot: bytes, now: float) -> None:
        """Nothing."""

    def dialled(self, boot: bytes, outcome: DialOutcome, now: float) -> None:
        """Nothing."""

    def frame(self, boot: bytes, kind: int, body: bytes, now: float) -> None:
        """Answer pings, as a clever liar does."""
        if kind == Control.PING:
            self.sends.append((boot, int(Control.ACK), body + b"\x01" + self.boot))

    def turn_ends(self, now: float) -> float:
        """Never wakes by itself."""
        return float("inf")

    def take_sends(self) -> list[tuple[bytes, int, bytes]]:
        """What the test made it say."""
        taken, self.sends = self.sends, []
        return taken

    def take_dials(self) -> list[bytes]:
        """None."""
        return []

    def take_probes(self) -> list[bytes]:
        """None."""
        return []


@pytest.fixture
def mesh() -> Mesh:
    made = Mesh(8, seed=2, config=preset("lan"))
    made.run(12)
    return made


def infiltrate(mesh: Mesh) -> Liar:
    """A liar linked to everybody, with a record of its own."""
    liar = Liar(b"liar\x00\x00\x00\x01")
    mesh.network.add(liar)
    for node in mesh.nodes:
        mesh.network.establish(liar.boot, node.boot)
    mesh.run(0.1)
    record = mesh.record(666, boot=liar.boot)
    liar.tell(Claim(liar.boot, 1, State.HEALTHY, record.serial, record.encode(), "hello"))
    mesh.network.poke(liar.boot)
    mesh.run(1)
    return liar


def say(mesh: Mesh, liar: Liar, *items: Item) -> None:
    liar.tell(*items)
    mesh.network.poke(liar.boot)


def honest_agree(mesh: Mesh, liar: Liar) -> bool:
    """Whether all honest nodes hold each other for HEALTHY and unsuspected."""
    return all(
        not member.suspected and member.state is State.HEALTHY
        for node in mesh.nodes
        for other in mesh.nodes
        if other is not node
        for member in [node.membership.members[other.boot]]
    )


@pytest.mark.parametrize("state", [State.LOST, State.LEFT, State.DRAINING, State.BUSY])
def test_a_lie_about_another_is_refuted_by_its_owner(mesh: Mesh, state: State) -> None:
    """Whatever a liar claims of a node, with whatever believable incarnation, the node's own word holds a moment later."""
    liar, victim = infiltrate(mesh), mesh.nodes[3]
    say(mesh, liar, Claim(victim.boot, victim.membership.incarnation + 5, state, 1, None, "a lie"))
    mesh.run_until(lambda: victim.membership.refutations > 0 and honest_agree(mesh, liar), 2)
    assert not mesh.losses()  # a stated loss is an accusation first


def test_a_lone_accuser_takes_nobody_out(mesh: Mesh) -> None:
    """Votes of one liar, made in the names of all others too, end with the refutation of the accused."""
    liar, victim = infiltrate(mesh), mesh.nodes[3]
    voters = [node.boot for node in mesh.nodes if node is not victim]
    say(mesh, liar, Vote(victim.boot, victim.membership.incarnation, liar.boot, False))
    mesh.run_until(lambda: honest_agree(mesh, liar), 2)
    assert not mesh.losses()
    say(mesh, liar, *[Vote(victim.boot, victim.membership.incarnation, voter, False) for voter in voters])
    mesh.run_until(lambda: honest_agree(mesh, liar), 2)
    assert not mesh.losses()


@pytest.mark.parametrize("incarnation", [2**21, 2**31, INCARNATION_LIMIT])
def test_a_huge_incarnation_is_not_believed(mesh: Mesh, incarnation: int) -> None:
    """A step no honest node takes is dropped and counted, and the owner's word still counts."""
    liar, victim = infiltrate(mesh), mesh.nodes[3]
    say(mesh, liar, Claim(victim.boot, incarnation, State.LEFT, 1, None, ""))
    mesh.run(1)
    assert honest_agree(mesh, liar)
    assert victim.membership.incarnation < 100
    assert all(node.membership.dropped for node in mesh.nodes)


def test_a_forged_record_is_overwritten_by_its_owner(mesh: Mesh) -> None:
    """Somebody else's record with a higher serial lasts until the owner hears of it."""
    liar, victim = infiltrate(mesh), mesh.nodes[3]
    forged = victim.membership.record.changed(endpoints=("tcp://6.6.6.6:666",), serial=9)
    say(mesh, liar, Claim(victim.boot, victim.membership.incarnation, State.HEALTHY, 9, forged.encode(), ""))
    mesh.run(1)
    endpoints = {node.membership.members[victim.boot].record.endpoints for node in mesh.nodes if node is not victim}
    assert endpoints == {victim.membership.record.endpoints}
    assert victim.membership.record.serial == 10


def test_ten_thousand_invented_members_stay_within_the_cap_and_go_away() -> None:
    """Inventions fill the table to its cap and no further, are never verified, and real newcomers still get in."""
    mesh = Mesh(5, seed=3, config=preset("lan", max_members=500, max_tombstones=500))
    mesh.run(12)
    liar = infiltrate(mesh)
    rng = Random(1)
    for batch in range(100):
        records = [mesh.record(1000 + index, boot=rng.randbytes(8)) for index in range(batch * 100, batch * 100 + 100)]
        say(mesh, liar, *[Claim(record.boot, 1, State.HEALTHY, 1, record.encode(), "") for record in records])
        mesh.run(0.01)
    newcomer = mesh.join([mesh.nodes[0]])
    mesh.run(2)
    honest = {node.boot for node in mesh.nodes}
    for node in mesh.nodes:
        members = node.membership.members
        assert len(members) <= 1010
        assert {boot for boot in members if members[boot].verified} <= honest | {liar.boot}
    assert newcomer.boot in mesh.view(mesh.nodes[0])
    mesh.run(180)
    for node in mesh.nodes:
        assert honest <= mesh.view(node) <= honest | {liar.boot}
    assert not {boot for _, boot, _ in mesh.losses()} & honest


def test_a_member_record_of_a_megabyte_is_refused(mesh: Mesh) -> None:
    """It is dropped and counted by receivers, and cannot be made by its owner."""
    liar = infiltrate(mesh)
    boot = b"bigbig\x00\x01"
    blob = msgpack.packb([boot, "i", "n", "default", "1", "h", None, [], {}, {"x": "y" * 1_000_000}, 1.0, {}, 0.0, 1, 1])
    before = [node.membership.dropped for node in mesh.nodes]
    liar.sends += [(node.boot, int(Control.GOSSIP), msgpack.packb([[boot, 1, 1, 1, blob, ""]])) for node in mesh.nodes]
    mesh.network.poke(liar.boot)
    mesh.run(1)
    assert all(boot not in node.membership.members for node in mesh.nodes)
    assert [node.membership.dropped for node in mesh.nodes] > before
    node = mesh.nodes[0].membership
    with pytest.raises(ValueError, match="limit"):
        node.set_record(node.record.changed(tags={"x": "y" * 100_000}), now=mesh.now)
    assert node.record.tags == {}


def test_a_clone_of_the_name_is_a_member_and_of_the_id_an_alarm(mesh: Mesh) -> None:
    """Many instances may share a name; two processes with one instance id are reported, and both stay."""
    one = mesh.nodes[0].membership.record
    clone = mesh.join([mesh.nodes[1]], name=one.name)
    mesh.run_until(mesh.agree, 2)
    assert not [event for event in mesh.nodes[2].events if event.kind == "identity_conflict"]
    mesh.join([mesh.nodes[1]], name=one.name, instance_id=clone.membership.record.instance_id)
    mesh.run_until(mesh.agree, 2)
    assert [event for event in mesh.nodes[2].events if event.kind == "identity_conflict"]


def test_another_mesh_is_not_learned(mesh: Mesh) -> None:
    """A record that names another mesh is dropped."""
    liar = infiltrate(mesh)
    record = mesh.record(77, mesh="other", boot=b"otherone")
    say(mesh, liar, Claim(record.boot, 1, State.HEALTHY, 1, record.encode(), ""))
    mesh.run(1)
    assert all(record.boot not in node.membership.members for node in mesh.nodes)


def test_babble_is_counted_and_nothing_else(mesh: Mesh) -> None:
    """Random bytes in every kind of frame change no table and raise nothing."""
    liar, rng = infiltrate(mesh), Random(4)
    before = [node.membership.table_digest() for node in mesh.nodes]
    for _ in range(300):
        kind = rng.choice([5, 6, 7, 8, 9, 10, 11, 255])
        liar.sends += [(boot, kind, rng.randbytes(rng.choice([0, 1, 4, 8, 12, 13, 49, 200]))) for boot in liar.linked]
    mesh.network.poke(liar.boot)
    mesh.run(1)
    assert [node.membership.table_digest() for node in mesh.nodes] == before
    assert all(node.membership.dropped > 100 for node in mesh.nodes)


def test_a_wall_clock_set_back_a_day_is_a_warning_only() -> None:
    """Skewed wall clocks are told once per peer, and no liveness hangs on them."""
    mesh = Mesh(4, seed=5, config=preset("lan"))
    for node in mesh.nodes:
        node.wall = lambda now: 1_700_000_000 + now
    mesh.run(20)
    late: SimulatedMember = mesh.nodes[0]
    late.wall = lambda now: 1_700_000_000 + now - 86_400
    mesh.run(120)
    for node in mesh.nodes[1:]:
        warnings = [event for event in node.events if event.kind == "clock_skew"]
        assert [event.member.record.boot for event in warnings if event.member] == [late.boot]
    assert not mesh.losses()
    assert mesh.agree()


def test_a_heartbeat_with_a_state_only_others_may_claim_is_dropped(mesh: Mesh) -> None:
    """Nobody calls itself LOST."""
    liar = infiltrate(mesh)
    beat = encode_heartbeat(Heartbeat(1, 1, 1, State.LOST, Load(), 0.0, 0))
    liar.sends += [(boot, int(Control.HEARTBEAT), beat) for boot in liar.linked]
    mesh.network.poke(liar.boot)
    mesh.run(0.5)
    assert all(node.membership.members[liar.boot].state is State.HEALTHY for node in mesh.nodes)


def test_a_silent_observer_leaves_no_trace(mesh: Mesh) -> None:
    """It gets the whole table at once and every change after, and nobody ever lists it."""
    machine = Membership(mesh.record(99), mesh.config, Random(9), now=mesh.now, observer=True)
    node = mesh.nodes[0].membership
    machine.handle_link_up(node.record.boot, now=mesh.now)
    node.handle_observer(machine.record.boot, now=mesh.now)

    def deliver() -> None:
        for boot, kind, body in node.take_sends():
            if boot == machine.record.boot:
                machine.handle_frame(node.record.boot, kind, body, now=mesh.now)

    deliver()
    assert set(machine.members) == {other.boot for other in mesh.nodes}
    assert machine.members[node.record.boot].load is not None
    mesh.leave(mesh.nodes[3])
    mesh.run(0.001)
    assert not machine.take_sends()
    mesh.run(20)
    assert all(machine.record.boot not in other.membership.members for other in mesh.nodes)


def test_a_silent_observer_sees_the_last_member_die(mesh: Mesh) -> None:
    """Nobody is left to tell it: a dropped connection whose port refuses is a loss in its own table, and it still sends nothing."""
    machine = Membership(mesh.record(99), mesh.config, Random(9), now=mesh.now, observer=True)
    boots = [node.boot for node in mesh.nodes]
    for node in mesh.nodes:
        machine.handle_link_up(node.boot, now=mesh.now)
        node.membership.handle_observer(machine.record.boot, now=mesh.now)
        for boot, kind, body in node.membership.take_sends():
            if boot == machine.record.boot:
                machine.handle_frame(node.boot, kind, body, now=mesh.now)
    assert set(machine.members) == set(boots)
    for boot in boots:
        machine.handle_link_down(boot, now=mesh.now)
        assert boot in machine.take_dials()
    for boot in boots:
        machine.handle_dial(boot, "refused", now=mesh.now)
    assert all(member.state is State.LOST for member in machine.members.values())
    assert not machine.take_sends()


def test_records_may_change_address_while_running(mesh: Mesh) -> None:
    """New endpoints of a running node are in every table, with an event, and it stays the same member."""
    moved = mesh.nodes[0]
    record: Record = moved.membership.record.changed(endpoints=("tcp://10.9.9.9:1",))
    moved.membership.set_record(record, now=mesh.now)
    mesh.network.poke(moved.boot)
    mesh.run_until(mesh.agree, 1)
    for node in mesh.nodes[1:]:
        assert node.membership.members[moved.boot].record.endpoints == ("tcp://10.9.9.9:1",)
        assert [event.kind for event in node.events] == ["record_changed"]
