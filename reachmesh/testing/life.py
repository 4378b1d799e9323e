"""One life of a simulated node: a process in virtual time, with the engine, the calls and the handlers of a real one."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, cast

import msgspec

from reachmesh.engine import Identity, Note
from reachmesh.engine.providers import RESERVED
from reachmesh.errors import NodeStopped
from reachmesh.node.callbacks import Callbacks
from reachmesh.node.life import Life
from reachmesh.node.listeners import Listener
from reachmesh.node.peers import event_of
from reachmesh.observe.calls import CallLog

from .process import Process
from .running import SimulatedCallbacks, SimulatedDriver, SimulatedExecutor, SimulatedTurns
from .wires import Wire

if TYPE_CHECKING:
    from .node import SimulatedNode

LINGER = 0.01
"""Seconds that the last words of a stopping node have to leave."""

DRAIN_LOOK = 0.02
"""Seconds between two looks whether accepted calls are over."""


class SimulatedLife(Life):
    """A `Life` that begins and ends in a `World`.

    Attributes:
        process: what of it happens when.
        wire: its place on the network, while it runs.
    """

    _node: SimulatedNode

    def __init__(self, node: SimulatedNode, listeners: Sequence[Listener] = ()) -> None:
        world = node._world
        self.process = Process(world._schedule)
        super().__init__(node, listeners)
        self.rng = random.Random(world._rng.getrandbits(64))

    def _identify(self) -> Identity:
        node = self._node
        boot = node._world._rng.randbytes(8)
        instance_id = f"{node._settings.name}-{node.host}-{node.place}-{boot.hex()[:8]}"
        return msgspec.structs.replace(super()._identify(), boot=boot, instance_id=instance_id, host=node.host)

    def _make_callbacks(self, name: str) -> Callbacks:
        return SimulatedCallbacks(name, self.process)

    def start(self) -> None:
        """As of any life; the world looks around for it."""
        if self.phase == "stopped":
            raise NodeStopped("this node was stopped and cannot be started again", hint="world.restart(node)")
        if self.phase != "new":
            return
        node, process = self._node, self.process
        now, name = node._now(), self.identity.name
        engine = self._make_engine((node.address,), random.Random(self.rng.getrandbits(64)), now)
        wire = self.wire = Wire(node._world._wires, process, node.place, node.address, node._settings.secret)
        executor = self.executor = SimulatedExecutor(name, process)
        turns = SimulatedTurns(
            name,
            engine,
            cast("Any", wire),
            serve=node._make_job,
            submit=executor.submit,
            lag=executor.lag,
            notice=self._notice,
            log=CallLog(now, hidden=RESERVED),
            now=node._now,
            wall=node._wall,
        )
        driver = wire.driver = self._driver = SimulatedDriver(turns, process)
        node._world._wires.listen(wire)
        self.phase = "running"
        driver.start()

    def _notice(self, notes: list[Note]) -> None:
        self._node.seen += map(event_of, notes)
        self.listeners.notice(notes)

    def stop(self, seconds: float) -> None:
        """Begin the stop; it ends in virtual time."""
        self.left = self.left or not self.in_handler()
        self.stop_aside(seconds)

    def stop_aside(self, seconds: float, then: Callable[[], None] | None = None) -> None:
        """Begin the stop, and do `then` when it is over."""
        if self.phase == "new":
            self.phase = "stopped"
        if self.phase != "running":
            self._when_stopped(then)
            return
        node, process, driver, engine = self._node, self.process, self.driver, self.driver.engine
        self.phase = "draining"
        driver.post(engine.drain)
        deadline = node._now() + seconds

        def look() -> None:
            if engine.callee.open and node._now() < deadline:
                process.at(node._now() + DRAIN_LOOK, look)
                return
            driver.post(engine.leave, NodeStopped("the node was stopped", executed="maybe"))
            process.at(node._now() + LINGER, finish)

        def finish() -> None:
            self.wire.close()
            self._end()
            if then is not None:
                then()

        process.soon(look)

    def _when_stopped(self, then: Callable[[], None] | None) -> None:
        if then is not None and self.phase == "stopped":
            then()
        elif then is not None:
            self._node._world._schedule.at(self._node._now() + DRAIN_LOOK, lambda: self._when_stopped(then))

    def _end(self) -> None:
        """The process ends: its calls too, and nothing happens in it any more."""
        assert self.executor is not None
        self.executor.stop(0.0)
        self.process.end()
        self.driver.stop(0.0)
        self.phase = "stopped"
        self.stopped.set()
        self.listeners.close()
        self.callbacks.close()

    def die(self, *, silent: bool) -> None:
        """The process is killed."""
        self.process.end()
        self._node._world._wires.kill(self.wire, silent=silent)
        self.driver.engine.leave(NodeStopped("the node was killed", executed="maybe"), self._node._now())
        self._end()
