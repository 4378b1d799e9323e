"""One life of a node, from its making to its stop: who it is in it, what turns and runs, and in which order all that begins and ends.

A node has one life; with `serve(processes=)` every process gives it one of its own.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import random
import sys
import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from reachmesh.discovery import Announcement, Candidate
from reachmesh.engine import Engine, Identity, Note
from reachmesh.engine.links import PROTOCOL
from reachmesh.engine.providers import RESERVED
from reachmesh.errors import ConfigError, NodeStopped, ReachError, UsageError
from reachmesh.execution.executor import Executor
from reachmesh.membership.record import Record
from reachmesh.membership.states import State
from reachmesh.node.callbacks import Callbacks
from reachmesh.node.driver import Driver, foreign
from reachmesh.node.listeners import Listener, Listeners
from reachmesh.node.listening import Listening, listen, tell_open
from reachmesh.node.peers import PeerInfo, peer_of
from reachmesh.node.processes import process_domain
from reachmesh.node.served import CURRENT
from reachmesh.node.surroundings import Surroundings
from reachmesh.node.turns import Turns
from reachmesh.node.unbroken import unbroken
from reachmesh.observe.calls import CallLog
from reachmesh.transport.interfaces import host_name
from reachmesh.transport.keys import derive
from reachmesh.transport.sockets import Transport

if TYPE_CHECKING:
    from reachmesh.node.node import ReachNode

LINGER = 0.3
"""Seconds that the last words of a stopping node have to leave its sockets."""

SETTLE = 0.3
"""Seconds that the threads which run user code have to end once their calls are over. Longer holds up a stop for whoever blocks there,
shorter leaves threads behind that would have ended."""

GRACE = 10.0
"""Seconds beyond the drain that a second `stop` waits for the first."""


class Life:
    """What a node has between its making and its stop.

    Phases: "new", "running" from the start on, "draining", "stopped". A start that fails goes back to "new".

    Args:
        node: whose life it is.
        listeners: functions for events, of the node's life before this one.

    Attributes:
        identity: who the node is in this life.
        record: what it declares to the mesh now.
        left: whether its user has left it, on an event loop, while a thread still stops it.
        stopped: set when everything has ended.
        kill: set to end a drain at once.
        lock: held to change the phase, or what is declared.
    """

    def __init__(self, node: ReachNode, listeners: Sequence[Listener] = ()) -> None:
        self._node = node
        self._pid = os.getpid()
        self.rng = random.Random(os.urandom(16))
        self.lock = threading.RLock()
        self.phase = "new"
        self.left = False
        self.stopped = threading.Event()
        self.kill = threading.Event()
        self.identity = self._identify()
        self.started_at, self.since = node._wall(), node._now()
        self.record = self.make_record(())
        self.callbacks = self._make_callbacks(node._settings.name)
        self.listeners = Listeners(self.callbacks, listeners)
        self.engine: Engine | None = None
        self.executor: Executor | None = None
        self.surroundings: Surroundings | None = None
        self._driver: Driver | None = None

    def _identify(self) -> Identity:
        settings, host = self._node._settings, host_name()
        return Identity(
            boot=os.urandom(8),
            instance_id=f"{settings.name}-{host}-{self._pid}-{os.urandom(4).hex()}",
            name=settings.name,
            mesh=settings.mesh,
            host=host,
            zone=settings.zone,
            observer=self._node._observer,
        )

    def _make_callbacks(self, name: str) -> Callbacks:
        return Callbacks(name)

    # ---------------------------------------------------------------- whether it can be used

    @property
    def driver(self) -> Driver:
        """Who turns the engine; there is one from the start on."""
        assert self._driver is not None
        return self._driver

    @property
    def state(self) -> State:
        """The node's own state."""
        if self.phase == "new":
            return State.STARTING
        return State.LEFT if self.engine is None or self.phase == "stopped" else self.engine.membership.state

    @property
    def is_elsewhere(self) -> bool:
        """Whether this is a forked child, in which the parent's node cannot live."""
        return os.getpid() != self._pid

    def why_not(self) -> ReachError | None:
        """Why the node cannot be used now, or None."""
        if os.getpid() != self._pid:
            return foreign()
        phase = self.phase
        if (phase == "running" or phase == "draining") and not (self.left and CURRENT.get() is None):
            return None
        if phase == "new":
            return NodeStopped("the node has not been started", hint="use `with node:` or node.start()")
        return NodeStopped("the node was stopped")

    # ---------------------------------------------------------------- what it declares

    def publish(self) -> None:
        """Tell the mesh what the node offers now."""
        self.record = self.make_record([each.removeprefix("tcp://") for each in self.record.endpoints])
        if self.phase == "running":
            self._guard_inline()
            self.driver.post(self.driver.engine.set_record, self.record)

    def make_record(self, addresses: Sequence[str]) -> Record:
        """What the node declares, listening at these addresses.

        Raises:
            ConfigError: it is too much for one record.
        """
        node, identity = self._node, self.identity
        settings = node._settings
        record = Record(
            boot=identity.boot,
            instance_id=identity.instance_id,
            name=identity.name,
            mesh=identity.mesh,
            version=settings.version,
            host=identity.host,
            zone=settings.zone,
            endpoints=tuple(f"tcp://{address}" for address in addresses),
            capabilities={name: served.at(settings.version) for name, served in node._served.items()},
            tags=settings.tags,
            weight=settings.weight,
            started=self.started_at,
        )
        try:
            record.encode()
        except ValueError as error:
            raise ConfigError(str(error)) from None
        return record

    # ---------------------------------------------------------------- its beginning

    def start(self) -> None:
        """Listen, announce, begin to find others; see `ReachNode.start`."""
        if self.is_elsewhere:
            raise foreign()
        if sys.is_finalizing():
            raise UsageError("the interpreter is ending: no thread can start any more, and so no node")
        with self.lock:
            if self.phase in ("running", "draining"):
                return
            if self.phase == "stopped":
                raise NodeStopped("this node was stopped and cannot be started again", hint="make a new one")
            # Forks: before any thread, and in this one.
            processes = process_domain(self.identity.name, self._node._served.values())
        try:
            unbroken(partial(self._start_whole, processes), interrupted=self.kill.set)
        except KeyboardInterrupt:
            unbroken(partial(self._stop, 0.0), interrupted=self.kill.set)
            raise

    def _start_whole(self, processes: Any) -> None:
        settings = self._node._settings
        with self.lock:
            if self.phase != "new":  # another thread was first
                if processes is not None:
                    processes.close()
                    processes.join(0.0)
                return
            transport = Transport(None if settings.secret is None else derive(settings.secret, settings.mesh))
            try:
                listening = self._start(transport, processes)
            except BaseException:
                if self._driver is not None:
                    self._driver.stop(0.0)
                else:
                    transport.close(0)
                if processes is not None:
                    processes.close()
                    processes.join(0.0)
                self.engine = self._driver = self.executor = None
                raise
            self.phase = "running"
            if not self.identity.observer:
                tell_open(settings, listening)
            atexit.register(self._at_exit)
        self._look_around(listening)

    def _start(self, transport: Transport, processes: Any) -> Listening:
        node, name = self._node, self.identity.name
        listening = listen(transport, node._settings)
        self._bind_also = transport.bind_also
        now = node._now()
        engine = self._make_engine(listening.addresses, random.Random(os.urandom(16)), now)
        executor = self.executor = Executor(name=name, pool_threads=node.config.pool_threads, processes=processes)
        turns = Turns(
            name,
            engine,
            transport,
            serve=node._make_job,
            submit=executor.submit,
            lag=executor.lag,
            notice=self._tell,
            log=CallLog(now, hidden=RESERVED),
        )
        self._driver = Driver(turns)
        self._driver.start()
        self._guard_inline()
        return listening

    def _make_engine(self, addresses: Sequence[str], rng: random.Random, now: float) -> Engine:
        """The engine of a node that listens at these addresses."""
        node = self._node
        self.record = self.make_record(addresses)
        engine = self.engine = Engine(
            self.identity,
            self.record,
            membership=node.config.membership(),
            routing=node.config.routing(),
            rng=rng,
            rule_of=node._rule_of,
            now=now,
            depth_limit=node.config.depth_limit,
            grace=node.config.grace,
            **node.config.policies(self.rng),
        )
        engine.links.book.own = frozenset(addresses)
        return engine

    def _tell(self, notes: Sequence[Note]) -> None:
        self.listeners.notice(notes)
        if self.surroundings is not None and any(note.kind == "peer_joined" for note in notes):
            self.surroundings.notice()

    def _guard_inline(self) -> None:
        if any(each.domain == "inline" for each in self._node._served.values()):
            self.driver.guard_inline()

    # ---------------------------------------------------------------- what goes on around it

    def _look_around(self, listening: Listening) -> None:
        """Begin to look for others, unless another thread has stopped the node meanwhile."""
        node, identity = self._node, self.identity
        announcement = Announcement(
            mesh=identity.mesh,
            instance_id=identity.instance_id,
            boot=identity.boot,
            name=identity.name,
            protocol=PROTOCOL,
            incarnation=1,
            **listening._asdict(),
        )
        surroundings = Surroundings(
            node._settings,
            announcement,
            is_silent=identity.observer,
            period=node.config.membership().heartbeat_period,
            found=self._found,
            moved=self._moved,
            seen=self._seen,
        )
        with self.lock:
            if self.phase != "running":
                return
            self.surroundings = surroundings
        surroundings.start()

    def _found(self, candidate: Candidate) -> None:
        self.driver.post(self.driver.engine.handle_candidate, candidate.address, candidate.boot)

    def _moved(self, addresses: tuple[str, ...]) -> bool:
        hosts = [each.rpartition(":")[0].strip("[]") for each in addresses]
        if not self.driver.ask(lambda now: self._bind_also(hosts)):
            return False
        with self.lock:
            if self.phase != "running":
                return False
            self.record = self.make_record(addresses)
            self.driver.post(self.driver.engine.set_record, self.record)
            return True

    def _seen(self) -> list[tuple[str, str]]:
        """Who is here, each with the address that is nearest to this node."""
        if self.phase not in ("running", "draining"):
            return []
        engine = self.driver.engine
        return self.driver.ask(
            lambda now: [
                (member.record.instance_id, address)
                for boot, member in engine.membership.members.items()
                if member.announced and not member.state.gone
                for address in engine.links.book.of(boot)[:1]
            ]
        )

    def peers(self) -> list[PeerInfo]:
        """Everybody known and present, oneself left out, by instance id."""
        engine = self.driver.engine
        found = self.driver.ask(
            lambda now: [peer_of(member) for member in engine.membership.members.values() if member.announced and not member.state.gone]
        )
        return sorted(found, key=lambda peer: peer.instance_id)

    # ---------------------------------------------------------------- its end

    def stop(self, seconds: float) -> None:
        """Drain for at most so many seconds, leave, end; see `ReachNode.stop`."""
        in_handler = self.in_handler()
        if in_handler or (self.phase in ("running", "draining") and asyncio._get_running_loop() is not None):
            self.left = self.left or not in_handler
            self.stop_aside(seconds)
            return
        unbroken(partial(self._stop, seconds), interrupted=self.kill.set)

    def in_handler(self) -> bool:
        """Whether this is the code of a handler that this node runs."""
        current = CURRENT.get()
        return current is not None and self._driver is not None and current._driver is self._driver

    def stop_aside(self, seconds: float, then: Callable[[], None] | None = None) -> None:
        """Stop in a thread, for which the interpreter waits before it ends."""

        def run() -> None:
            try:
                self._stop(seconds)
            finally:
                if then is not None:
                    then()

        threading.Thread(target=run, name=f"reachmesh-{self.identity.name}-stop", daemon=False).start()

    def _stop(self, seconds: float, settle: float = SETTLE) -> None:
        with self.lock:
            if self.phase == "new":
                self.phase = "stopped"
                self.stopped.set()
                return
            first = self.phase == "running"
            if first:
                self.phase = "draining"
        if not first:
            self.stopped.wait(seconds + GRACE)
            return
        atexit.unregister(self._at_exit)
        try:
            self._leave(seconds, settle)
        finally:
            self.driver.stop(LINGER, settle)
            self.phase = "stopped"
            self.stopped.set()
            self.listeners.close()
            self.callbacks.close()
            if self.surroundings is not None:
                self.surroundings.join()

    def _leave(self, seconds: float, settle: float) -> None:
        """Let accepted calls finish, then say goodbye."""
        driver, executor, engine, surroundings = self.driver, self.executor, self.driver.engine, self.surroundings
        assert executor is not None
        if surroundings is not None:
            surroundings.remember()
        driver.flush()  # what was asked before the stop is under way before it
        driver.post(engine.drain)
        deadline = time.monotonic() + seconds
        while driver.ask(lambda now: engine.callee.open) and not self.kill.is_set() and time.monotonic() < deadline:
            self.kill.wait(0.02)
        if self.surroundings is not None:
            self.surroundings.stop()
        driver.post(engine.leave, NodeStopped("the node was stopped", executed="maybe"))
        driver.ask(lambda now: None)
        executor.stop(settle)

    def _at_exit(self) -> None:
        """The interpreter ends and nobody stopped the node: a short goodbye."""
        if not self.is_elsewhere:
            self._stop(0.0, settle=0.0)
