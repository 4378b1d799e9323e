"""Membership figures out of the simulator: how soon, how often falsely, at what cost, for meshes of several sizes.

    python tools/simulate.py                         # N = 10, 100, 1000: a few minutes
    python tools/simulate.py --sizes 10 100 --hours 50
    python tools/simulate.py --sizes 10000 --only crash idle

Every figure is virtual time over the real state machine; bytes are those of the frames, without TCP and IP. Runs are
seeded: the same arguments give the same figures.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path
from random import Random
from statistics import median
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from reachmesh.membership import MembershipConfig, preset
from reachmesh.testing import Mesh, SimulatedMember

SETTLE = 12.0
FREEZES_AN_HOUR, FREEZE_MEAN = 6, 4.0
STALLS_AN_HOUR, STALL_MEAN = 1, 5.0

Figures = dict[str, Any]


def naive(config: MembershipConfig) -> MembershipConfig:
    """The rule of one observer who alone declares a loss after three missed heartbeats, with no probes and no guard of its own."""
    settings = {name: getattr(config, name) for name in config.__dataclass_fields__}
    settings |= {"probe_after": config.suspect_after - 0.01, "probe_timeout": 0.0, "helpers": 0, "votes": 1}
    settings |= {
        "confirm_after": 0.0,
        "suspicion_wait": 0.0,
        "isolation_share": 1.0,
        "isolation_wait": 0.0,
        "pause_after": 10.0,
        "listen": 0.0,
    }
    return MembershipConfig(**settings)


def percentile(values: list[float], share: float) -> float:
    """The value below which `share` of them lie."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))]


def settled(size: int, seed: int, config: MembershipConfig) -> Mesh:
    """A mesh after its first beats."""
    mesh = Mesh(size, seed=seed, config=config)
    mesh.run(SETTLE)
    assert mesh.agree()
    return mesh


def times_to(mesh: Mesh, boot: bytes, reached: Callable[[SimulatedMember], bool], limit: float, step: float) -> list[float]:
    """Seconds until `reached` holds, for each living node but `boot`; resolution `step`."""
    began = mesh.now
    waiting = [node for node in mesh.living if node.boot != boot]
    times: list[float] = []
    while waiting and mesh.now - began < limit:
        mesh.run(step)
        still = [node for node in waiting if not reached(node)]
        times += [mesh.now - began] * (len(waiting) - len(still))
        waiting = still
    return times + [float("inf")] * len(waiting)


def is_unrouted(boot: bytes) -> Callable[[SimulatedMember], bool]:
    """Whether a node would not route to this member."""

    def check(node: SimulatedMember) -> bool:
        member = node.membership.members.get(boot)
        return member is None or member.suspected or member.state.gone

    return check


def is_gone(boot: bytes) -> Callable[[SimulatedMember], bool]:
    """Whether a node holds this member for lost or left."""

    def check(node: SimulatedMember) -> bool:
        member = node.membership.members.get(boot)
        return member is None or member.state.gone

    return check


def crash(size: int, seed: int, config: MembershipConfig, rounds: int) -> Figures:
    """Hosts whose cable is cut, one after another at random moments: seconds until unrouted, and until lost, at each node."""
    mesh, rng = settled(size, seed, config), Random(seed)
    unrouted: list[float] = []
    lost: list[float] = []
    for _ in range(rounds):
        mesh.run(rng.uniform(1, 2) * config.heartbeat_period)
        victim = rng.choice(mesh.living[1:])
        mesh.network.kill(victim.boot, silent=True)
        began = mesh.now
        first = times_to(mesh, victim.boot, is_unrouted(victim.boot), 60, 0.1)
        unrouted += first
        spent = mesh.now - began
        later = times_to(mesh, victim.boot, is_gone(victim.boot), 60, 0.1)
        lost += [spent + seconds for seconds in later]  # nobody has lost it before the last has unrouted it, give or take a step
        if len(mesh.living) <= max(3, size // 2):
            mesh = settled(size, seed + len(lost), config)
    return {
        "unrouted_median_s": round(median(unrouted), 2),
        "unrouted_p99_s": round(percentile(unrouted, 0.99), 2),
        "lost_median_s": round(median(lost), 2),
        "lost_p99_s": round(percentile(lost, 0.99), 2),
    }


def changes(size: int, seed: int, config: MembershipConfig) -> Figures:
    """A killed process whose port refuses, a clean stop, and a join: seconds until the last node knows."""
    mesh = settled(size, seed, config)
    victim, leaver = mesh.nodes[size // 2], mesh.nodes[size // 3]
    mesh.network.kill(victim.boot)
    killed = max(times_to(mesh, victim.boot, is_gone(victim.boot), 30, 0.02))
    mesh.leave(leaver)
    left = max(times_to(mesh, leaver.boot, is_gone(leaver.boot), 30, 0.02))
    mesh.run(5)
    newcomer = mesh.join([mesh.nodes[0]])
    joined = max(times_to(mesh, newcomer.boot, lambda node: newcomer.boot in node.membership.members, 30, 0.02))
    complete = mesh.run_until(lambda: len(mesh.view(newcomer)) == len(mesh.living), 30)
    return {
        "killed_all_s": round(killed, 2),
        "left_all_s": round(left, 2),
        "joined_all_s": round(joined, 2),
        "newcomer_complete_s": round(joined + complete, 2),
    }


def merge(size: int, seed: int, config: MembershipConfig) -> Figures:
    """Two halves apart for five minutes: seconds from the healed cable to equal and right tables."""
    mesh = settled(size, seed, config)
    boots = [node.boot for node in mesh.nodes]
    mesh.network.partition(boots[: size // 2], boots[size // 2 :])
    mesh.run(300)
    mesh.network.heal_all()
    return {"merge_s": round(mesh.run_until(mesh.agree, 120), 2)}


def idle(size: int, seed: int, config: MembershipConfig) -> Figures:
    """A quiet minute: frames and bytes a node sends each second, and what the minute costs to simulate."""
    mesh = settled(size, seed, config)
    hosts = mesh.network.hosts.values()
    sent, frames = sum(host.sent for host in hosts), mesh.network.frames
    wall, cpu = time.monotonic(), time.process_time()
    mesh.run(60)
    return {
        "idle_bytes_per_node_s": round((sum(host.sent for host in hosts) - sent) / 60 / size, 1),
        "idle_frames_per_node_s": round((mesh.network.frames - frames) / 60 / size, 2),
        "minute_wall_s": round(time.monotonic() - wall, 1),
        "minute_cpu_s": round(time.process_time() - cpu, 1),
    }


def event_cost(size: int, seed: int, config: MembershipConfig) -> Figures:
    """What one change of state costs each node in bytes sent, above idle."""
    mesh = settled(size, seed, config)
    hosts = mesh.network.hosts.values()
    before = sum(host.sent for host in hosts)
    mesh.run(20)
    quiet = sum(host.sent for host in hosts) - before
    mesh.nodes[1].membership.drain(now=mesh.now)
    mesh.network.poke(mesh.nodes[1].boot)
    before = sum(host.sent for host in hosts)
    mesh.run(20)
    return {"event_bytes_per_node": round((sum(host.sent for host in hosts) - before - quiet) / size, 1)}


def false_losses(size: int, seed: int, config: MembershipConfig, node_hours: float) -> Figures:
    """Freezes and stalls without a single crash: every loss is false, but of a node frozen for longer than it may be silent.

    Lengths are exponential, so some freezes outlast the limit; a node that stood still for over two periods when it was lost
    was rightly lost, and is counted apart. Timers fire before sockets are read, as after a real pause they may.
    """
    mesh, rng = settled(size, seed, config), Random(seed)
    end = mesh.now + node_hours / size * 3600
    standstill: dict[bytes, list[tuple[float, float]]] = {node.boot: [] for node in mesh.nodes}
    for node in mesh.nodes:
        node.reads_first = False

    def freeze(node: SimulatedMember) -> None:
        seconds = rng.expovariate(1 / FREEZE_MEAN)
        standstill[node.boot].append((mesh.now, mesh.now + seconds))
        mesh.network.freeze(node.boot, seconds)
        mesh.network.at(mesh.now + rng.expovariate(FREEZES_AN_HOUR / 3600), lambda: freeze(node))

    def stall(node: SimulatedMember) -> None:
        linked = [other for other in mesh.nodes if mesh.network.is_linked(node.boot, other.boot)]
        if linked:
            mesh.network.stall(node.boot, rng.choice(linked).boot, rng.expovariate(1 / STALL_MEAN))
        mesh.network.at(mesh.now + rng.expovariate(rate(node)), lambda: stall(node))

    def rate(node: SimulatedMember) -> float:
        """Each link stalls once an hour; half of a node's links are counted with it, half with the other side."""
        links = sum(mesh.network.is_linked(node.boot, other.boot) for other in mesh.nodes)
        return max(1, links / 2) * STALLS_AN_HOUR / 3600

    for node in mesh.nodes:
        mesh.network.at(rng.expovariate(FREEZES_AN_HOUR / 3600), lambda node=node: freeze(node))  # type: ignore[misc]
        mesh.network.at(rng.expovariate(rate(node)), lambda node=node: stall(node))  # type: ignore[misc]
    while mesh.now < end:
        mesh.run(min(600, end - mesh.now))
    false: dict[tuple[bytes, int], None] = {}
    rightly: dict[tuple[bytes, int], None] = {}
    for _, boot, at in mesh.losses():
        stood_still = any(began + 2 * config.heartbeat_period < at < ended + 1 for began, ended in standstill[boot])
        (rightly if stood_still else false)[(boot, int(at // 60))] = None
    return {
        "node_hours": round(node_hours),
        "false_losses": len(false),
        "false_losses_per_node_hour": round(len(false) / node_hours, 5),
        "long_freezes_lost": len(rightly),
    }


def figures_for(size: int, options: argparse.Namespace, config: MembershipConfig) -> Figures:
    """All asked-for figures of one size."""
    seed, only = options.seed, options.only
    parts: dict[str, Callable[[], Figures]] = {
        "idle": lambda: idle(size, seed, config),
        "event": lambda: event_cost(size, seed, config),
        "crash": lambda: crash(size, seed, config, options.rounds),
        "changes": lambda: changes(size, seed, config),
        "merge": lambda: merge(size, seed, config),
        "false": lambda: false_losses(size, seed, config, options.hours),
        "naive": lambda: {f"naive_{key}": value for key, value in false_losses(size, seed, naive(config), options.hours / 10).items()},
    }
    figures: Figures = {"nodes": size}
    for name, part in parts.items():
        if name in only:
            began = time.monotonic()
            found = part()
            figures |= found
            print(f"  {size} nodes, {name}: {found} after {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    figures["memory_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
    return figures


def main() -> None:
    """Print one column a size."""
    everything = ["idle", "event", "crash", "changes", "merge", "false", "naive"]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", type=int, nargs="+", default=[10, 100, 1000])
    parser.add_argument("--only", nargs="+", choices=everything, default=everything)
    parser.add_argument("--preset", default="lan", choices=["lan", "calm", "fast"])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--rounds", type=int, default=5, help="crashes for each size")
    parser.add_argument("--hours", type=float, default=100, help="node-hours of freezes and stalls for each size")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    columns = [figures_for(size, options, preset(options.preset)) for size in options.sizes]
    if options.json:
        print(json.dumps(columns, indent=2))
        return
    rows = list(dict.fromkeys(key for column in columns for key in column))
    for row in rows:
        print(f"| {row:32} |" + "".join(f" {column.get(row, '')!s:>10} |" for column in columns))


if __name__ == "__main__":
    main()
