"""A network in memory under a virtual clock: links between nodes, with seeded faults.

It carries anything that looks like `Node`: a machine with inputs that take `now`, outputs taken as lists, and a next
instant. Time jumps to the nearest event, so an idle hour costs nothing. The same seed gives the same run, whatever the
hash seed of the process: order never comes from a set, and every event has a sequence number.

A link behaves as TCP does: frames arrive in order or the link breaks. A lost segment is a delay (it is sent again), unless
`drop` is asked for, which loses single frames of machines that must stand that. What a cut link or a frozen node does not
read waits in its buffers.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Iterable
from hashlib import blake2b
from random import Random
from typing import Protocol

from reachmesh.membership import DialOutcome

from .faults import Faults

Frame = tuple[int, bytes]
"""(kind, body)."""

FRAME_OVERHEAD = 12
"""Bytes the wire adds to a control frame's body: 8 of header, 4 of batch length."""


class Node(Protocol):
    """What the network needs of a participant. All times are virtual seconds."""

    boot: bytes

    def turn_begins(self, now: float) -> None:
        """A turn begins; inputs follow."""

    def link_up(self, boot: bytes, now: float) -> None:
        """A connection to `boot` is established."""

    def link_down(self, boot: bytes, now: float) -> None:
        """The connection broke."""
        ...

    def dialled(self, boot: bytes, outcome: DialOutcome, now: float) -> None:
        """A dial ended: "up", "refused", "silent", "other" or "mute"."""
        ...

    def frame(self, boot: bytes, kind: int, body: bytes, now: float) -> None:
        """A frame arrived."""
        ...

    def turn_ends(self, now: float) -> float:
        """All inputs of the turn are in; do what is due and answer the next instant."""
        ...

    def take_sends(self) -> list[tuple[bytes, int, bytes]]:
        """Frames to send."""
        ...

    def take_dials(self) -> list[bytes]:
        """Connections to make."""
        ...

    def take_probes(self) -> list[bytes]:
        """Connections to make beside the one there is, to see whether they are taken."""
        ...


class _Host:
    """A node's place in the network."""

    __slots__ = ("alive", "backlog", "frozen", "mute", "node", "received", "sent", "sent_frames", "turn_at", "wake")

    def __init__(self, node: Node) -> None:
        self.node = node
        self.alive = True
        self.frozen = False
        self.mute = False
        self.backlog: deque[Callable[[float], None]] = deque()
        self.wake = float("inf")
        self.turn_at = float("inf")
        self.sent = 0
        self.sent_frames = 0
        self.received = 0


class _Link:
    """One direction of a connection."""

    __slots__ = ("clear_at", "generation", "held", "held_since")

    def __init__(self, generation: int) -> None:
        self.generation = generation
        self.clear_at = 0.0
        self.held: deque[Frame] = deque()
        self.held_since = 0.0


class Network:
    """Hosts, links, faults and the clock.

    Args:
        seed: of everything random in the network.
        faults: on every path; may be replaced while it runs.
    """

    def __init__(self, seed: int = 0, faults: Faults | None = None) -> None:
        self.now = 0.0
        self.faults = faults or Faults()
        self.hosts: dict[bytes, _Host] = {}
        self.frames = 0
        self.dials = 0
        self._rng = Random(seed)
        self._queue: list[tuple[float, int, Callable[[float], None]]] = []
        self._sequence = 0
        self._links: dict[tuple[bytes, bytes], _Link] = {}
        self._generation = 0
        self._cut: dict[tuple[bytes, bytes], None] = {}
        self._taken: dict[bytes, None] = {}
        self._transcript = blake2b(digest_size=16)

    # ---------------------------------------------------------------- participants

    def add(self, node: Node) -> None:
        """A node starts."""
        self.hosts[node.boot] = _Host(node)
        self._schedule(self.now, lambda now: self._turn(node.boot, now))

    def connect(self, one: bytes, other: bytes) -> None:
        """`one` dials `other`, as discovery would have it."""
        self._dial(one, other, self.now)

    def establish(self, one: bytes, other: bytes) -> None:
        """A connection that is there already; for starting a large mesh in its middle."""
        self._link(one, other, self.now)

    def kill(self, boot: bytes, *, silent: bool = False) -> None:
        """The process dies. `silent`: with its whole host, so that nobody is told."""
        host = self.hosts[boot]
        host.alive = False
        host.backlog.clear()
        if silent:
            self._cut_host(boot)
            return
        for a, b in [pair for pair in self._links if pair[0] == boot]:
            self._break(a, b, self.now + self._latency())

    def take_port(self, boot: bytes) -> None:
        """Another process answers at the dead one's address from now on."""
        self._taken[boot] = None

    def close(self, boot: bytes) -> None:
        """The process ends after what it sent has left."""
        host = self.hosts[boot]
        self._collect(boot, self.now)
        self._schedule(self.now + 0.01, lambda _: self.kill(boot) if host.alive else None)

    def freeze(self, boot: bytes, seconds: float | None = None, *, mute: bool = False) -> None:
        """SIGSTOP, and SIGCONT after `seconds`. `mute`: its interpreter lock is held, but its sockets take connections."""
        self.hosts[boot].frozen = True
        self.hosts[boot].mute = mute
        if seconds is not None:
            self._schedule(self.now + seconds, lambda _: self.thaw(boot))

    def thaw(self, boot: bytes) -> None:
        """SIGCONT."""
        host = self.hosts[boot]
        if host.frozen:
            host.frozen = False
            self._schedule(self.now, lambda now: self._turn(boot, now))

    # ---------------------------------------------------------------- paths

    def cut(self, one: bytes, other: bytes, *, one_way: bool = False) -> None:
        """Nothing passes from `one` to `other`, nor back unless `one_way`."""
        self._cut[(one, other)] = None
        if not one_way:
            self._cut[(other, one)] = None

    def heal(self, one: bytes, other: bytes) -> None:
        """The path is back, both ways."""
        for pair in ((one, other), (other, one)):
            self._cut.pop(pair, None)
            self._release(pair)

    def stall(self, one: bytes, other: bytes, seconds: float) -> None:
        """The path is cut for a while."""
        self.cut(one, other)
        self._schedule(self.now + seconds, lambda _: self.heal(one, other))

    def partition(self, *groups: Iterable[bytes]) -> None:
        """Only members of one group reach each other."""
        sides = [list(group) for group in groups]
        for index, side in enumerate(sides):
            for other_side in sides[index + 1 :]:
                for one in side:
                    for other in other_side:
                        self.cut(one, other)

    def heal_all(self) -> None:
        """Every path is back."""
        for one, other in list(self._cut):
            self._cut.pop((one, other), None)
            self._release((one, other))

    def is_linked(self, one: bytes, other: bytes) -> bool:
        """Whether there is a connection."""
        return (one, other) in self._links

    # ---------------------------------------------------------------- the clock

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Do something at a virtual time."""
        self._schedule(max(time, self.now), lambda _: action())

    def poke(self, boot: bytes) -> None:
        """A node was given an input from outside: take its outputs and give it a turn."""
        self._want_turn(boot, self.now)

    def run_until(self, time: float) -> None:
        """Let virtual time pass up to `time`."""
        queue = self._queue
        while queue and queue[0][0] <= time:
            at, _, action = heapq.heappop(queue)
            self.now = at
            action(at)
        self.now = max(self.now, time)

    def run(self, seconds: float) -> None:
        """Let so much virtual time pass."""
        self.run_until(self.now + seconds)

    def transcript(self) -> str:
        """Hash over every delivery so far: equal for equal runs."""
        return self._transcript.hexdigest()

    # ---------------------------------------------------------------- inner workings

    def _schedule(self, at: float, action: Callable[[float], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._queue, (at, self._sequence, action))

    def _latency(self) -> float:
        return self.faults.latency(self._rng)

    def _input(self, boot: bytes, action: Callable[[float], None], now: float) -> None:
        """Give a node an input, or keep it for when it thaws."""
        host = self.hosts.get(boot)
        if host is None or not host.alive:
            return
        host.backlog.append(action)
        self._want_turn(boot, now)

    def _want_turn(self, boot: bytes, now: float) -> None:
        host = self.hosts[boot]
        if host.turn_at > now:
            host.turn_at = now
            self._schedule(now, lambda at: self._turn(boot, at))

    def _turn(self, boot: bytes, now: float) -> None:
        """One turn of a node: waiting inputs, then what is due, then its outputs."""
        host = self.hosts[boot]
        if host.turn_at <= now:
            host.turn_at = float("inf")
        if not host.alive or host.frozen:
            return
        node = host.node
        node.turn_begins(now)
        while host.backlog:
            host.backlog.popleft()(now)
        wake = node.turn_ends(now)
        self._collect(boot, now)
        if wake < host.wake or host.wake <= now:
            host.wake = wake
            if wake < float("inf"):
                self._schedule(max(wake, now + 1e-6), lambda at: self._woken(boot, at))

    def _woken(self, boot: bytes, now: float) -> None:
        if self.hosts[boot].wake <= now:
            self._turn(boot, now)

    def _collect(self, boot: bytes, now: float) -> None:
        """Take a node's outputs."""
        host = self.hosts[boot]
        for other, kind, body in host.node.take_sends():
            self._send(boot, other, kind, body, now)
        for other in host.node.take_dials():
            self._dial(boot, other, now)
        for other in host.node.take_probes():
            self._dial(boot, other, now, fresh=True)

    def _send(self, source: bytes, target: bytes, kind: int, body: bytes, now: float) -> None:
        link = self._links.get((source, target))
        if link is None:
            return
        host = self.hosts[source]
        host.sent += len(body) + FRAME_OVERHEAD
        host.sent_frames += 1
        self.frames += 1
        faults = self.faults
        if faults.drop and self._rng.random() < faults.drop:
            return
        times = 2 if faults.duplicate and self._rng.random() < faults.duplicate else 1
        for _ in range(times):
            if (source, target) in self._cut or not self._reachable(target):
                self._hold(source, target, link, (kind, body), now)
            else:
                self._pass(source, target, link, kind, body, now)

    def _hold(self, source: bytes, target: bytes, link: _Link, frame: Frame, now: float) -> None:
        """Keep a frame that cannot pass; after a while the connection breaks for it."""
        if not link.held:
            link.held_since = now
            generation = link.generation
            self._schedule(now + self.faults.break_after, lambda at: self._give_up(source, target, generation, at))
        link.held.append(frame)

    def _reachable(self, boot: bytes) -> bool:
        host = self.hosts.get(boot)
        return host is not None and host.alive

    def _pass(self, source: bytes, target: bytes, link: _Link, kind: int, body: bytes, now: float) -> None:
        """Put a frame on its way; behind the one before it."""
        arrives = now + self._latency()
        if detour := self.faults.detour(self._rng):
            arrives += detour
        else:
            arrives = link.clear_at = max(link.clear_at + 1e-9, arrives)
        generation = link.generation

        def arrive(at: float) -> None:
            current = self._links.get((source, target))
            if current is None or current.generation != generation:
                return
            self._transcript.update(source + target + bytes((kind,)) + body)
            self.hosts[target].received += len(body) + FRAME_OVERHEAD
            node = self.hosts[target].node
            self._input(target, lambda turn: node.frame(source, kind, body, turn), at)

        self._schedule(arrives, arrive)

    def _release(self, pair: tuple[bytes, bytes]) -> None:
        """A path works again: what was held travels on."""
        link = self._links.get(pair)
        if link is not None:
            held, link.held = link.held, deque()
            for kind, body in held:
                self._pass(*pair, link, kind, body, self.now)

    def _give_up(self, source: bytes, target: bytes, generation: int, now: float) -> None:
        """TCP gives a connection up whose data is not acknowledged."""
        link = self._links.get((source, target))
        if link is not None and link.generation == generation and link.held and now >= link.held_since + self.faults.break_after:
            self._break(source, target, now)

    def _dial(self, source: bytes, target: bytes, now: float, *, fresh: bool = False) -> None:
        self.dials += 1
        node = self.hosts[source].node
        if (source, target) in self._links and not fresh:
            self._input(source, lambda at: node.dialled(target, "up", at), now)
            return

        def arrive(at: float) -> None:
            host = self.hosts.get(target)
            if (source, target) in self._cut or (target, source) in self._cut or host is None:
                self._finish_dial(source, target, "silent", at + self.faults.dial_timeout)
            elif not host.alive:
                self._finish_dial(source, target, "other" if target in self._taken else "refused", at + self._latency())
            elif host.frozen:
                self._finish_dial(source, target, "mute" if host.mute else "silent", at + self.faults.dial_timeout)
            else:
                self._link(source, target, at)
                self._finish_dial(source, target, "up", at)

        self._schedule(now + 2 * self._latency(), arrive)

    def _finish_dial(self, source: bytes, target: bytes, outcome: DialOutcome, at: float) -> None:
        node = self.hosts[source].node
        self._schedule(at, lambda now: self._input(source, lambda turn: node.dialled(target, outcome, turn), now))

    def _link(self, one: bytes, other: bytes, now: float) -> None:
        """A connection is established on both sides, replacing none that is there."""
        if (one, other) in self._links:
            return
        self._generation += 1
        for a, b in ((one, other), (other, one)):
            self._links[(a, b)] = _Link(self._generation)
            node = self.hosts[a].node
            self._input(a, lambda at, node=node, peer=b: node.link_up(peer, at), now)  # type: ignore[misc]

    def _break(self, one: bytes, other: bytes, at: float) -> None:
        """A connection ends; both sides that live are told."""
        self._links.pop((one, other), None)
        self._links.pop((other, one), None)
        for a, b in ((one, other), (other, one)):
            node = self.hosts[a].node
            self._schedule(at, lambda now, a=a, b=b, node=node: self._input(a, lambda turn: node.link_down(b, turn), now))  # type: ignore[misc]

    def _cut_host(self, boot: bytes) -> None:
        for other in self.hosts:
            if other != boot:
                self.cut(boot, other)
