"""Changing settings of a running node: weights, limits, strategies, log level."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from reachmesh.errors import ConfigError, shown
from reachmesh.node.capability import CAPABILITY_RULES
from reachmesh.node.rules import check
from reachmesh.node.settings import OPTION_RULES

if TYPE_CHECKING:
    from reachmesh.node.node import ReachNode

CHANGEABLE = (
    "default_timeout",
    "drain",
    "hedging",
    "last_good_age",
    "permit_queue",
    "permit_wait",
    "predicate",
    "queue_watermark",
    "retries",
    "retry_share",
    "spill_outstanding",
    "strategy",
    "timeout_floor",
    "timeout_samples",
    "warmup",
)
"""Fields of `NodeConfig` that may change while the node runs."""


def reconfigure(node: ReachNode, changes: Mapping[str, Any]) -> None:
    """See `ReachNode.reconfigure`. All is checked before anything changes."""
    own = {"weight", "weights", "max_concurrent", "log_level"}
    if unknown := sorted(set(changes) - own - set(CHANGEABLE)):
        raise ConfigError(
            f"cannot be changed while the node runs: {', '.join(unknown)}", hint=f"what can: {', '.join(sorted(own | set(CHANGEABLE)))}"
        )
    config = replace(node.config, **{name: value for name, value in changes.items() if name not in own})
    level = _level(changes["log_level"]) if "log_level" in changes else None
    if "weight" in changes:
        check(OPTION_RULES, {"weight": changes["weight"]})
    weights, limits = _of_capabilities(node, changes.get("weights")), _of_capabilities(node, changes.get("max_concurrent"))
    for name, weight in weights.items():
        check(OPTION_RULES, {"weight": weight}, of=name)
    for name, limit in limits.items():
        check(CAPABILITY_RULES, {"max_concurrent": limit}, of=name)
    with node._life.lock:
        if level is not None:
            logging.getLogger("reachmesh").setLevel(level)
        if "weight" in changes:
            node._settings = msgspec.structs.replace(node._settings, weight=float(changes["weight"]))
        for name, weight in weights.items():
            node._served[name].options["weight"] = weight
        for name, limit in limits.items():
            node._served[name].limit(limit)
        node.config = config
        for name in changes:
            node._origins.changed(name)
        if {"weight", "weights", "max_concurrent"} & set(changes):
            node._life.publish()
        if node._life.phase in ("running", "draining"):
            node._driver.post(node._driver.engine.reconfigure, config.routing(), config.policies(node._life.rng))


def changed_by_name(node: ReachNode) -> dict[str, Any]:
    """What may change beside options and config: the log level, and what capabilities have declared."""
    served = node._served.items()
    return {
        "log_level": logging.getLevelName(logging.getLogger("reachmesh").level),
        "max_concurrent": {name: each.rule.max_concurrent for name, each in served if each.rule.max_concurrent is not None},
        "weights": {name: each.options["weight"] for name, each in served if "weight" in each.options},
    }


def _of_capabilities(node: ReachNode, given: Any) -> dict[str, Any]:
    if given is None:
        return {}
    if not isinstance(given, Mapping):
        raise ConfigError(f"give a mapping of capability names to values, not {shown(given)}")
    if unknown := sorted(str(name) for name in given if name not in node._served):
        raise ConfigError(f"this node does not serve {', '.join(unknown)}")
    return dict(given)


def _level(given: Any) -> int:
    level = logging.getLevelNamesMapping().get(given.upper()) if isinstance(given, str) else given
    if isinstance(level, bool) or not isinstance(level, int) or not 0 <= level <= 100:
        raise ConfigError(f"log_level must be a level's name or number, not {shown(given)}")
    return level
