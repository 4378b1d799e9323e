"""From what membership knows of an instance to what routing picks from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from reachmesh.membership.record import Record
from reachmesh.routing import Provider


def _text(value: Any, default: str | None) -> str | None:
    return value if isinstance(value, str) else default


def _number(value: Any) -> float | None:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) and value >= 0 else None


def providers_of(record: Record, *, state: str, suspected: bool, since: float, backpressure: int, full: str = "") -> list[Provider]:
    """One provider per capability of a record. Options are another node's words: what has the wrong type counts as absent."""
    made = []
    for name, options in record.capabilities.items():
        if isinstance(options, Mapping) and not name.startswith(RESERVED):
            made.append(_provider(record, name, options, state, suspected, since, backpressure, full == name))
    return made


RESERVED = "reachmesh."
"""Prefix of capabilities that every node has for tools; they are asked by target and never listed."""


def hidden_provider(record: Record, capability: str, state: str) -> Provider:
    """A node as the provider of a reserved capability; it is in no record and no index."""
    return Provider(boot=record.boot, instance_id=record.instance_id, name=record.name, capability=capability, idempotent=True, state=state)


def _provider(
    record: Record, name: str, options: Mapping[str, Any], state: str, suspected: bool, since: float, backpressure: int, full: bool
) -> Provider:
    limit = _number(options.get("max_concurrent"))
    weight = _number(options.get("weight"))
    return Provider(
        boot=record.boot,
        instance_id=record.instance_id,
        name=record.name,
        capability=name,
        node_version=record.version,
        version=_text(options.get("version"), None) or record.version,
        compatible_from=_text(options.get("compatible_from"), None),
        tags=record.tags,
        zone=record.zone,
        host=record.host,
        weight=record.weight if weight is None else weight,
        max_concurrent=None if limit is None else int(limit),
        idempotent=options.get("idempotent") is True,
        pure=options.get("pure") is True,
        timeout=_number(options.get("timeout")),
        state=state,
        suspected=suspected,
        since=since,
        backpressure=backpressure,
        full=full,
        options=options,
    )
