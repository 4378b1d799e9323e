"""What a LAN does to a mesh, one fault at a time, under the virtual clock."""

from __future__ import annotations

from random import Random

import pytest

from reachmesh.membership import State, preset
from reachmesh.testing import Faults, Mesh, SimulatedMember

SIZES = [3, 10, 40]
PERIOD = 5.0


def mesh_of(size: int, seed: int = 1, **settings: object) -> Mesh:
    mesh = Mesh(size, seed=seed, config=preset("lan", **settings))
    mesh.run(12)
    assert mesh.agree()
    return mesh


def unrouted(mesh: Mesh, boot: bytes) -> bool:
    """Whether nobody would route to this member."""
    members = [node.membership.members[boot] for node in mesh.living if node.boot != boot]
    return all(member.suspected or member.state.gone for member in members)


def kinds(node: SimulatedMember, kind: str) -> list[str]:
    return [event.reason for event in node.events if event.kind == kind]


@pytest.mark.parametrize("size", [2, *SIZES])
def test_an_idle_mesh_reports_nothing(size: int) -> None:
    """Nobody is suspected, lost or joined again in quiet minutes, and all tables stay equal."""
    mesh = mesh_of(size)
    before = [len(node.events) for node in mesh.nodes]
    mesh.run(4800 / size)
    assert mesh.agree()
    assert [len(node.events) for node in mesh.nodes] == before
    assert not any(node.membership.refutations for node in mesh.nodes)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_silent_crash_is_unrouted_in_16_s_and_lost_in_18(size: int, seed: int) -> None:
    """A cut cable takes a node out of everybody's routing within 16 s and out of the tables within 18 s (isolation aside)."""
    mesh = mesh_of(size, seed)
    victim = mesh.nodes[1]
    mesh.run(seed * 1.7)
    mesh.network.kill(victim.boot, silent=True)
    took = mesh.run_until(lambda: unrouted(mesh, victim.boot), 16)
    took += mesh.run_until(lambda: mesh.states(victim.boot) == {State.LOST}, 18 - took)
    assert took > 2 * PERIOD  # not before its time either
    mesh.run(1)
    assert mesh.agree()
    assert {boot for _, boot, _ in mesh.losses()} == {victim.boot}


@pytest.mark.parametrize("size", [2, *SIZES])
def test_a_killed_process_is_lost_within_a_second(size: int) -> None:
    """A dropped connection whose port refuses is a loss at once, in every table, with a reason that says so."""
    mesh = mesh_of(size)
    victim = mesh.nodes[0]
    mesh.network.kill(victim.boot)
    mesh.run_until(lambda: mesh.states(victim.boot) == {State.LOST}, 1.0)
    reasons = [reason for node in mesh.living for reason in kinds(node, "peer_lost")]
    assert len(reasons) == size - 1
    assert all(reasons)
    assert any("refuses" in reason for reason in reasons)


@pytest.mark.parametrize("size", [2, *SIZES])
def test_a_clean_stop_is_left_and_not_lost(size: int) -> None:
    """A node that leaves is LEFT at its neighbours within 0.2 s, everywhere within a second, and never called lost."""
    mesh = mesh_of(size)
    leaver = mesh.nodes[-1]
    mesh.leave(leaver)
    mesh.run_until(lambda: mesh.states(leaver.boot) == {State.LEFT}, 0.2 if size <= 17 else 1.0)
    mesh.run(60)
    assert not mesh.losses()
    assert mesh.agree()


@pytest.mark.parametrize("size", SIZES)
def test_a_join_is_known_to_all_within_two_seconds(size: int) -> None:
    """One seed is enough: the newcomer and everybody else have the whole table."""
    mesh = mesh_of(size)
    newcomer = mesh.join([mesh.nodes[0]])
    mesh.run_until(mesh.agree, 2)
    assert all(kinds(node, "peer_joined") for node in mesh.nodes if node is not newcomer)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("periods", [3, 30])
def test_a_frozen_node_is_back_two_seconds_after_it_continues(size: int, periods: int) -> None:
    """After SIGSTOP and SIGCONT the same instance is HEALTHY in all tables, and lost nobody itself."""
    mesh = mesh_of(size)
    frozen = mesh.nodes[0]
    mesh.network.freeze(frozen.boot)
    mesh.run(periods * PERIOD + 4)
    mesh.network.thaw(frozen.boot)
    mesh.run_until(lambda: mesh.states(frozen.boot) == {State.HEALTHY} and mesh.agree(), 2)
    assert not any(node is frozen for node, _, _ in mesh.losses())
    assert {boot for _, boot, _ in mesh.losses()} <= {frozen.boot}


def test_a_short_freeze_is_no_loss() -> None:
    """Four seconds of SIGSTOP at a five-second period are not even a suspicion that lasts."""
    mesh = mesh_of(10)
    for node in mesh.nodes:
        mesh.network.freeze(node.boot, 4)
        mesh.run(20)
    assert not mesh.losses()
    assert mesh.agree()


def test_a_host_asleep_for_an_hour_rejoins() -> None:
    """A laptop that slept for an hour, all its connections long dead, is a member again soon after."""
    mesh = mesh_of(10)
    laptop = mesh.nodes[4]
    mesh.network.freeze(laptop.boot, 3500)
    mesh.run(3490)
    assert mesh.states(laptop.boot) == {State.LOST}
    mesh.run(10)
    mesh.run_until(mesh.agree, 3 * PERIOD)
    assert not any(node is laptop for node, _, _ in mesh.losses())


def test_frozen_exactly_while_it_is_refuted() -> None:
    """A node that freezes again the moment it learns of the accusation is lost once and back once, not stuck."""
    mesh = mesh_of(10)
    frozen = mesh.nodes[2]
    mesh.network.freeze(frozen.boot)
    mesh.run_until(lambda: unrouted(mesh, frozen.boot), 16, step=0.01)
    mesh.network.thaw(frozen.boot)
    mesh.run(0.001)
    assert frozen.membership.refutations
    mesh.network.freeze(frozen.boot, 25)
    mesh.run(25.1)
    mesh.run_until(mesh.agree, 3 * PERIOD)
    assert all(len(kinds(node, "peer_lost")) <= 1 for node in mesh.nodes)


@pytest.mark.parametrize("size", [3, 10, 40])
@pytest.mark.parametrize("break_after", [20.0, 1e9])
def test_a_link_deaf_in_one_direction_troubles_nobody(size: int, break_after: float) -> None:
    """A hears B no more, while everybody else does: helpers vouch for B, and for A, also when the connection breaks for it."""
    mesh = mesh_of(size)
    mesh.network.faults = Faults(break_after=break_after)
    mesh.network.cut(mesh.nodes[1].boot, mesh.nodes[0].boot, one_way=True)
    mesh.run(300)
    assert not any(kinds(node, kind) for node in mesh.nodes for kind in ("peer_lost", "peer_suspected", "peer_state"))


def test_a_link_that_flaps_loses_nobody() -> None:
    """One link cut for 7 s of every 14 costs nobody his place."""
    mesh = mesh_of(10)
    one, other = mesh.nodes[0].boot, mesh.nodes[1].boot
    for _ in range(40):
        mesh.network.stall(one, other, 7)
        mesh.run(14)
    assert not mesh.losses()
    assert mesh.agree()


def test_thirty_percent_loss_for_ten_minutes_loses_nobody() -> None:
    """TCP over a lossy segment delays heartbeats; it does not end memberships."""
    mesh = mesh_of(10)
    mesh.network.faults = Faults(loss=0.3)
    mesh.run(600)
    assert not mesh.losses()
    mesh.network.faults = Faults()
    mesh.run(10)
    assert mesh.agree()


def test_frames_dropped_and_doubled_at_random_only_delay() -> None:
    """Even when single frames vanish for good, the tables agree again ten seconds after it stops."""
    mesh = mesh_of(10)
    mesh.network.faults = Faults(drop=0.1, duplicate=0.1)
    newcomer = mesh.join([mesh.nodes[3]])
    mesh.run(120)
    mesh.leave(mesh.nodes[5])
    mesh.run(10)
    mesh.network.faults = Faults()
    mesh.run_until(mesh.agree, 2 * PERIOD)
    assert newcomer.boot not in {boot for _, boot, _ in mesh.losses()}


@pytest.mark.parametrize(("size", "limit"), [(10, 10), (40, 30)])
@pytest.mark.parametrize("minutes", [1, 5])
def test_two_halves_merge_by_themselves(size: int, limit: float, minutes: int) -> None:
    """A partition heals to equal and right tables, with a leave, a restart and a change of record meanwhile."""
    mesh = mesh_of(size)
    half = size // 2
    boots = [node.boot for node in mesh.nodes]
    mesh.network.partition(boots[:half], boots[half:])
    mesh.run(60 * minutes)
    left = {node.boot for node in mesh.nodes[:half]}
    assert all(mesh.view(node) == left for node in mesh.nodes[:half])
    mesh.leave(mesh.nodes[1])
    mesh.network.kill(mesh.nodes[half + 1].boot)
    changed = mesh.nodes[half + 2]
    changed.membership.set_record(changed.membership.record.changed(capabilities={"new": {}}), now=mesh.now)
    mesh.network.poke(changed.boot)
    mesh.run(5)
    mesh.network.heal_all()
    lost_before = len(mesh.losses())
    mesh.run_until(mesh.agree, limit)
    assert len(mesh.losses()) == lost_before  # nobody is buried by news from the other side
    seen = mesh.nodes[0].membership.members[changed.boot]
    assert list(seen.record.capabilities) == ["new"]


def test_an_isolated_node_suspects_itself_first() -> None:
    """A node cut off from everybody keeps the others for longer than they keep it, and takes them back."""
    mesh = mesh_of(10)
    alone = mesh.nodes[0]
    mesh.network.partition([alone.boot], [node.boot for node in mesh.nodes[1:]])
    mesh.run(20)
    assert mesh.states(alone.boot) == {State.LOST}
    assert alone.membership.isolated
    assert len(mesh.view(alone)) == 10
    mesh.run(30)
    assert mesh.view(alone) == {alone.boot}
    mesh.network.heal_all()
    mesh.run_until(mesh.agree, 10)


def test_restarts_on_the_same_ports_do_not_pile_up() -> None:
    """A fifth of the nodes restarted each minute: tables right ten seconds after it stops, the old boots never back."""
    mesh = mesh_of(20)
    rng = Random(5)
    dead = set()
    for _ in range(6):
        for victim in rng.sample(mesh.living[1:], 4):
            mesh.network.kill(victim.boot)
            mesh.network.take_port(victim.boot)
            dead.add(victim.boot)
            mesh.join([mesh.nodes[0]], name=victim.membership.record.name)
        mesh.run(60)
    mesh.run_until(mesh.agree, 10)
    for node in mesh.living:
        back = [event for event in node.events if event.kind == "peer_joined" and event.reason == "it is back"]
        assert not back
        assert not dead & mesh.view(node)


def test_the_same_seed_gives_the_same_run() -> None:
    """Two runs of one seed make the same deliveries; another seed makes others."""

    def run(seed: int) -> str:
        mesh = mesh_of(20, seed)
        mesh.network.kill(mesh.nodes[3].boot, silent=True)
        mesh.join([mesh.nodes[0]])
        mesh.run(40)
        return mesh.network.transcript()

    assert run(4) == run(4) != run(5)


def test_news_that_was_lost_on_every_link_is_repaired_by_comparison() -> None:
    """A change whose gossip vanished whole is in all tables after the next heartbeats."""
    mesh = mesh_of(10)
    changed = mesh.nodes[2]
    mesh.network.faults = Faults(drop=1.0)
    changed.membership.set_record(changed.membership.record.changed(tags={"new": 1}), now=mesh.now)
    mesh.network.poke(changed.boot)
    mesh.run(1)
    assert not mesh.agree()
    mesh.network.faults = Faults()
    mesh.run_until(mesh.agree, 2 * PERIOD)


def test_two_nodes_of_one_sleeping_host_do_not_suspect_each_other() -> None:
    """Both wake together after a minute on a slow path: neither counts the sleep as the other's silence."""
    mesh = mesh_of(2)
    mesh.network.faults = Faults(delay=0.7)
    for node in mesh.nodes:
        mesh.network.freeze(node.boot, 60)
    mesh.run(90)
    assert not any(kinds(node, "peer_suspected") for node in mesh.nodes)


@pytest.mark.parametrize("size", [4, 30])
def test_a_node_back_from_a_pause_judges_nobody_before_it_has_read(size: int) -> None:
    """Even where timers fire before sockets are read, a frozen node accuses nobody when it continues."""
    mesh = mesh_of(size)
    frozen = mesh.nodes[0]
    frozen.reads_first = False
    for _ in range(5):
        mesh.network.freeze(frozen.boot, 60)
        mesh.run(90)
    assert mesh.agree()
    assert {boot for _, boot, _ in mesh.losses()} <= {frozen.boot}
    assert all(not node.membership.refutations for node in mesh.nodes[1:])


@pytest.mark.parametrize("size", [2, 3, 10])
def test_a_held_interpreter_lock_is_degraded_and_not_lost(size: int) -> None:
    """A process whose sockets take connections while nothing in it speaks for 20 s is shown as DEGRADED and kept."""
    mesh = mesh_of(size)
    holder = mesh.nodes[0]
    mesh.network.faults = Faults(dial_timeout=0.5)
    mesh.network.freeze(holder.boot, 20, mute=True)
    mesh.run(19)
    for node in mesh.nodes[1:]:
        assert node.membership.members[holder.boot].shown is State.DEGRADED
    mesh.run(6)
    assert mesh.agree()
    assert not mesh.losses()
    for node in mesh.nodes[1:]:
        assert node.membership.members[holder.boot].shown is State.HEALTHY


def test_a_process_that_stays_mute_is_lost_in_the_end() -> None:
    """Taking connections is not life for ever."""
    mesh = mesh_of(4)
    mesh.network.freeze(mesh.nodes[0].boot, mute=True)
    mesh.run(120)
    assert mesh.states(mesh.nodes[0].boot) == {State.LOST}
