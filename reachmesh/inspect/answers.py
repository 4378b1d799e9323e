"""The shapes of what nodes tell about themselves. Other nodes' words: what has another shape counts as no answer, for that node only."""

from __future__ import annotations

from typing import Any, NotRequired, TypedDict

import msgspec

from reachmesh.errors import ProtocolError
from reachmesh.node.about import SETTINGS, STATUS, TRACE


class CallAnswer(TypedDict):
    """One execution; see `reachmesh.observe.calls.Execution`."""

    capability: str
    status: str
    duration_ms: float
    waited_ms: float | None
    trace_id: str
    span_id: str
    depth: int
    caller: str
    retry: bool
    subtasks_ms: NotRequired[dict[str, float]]
    at: float


class HopAnswer(CallAnswer):
    """One execution of a trace, and where it ran."""

    node: str
    instance_id: str


class StatsAnswer(TypedDict):
    """A capability's last five minutes."""

    count: int
    failures: int
    p50_ms: float
    p90_ms: float
    p99_ms: float


class LinkAnswer(TypedDict):
    """One peer that a node is linked to."""

    node: str
    instance_id: str
    rtt: float | None


class StatusAnswer(TypedDict):
    """A node about itself."""

    node: str
    instance_id: str
    status: str
    started: float
    now: float
    queue: int
    running: int
    qps: float
    p95: float | None
    fail_rate: float
    calls: list[CallAnswer]
    capabilities: dict[str, StatsAnswer]
    links: list[LinkAnswer]
    faults: int


class SettingAnswer(TypedDict):
    """One setting of a node."""

    name: str
    value: bool | int | float | str | None
    origin: str


_SHAPES: dict[str, Any] = {STATUS: StatusAnswer, TRACE: list[HopAnswer], SETTINGS: list[SettingAnswer]}


def read(capability: str, answer: Any) -> Any:
    """The answer of a reserved capability, or a `ProtocolError` in its place."""
    try:
        return msgspec.convert(answer, _SHAPES[capability])
    except msgspec.ValidationError as error:
        return ProtocolError(f"the answer to {capability} has another shape: {error}", executed="yes")
