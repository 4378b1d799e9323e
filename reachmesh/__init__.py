"""reachmesh: Python functions on every machine of a LAN, called by capability, with no server.

::

    from reachmesh import ReachNode

    def translate(text: str, to: str = "en") -> str: ...

    ReachNode("writer", caps={"translate": translate}).serve()

    with ReachNode("app") as node:                       # in another process, on this host or another
        node.wait_for("translate", timeout=5)
        print(node.reach("translate").call(text="hola"))

Names are loaded when they are first used: `import reachmesh` itself takes a millisecond.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reachmesh.errors import (
        AccessDenied,
        Backpressure,
        BadRequest,
        BlockingCallInLoop,
        BreakerOpen,
        Cancelled,
        ConfigError,
        DeadlineExceeded,
        LoopDetected,
        NodeStopped,
        NoProvider,
        Overloaded,
        PayloadError,
        PayloadTooLarge,
        PeerLost,
        ProtocolError,
        QuotaExceeded,
        ReachError,
        RemoteError,
        SemanticError,
        UsageError,
        VersionMismatch,
        WorkerCrashed,
    )
    from reachmesh.membership.states import State
    from reachmesh.node.answers import Answer
    from reachmesh.node.capability import Capability, capability
    from reachmesh.node.config import NodeConfig
    from reachmesh.node.context import Context
    from reachmesh.node.future import CallFuture
    from reachmesh.node.last_good import LAST_GOOD
    from reachmesh.node.node import ReachNode
    from reachmesh.node.peers import Event, PeerInfo
    from reachmesh.node.reach import Reach
    from reachmesh.node.stream import Channel, Stream
    from reachmesh.observe.calls import Stats

__version__ = "0.1.0"

_HOMES = {
    "reachmesh.errors": "AccessDenied Backpressure BadRequest BlockingCallInLoop BreakerOpen Cancelled ConfigError DeadlineExceeded LoopDetected NodeStopped NoProvider Overloaded PayloadError PayloadTooLarge PeerLost ProtocolError QuotaExceeded ReachError RemoteError SemanticError UsageError VersionMismatch WorkerCrashed",
    "reachmesh.membership.states": "State",
    "reachmesh.node.capability": "Capability capability",
    "reachmesh.node.config": "NodeConfig",
    "reachmesh.node.context": "Context",
    "reachmesh.node.future": "CallFuture",
    "reachmesh.node.last_good": "LAST_GOOD",
    "reachmesh.node.node": "ReachNode",
    "reachmesh.node.peers": "Event PeerInfo",
    "reachmesh.node.answers": "Answer",
    "reachmesh.node.reach": "Reach",
    "reachmesh.node.stream": "Channel Stream",
    "reachmesh.observe.calls": "Stats",
}
_HOME = {name: module for module, names in _HOMES.items() for name in names.split()}

__all__ = [
    "LAST_GOOD",
    "AccessDenied",
    "Answer",
    "Backpressure",
    "BadRequest",
    "BlockingCallInLoop",
    "BreakerOpen",
    "CallFuture",
    "Cancelled",
    "Capability",
    "Channel",
    "ConfigError",
    "Context",
    "DeadlineExceeded",
    "Event",
    "LoopDetected",
    "NoProvider",
    "NodeConfig",
    "NodeStopped",
    "Overloaded",
    "PayloadError",
    "PayloadTooLarge",
    "PeerInfo",
    "PeerLost",
    "ProtocolError",
    "QuotaExceeded",
    "Reach",
    "ReachError",
    "ReachNode",
    "RemoteError",
    "SemanticError",
    "State",
    "Stats",
    "Stream",
    "UsageError",
    "VersionMismatch",
    "WorkerCrashed",
    "capability",
]


def __getattr__(name: str) -> Any:
    """Load a public name from the module it lives in, once (PEP 562)."""
    home = _HOME.get(name)
    if home is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(home), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
