"""A node of a world: `ReachNode` with its face, its engine and its turns, on a network in memory and under virtual time."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Self, cast

from reachmesh.engine import Engine, Note
from reachmesh.engine.providers import RESERVED
from reachmesh.errors import BlockingCallInLoop, NodeStopped, UsageError
from reachmesh.node.answers import Answer, Answers
from reachmesh.node.capability import Capability
from reachmesh.node.feeder import Feeder
from reachmesh.node.inputs import _END, Input
from reachmesh.node.listeners import Listener, Listeners
from reachmesh.node.node import ReachNode, _wait_limit
from reachmesh.node.peers import Event, event_of
from reachmesh.node.reach import Reach
from reachmesh.node.served import ServedCall
from reachmesh.node.stream import StreamHandle
from reachmesh.observe.calls import CallLog

from .process import Process
from .running import SimulatedCallbacks, SimulatedDriver, SimulatedExecutor, SimulatedTurns
from .schedule import Schedule
from .wires import Wire

if TYPE_CHECKING:
    from .world import World

LINGER = 0.01
"""Seconds that the last words of a stopping node have to leave."""

DRAIN_LOOK = 0.02
"""Seconds between two looks whether accepted calls are over."""


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

    def __init__(self, world: World, place: int, name: str, caps: Any, *, host: str | None, **options: Any) -> None:
        self._world, self.place = world, place
        self._now, self._wall = world._schedule.time, self._show_wall
        self.host = f"host{place}" if host is None else host
        self.address = f"10.0.{place >> 8}.{place & 255}:7400"
        self.seen: list[Event] = []
        self.clock_offset = 0.0
        self._past: list[Any] = []
        super().__init__(name, caps, **options)

    def _renew(self, listeners: Sequence[Listener] = ()) -> None:
        super()._renew(listeners)
        rng = self._world._rng
        boot = rng.randbytes(8)
        self._identity = replace(
            self._identity, boot=boot, instance_id=f"{self.name}-{self.host}-{self.place}-{boot.hex()[:8]}", host=self.host
        )
        self._started_at = self._wall()
        self._record = self._make_record(())
        self._rng = random.Random(rng.getrandbits(64))
        self._process = Process(self._world._schedule)
        self._callbacks = SimulatedCallbacks(self.name, self._process)
        self._listeners = Listeners(self._callbacks, listeners)
        self._left = False

    def _show_wall(self) -> float:
        return self._world.wall + self.clock_offset

    # ---------------------------------------------------------------- life

    @property
    def is_frozen(self) -> bool:
        """Whether it is stopped by `World.freeze`."""
        return self._process.frozen

    def start(self) -> Self:
        """It is started when it is made; `World.restart` starts it again."""
        if self._phase == "stopped":
            raise NodeStopped("this node was stopped and cannot be started again", hint="world.restart(node)")
        if self._phase == "new":
            self._begin()
        return self

    def _begin(self) -> None:
        now, process = self._now(), self._process
        engine = self._make_engine((self.address,), random.Random(self._rng.getrandbits(64)), now)
        wire = self._wire = Wire(self._world._wires, process, self.place, self.address, self._settings.secret)
        executor = self._executor = SimulatedExecutor(self.name, process)
        turns = SimulatedTurns(
            self.name,
            engine,
            cast("Any", wire),
            serve=self._make_job,
            submit=executor.submit,
            lag=executor.lag,
            notice=self._notice,
            log=CallLog(now, hidden=RESERVED),
            now=self._now,
            wall=self._wall,
        )
        driver = wire.driver = self._driver_or_none = SimulatedDriver(turns, process)
        self._world._wires.listen(wire)
        self._phase = "running"
        driver.start()

    def _add(self, declared: Capability, localns: Mapping[str, Any]) -> None:
        super()._add(replace(declared, domain=None) if declared.domain == "process" else declared, localns)

    def _notice(self, notes: list[Note]) -> None:
        self.seen += map(event_of, notes)
        self._listeners.notice(notes)

    def stop(self, drain: float | None = None) -> None:
        """Leave the mesh; see `ReachNode.stop`."""
        seconds = self._drain_seconds(drain)
        in_handler = self._in_handler()
        if in_handler or asyncio._get_running_loop() is not None:
            self._left = self._left or not in_handler
            self._stop_aside(seconds)
            return
        self._stop_aside(seconds)
        self._world._schedule.wait(lambda: self._phase in ("new", "stopped"))

    def _stop_aside(self, seconds: float, then: Callable[[], None] | None = None) -> None:
        process = self._process
        if self._phase == "new":
            self._phase = "stopped"
        if self._phase != "running":
            self._when_stopped(then)
            return
        driver, engine = self._driver, self._driver.engine
        self._phase = "draining"
        driver.post(engine.drain)
        deadline = self._now() + seconds

        def look() -> None:
            if engine.callee.open and self._now() < deadline:
                process.at(self._now() + DRAIN_LOOK, look)
                return
            driver.post(engine.leave, NodeStopped("the node was stopped", executed="maybe"))
            process.at(self._now() + LINGER, finish)

        def finish() -> None:
            self._wire.close()
            self._end()
            if then is not None:
                then()

        process.soon(look)

    def _when_stopped(self, then: Callable[[], None] | None) -> None:
        if then is not None and self._phase == "stopped":
            then()
        elif then is not None:
            self._world._schedule.at(self._now() + DRAIN_LOOK, lambda: self._when_stopped(then))

    def _end(self) -> None:
        """The process ends: its calls too, and nothing happens in it any more."""
        assert self._executor is not None
        self._executor.stop(0.0)
        self._process.end()
        self._driver.stop(0.0)
        self._phase = "stopped"
        self._stopped.set()
        self._listeners.close()
        self._callbacks.close()

    def _die(self, *, silent: bool) -> None:
        """The process is killed."""
        self._process.end()
        self._world._wires.kill(self._wire, silent=silent)
        engine: Engine = self._driver.engine
        engine.leave(NodeStopped("the node was killed", executed="maybe"), self._now())
        self._end()

    def _restart(self) -> None:
        self._past.append(self._executor)  # or its handlers, let go of, would run their `finally`: nothing runs in a killed process
        self._renew(self._listeners.functions)
        self._begin()

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
