"""The observer: a node that nobody lists, that looks for a moment and asks every node about itself at the same time.

A node that does not answer costs a short deadline once, beside all others: `ASK` for the answer, `LOOK_QUIET` for its handshake.
"""

from __future__ import annotations

import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

from reachmesh.errors import AccessDenied, NoProvider, ReachError
from reachmesh.inspect.answers import read
from reachmesh.node.about import STATUS
from reachmesh.node.future import CallFuture
from reachmesh.node.node import ReachNode
from reachmesh.node.peers import PeerInfo

LOOK = 1.0
"""Seconds to look for nodes, at most; a mesh where all is found sooner is shown sooner. Shorter may miss slow mDNS answers."""

LOOK_SETTLED = 0.15
"""Seconds without news after which everybody has been found, when nobody is being greeted any more."""

LOOK_QUIET = 0.4
"""The same while somebody does not answer the greeting."""

ASK = 0.6
"""Seconds a node has to tell about itself."""

_STEP = 0.01


@dataclass(frozen=True, kw_only=True)
class Where:
    """Which mesh to look at; None = as the REACHMESH_* environment says."""

    mesh: str | None = None
    secret: str | None = None
    seeds: str | None = None
    interfaces: str | None = None
    look: float = LOOK


class Session:
    """One look at a mesh, as a context.

    Raises:
        ConfigError: an option is wrong.
    """

    def __init__(self, where: Where) -> None:
        os.environ.pop("REACHMESH_BIND", None)  # that port is meant for the node that serves here
        self.look_for = where.look
        self.refusals: list[str] = []
        self.node = ReachNode(
            "inspect",
            mesh=where.mesh,
            secret=where.secret,
            seeds=where.seeds or (),
            interfaces=where.interfaces,
            config={"grace": where.look, "pool_threads": 1},
            observer=True,
        )

    def __enter__(self) -> Self:
        self.node.on("link_refused", lambda event: self.refusals.append(event.reason))
        self.node.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if kind is None or issubclass(kind, Exception):  # after Ctrl-C the process just ends
            self.node.stop(drain=0)

    @property
    def about(self) -> str:
        """The mesh and how it is guarded, in one line."""
        return f"mesh {self.node.mesh!r} is {self.node.security}"

    # ---------------------------------------------------------------- looking

    def look(self) -> list[PeerInfo]:
        """Wait until nothing new is found, `look_for` seconds at most; who is there, by name and instance id.

        Raises:
            AccessDenied: nobody let us in and somebody turned us away.
        """
        began = changed = time.monotonic()
        seen: Any = None
        while True:
            peers, greeting = self.peers(), self.greeting()
            now = time.monotonic()
            picture = [(peer.instance_id, peer.state) for peer in peers], greeting
            if picture != seen:
                seen, changed = picture, now
            if now - began >= self.look_for or (peers and now - changed >= (LOOK_QUIET if greeting else LOOK_SETTLED)):
                if not peers and self.refusals:
                    raise AccessDenied(f"refused: {self.refusals[0]}", hint="give the mesh's secret: --secret or REACHMESH_SECRET")
                return peers
            time.sleep(_STEP)

    def peers(self) -> list[PeerInfo]:
        """Who is known now, by name and instance id."""
        return sorted(self.node.peers(), key=lambda peer: (peer.name, peer.instance_id))

    def greeting(self) -> list[str]:
        """Addresses where somebody should be and nobody has answered yet."""
        driver = self.node._driver
        return driver.ask(lambda now: driver.engine.links.greeting())

    def named(self, name: str) -> list[PeerInfo]:
        """The instances of a node, by its name or by an instance id. Waits for it to be found.

        Raises:
            NoProvider: there is none.
        """
        peers = self.look()
        found = [peer for peer in peers if name in (peer.name, peer.instance_id)]
        if not found:
            here = ", ".join(sorted({peer.name for peer in peers})[:20]) or "nobody"
            raise NoProvider(f"no node {name!r} is here; there is: {here}", code="no_node")
        return found

    # ---------------------------------------------------------------- asking

    def ask(self, capability: str, peers: Sequence[PeerInfo], timeout: float = ASK, **arguments: Any) -> dict[str, Any]:
        """Ask nodes the same at the same time; answers by instance id, a `ReachError` in place of one that did not come."""
        futures: dict[str, CallFuture] = {}
        for peer in peers:
            reach = self.node.reach(capability, target=peer.instance_id, timeout=timeout, retries=0, priority=0)
            futures[peer.instance_id] = reach.submit(**arguments)
        return {instance_id: _outcome(capability, future) for instance_id, future in futures.items()}

    def rows(self, peers: Sequence[PeerInfo]) -> list[dict[str, Any]]:
        """One row a node for `peers` and `watch`; None where the node did not answer."""
        answers = self.ask(STATUS, peers, calls=0)
        return [_row(peer, answers[peer.instance_id]) for peer in peers]


def _outcome(capability: str, future: CallFuture) -> Any:
    try:
        return read(capability, future.result())
    except ReachError as error:
        return error


def state_of(peer: PeerInfo, answer: Any = None) -> str:
    """A node's state: in its own words when it answered, else in those of the others."""
    if isinstance(answer, Mapping) and isinstance(answer.get("status"), str):
        return str(answer["status"])
    return "SUSPECTED" if peer.suspected else peer.state.name


def _row(peer: PeerInfo, answer: Any) -> dict[str, Any]:
    told: Mapping[str, Any] = answer if isinstance(answer, Mapping) else {}
    return {
        "node": peer.name,
        "instance_id": peer.instance_id,
        "status": state_of(peer, answer),
        "qps": told.get("qps"),
        "p95": told.get("p95"),
        "fail_rate": told.get("fail_rate"),
        "queue": told.get("queue"),
    }
