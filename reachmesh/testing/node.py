"""A node of a world: `ReachNode` with its face, its engine and its turns, on a network in memory and under virtual time."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, cast

from reachmesh.errors import BlockingCallInLoop, UsageError
from reachmesh.node.answers import Answer, Answers
from reachmesh.node.capability import Capability
from reachmesh.node.feeder import Feeder
from reachmesh.node.inputs import _END, Input
from reachmesh.node.life import Life
from reachmesh.node.node import ReachNode, _wait_limit
from reachmesh.node.peers import Event
from reachmesh.node.reach import Reach
from reachmesh.node.served import ServedCall
from reachmesh.node.stream import StreamHandle

from .life import SimulatedLife
from .process import Process
from .running import SimulatedDriver
from .schedule import Schedule

if TYPE_CHECKING:
    from .world import World


class SimulatedInput(Input):
    """A received stream; who waits for its items lets the world go on."""

    schedule: Schedule

    def take(self, timeout: float | None = None) -> Any:
        """As of any input."""
        while True:
            item = self._take_ready()
            if item is not _END:
                return item
            if self._at_end():
                self._raise_end()
            if not self.schedule.wait(lambda: bool(self._batches) or self._ended, timeout):
                raise TimeoutError


class SimulatedFeeder(Feeder):
    """A sent stream; a plain iterable is drained as credit comes."""

    _source: Iterator[Any] | None = None

    def send(self, item: Any) -> None:
        """As of any feeder."""
        encoded = self._outlet.encode(item)
        if not self.over and not self._outlet.has_credit():
            if asyncio._get_running_loop() is not None:
                raise BlockingCallInLoop("waiting for credit would block this thread's event loop", hint="await asend() instead")
            process_of(self._driver).schedule.wait(lambda: self.over or self._outlet.has_credit())
        self._put(encoded)

    def feed(self, source: Any) -> None:
        """Send a whole iterable."""
        if hasattr(source, "__aiter__") and (not hasattr(source, "__iter__") or asyncio._get_running_loop() is not None):
            super().feed(source)
            return
        self._source = iter(source)
        process_of(self._driver).soon(self._pump_on)

    def has_room(self) -> None:
        """Credit came."""
        super().has_room()
        if self._source is not None:
            process_of(self._driver).soon(self._pump_on)

    def _pump_on(self) -> None:
        source = self._source
        if source is None:
            return
        try:
            while not self.over and self._outlet.has_credit():
                try:
                    item = next(source)
                except StopIteration:
                    self._source = None
                    self.end()
                    return
                self._put(self._outlet.encode(item))
        except BaseException as error:
            self._source = None
            if not self.over:
                self._failed(error)
        if self.over:
            self._source = None
            close = getattr(source, "close", None)
            if close is not None:
                close()


class SimulatedHandle(StreamHandle):
    """What the engine knows of a stream."""

    def __init__(self, driver: Any) -> None:
        super().__init__(driver)
        self.input = SimulatedInput(self._consumed)
        self.input.schedule = process_of(driver).schedule


class SimulatedCall(ServedCall):
    """A served call."""

    __slots__ = ()

    def __init__(self, call: Any, served: Any, driver: Any, executor: Any) -> None:
        super().__init__(call, served, driver, executor)
        if isinstance(self._input, SimulatedInput):
            self._input.schedule = process_of(driver).schedule

    _input_type: ClassVar[type[Input]] = SimulatedInput


class SimulatedAnswers(Answers):
    """The answers of `all()`; who waits for the next lets the world go on."""

    def __init__(self, answers: Answers, schedule: Schedule) -> None:
        self._answers, self._schedule = answers, schedule

    def __next__(self) -> Answer:
        answers = self._answers
        if answers._left > 0 and asyncio._get_running_loop() is None:
            self._schedule.wait(lambda: not answers._arrived.empty())
        return next(answers)

    async def __anext__(self) -> Answer:
        return await anext(self._answers)


class SimulatedReach(Reach):
    """A capability as a caller holds it."""

    __slots__ = ()

    _feeder_type = SimulatedFeeder
    _handle_type = SimulatedHandle

    def all(self, /, *args: Any, **kwargs: Any) -> Answers:
        """As of any reach."""
        return SimulatedAnswers(super().all(*args, **kwargs), process_of(self._node._driver).schedule)


def process_of(driver: Any) -> Process:
    """The process whose engine a driver turns."""
    return cast("SimulatedDriver", driver).process


class SimulatedNode(ReachNode):
    """A `ReachNode` in a `World`: made by `World.node`, started already. What waits lets virtual time pass.

    Calls that it has open when it is killed or stopped end with `NodeStopped`.

    Attributes:
        host: the host it is on.
        address: where it listens, through all its lives.
        seen: all events that it told of, of all its lives.
        clock_offset: seconds by which its wall clock is wrong.
    """

    _environ: ClassVar[Mapping[str, str] | None] = {}
    _made_by: ClassVar[int] = 3
    _reach_type: ClassVar[type[Reach]] = SimulatedReach
    _job_type: ClassVar[type[ServedCall]] = SimulatedCall
    _life_type: ClassVar[type[Life]] = SimulatedLife

    def __init__(self, world: World, place: int, name: str, caps: Any, *, host: str | None, **options: Any) -> None:
        self._world, self.place = world, place
        self._now, self._wall = world._schedule.time, self._show_wall
        self.host = f"host{place}" if host is None else host
        self.address = f"10.0.{place >> 8}.{place & 255}:7400"
        self.seen: list[Event] = []
        self.clock_offset = 0.0
        self._past: list[Any] = []
        super().__init__(name, caps, **options)

    def _show_wall(self) -> float:
        return self._world.wall + self.clock_offset

    # ---------------------------------------------------------------- life

    @property
    def is_frozen(self) -> bool:
        """Whether it is stopped by `World.freeze`."""
        return self._process.frozen

    @property
    def _simulated(self) -> SimulatedLife:
        return cast("SimulatedLife", self._life)

    @property
    def _process(self) -> Process:
        return self._simulated.process

    def _add(self, declared: Capability, localns: Mapping[str, Any]) -> None:
        super()._add(replace(declared, domain=None) if declared.domain == "process" else declared, localns)

    def stop(self, drain: float | None = None) -> None:
        """Leave the mesh; see `ReachNode.stop`."""
        super().stop(drain)
        life = self._life
        if not life.in_handler() and asyncio._get_running_loop() is None:
            self._world._schedule.wait(lambda: life.phase in ("new", "stopped"))

    def _restart(self) -> None:
        self._past.append(self._life.executor)  # or its handlers, let go of, would run their `finally`: nothing runs in a killed process
        self._renew(self._life.listeners.functions)
        self.start()

    # ---------------------------------------------------------------- what waits or forks in a real node

    def serve(self, processes: int | None = None) -> None:
        """Not here: a simulated node serves as long as the world runs.

        Raises:
            UsageError: always.
        """
        raise UsageError("a simulated node serves whenever its world runs", hint="world.run(seconds)")

    async def serve_async(self) -> None:
        """As `serve`."""
        self.serve()

    def wait_for(self, cap: str, count: int = 1, timeout: float | None = None) -> None:
        """Let the world go on until `count` instances offer a capability; see `ReachNode.wait_for`."""
        self._check_may_block("wait_for()", "wait_for_async()")
        timeout = _wait_limit(cap, count, timeout)
        if not self._world._schedule.wait(lambda: self._has(cap, count), timeout):
            raise self._too_few(cap, count, timeout)
