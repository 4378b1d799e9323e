"""The network of a world: connections between processes, with seeded faults, in place of TCP and ZeroMQ.

A connection behaves as TCP does: what is sent arrives in order, or the connection breaks. A lost segment is a delay; what a cut path or
a stopped process does not take waits in buffers, and a connection whose data nobody acknowledges is given up after a while. On request
(`Faults.drop`, `duplicate`, `reorder`) single messages vanish, come twice or are overtaken, which TCP never does: engines have to end
every call all the same.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from hashlib import blake2b
from random import Random
from typing import Any

from .faults import Faults
from .process import Process

Message = tuple[bytes, tuple[bytes, ...]]
"""A batch of frames and its out-of-band parts."""


@dataclass(eq=False)
class _Way:
    """One direction of a connection."""

    source: Wire
    source_key: int
    target: Wire
    target_key: int
    clear_at: float = 0.0
    held: deque[Message | None] = field(default_factory=deque)
    held_since: float = 0.0
    broken: bool = False


class Wire:
    """What a process has in place of sockets; the part of `Transport` that turns need.

    Args:
        place: number of the node in its world, the same for all its processes.
    """

    def __init__(self, network: Wires, process: Process, place: int, address: str, secret: str | None) -> None:
        self._network, self.process = network, process
        self.place, self.address, self.secret = place, address, secret
        self.ways: dict[int, _Way] = {}
        self.dialing: dict[int, None] = {}
        self.routes = 0
        self.is_down = False
        self.driver: Any = None
        self._messages: list[tuple[int, bytes, tuple[bytes, ...]]] = []
        self._changes: list[tuple[str, int, str]] = []

    # ---------------------------------------------------------------- what turns ask for

    @property
    def pending(self) -> bool:
        """Whether something has arrived."""
        return bool(self._messages or self._changes)

    def wait(self, timeout: float) -> tuple[()]:
        """Nothing to wait for: what has arrived is `pending`."""
        return ()

    def read(self, ready: Any, now: float) -> list[tuple[int, bytes, tuple[bytes, ...]]]:
        """What has arrived."""
        taken, self._messages = self._messages, []
        return taken

    def take_changes(self) -> list[tuple[str, int, str]]:
        """Connections that opened and closed."""
        taken, self._changes = self._changes, []
        return taken

    def next_timeout(self) -> float:
        """Never: arrivals ask for their turn."""
        return float("inf")

    def wake(self) -> None:
        """Nobody sleeps."""

    def dial(self, key: int, address: str) -> None:
        """Make a connection."""
        self.dialing[key] = None
        self._network.dial(self, key, address)

    def send(self, key: int, batch: bytes, parts: Sequence[Any]) -> None:
        """Send one message."""
        way = self.ways.get(key)
        if way is not None:
            self._network.carry(way, (bytes(batch), tuple(bytes(part) for part in parts)))

    def close_link(self, key: int, linger_ms: int = 0) -> None:
        """End a connection; what was sent arrives before its end."""
        self.dialing.pop(key, None)
        way = self.ways.pop(key, None)
        if way is not None:
            self._network.carry(way, None)

    def close(self, linger_ms: int = 0) -> None:
        """End all of them and listen no longer."""
        for key in list(self.ways):
            self.close_link(key)
        self._network.forget(self)

    # ---------------------------------------------------------------- what the network brings

    def arrived(self, key: int, message: Message) -> None:
        """A message came."""
        self._messages.append((key, *message))
        self.driver.want_turn()

    def changed(self, what: str, key: int, reason: str) -> None:
        """A connection opened or closed."""
        self._changes.append((what, key, reason))
        self.driver.want_turn()


class Wires:
    """All connections, the state of the paths, and what goes wrong on them.

    Attributes:
        faults: on every path without faults of its own; may be replaced at any time.
        degraded: faults of single paths, by the places of sender and receiver.
        cuts: paths on which nothing passes.
        messages: delivered so far.
    """

    def __init__(self, rng: Random, faults: Faults) -> None:
        self.faults = faults
        self.degraded: dict[tuple[int, int], Faults] = {}
        self.cuts: dict[tuple[int, int], None] = {}
        self.messages = 0
        self._rng = rng
        self._listening: dict[str, Wire] = {}
        self._ways: dict[_Way, None] = {}
        self._transcript = blake2b(digest_size=16)

    def transcript(self) -> str:
        """Hash over every delivery so far."""
        return self._transcript.hexdigest()

    def listen(self, wire: Wire) -> None:
        """A process listens at its address. A predecessor's connections there end: its host knows nothing of them."""
        before = self._listening.get(wire.address)
        self._listening[wire.address] = wire
        if before is not None:
            self._cut_off(before)

    def forget(self, wire: Wire) -> None:
        """A process listens no longer."""
        if self._listening.get(wire.address) is wire:
            del self._listening[wire.address]

    def kill(self, wire: Wire, *, silent: bool) -> None:
        """A process is gone. `silent`: with its host, so that nobody is told."""
        wire.is_down = silent
        if not silent:
            self.forget(wire)
            self._cut_off(wire)

    def disconnect(self, one: Wire, other: Wire) -> None:
        """Connections between two processes break."""
        for way in list(one.ways.values()):
            if way.target is other:
                self._break(way)

    def passes(self, one: int, other: int) -> bool:
        """Whether the path is whole in both directions."""
        return (one, other) not in self.cuts and (other, one) not in self.cuts

    def release(self) -> None:
        """Paths have changed: what was held travels on where it can."""
        for way in list(self._ways):
            if way.held and self._is_open(way):
                held, way.held = way.held, deque()
                for message in held:
                    self._pass(way, message)

    def dial(self, wire: Wire, key: int, address: str) -> None:
        """Connect; into silence nothing comes back, and the engine gives up by itself."""
        target = self._listening.get(address)
        place = -1 if target is None else target.place
        schedule = wire.process.schedule

        def arrive() -> None:
            there = self._listening.get(address)
            if there is None:
                schedule.at(schedule.now, lambda: self._closed(wire, key, "refused"))
            elif self.passes(wire.place, there.place) and not there.is_down:
                there.process.soon(lambda: self._accept(wire, key, there))

        schedule.at(schedule.now + self._latency(wire.place, place) + self._latency(place, wire.place), arrive)

    def carry(self, way: _Way, message: Message | None) -> None:
        """Send a message, or None for the end of the connection."""
        faults = self._faults_of(way.source.place, way.target.place)
        if message is not None and faults.drop and self._rng.random() < faults.drop:
            return
        times = 2 if message is not None and faults.duplicate and self._rng.random() < faults.duplicate else 1
        for _ in range(times):
            if self._is_open(way):
                self._pass(way, message)
            else:
                self._hold(way, message, faults.break_after)

    # ---------------------------------------------------------------- inner workings

    def _faults_of(self, source: int, target: int) -> Faults:
        return self.degraded.get((source, target), self.faults)

    def _latency(self, source: int, target: int) -> float:
        return self._faults_of(source, target).latency(self._rng)

    def _is_open(self, way: _Way) -> bool:
        return (way.source.place, way.target.place) not in self.cuts and not way.target.is_down and not way.source.is_down

    def _accept(self, wire: Wire, key: int, target: Wire) -> None:
        """The other side has taken the connection."""
        if not wire.process.alive or key not in wire.dialing:
            return
        if wire.secret != target.secret:
            target.changed("stranger", 0, "insecure")
            self._closed(wire, key, "insecure")
            return
        del wire.dialing[key]
        target.routes += 1
        back = -target.routes
        wire.ways[key] = there = _Way(wire, key, target, back)
        target.ways[back] = here = _Way(target, back, wire, key)
        self._ways[there] = self._ways[here] = None
        wire.changed("opened", key, "")

    def _pass(self, way: _Way, message: Message | None) -> None:
        """Put a message on its way, behind the one before it."""
        schedule = way.source.process.schedule
        faults = self._faults_of(way.source.place, way.target.place)
        at = schedule.now + faults.latency(self._rng)
        if message is not None and (detour := faults.detour(self._rng)):
            at += detour
        else:
            at = way.clear_at = max(way.clear_at, at)
        schedule.at(at, lambda: self._arrive(way, message))

    def _arrive(self, way: _Way, message: Message | None) -> None:
        target, key = way.target, way.target_key
        if message is None:
            self._ways.pop(way, None)
            self._closed(target, key, "disconnected")
        elif not way.broken and target.process.alive and key in target.ways:
            self.messages += 1
            self._transcript.update(b"%d %d %d " % (way.source.place, target.place, key))
            self._transcript.update(b"".join((message[0], *message[1])))
            target.arrived(key, message)

    def _closed(self, wire: Wire, key: int, reason: str) -> None:
        way = wire.ways.pop(key, None)
        if way is not None:
            self._ways.pop(way, None)
        if (way is not None or key in wire.dialing) and wire.process.alive:
            wire.dialing.pop(key, None)
            wire.changed("closed", key, reason)

    def _hold(self, way: _Way, message: Message | None, patience: float) -> None:
        """Keep what cannot pass; after a while the connection breaks for it."""
        schedule = way.source.process.schedule
        if not way.held:
            since = way.held_since = schedule.now
            schedule.at(since + patience, lambda: self._break(way) if way.held and way.held_since == since else None)
        way.held.append(message)

    def _break(self, way: _Way) -> None:
        """A connection ends for both sides; what is under way is lost."""
        schedule, source, target = way.source.process.schedule, way.source, way.target
        for each in (way, target.ways.get(way.target_key)):
            if each is not None:
                each.broken = True
                each.held.clear()
                self._ways.pop(each, None)
        at = schedule.now + self._latency(source.place, target.place)
        schedule.at(at, lambda: self._closed(target, way.target_key, "disconnected"))
        schedule.at(at, lambda: self._closed(source, way.source_key, "disconnected"))

    def _cut_off(self, wire: Wire) -> None:
        """The host of a dead process answers for it; through a cut path that is not heard, and the connection breaks later."""
        for way in list(wire.ways.values()):
            if (wire.place, way.target.place) not in self.cuts:
                self._break(way)
