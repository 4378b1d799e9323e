"""Settings of one node. Each has a default that suits a LAN; a mapping of field names does as well as a `NodeConfig`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal

from reachmesh.errors import ConfigError
from reachmesh.membership.config import MembershipConfig, PresetName, preset
from reachmesh.resilience.breaker import BreakerConfig
from reachmesh.routing import RoutingConfig


@dataclass(frozen=True, kw_only=True)
class NodeConfig:
    """Settings of a node; times in seconds.

    Attributes:
        preset: figures of the membership: "lan" (5 s heartbeats, a silent peer is unrouted after 15 s), "calm" (15 s), "fast" (1 s).
        heartbeat_period: 0.05 to 300; None = the preset's. Shorter notices a cut cable sooner and costs bytes in proportion.
        zone_conflict_after: how long one node name may carry two zones before `tag_conflict` is told.
        default_timeout: limit of a call that names none, > 0, as long as nothing is known of the capability's latency.
        grace: how long after the start a call that nobody can serve yet waits for discovery, >= 0. 0 makes the first calls of a
            fresh process fail; long makes a mistyped name slow to show in its first seconds.
        drain: how long `stop` and `serve` wait for accepted calls, >= 0.
        retries: further attempts of a call that did not say, 0 to 2.
        depth_limit: calls nested deeper than this are stopped as a loop, 1 to 255.
        pool_threads: threads that run blocking handlers at once per pool (short, medium and long ones), 1 to 1024.
        warmup: ramp of a new instance's share of calls; 0 = full share at once.
        breaker_window, breaker_open, breaker_consecutive, breaker_min_calls: see `resilience.breaker.BreakerConfig`
            (window, open_for, consecutive, min_calls).
        require_secret: refuse to start without a secret.
        access: capability name to the callers that may use it, e.g. {"reset": ["name:ops"]}; reserved.
        metrics_port: where metrics are served on 127.0.0.1; None = nowhere; reserved.
    """

    preset: PresetName = "lan"
    heartbeat_period: float | None = None
    zone_conflict_after: float = 60.0
    default_timeout: float = 3.0
    grace: float = 1.5
    drain: float = 10.0
    retries: int = 1
    depth_limit: int = 16
    pool_threads: int = 32
    warmup: float = 60.0
    breaker_window: float = 30.0
    breaker_open: float = 5.0
    breaker_consecutive: int = 5
    breaker_min_calls: int = 20
    require_secret: bool = False
    access: Mapping[str, list[str]] = field(default_factory=dict)
    metrics_port: int | None = None

    def __post_init__(self) -> None:
        for name, low, high in _RANGES:
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
                raise ConfigError(f"{name}={value!r} must be a number from {low} to {high}")
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
        changes: dict[str, Any] = {"zone_conflict_after": self.zone_conflict_after}
        if self.heartbeat_period is not None:
            changes["heartbeat_period"] = self.heartbeat_period
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
        return RoutingConfig(warmup=self.warmup, breaker=breaker)


Discovery = Literal["local", "mdns", "seeds", "state"]

_RANGES: tuple[tuple[str, float, float], ...] = (
    ("default_timeout", 0.001, 1e6),
    ("grace", 0, 3600),
    ("drain", 0, 86_400),
    ("retries", 0, 2),
    ("depth_limit", 1, 255),
    ("pool_threads", 1, 1024),
    ("warmup", 0, 86_400),
    ("breaker_window", 1, 600),
    ("breaker_open", 0.01, 3600),
    ("breaker_consecutive", 1, 1e6),
    ("breaker_min_calls", 1, 1e6),
)
