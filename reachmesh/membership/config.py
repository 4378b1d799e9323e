"""Settings of the membership, and its presets.

Times that scale with the heartbeat are given in periods, so that `heartbeat_period=0.5` alone makes everything ten
times faster than the default. All others are seconds.
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import msgspec

from reachmesh.errors import ConfigError

PresetName = Literal["lan", "calm", "fast"]


class MembershipConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Every figure of the membership.

    Attributes:
        heartbeat_period: Seconds between two heartbeats to each observer; 0.05 to 300. Shorter finds a cut cable sooner and
            costs bytes and wake-ups in proportion; longer the reverse.
        heartbeat_jitter: Share of the period by which each beat varies, 0 to 0.5. 0 lets beats of many nodes march in step;
            large values eat into the silence allowed.
        rings: Rings, and so observers of a node in a large mesh, 1 to 32. Fewer cost less and need more luck when several
            observers die at once; more cost a link and a heartbeat each.
        full_mesh_limit: Up to this many nodes (oneself included) everybody observes everybody. Higher means quadratic links.
        probe_after: Periods of silence after which an observer probes. Lower probes healthy peers that were merely late.
        suspect_after: Periods of silence after which a peer whose probes failed is suspected, and so no longer routed to.
            Lower suspects sooner and falsely; higher sends more calls into the void.
        probe_timeout: Least seconds a probe is given, whatever the period. Lower accuses peers on a loaded machine.
        helpers: Other nodes asked to probe too. 0 blames the peer for a fault of the one link between.
        votes: Distinct observers whose suspicion makes a loss (all, where there are fewer). 1 lets one sick observer remove
            healthy peers; more need more witnesses.
        confirm_after: Periods between the first suspicion and a loss by full vote: the time a refutation has.
        suspicion_wait: Periods after which a suspicion with too few votes becomes a loss all the same.
        isolation_share: Share of the observed peers that must fall silent together for a node to suspect itself; 0.5 to 1.
        isolation_wait: Periods a node that suspects itself keeps its judgements back.
        mute_limit: Seconds for which a peer whose process takes connections but says nothing (its interpreter is busy) is
            held for alive, and shown as DEGRADED. 0 loses nodes whose handler never lets go of the interpreter lock; a
            large value keeps hung ones.
        gossip_delay: Most seconds a node waits to send gossip together; the first item after a calm goes at once.
            Never more than 4 % of the period.
        sync_interval: Seconds between two comparisons of tables in a calm mesh. Lower repairs a lost message sooner.
        tombstone_ttl: Seconds for which a lost or left node is remembered, so that old news cannot bring it back.
        max_tombstones: Remembered dead; the oldest go first.
        max_members: Members a table holds; unverified ones beyond it are refused. Bounds memory under a flood of inventions.
        pause_after: Periods by which the node's own turn must be late to count as a pause of its own.
        listen: Seconds a node listens after any late turn before it judges, for what averts a judgement may be waiting unread; 0 judges
            at once. Long puts losses off on a loaded machine.
        max_health: Largest multiplier of a node's patience when it finds itself slow (Lifeguard); 1 switches it off.
        skew_limit: Seconds between two wall clocks that are worth a warning.
        zone_conflict_after: Seconds two zones under one node name must last to be an alarm.
        flap_count: Losses of one peer within `flap_window` that are an alarm.
        flap_window: Seconds, see `flap_count`.
        busy_share: Share of the concurrency limit in use at which a node is BUSY, 0 to 1.
        busy_clear: Share under which it is not any more; below `busy_share`, or the state flutters.
        degraded_failure_rate: Failed share of recent calls at which a node is DEGRADED.
        degraded_p95_ms: Tail latency in ms at which a node is DEGRADED; 0 = never (durations differ too much for a default).
        degraded_queue: Queued calls at which a node is DEGRADED; 0 = never.
        degraded_loop_lag_ms: Event-loop lag in ms at which a node is DEGRADED; 0 = never.
        degraded_clear: Share of each of these limits under which it is over; below 1, or the state flutters.
        state_hold: Seconds a condition must last before the node changes its own state. 0 gossips every short burst.
    """

    heartbeat_period: float = 5.0
    heartbeat_jitter: float = 0.05
    rings: int = 8
    full_mesh_limit: int = 17
    probe_after: float = 2.5
    suspect_after: float = 3.0
    probe_timeout: float = 0.5
    helpers: int = 3
    votes: int = 3
    confirm_after: float = 0.4
    suspicion_wait: float = 2.0
    isolation_share: float = 0.5
    isolation_wait: float = 2.0
    mute_limit: float = 60.0
    gossip_delay: float = 0.2
    sync_interval: float = 30.0
    tombstone_ttl: float = 3600.0
    max_tombstones: int = 4096
    max_members: int = 16_384
    pause_after: float = 0.2
    listen: float = 0.1
    max_health: int = 8
    skew_limit: float = 2.0
    zone_conflict_after: float = 60.0
    flap_count: int = 3
    flap_window: float = 600.0
    busy_share: float = 0.9
    busy_clear: float = 0.75
    degraded_failure_rate: float = 0.5
    degraded_p95_ms: float = 0.0
    degraded_queue: int = 1000
    degraded_loop_lag_ms: float = 1000.0
    degraded_clear: float = 0.7
    state_hold: float = 0.25

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ConfigError(f"{name}={value!r} must be between {low} and {high}")
        if self.probe_after >= self.suspect_after:
            raise ConfigError(f"probe_after={self.probe_after} must be below suspect_after={self.suspect_after}")
        if self.busy_clear > self.busy_share:
            raise ConfigError(f"busy_clear={self.busy_clear} must not be above busy_share={self.busy_share}")


_RANGES: tuple[tuple[str, float, float], ...] = (
    ("heartbeat_period", 0.05, 300),
    ("heartbeat_jitter", 0, 0.5),
    ("rings", 1, 32),
    ("full_mesh_limit", 2, 256),
    ("probe_after", 1.2, 100),
    ("suspect_after", 1.5, 100),
    ("probe_timeout", 0, 60),
    ("helpers", 0, 16),
    ("votes", 1, 16),
    ("confirm_after", 0, 100),
    ("suspicion_wait", 0, 100),
    ("isolation_share", 0.5, 1),
    ("isolation_wait", 0, 100),
    ("mute_limit", 0, 3600),
    ("gossip_delay", 0, 5),
    ("sync_interval", 0.1, 3600),
    ("tombstone_ttl", 1, 1e6),
    ("max_tombstones", 1, 1e6),
    ("max_members", 2, 1e6),
    ("pause_after", 0.01, 10),
    ("listen", 0, 5),
    ("max_health", 1, 64),
    ("skew_limit", 0.01, 1e6),
    ("zone_conflict_after", 0, 1e6),
    ("flap_count", 2, 1000),
    ("flap_window", 1, 1e6),
    ("busy_share", 0.01, 1),
    ("busy_clear", 0, 1),
    ("degraded_failure_rate", 0, 1),
    ("degraded_p95_ms", 0, 1e9),
    ("degraded_queue", 0, 1e9),
    ("degraded_loop_lag_ms", 0, 1e9),
    ("degraded_clear", 0, 1),
    ("state_hold", 0, 60),
)

_PRESETS: dict[str, dict[str, float]] = {
    "lan": {},
    "calm": {"heartbeat_period": 15.0, "probe_after": 3.5, "suspect_after": 4.0, "confirm_after": 2.0, "suspicion_wait": 2.0},
    "fast": {"heartbeat_period": 1.0, "probe_after": 3.0, "suspect_after": 4.0},
}


def preset(name: str, **changes: Any) -> MembershipConfig:
    """The named preset with some settings changed.

    `lan`: 5 s beats, suspected after 3 misses = 15 s, lost 2 s later. `calm`: 15 s beats, suspected after 60 s, lost at
    90 s. `fast`: 1 s beats, suspected after 4 s.

    Raises:
        ConfigError: no such preset or setting, or a value out of its range.
    """
    if name not in get_args(PresetName):
        raise ConfigError(f"preset {name!r} is none of {', '.join(get_args(PresetName))}")
    known = set(MembershipConfig.__struct_fields__)
    if unknown := sorted(set(changes) - known):
        raise ConfigError(f"no such membership setting: {', '.join(unknown)}")
    settings: dict[str, Any] = {**_PRESETS[name], **changes}
    return MembershipConfig(**settings)
