"""A world: nodes, the network between them, and the time in which they live.

::

    world = World(seed=7)
    a = world.node("a", caps={"double": lambda x: 2 * x})
    b = world.node("b")
    assert b.reach("double").call(x=4) == 8       # runs the world until the call ends
    world.after(0.5, world.kill, a)
    world.run(10)                                 # virtual seconds

A world has one thread, no socket and no clock but its own. The same seed and the same code give the same run, in any process.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from random import Random
from typing import Any, TypeVar

from reachmesh.errors import UsageError

from .faults import Faults
from .node import SimulatedNode
from .process import VirtualLoop
from .schedule import Schedule
from .wires import Wires

T = TypeVar("T")

LOOK_EVERY = 5.0
"""Seconds between two looks of a node at who announces itself on the LAN, as of real ones."""

BEGAN = 1_750_000_000.0
"""What wall clocks showed when time began."""


class World:
    """Nodes of one LAN under virtual time.

    Args:
        seed: of everything random.
        faults: of every path; see `Faults`.

    Attributes:
        nodes: every node ever made, in order.
        faults: may be replaced while it runs.
    """

    def __init__(self, seed: int = 0, *, faults: Faults | None = None) -> None:
        self._rng = Random(seed)
        self._schedule = Schedule()
        self._wires = Wires(Random(self._rng.getrandbits(64)), faults or Faults())
        self._loop = VirtualLoop(self._schedule.time, self._schedule.at)
        self.nodes: list[SimulatedNode] = []

    # ---------------------------------------------------------------- nodes

    def node(
        self, name: str, caps: Mapping[str, Any] | Sequence[Any] | None = None, *, host: str | None = None, **options: Any
    ) -> SimulatedNode:
        """Start a node.

        Args:
            name, caps, options: as for `ReachNode`. `discovery` is ("mdns",) unless given: nodes of one world find each other; with () they
                do not, and `seeds` may name their `address`.
            host: the host it is on; one of its own unless given.

        Raises:
            ConfigError: an option is wrong.
        """
        options.setdefault("discovery", ("mdns",))
        node = SimulatedNode(self, len(self.nodes) + 1, name, caps, host=host, **options)
        self.nodes.append(node)
        node.start()
        self._look_around(node)
        return node

    def kill(self, node: SimulatedNode, *, silent: bool = False) -> None:
        """The process dies, in the middle of whatever it does. `silent`: with its whole host, so that nobody is told."""
        if node._life.phase in ("running", "draining"):
            node._simulated.die(silent=silent)

    def restart(self, node: SimulatedNode) -> None:
        """A new process of the same name with the same capabilities, at the same address; one that still runs is killed before."""
        self.kill(node)
        node._restart()
        self._look_around(node)

    def freeze(self, node: SimulatedNode, seconds: float | None = None) -> None:
        """SIGSTOP, and SIGCONT after `seconds`: nothing happens in its process meanwhile, and what others send it waits."""
        process = node._process
        process.freeze()
        if seconds is not None:
            self._schedule.at(self.now + seconds, process.thaw)

    def thaw(self, node: SimulatedNode) -> None:
        """SIGCONT."""
        node._process.thaw()

    def jump(self, node: SimulatedNode, seconds: float) -> None:
        """Set a node's wall clock forward, or back. No clock but that one can jump: a host asleep is `freeze`."""
        node.clock_offset += seconds

    # ---------------------------------------------------------------- paths

    @property
    def faults(self) -> Faults:
        """What goes wrong on every path that is not degraded."""
        return self._wires.faults

    @faults.setter
    def faults(self, faults: Faults) -> None:
        self._wires.faults = faults

    def degrade(self, one: SimulatedNode, other: SimulatedNode, faults: Faults | None, *, one_way: bool = False) -> None:
        """Give the path between two nodes faults of its own (None = the world's), only from `one` to `other` if `one_way`."""
        for pair in _pairs(one, other, one_way):
            if faults is None:
                self._wires.degraded.pop(pair, None)
            else:
                self._wires.degraded[pair] = faults

    def cut(self, one: SimulatedNode, other: SimulatedNode, *, one_way: bool = False) -> None:
        """Nothing passes from `one` to `other`, nor back unless `one_way`."""
        for pair in _pairs(one, other, one_way):
            self._wires.cuts[pair] = None

    def disconnect(self, one: SimulatedNode, other: SimulatedNode) -> None:
        """Connections between two nodes break, and what is under way on them is lost. New ones can be made at once."""
        self._wires.disconnect(one._simulated.wire, other._simulated.wire)

    def partition(self, *groups: Iterable[SimulatedNode]) -> None:
        """Cut every path between nodes of different groups."""
        sides = [list(group) for group in groups]
        for index, side in enumerate(sides):
            for others in sides[index + 1 :]:
                for one in side:
                    for other in others:
                        self.cut(one, other)

    def heal(self, one: SimulatedNode | None = None, other: SimulatedNode | None = None) -> None:
        """The path between two nodes is back; without arguments every path is. What waited in buffers arrives.

        Raises:
            UsageError: one node given.
        """
        if one is None and other is None:
            self._wires.cuts.clear()
        elif one is None or other is None:
            raise UsageError("give both ends of a path, or none for all paths")
        else:
            for pair in _pairs(one, other, False):
                self._wires.cuts.pop(pair, None)
        self._wires.release()

    # ---------------------------------------------------------------- time

    @property
    def now(self) -> float:
        """Virtual seconds since the start: what nodes take for the monotonic clock, deadlines and events included."""
        return self._schedule.now

    @property
    def wall(self) -> float:
        """What a right wall clock shows."""
        return BEGAN + self._schedule.now

    def run(self, seconds: float) -> None:
        """Let virtual time pass.

        Raises:
            UsageError: inside a coroutine; `await asyncio.sleep(seconds)` there.
        """
        self._schedule.run(seconds)

    def run_until(self, condition: Callable[[], object], limit: float = 60.0) -> float:
        """Let time pass until `condition()` holds, which is looked at whenever something has happened; the seconds it took.

        Raises:
            AssertionError: it did not hold within `limit` virtual seconds.
        """
        began = self.now
        assert self._schedule.wait(lambda: bool(condition()), limit), f"still not true after {limit:g} virtual seconds"
        return self.now - began

    def run_async(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine to its end on a loop of the world, where `asyncio.sleep` takes virtual time; its result."""
        task = self._loop.create_task(coroutine)
        try:
            self._schedule.wait(task.done)
        finally:
            if not task.done():
                task.cancel()
                self._schedule.wait(task.done, 1.0)
        return task.result()

    def after(self, seconds: float, action: Callable[..., object], *args: Any) -> None:
        """Have `action(*args)` called in so many virtual seconds, whoever waits for what then."""
        self._schedule.at(self.now + seconds, lambda: action(*args))

    def transcript(self) -> str:
        """Hash over every delivered message so far: equal for equal runs."""
        return self._wires.transcript()

    # ---------------------------------------------------------------- inside

    def _look_around(self, node: SimulatedNode) -> None:
        """A node announces itself and looks for others, now and every few seconds for as long as its process lives."""
        process, driver, settings = node._process, node._driver, node._settings

        def tell(address: str, boot: bytes | None) -> None:
            driver.post(driver.engine.handle_candidate, address, boot)

        def look() -> None:
            for seed in settings.seeds:
                tell(seed, None)
            if settings.discovery:
                for other in self._announced(node):
                    tell(other.address, other._life.identity.boot)
            process.at(self.now + LOOK_EVERY, look)

        process.soon(look)
        if settings.discovery and not node._observer:
            for other in self._announced(node, to=True):
                boot, driver_of = node._life.identity.boot, other._driver
                other._process.soon(lambda d=driver_of, b=boot: d.post(d.engine.handle_candidate, node.address, b))  # type: ignore[misc]  # defaults bind the loop

    def _announced(self, node: SimulatedNode, *, to: bool = False) -> list[SimulatedNode]:
        """Nodes that `node` hears announce themselves (`to`: that hear it)."""
        return [
            other
            for other in self.nodes
            if other is not node
            and other._life.phase == "running"
            and other.mesh == node.mesh
            and other._settings.discovery
            and (to or not other._observer)
            and (to or not other.is_frozen)
            and self._wires.passes(node.place, other.place)
        ]


def _pairs(one: SimulatedNode, other: SimulatedNode, one_way: bool) -> list[tuple[int, int]]:
    there, back = (one.place, other.place), (other.place, one.place)
    return [there] if one_way else [there, back]
