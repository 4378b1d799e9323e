"""Settings of one node. Each has a default that suits a LAN; a mapping of field names does as well as a `NodeConfig`."""

from __future__ import annotations

import random
from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from reachmesh.engine.access import AccessRules
from reachmesh.errors import ConfigError
from reachmesh.membership.config import MembershipConfig, PresetName, preset
from reachmesh.node.rules import FLAG, NAMED, Rule, Rules, check, number, one_of, whole
from reachmesh.resilience.breaker import BreakerConfig
from reachmesh.resilience.deadline import TimeoutConfig
from reachmesh.resilience.dedup import DedupConfig
from reachmesh.resilience.hedge import HedgeConfig
from reachmesh.resilience.permits import PermitConfig
from reachmesh.resilience.pressure import PressureConfig
from reachmesh.resilience.retry import RetryConfig, RetryPolicy, RetryThrottle
from reachmesh.routing import RoutingConfig
from reachmesh.routing.config import Predicate
from reachmesh.routing.strategies import STRATEGIES


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """Settings of a node; times in seconds.

    Attributes:
        preset: figures of the membership: "lan" (5 s heartbeats, a silent peer is unrouted after 15 s), "calm" (15 s), "fast" (1 s).
        heartbeat_period: 0.05 to 300; None = the preset's. Shorter notices a cut cable sooner and costs bytes in proportion.
        suspect_after: periods of silence after which a peer gets no more calls, 1.5 to 100; None = the preset's (3). Low doubts peers
            that are merely late, high sends more calls into the void.
        skew_limit: seconds between two wall clocks from which on `clock_skew` is told, >= 0.01.
        busy_share: share of its concurrency limit in use at which a node is BUSY, 0.01 to 1. Low sends calls elsewhere before it is full.
        degraded_failure_rate: failed share of a node's recent calls at which it is DEGRADED and gets less, 0 to 1.
        degraded_p95_ms: the same for its tail latency in milliseconds; 0 = never, for durations differ too much for a default.
        degraded_queue: the same for calls that wait there; 0 = never.
        zone_conflict_after: how long one node name may carry two zones before `tag_conflict` is told.
        default_timeout: limit of a call that names none, > 0, as long as nothing is known of the capability's latency.
        grace: how long after the start a call that nobody can serve yet waits for discovery, >= 0. 0 makes the first calls of a
            fresh process fail; long makes a mistyped name slow to show in its first seconds.
        drain: how long `stop` and `serve` wait for accepted calls, >= 0.
        retries: further attempts of a call that did not say, 0 to 2.
        depth_limit: calls nested deeper than this are stopped as a loop, 1 to 255.
        pool_threads: threads that run blocking handlers at once per pool (short, medium and long ones), 1 to 1024.
        timeout_samples: calls of a capability from which on the default timeout is measured: P99 x 1.5, at least `timeout_floor`.
        timeout_floor: least measured default timeout, >= 0. Low turns a pause of a fast handler into an error, high hides hangs.
        retry_share: retries and hedges as part of all calls in 10 s, 0 to 1 (three are always allowed). High feeds a storm.
        hedging: ask a second instance of an idempotent capability when the first takes longer than 95 of 100 calls do.
        permit_wait: how long a call waits for a permit of a capability with `max_concurrent`, >= 0.
        permit_queue: calls that may wait for the permits of one capability, >= 0.
        queue_watermark: calls waiting here from which on low priority is refused and callers are asked to slow down, >= 1.
        last_good_age: how old an answer may be that `fallback=LAST_GOOD` gives, > 0.
        dedup_ttl: how long the answer of a `dedup_key` is kept, > 0.
        dedup_keys: keys remembered; a new one is refused when all are in use, >= 1.
        spill_outstanding: calls outstanding to each near instance before farther ones share the load, >= 1.
        strategy: how calls that name none choose among instances: p2c, weighted_random, round_robin, least_outstanding, primary_backup.
        predicate: content rule, `predicate(candidate, metadata) -> bool`: may this instance have a call with this metadata?
        warmup: ramp of a new instance's share of calls; 0 = full share at once.
        breaker_window, breaker_open, breaker_consecutive, breaker_min_calls: see `resilience.breaker.BreakerConfig`
            (window, open_for, consecutive, min_calls).
        require_secret: refuse to start without a secret.
        access: capability name to the callers that may use it, e.g. {"reset": ["name:ops", "tag:role=admin"]}; see
            `engine.access`. A capability without rules is everybody's.
        metrics_port: where metrics are served on 127.0.0.1; None = nowhere; reserved.
    """

    preset: PresetName = "lan"
    heartbeat_period: float | None = None
    suspect_after: float | None = None
    skew_limit: float = 2.0
    busy_share: float = 0.9
    degraded_failure_rate: float = 0.5
    degraded_p95_ms: float = 0.0
    degraded_queue: int = 1000
    zone_conflict_after: float = 60.0
    default_timeout: float = 3.0
    grace: float = 1.5
    drain: float = 10.0
    retries: int = 1
    depth_limit: int = 16
    pool_threads: int = 32
    timeout_samples: int = 20
    timeout_floor: float = 2.0
    retry_share: float = 0.2
    hedging: bool = False
    permit_wait: float = 0.2
    permit_queue: int = 1024
    queue_watermark: int = 1024
    last_good_age: float = 300.0
    dedup_ttl: float = 300.0
    dedup_keys: int = 100_000
    spill_outstanding: int = 16
    strategy: str = "p2c"
    predicate: Predicate | None = None
    warmup: float = 60.0
    breaker_window: float = 30.0
    breaker_open: float = 5.0
    breaker_consecutive: int = 5
    breaker_min_calls: int = 20
    require_secret: bool = False
    access: Mapping[str, list[str]] = field(default_factory=dict)
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        check(CONFIG_RULES, {each: getattr(self, each) for each in CONFIG_RULES})
        AccessRules(self.access)
        self.membership()

    @classmethod
    def of(cls, given: NodeConfig | Mapping[str, Any] | None) -> NodeConfig:
        """A config from one, from a mapping of its fields, or from nothing.

        Raises:
            ConfigError: a field that does not exist, or a value out of its range.
        """
        if given is None:
            return cls()
        if isinstance(given, NodeConfig):
            return given
        if not isinstance(given, Mapping):
            raise ConfigError(f"config must be a NodeConfig or a mapping, not {type(given).__name__}")
        known = {each.name for each in fields(cls)}
        if unknown := sorted(str(name) for name in given if name not in known):
            raise ConfigError(f"no such setting: {', '.join(unknown)}", hint=f"there are: {', '.join(sorted(known))}")
        return cls(**given)

    def membership(self) -> MembershipConfig:
        """The part that membership runs on."""
        named = ("zone_conflict_after", "skew_limit", "busy_share", "degraded_failure_rate", "degraded_p95_ms", "degraded_queue")
        changes: dict[str, Any] = {name: getattr(self, name) for name in named}
        changes["busy_clear"] = self.busy_share * 5 / 6
        if self.heartbeat_period is not None:
            changes["heartbeat_period"] = self.heartbeat_period
        if self.suspect_after is not None:
            changes |= {"suspect_after": self.suspect_after, "probe_after": self.suspect_after * 5 / 6}
        return preset(self.preset, **changes)

    def routing(self) -> RoutingConfig:
        """The part that routing runs on."""
        breaker = BreakerConfig(
            window=self.breaker_window,
            min_calls=self.breaker_min_calls,
            consecutive=self.breaker_consecutive,
            open_for=self.breaker_open,
            open_max=max(60.0, self.breaker_open),
        )
        return RoutingConfig(
            warmup=self.warmup,
            breaker=breaker,
            strategy=self.strategy,
            spill_outstanding=self.spill_outstanding,
            predicate=self.predicate,
        )

    def policies(self, rng: random.Random | None = None) -> dict[str, Any]:
        """The parts that calls run on, as arguments of the engine."""
        watermark = self.queue_watermark
        return {
            "policy": RetryPolicy(RetryConfig(share=self.retry_share), rng or random.Random()),
            "throttle": RetryThrottle(RetryConfig(share=self.retry_share)),
            "permits": PermitConfig(wait=self.permit_wait, queue=self.permit_queue, full_share=self.busy_share),
            "pressure": PressureConfig(watermark=watermark, normal=16 * watermark, high=64 * watermark),
            "dedup": DedupConfig(ttl=self.dedup_ttl, keys=self.dedup_keys),
            "timeouts": TimeoutConfig(default=self.default_timeout, samples=self.timeout_samples, floor=self.timeout_floor),
            "hedging": HedgeConfig(enabled=self.hedging),
            "access": AccessRules(self.access),
        }


Discovery = Literal["local", "mdns", "seeds", "state"]

CONFIG_RULES: Rules = {
    "preset": one_of(*get_args(PresetName)),
    "heartbeat_period": number(0.05, 300).or_none(),
    "suspect_after": number(1.5, 100).or_none(),
    "skew_limit": number(0.01, 1e6),
    "busy_share": number(0.01, 1),
    "degraded_failure_rate": number(0, 1),
    "degraded_p95_ms": number(0, 1e9),
    "degraded_queue": whole(0, 1e9),
    "zone_conflict_after": number(0, 1e6),
    "default_timeout": number(0.001, 1e6),
    "grace": number(0, 3600),
    "drain": number(0, 86_400),
    "retries": whole(0, 2),
    "depth_limit": whole(1, 255),
    "pool_threads": whole(1, 1024),
    "warmup": number(0, 86_400),
    "timeout_samples": whole(1, 1e6),
    "timeout_floor": number(0, 1e6),
    "retry_share": number(0, 1),
    "hedging": FLAG,
    "permit_wait": number(0, 3600),
    "permit_queue": whole(0, 1e6),
    "queue_watermark": whole(1, 1e6),
    "last_good_age": number(0.001, 1e6),
    "dedup_ttl": number(0.001, 1e6),
    "dedup_keys": whole(1, 1e7),
    "spill_outstanding": whole(1, 1e6),
    "strategy": one_of(*STRATEGIES),
    "predicate": Rule("a function of a candidate and the metadata", callable).or_none(),
    "breaker_window": number(1, 600),
    "breaker_open": number(0.01, 3600),
    "breaker_consecutive": whole(1, 1e6),
    "breaker_min_calls": whole(1, 1e6),
    "require_secret": FLAG,
    "access": NAMED,
    "metrics_port": whole(0, 65535).or_none(),
}
"""The fields of `NodeConfig`."""
