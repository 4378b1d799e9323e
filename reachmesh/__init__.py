"""reachmesh: Python functions on every machine of a LAN, called by capability, with no server.

::

    from reachmesh import ReachNode

    def translate(text: str, to: str = "en") -> str: ...

    ReachNode("writer", caps={"translate": translate}).serve()

    with ReachNode("app") as node:                       # in another process, on this host or another
        node.wait_for("translate", timeout=5)
        print(node.reach("translate").call(text="hola"))
"""

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
from reachmesh.node.capability import Capability, capability
from reachmesh.node.config import NodeConfig
from reachmesh.node.context import Context
from reachmesh.node.future import CallFuture
from reachmesh.node.node import ReachNode
from reachmesh.node.peers import Event, PeerInfo
from reachmesh.node.reach import Answer, Reach
from reachmesh.node.stream import Channel, Stream

__version__ = "0.1.0"

__all__ = [
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
    "Stream",
    "UsageError",
    "VersionMismatch",
    "WorkerCrashed",
]
