"""What is reported about a deployment, and what travels with heartbeats."""

from __future__ import annotations

import pytest

from reachmesh.membership import Load, State, preset
from reachmesh.testing import Mesh, SimulatedMember


def started(size: int = 5, **settings: object) -> Mesh:
    mesh = Mesh(size, seed=3, config=preset("lan", **settings))
    mesh.run(12)
    return mesh


def of(node: SimulatedMember, kind: str) -> list[str]:
    """Reasons of one node's events of a kind."""
    return [event.reason for event in node.events if event.kind == kind]


def test_two_zones_under_one_name_alarm_after_a_minute_and_once() -> None:
    """A mislabelled deployment is reported by everybody after 60 s, once, and again only after it was over."""
    mesh = started()
    mesh.join([mesh.nodes[0]], name="writer", zone="z1")
    mesh.run(30)
    wrong = mesh.join([mesh.nodes[0]], name="writer", zone="z2")
    mesh.run(58)
    assert not any(of(node, "tag_conflict") for node in mesh.nodes)
    mesh.run(8)
    assert all(of(node, "tag_conflict") == ["instances of writer declare different zones: z1, z2"] for node in mesh.nodes)
    mesh.run(300)
    assert all(len(of(node, "tag_conflict")) == 1 for node in mesh.nodes)
    mesh.leave(wrong)
    mesh.run(10)
    mesh.join([mesh.nodes[0]], name="writer", zone="z2")
    mesh.run(70)
    assert len(of(mesh.nodes[0], "tag_conflict")) == 2


def test_short_conflicts_and_single_zones_are_no_alarm() -> None:
    """A rolling change of zones that is over within the minute is not reported, nor nodes without a zone."""
    mesh = started()
    old = mesh.join([mesh.nodes[0]], name="writer", zone="z1")
    mesh.join([mesh.nodes[0]], name="writer", zone="z2")
    mesh.join([mesh.nodes[0]], name="writer")
    mesh.run(40)
    mesh.leave(old)
    mesh.run(100)
    assert not any(of(node, "tag_conflict") for node in mesh.nodes)


def test_a_peer_lost_three_times_in_ten_minutes_is_flapping() -> None:
    """The third loss is an alarm."""
    mesh = started()
    for times in range(3):
        assert not of(mesh.nodes[1], "peer_flapping")
        mesh.network.freeze(mesh.nodes[0].boot, 25)
        mesh.run(60)
        assert len(of(mesh.nodes[1], "peer_lost")) == times + 1
    assert all(len(of(node, "peer_flapping")) == 1 for node in mesh.nodes[1:])


@pytest.mark.parametrize("size", [3, 30])
def test_busy_and_draining_are_known_to_all_within_a_second(size: int) -> None:
    """A change of state does not wait for the next heartbeat, and its reason travels."""
    mesh = started(size)
    busy = mesh.nodes[0]
    busy.membership.set_load(Load(outstanding=2, limit=2), now=mesh.now)
    mesh.network.poke(busy.boot)
    mesh.run_until(lambda: mesh.states(busy.boot) == {State.BUSY}, 1)
    busy.membership.set_load(Load(), now=mesh.now)
    mesh.network.poke(busy.boot)
    mesh.run_until(lambda: mesh.states(busy.boot) == {State.HEALTHY}, 1)
    busy.membership.drain(now=mesh.now)
    mesh.network.poke(busy.boot)
    mesh.run_until(lambda: mesh.states(busy.boot) == {State.DRAINING}, 1)
    for node in mesh.nodes[1:]:
        assert of(node, "peer_state") == ["2 of 2 in use", "has room", "told to stop"]


def test_loads_reach_the_observers_with_the_next_heartbeat() -> None:
    """And round trips are measured."""
    mesh = started(4)
    mesh.nodes[0].membership.set_load(Load(outstanding=1, limit=9, qps=12.5, p95_ms=40), now=mesh.now)
    mesh.run(6)
    for node in mesh.nodes[1:]:
        member = node.membership.members[mesh.nodes[0].boot]
        assert member.load is not None
        assert (member.load.outstanding, member.load.limit, member.load.qps, member.load.p95_ms) == (1, 9, 12.5, 40)
        assert member.rtt is not None
        assert 0 < member.rtt < 0.01


def test_links_on_need_stay_few() -> None:
    """Sixty nodes keep about sixteen links each, not fifty-nine."""
    mesh = started(60)
    mesh.run(60)
    links = [sum(mesh.network.is_linked(node.boot, other.boot) for other in mesh.nodes) for node in mesh.nodes]
    assert max(links) <= 30
    assert sum(links) / len(links) < 18


def test_the_dead_are_remembered_for_an_hour_and_then_forgotten() -> None:
    """Tombstones keep old news out, and do not pile up."""
    mesh = started(4, tombstone_ttl=600)
    mesh.network.kill(mesh.nodes[3].boot)
    mesh.run(500)
    assert mesh.nodes[3].boot in mesh.nodes[0].membership.members
    mesh.run(120)
    assert mesh.nodes[3].boot not in mesh.nodes[0].membership.members
    assert mesh.agree()
