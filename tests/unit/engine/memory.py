"""Whole engines joined by the network of `reachmesh.testing`: handlers and readers played by the seed, time that jumps.

A `reachmesh.testing.World` has whole nodes; here are engines alone, and what their verbs do one by one. Everything random comes from one generator, so a seed is a run. What the tests judge is written down as it happens: how each call
ended, what each handler ran, which items a reader got.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from random import Random
from typing import Any

from reachmesh.calls.admission import Rule
from reachmesh.calls.flags import REQUEST_ONEWAY, REQUEST_SENDS_STREAM, REQUEST_WANTS_STREAM
from reachmesh.calls.flows import Outflow
from reachmesh.calls.incoming import IncomingCall
from reachmesh.calls.outgoing import OutgoingCall
from reachmesh.calls.ports import Kind
from reachmesh.engine import Engine, Identity
from reachmesh.errors import Cancelled, NodeStopped, ReachError, RemoteError
from reachmesh.membership import Record, preset
from reachmesh.routing import RouteRequest, RoutingConfig
from reachmesh.testing import Faults
from reachmesh.testing.process import Process
from reachmesh.testing.schedule import Schedule
from reachmesh.testing.wires import Wire, Wires
from reachmesh.wire.limits import LIMITS
from reachmesh.wire.values import dump, dump_arguments, dump_body, load, load_arguments, load_body
from tests.unit.calls.fake_links import gathered

MSGPACK = 2


@dataclass(eq=False)
class Asked:
    """One call made by a test, and all that it was told."""

    token: int
    owner: SimulatedNode
    capability: str
    argument: Any
    deadline: float | None
    call: OutgoingCall | None = None
    ends: list[tuple[Kind, Any, float]] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)
    reads: bool = True

    def has_ended(self) -> bool:
        return bool(self.ends)

    @property
    def kind(self) -> Kind | None:
        return self.ends[0][0] if self.ends else None

    @property
    def value(self) -> Any:
        return self.ends[0][1]


class Serving:
    """A handler at work on one call."""

    def __init__(self, node: SimulatedNode, call: IncomingCall) -> None:
        self.node, self.call = node, call
        self.inputs: list[Any] = []
        self.input_ended = self.claimed = self.over = False
        self.left: list[Any] = []
        self.items = self.bytes = 0

    def begin(self, now: float) -> None:
        if self.over or self.call.closed or not self.call.claim():
            self.over = True
            return
        assert self.call.body is not None
        self.node.engine.callee.admission.begun.append(None)
        args, _ = load_arguments(self.call.payload_format, self.call.body.segments)
        self.token, self.argument = args
        self.claimed, self.call.started = True, now
        self.node.executed.append(self.token)
        self.go_on(now)

    def go_on(self, now: float) -> None:
        if self.over or not self.claimed:
            return
        callee, what = self.node.engine.callee, self.call.capability
        if what == "echo":
            self.end(lambda: callee.finish(self.call, MSGPACK, dump_body(MSGPACK, [self.token, self.argument]), now))
        elif what == "fail":
            self.end(lambda: callee.fail(self.call, RemoteError("no", executed="yes"), now))
        elif what == "count":
            if not self.left and not self.items:
                self.left = [[self.token, index, bytes(self.argument[1])] for index in range(self.argument[0])]
            while self.left and self.has_room():
                segments = dump(self.left.pop(0))
                self.items, self.bytes = self.items + 1, self.bytes + sum(map(len, segments))
                callee.put_items(self.call, gathered(segments), now)
            if not self.left:
                self.end(lambda: callee.finish(self.call, MSGPACK, [], now))
        elif what == "sum" and self.input_ended:
            self.end(lambda: callee.finish(self.call, MSGPACK, dump_body(MSGPACK, [self.token, self.inputs]), now))

    def has_room(self) -> bool:
        outflow = self.call.outflow
        return outflow is not None and self.items < outflow.granted_items and self.bytes < outflow.granted_bytes

    def end(self, verb: Callable[[], None]) -> None:
        self.over = True
        verb()


class SimulatedNode:
    """An engine with its place in the world."""

    def __init__(self, world: World, name: str, capabilities: dict[str, dict[str, Any]], address: str | None, **settings: Any) -> None:
        self.world, self.name = world, name
        self.boot = world.rng.randbytes(8)
        place = len(world.nodes) + 1
        self.address = address or f"10.0.0.{place}:7000"
        record = Record(
            boot=self.boot,
            instance_id=f"{name}-host-1-{self.boot.hex()[:8]}",
            name=name,
            host=f"host-{name}",
            endpoints=(f"tcp://{self.address}",),
            capabilities=capabilities,
        )
        identity = Identity(boot=self.boot, instance_id=record.instance_id, name=name, mesh=record.mesh, host=record.host)
        self.engine = Engine(
            identity,
            record,
            membership=preset("fast"),
            routing=RoutingConfig(warmup=0.0),
            rng=Random(world.rng.getrandbits(64)),
            rule_of={each: Rule(max_concurrent=options.get("max_concurrent")) for each, options in capabilities.items()}.get,
            now=world.now,
            **settings,
        )
        self.engine.links.book.own = frozenset((self.address,))
        self.process = Process(world.schedule)
        self.wire = Wire(world.network, self.process, place, self.address, None)
        self.wire.driver = self
        world.network.listen(self.wire)
        self.serving: list[Serving] = []
        self.executed: list[int] = []
        self.wake = float("inf")

    @property
    def alive(self) -> bool:
        return self.process.alive

    # ---------------------------------------------------------------- verbs of a test

    def ask(self, capability: str, argument: Any = None, *, deadline: float | None = None, **options: Any) -> Asked:
        """Make a call now."""
        world = self.world
        asked = Asked(len(world.asked), self, capability, argument, deadline, reads=options.pop("reads", True))
        world.asked.append(asked)
        flags = options.pop("flags", 0)
        if capability == "count":
            flags |= REQUEST_WANTS_STREAM
        elif capability == "sum":
            flags |= REQUEST_SENDS_STREAM
        parent = options.pop("parent", None)
        call = asked.call = OutgoingCall(
            asked,
            RouteRequest(capability=capability, target=options.pop("target", None)),
            body=dump_arguments((asked.token, argument), {}),
            payload_format=MSGPACK,
            flags=flags,
            extras=None,
            metas={},
            deadline=deadline,
            depth=0 if parent is None else parent.depth + 1,
            trace_id=world.rng.randbytes(16),
            span_id=world.rng.randbytes(8),
            retries=options.pop("retries", 1),
            parent=parent,
        )
        assert not options
        if capability == "sum":
            call.outflow = Outflow(LIMITS.chunk)
        self.do(self.engine.caller.start, call)
        if capability == "sum":
            for item in argument:
                self.do(self.engine.caller.put_items, call, gathered(dump(item)))
            self.do(self.engine.caller.end_input, call)
        return asked

    def cancel(self, asked: Asked) -> None:
        self.do(self.engine.caller.cancel, asked.call)

    def do(self, verb: Callable[..., None], *args: Any) -> None:
        """An input from the node's own threads."""
        if self.alive:
            verb(*args, now=self.world.now)
            self.turn()

    def find(self, other: SimulatedNode) -> None:
        """Discovery reports an address."""
        self.do(self.engine.handle_candidate, other.address, None)

    def stop(self) -> None:
        self.do(self.engine.leave, NodeStopped("stopped", executed="maybe"))
        self.world.at(0.05, lambda: self.world.kill(self))

    # ---------------------------------------------------------------- the turn

    def want_turn(self) -> None:
        """Something has arrived."""
        if self.alive:
            self.turn()

    def turn(self) -> None:
        """Read what has arrived, carry the engine's outputs until there are none."""
        engine, world, wire = self.engine, self.world, self.wire
        engine.note_turn(world.now, world.now)
        for message in wire.read((), world.now):
            engine.handle_message(*message, world.now)
        for what, key, reason in wire.take_changes():
            if what == "opened":
                engine.handle_opened(key, world.now)
            else:
                engine.handle_closed(key, reason, world.now)
        while True:
            if engine.next_timeout() <= world.now:
                engine.tick(world.now)
            engine.settle(world.now)
            for key, address in engine.links.take_dials():
                world.dials += 1
                wire.dial(key, address)
            for key, batch, parts in engine.links.take_sends():
                if key:
                    wire.send(key, batch, parts)
                else:
                    engine.handle_message(0, batch, parts, world.now)
            for key in engine.links.take_closes():
                wire.close_link(key)
            deliveries = engine.take_deliveries()
            for kind, target, value in deliveries:
                self.deliver(kind, target, value)
            if not deliveries and not engine.links.busy and engine.next_timeout() > world.now:
                break
        engine.note_drained(world.now)
        engine.take_notes()
        engine.take_ended()
        wake = engine.next_timeout()
        if wake < self.wake:
            self.wake = wake
            world.at(wake - world.now, self.woken)

    def woken(self) -> None:
        self.wake = float("inf")
        if self.alive:
            self.turn()

    def deliver(self, kind: Kind, target: Any, value: Any) -> None:
        world, now = self.world, self.world.now
        if kind in (Kind.ANSWER, Kind.FAILED, Kind.ACCEPTED):
            if kind is Kind.ANSWER:
                value = None if target.capability == "count" else load_body(value[0], value[1])
            target.ends.append((kind, value, now))
        elif kind is Kind.ITEMS:
            items = load(value.segments)
            target.items.extend(items)
            if target.reads:
                world.later(self, lambda: self.engine.caller.consumed(target.call, len(items), value.size, world.now))
        elif kind is Kind.REQUEST:
            serving = target.handle = Serving(self, target)
            self.serving.append(serving)
            world.later(self, lambda: serving.begin(world.now))
        elif isinstance(target, IncomingCall):
            serving = target.handle
            if serving is None:  # stopped while it waited for its turn: nobody here heard of it
                return
            if kind is Kind.STOPPED:
                if serving.claimed and not serving.over:
                    error = Cancelled("stopped", executed="yes")
                    world.later(self, lambda: self.engine.callee.fail(target, error, world.now))
                serving.over = True
            elif kind is Kind.INPUT:
                items = load(value.segments)
                serving.inputs.extend(items)
                world.later(self, lambda: self.engine.callee.consumed(target, len(items), value.size, world.now))
            elif kind is Kind.INPUT_END:
                serving.input_ended = True
                serving.go_on(now)
            elif kind is Kind.OUTPUT_ROOM:
                serving.go_on(now)

    def rest(self) -> dict[str, Any]:
        """What is left open; all zero when the node is at rest."""
        caller, callee = self.engine.caller, self.engine.callee
        return {
            "made": caller.open,
            "served": callee.open,
            "by link": len(caller._by_link),
            "dialing": sum(not call.closed for calls in caller._dialing.values() for call in calls),
            "parked": sum(not call.closed for call in caller._parked),
            "queued": callee.admission.queued,
            "permits": sum(each.holding for each in callee.admission._permits.values()),
            "handlers": sum(not serving.over for serving in self.serving),
        }


class World:
    """Nodes, connections between them, and the clock."""

    def __init__(self, seed: int = 0, *, delay: tuple[float, float] = (0.0001, 0.002), think: tuple[float, float] = (0.0, 0.005)) -> None:
        self.rng = Random(seed)
        self.schedule = Schedule()
        self.schedule.now = 100.0
        self.network = Wires(Random(seed), Faults(delay=delay[0], jitter=delay[1] - delay[0]))
        self.think = think
        self.nodes: list[SimulatedNode] = []
        self.asked: list[Asked] = []
        self.dials = 0

    @property
    def now(self) -> float:
        return self.schedule.now

    def node(
        self, name: str, *capabilities: str, options: dict[str, Any] | None = None, address: str | None = None, **settings: Any
    ) -> SimulatedNode:
        node = SimulatedNode(self, name, {each: options or {} for each in capabilities}, address, **settings)
        self.nodes.append(node)
        self.at(0.0, node.woken)
        return node

    def pair(self, *capabilities: str, **options: Any) -> tuple[SimulatedNode, SimulatedNode]:
        """Two nodes that know each other, the second serving."""
        one, other = self.node("one"), self.node("other", *capabilities, **options)
        one.find(other)
        self.run_until(lambda: all(one.engine.router.providers(each) for each in capabilities), 5.0)
        return one, other

    # ---------------------------------------------------------------- time

    def at(self, delay: float, action: Callable[[], Any]) -> None:
        self.schedule.at(self.now + delay, action)

    def later(self, node: SimulatedNode, action: Callable[[], Any]) -> None:
        """Something a node's handler or reader does after thinking."""

        def act() -> None:
            if node.alive:
                action()
                node.turn()

        self.at(self.rng.uniform(*self.think), act)

    def run(self, seconds: float) -> None:
        self.schedule.run(seconds)

    def run_until(self, condition: Callable[[], Any], limit: float) -> float:
        """Let time pass until `condition`; the seconds it took."""
        began = self.now
        while not condition():
            assert self.now - began < limit, f"still not so after {limit} virtual seconds"
            self.run(0.005)
        return self.now - began

    # ---------------------------------------------------------------- connections

    def connections(self) -> list[tuple[SimulatedNode, SimulatedNode]]:
        """Both ends of each."""
        ends = [(way.source.place, way.target.place) for node in self.nodes if node.alive for key, way in node.wire.ways.items() if key > 0]
        return [(self.nodes[one - 1], self.nodes[other - 1]) for one, other in ends]

    def drop(self, connection: tuple[SimulatedNode, SimulatedNode]) -> None:
        """The connections between two nodes break: what is under way is lost."""
        one, other = connection
        self.network.disconnect(one.wire, other.wire)

    def kill(self, node: SimulatedNode) -> None:
        node.process.end()
        self.network.kill(node.wire, silent=False)

    # ---------------------------------------------------------------- judgement

    def check(self) -> None:
        """The invariants of every call: ended once and in time, honest about execution, answered with its own answer, items in order."""
        executed = [token for node in self.nodes for token in node.executed]
        for asked in self.asked:
            assert len(asked.ends) == 1, (asked.capability, asked.ends)
            kind, value, at = asked.ends[0]
            if asked.deadline is not None:
                assert at <= asked.deadline + 0.001
            times = executed.count(asked.token)
            if kind is Kind.FAILED:
                assert isinstance(value, ReachError)
                if value.executed == "no":
                    assert times == 0, value
                if value.executed == "yes":
                    assert times > 0, value
            if asked.capability == "count":
                assert [(token, index) for token, index, _ in asked.items] == [(asked.token, n) for n in range(len(asked.items))]
                assert kind is not Kind.ANSWER or len(asked.items) == asked.argument[0]
            elif kind is Kind.ANSWER:
                assert value == [asked.token, asked.argument]
                assert times > 0

    def check_at_rest(self) -> None:
        """Nothing is left of calls that are over."""
        for node in self.nodes:
            if node.alive:
                assert not any(node.rest().values()), (node.name, node.rest())


ONEWAY = REQUEST_ONEWAY
