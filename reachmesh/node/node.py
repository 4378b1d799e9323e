"""`ReachNode`: one participant of a mesh, the object everything starts from. It wires the rooms together and owns their lives."""

from __future__ import annotations

import asyncio
import signal
import sys
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import fields
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self, TypeVar

from reachmesh.calls.admission import Rule
from reachmesh.calls.incoming import IncomingCall
from reachmesh.engine.providers import RESERVED
from reachmesh.errors import BlockingCallInLoop, ConfigError, NoProvider, ReachError, UsageError, shown
from reachmesh.membership.states import State
from reachmesh.node.about import reserved_capabilities
from reachmesh.node.capability import Capability, Served, capability, read_caps
from reachmesh.node.config import NodeConfig
from reachmesh.node.driver import Driver
from reachmesh.node.future import CallFuture
from reachmesh.node.last_good import LastGood
from reachmesh.node.life import Life
from reachmesh.node.listeners import Listener
from reachmesh.node.middleware import Middleware, as_middleware
from reachmesh.node.options import FOR_EVER, UNSET, Options
from reachmesh.node.origins import OPTIONS, Origins, Setting
from reachmesh.node.peers import KINDS, Event, PeerInfo, own_peer
from reachmesh.node.processes import process_domain
from reachmesh.node.reach import Reach
from reachmesh.node.reconfigure import changed_by_name, reconfigure
from reachmesh.node.rules import FLAG, PLAIN_FUNCTION, Rules, check, is_text, number, one_of, refusal, whole
from reachmesh.node.rules import name as name_rule
from reachmesh.node.served import ServedCall
from reachmesh.node.serving import serve_here, serve_on_loop
from reachmesh.node.settings import Settings, resolve
from reachmesh.node.tasks import TASK, TaskInfo, boot_of, deliver_reply, read_task
from reachmesh.node.wakers import call_soon
from reachmesh.observe.calls import Stats
from reachmesh.routing import RouteRequest, Verdict

F = TypeVar("F", bound=Callable[..., Any])
M = TypeVar("M")

MOST_PROCESSES = 1024
"""Instances that one `serve(processes=)` runs at most."""

SHOWN_NAMES = 8
"""Names that an error lists at most."""

EXPLAINED = ("version", "tags", "target", "session", "priority", "metadata")
"""Options of a call that decide who is a candidate."""


class Explanation:
    """What `explain` says: `candidates`, one verdict per provider."""

    __slots__ = ("candidates",)

    def __init__(self, candidates: Sequence[Verdict]) -> None:
        self.candidates = tuple(candidates)

    def __repr__(self) -> str:
        return f"Explanation({list(self.candidates)!r})"


class ReachNode:
    """A node: offers capabilities, finds others, calls theirs.

    Use it with `with` or `async with`, or `start()` and `stop()`, or `serve()` for a process that only serves. All methods may be
    called from any thread; those that wait have a twin for event loops.

    Args:
        name: logical name; several instances may share it.
        caps: what it offers: a mapping of names to functions, or a list of `capability(...)`.
        mesh: nodes of different meshes never meet. Env `REACHMESH_MESH`.
        secret: turns on encryption and mutual authentication: only nodes with the same secret meet. Env `REACHMESH_SECRET`.
        seeds: "host:port" of nodes to meet where multicast does not reach; one side is enough. Env `REACHMESH_SEEDS`.
        discovery: which of "local", "mdns", "seeds", "state" to use; () = none. Env `REACHMESH_DISCOVERY`.
        bind: "host:port" to listen on; port 0 = any free one. Env `REACHMESH_BIND`.
        interfaces: names or addresses of the network interfaces to use; ["127.0.0.1"] keeps everything on this host. Those named are
            followed to other addresses while the node runs.
            Env `REACHMESH_INTERFACES`.
        tags: free tags others may select by.
        version: version of what this node runs; its capabilities' version unless they say otherwise.
        weight: share of calls relative to other instances.
        zone: where it is; calls stay in the caller's zone while they can. The same as the tag "zone".
        state_dir: directory to remember peers in for the next start. Env `REACHMESH_STATE_DIR`.
        config: a `NodeConfig`, a mapping of its fields, or the path of a TOML file with these and the options above; see
            `reachmesh.node.origins`. Env `REACHMESH_CONFIG` (a path), and one variable for each field.
        observer: look and call, but be in nobody's table.

    Raises:
        ConfigError: an option is wrong. Nothing has been opened or started then.
    """

    _now: Callable[[], float] = staticmethod(time.monotonic)
    _wall: Callable[[], float] = staticmethod(time.time)
    _environ: ClassVar[Mapping[str, str] | None] = None
    _made_by: ClassVar[int] = 1
    """How many frames above the constructor the names are that hints of handlers may use."""
    _reach_type: ClassVar[type[Reach]] = Reach
    _job_type: ClassVar[type[ServedCall]] = ServedCall
    _life_type: ClassVar[type[Life]] = Life

    def __init__(
        self,
        name: str,
        caps: Mapping[str, Any] | Sequence[Any] | None = None,
        *,
        mesh: str | None = None,
        secret: str | None = None,
        seeds: Sequence[str] | str = (),
        discovery: Sequence[str] | str | None = None,
        bind: str | None = None,
        interfaces: Sequence[str] | str | None = None,
        tags: Mapping[str, Any] | None = None,
        version: str = "1",
        weight: float = 1.0,
        zone: str | None = None,
        state_dir: str | Path | None = None,
        config: NodeConfig | Mapping[str, Any] | str | Path | None = None,
        observer: bool = False,
    ) -> None:
        given = {
            "mesh": mesh,
            "secret": secret,
            "seeds": seeds,
            "discovery": discovery,
            "bind": bind,
            "interfaces": interfaces,
            "tags": tags,
            "version": version,
            "weight": weight,
            "zone": zone,
            "state_dir": state_dir,
        }
        self._origins = Origins(given, config, self._environ)
        self.config = self._origins.config
        self._settings: Settings = resolve(name=name, environ={}, **self._origins.options)
        if self.config.require_secret and self._settings.secret is None:
            raise ConfigError("require_secret is set and there is no secret", hint="give secret=, or set REACHMESH_SECRET")
        check(NODE_RULES, {"observer": observer})
        self._observer = observer
        frame = sys._getframe(self._made_by)
        self._served: dict[str, Served] = {each.name: Served(each, frame.f_locals) for each in read_caps(caps)}
        self._reserved = reserved_capabilities(self)
        self._middlewares: tuple[Middleware, ...] = ()
        self._last_good = LastGood(now=self._now)
        self._renew()

    def _renew(self, listeners: Sequence[Listener] = ()) -> None:
        """Become an instance of its own that has not been started: in the constructor, and in each process of `serve(processes=)`."""
        self._life = self._life_type(self, listeners)

    def __repr__(self) -> str:
        return f"<ReachNode {self.instance_id} {self._life.phase}>"

    # ---------------------------------------------------------------- reads

    @property
    def instance_id(self) -> str:
        """`name-host-pid-random`, different in every process and start."""
        return self._life.identity.instance_id

    @property
    def name(self) -> str:
        """The logical name."""
        return self._life.identity.name

    @property
    def mesh(self) -> str:
        """Name of the mesh."""
        return self._life.identity.mesh

    @property
    def endpoints(self) -> tuple[str, ...]:
        """Addresses others use, e.g. ("tcp://10.0.0.5:41234",); empty before the start, and after a stop what they were."""
        return self._life.record.endpoints

    @property
    def security(self) -> str:
        """How the mesh is guarded: "OPEN" = not at all, whoever reaches the network may join and call; "CURVE" = by a secret."""
        return "OPEN" if self._settings.secret is None else "CURVE"

    @property
    def is_running(self) -> bool:
        """Whether it was started and not stopped."""
        return self._life.phase in ("running", "draining") and not self._life.left

    @property
    def state(self) -> State:
        """Its own state."""
        return self._life.state

    def peers(self) -> list[PeerInfo]:
        """Everybody known and present, oneself left out, by instance id. The recently lost and left are not in it."""
        self._require()
        return self._life.peers()

    def providers(self, cap: str) -> list[PeerInfo]:
        """Who offers a capability now, this node included if it does."""
        check(NODE_RULES, {"cap": cap}, error=UsageError)
        mine = [own_peer(self._life.record, self.state, self._life.since)] if cap in self._served and not self._observer else []
        return [*mine, *(peer for peer in self.peers() if cap in peer.capabilities)]

    def explain(self, cap: str, **options: Any) -> Explanation:
        """Who could take a call now, and why or why not: `.candidates` with `instance_id`, `usable`, `reason`, `factors`.

        Args:
            cap: capability name.
            options: `version`, `tags`, `target`, `session`, `priority`, `metadata` as for `reach`.

        Raises:
            ConfigError: an option cannot be meant.
        """
        check(NODE_RULES, {"cap": cap}, error=UsageError)
        if unknown := [each for each in options if each not in EXPLAINED]:
            raise ConfigError(f"no such option: {', '.join(unknown)}", hint=f"there are: {', '.join(EXPLAINED)}")
        Options(**options).check()
        engine = self._require().engine
        request = RouteRequest(capability=cap, **{each: value for each, value in options.items() if value is not None})
        return Explanation(self._driver.ask(lambda now: engine.router.explain(request, now)))

    def stats(self, cap: str) -> Stats:
        """The calls of a capability that this node made in the last five minutes: how many, how many failed, how long they took."""
        check(NODE_RULES, {"cap": cap}, error=UsageError)
        return self._require().ask_log(lambda log, now: log.made.stats(cap, now))

    def settings(self) -> list[Setting]:
        """Every setting with its value and where that came from, by name; a secret is not shown. `weights` and `max_concurrent` are the capabilities'."""
        own = {name: getattr(self._settings, name) for name in OPTIONS}
        return self._origins.settings(
            {**own, **changed_by_name(self), **{each.name: getattr(self.config, each.name) for each in fields(self.config)}}
        )

    def reconfigure(self, **changes: Any) -> None:
        """Change settings of the node while it runs; all or, when one is wrong, none.

        Args:
            changes: `weight` of the node, `weights` and `max_concurrent` as mappings of its capabilities' names to values, `log_level` of the
                logger "reachmesh", and the fields of `NodeConfig` named in `reachmesh.node.reconfigure.CHANGEABLE`.

        Raises:
            ConfigError: a setting that cannot change now, or a value that cannot be meant.
        """
        reconfigure(self, changes)

    # ---------------------------------------------------------------- capabilities

    def capability(self, name: str, /, **options: Any) -> Callable[[F], F]:
        """Decorator: serve the function as a capability, from now on (also on a running node); see `reachmesh.capability`."""
        declared = capability(name, **options)
        frame = sys._getframe(1)

        def register(fn: F) -> F:
            self._add(declared(fn).__reachmesh_capability__, frame.f_locals)  # type: ignore[attr-defined]
            return fn

        return register

    def remove_capability(self, name: str) -> None:
        """Serve it no longer; calls that run go on. Nothing happens if it is not served."""
        check(NODE_RULES, {"name": name}, error=UsageError)
        life = self._life
        with life.lock:
            served = self._served.pop(name, None)
            if served is not None:
                life.publish()
                if life.executor is not None:
                    life.executor.release(served.handler)

    def _add(self, declared: Capability, localns: Mapping[str, Any]) -> None:
        served = Served(declared, localns)
        life = self._life
        with life.lock:
            if served.name in self._served:
                raise ConfigError(f"this node serves {served.name!r} already")
            if (executor := life.executor) is not None:
                executor.processes = process_domain(self.name, [served], executor.processes)  # type: ignore[arg-type]  # only processes are put there
            self._served[served.name] = served
            try:
                life.publish()
            except BaseException:
                del self._served[served.name]
                raise

    # ---------------------------------------------------------------- life

    def start(self) -> Self:
        """Listen, announce, and begin to find others. Returns at once; a second start does nothing.

        Raises:
            ConfigError: the port is taken, an interface does not exist, or the system gives no more sockets. Nothing is left open.
            NodeStopped: it was stopped; make a new node.
            UsageError: it was made before a fork, in the parent process, or the interpreter is ending.
            KeyboardInterrupt: of the main thread; the node is stopped again then.
        """
        self._life.start()
        return self

    def stop(self, drain: float | None = None) -> None:
        """Leave the mesh: refuse new calls, let accepted ones finish, say goodbye, end every thread. Safe to call twice.

        A thread that user code blocks (a handler that looks at nothing, an iterable that is streamed) cannot be ended: it is left behind
        after 0.3 s, and does not keep the process from ending.

        On the thread of a running event loop (a notebook's cell, a `with` block inside `async def`) it begins the stop and returns: the
        node can be used no more, a thread lets accepted calls finish and says goodbye, and the process does not end before that. Await
        `stop_async()`, or leave an `async with`, to know when it is over. Inside a handler of this node too it only begins the stop, for
        that handler is one of the calls it waits for.

        Args:
            drain: seconds to wait for accepted calls; None = the config's `drain`.
        """
        if not self._life.is_elsewhere:
            self._life.stop(self._drain_seconds(drain))

    async def stop_async(self, drain: float | None = None) -> None:
        """The twin of `stop` for event loops: returns when the node has stopped. Cancelling it does not undo the stop.

        Inside a handler of this node it begins the stop and returns, as `stop` does.
        """
        life = self._life
        if life.is_elsewhere:
            return
        seconds, loop = self._drain_seconds(drain), asyncio.get_running_loop()
        over = asyncio.Event()
        life.stop_aside(seconds, lambda: call_soon(loop, over.set))
        if not life.in_handler():
            await over.wait()

    def _drain_seconds(self, drain: float | None) -> float:
        check(NODE_RULES, {"drain": drain}, error=UsageError)
        return self.config.drain if drain is None else float(min(drain, FOR_EVER))

    def serve(self, processes: int | None = None) -> None:
        """Start, and serve until SIGINT, SIGTERM or `stop()`; then drain and return.

        In the main thread the two signals begin the drain; a second one ends it at once. Handlers that were installed before are put
        back. In other threads no signal is touched.

        Args:
            processes: run so many instances, each in a process of its own forked from this one, restarted when it dies; see
                `reachmesh.node.instances`. This process only watches them. Fork before you start threads. None = serve in this process.

        Raises:
            ConfigError: as `start`; or the processes would all want one port.
            BlockingCallInLoop: on an event loop's thread; use `serve_async`.
        """
        self._check_may_block("serve()", "serve_async()")
        if processes is None:
            serve_here(self)
            return
        check(NODE_RULES, {"processes": processes})
        from reachmesh.node.instances import serve_instances

        serve_instances(self, processes, partial(serve_here, self, (signal.SIGTERM,)))

    async def serve_async(self) -> None:
        """The twin of `serve` for event loops: async handlers run on the running loop. Cancelling it drains and stops."""
        await serve_on_loop(self)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        try:
            self.stop()
        except KeyboardInterrupt:
            self.stop(drain=0)
            raise

    async def __aenter__(self) -> Self:
        self.start()
        assert self._life.executor is not None
        self._life.executor.use_loop(asyncio.get_running_loop())
        return self

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        await self.stop_async()
        if self._life.executor is not None:
            self._life.executor.use_loop(None)

    # ---------------------------------------------------------------- calling

    def reach(
        self,
        cap: str,
        *,
        version: str | Mapping[str, float] | None = None,
        tags: Mapping[str, Any] | None = None,
        session: str | None = None,
        priority: int | None = None,
        timeout: float | None = None,
        retries: int | None = None,
        strategy: Any = None,
        target: str | None = None,
        fallback: Any = UNSET,
        dedup_key: str | None = None,
        idle_timeout: float | None = None,
        reply_to: str | None = None,
        correlation_id: str | None = None,
        shadow: bool = False,
        trace_id: str | None = None,
        metadata: Mapping[str, Any] | None = None,
    ) -> Reach:
        """A capability to call: `node.reach("translate").call(text="hola")`.

        Args:
            cap: what to call.
            version: the version to talk to, or shares by version.
            tags: only instances with these tags.
            session: calls of one session go to the same instance while it is usable.
            priority: 0 (first) to 255; default the outer call's, else 100.
            timeout: seconds for the whole call, retries included; default the capability's, else 3. A stream has none by default.
            retries: further attempts after failures that allow one.
            strategy: how to choose among instances: a name, or an object with `pick(candidates, request)`, which is asked in this thread
                for the first attempt; what it raises is raised here.
            target: a node name or an instance id.
            fallback: a value, or a function of the error, in place of an error; `LAST_GOOD` for what the same call answered last (at most
                `last_good_age` ago, and to calls with this fallback). For a stream that breaks before its first item: an
                iterator gives its items, anything else is the only item.
            dedup_key: repeated requests with one key run once per instance and get the first answer; with other arguments under the same
                key they are a BadRequest.
            idle_timeout: seconds a stream may be silent.
            reply_to: send the answer to this capability instead.
            correlation_id: travels along, `ctx.correlation_id`.
            shadow: send a copy to an instance tagged {"shadow": "true"} as well, whose answer is not used. Such instances take
                nothing else.
            trace_id: 32 hex digits; default the outer call's, else random.
            metadata: plain values for the handler, `ctx.metadata`.

        Raises:
            ConfigError: an option cannot be meant.
        """
        if not is_text(cap, 255):
            raise refusal(NODE_RULES["cap"], "cap", cap)
        options = Options(
            version=version,
            tags=tags,
            session=session,
            priority=priority,
            timeout=timeout,
            retries=retries,
            strategy=strategy,
            target=target,
            fallback=fallback,
            dedup_key=dedup_key,
            idle_timeout=idle_timeout,
            reply_to=reply_to,
            correlation_id=correlation_id,
            shadow=shadow,
            trace_id=trace_id,
            metadata=metadata,
        )
        return self._reach_type(self, cap, options)

    def use(self, middleware: M) -> M:
        """Have code of your own around every call that this node makes or serves, from now on; see `reachmesh.node.middleware`.

        The one used first is the outermost. Gives `middleware` back, so that it does as a decorator.

        Raises:
            ConfigError: it is neither a generator function nor an object with `before` or `after`.
        """
        self._middlewares = (*self._middlewares, as_middleware(middleware))
        return middleware

    def task(self, task_id: str) -> TaskInfo:
        """State of a `reply_to` call by the id in its acceptance, asked of the node that runs it; and its result, for five minutes.

        Raises:
            NoProvider: that node is gone.
            BadRequest: it has no such task (any more).
            UsageError: that is no task id.
            BlockingCallInLoop: on an event loop's thread; use `task_async`.
        """
        self._check_may_block("task()", "task_async()")
        return read_task(task_id, self._ask_task(task_id).result())

    async def task_async(self, task_id: str) -> TaskInfo:
        """The twin of `task` for event loops."""
        return read_task(task_id, await self._ask_task(task_id))

    def _ask_task(self, task_id: str) -> CallFuture:
        boot = boot_of(task_id)
        if boot is None:
            raise UsageError(f"{shown(task_id)} is no task id", hint="it is the task_id of what submit() with reply_to= gives")
        return self._reach_type(self, TASK, Options(), target=boot).submit(task_id=task_id)

    def wait_for(self, cap: str, count: int = 1, timeout: float | None = None) -> None:
        """Wait until `count` instances offer a capability and take calls: not one that drains, or whose link just broke.

        Raises:
            NoProvider: not within `timeout` seconds (None = wait for ever); the message says what was seen.
            NodeStopped: the node was stopped meanwhile.
            BlockingCallInLoop: on an event loop's thread; use `wait_for_async`.
        """
        self._check_may_block("wait_for()", "wait_for_async()")
        timeout = _wait_limit(cap, count, timeout)
        self._require().look()
        if not self._life.listeners.wait(lambda: self._has(cap, count), timeout):
            raise self._too_few(cap, count, timeout)

    async def wait_for_async(self, cap: str, count: int = 1, timeout: float | None = None) -> None:
        """The twin of `wait_for` for event loops."""
        timeout = _wait_limit(cap, count, timeout)
        self._require().look()
        if not await self._life.listeners.wait_async(lambda: self._has(cap, count), timeout):
            raise self._too_few(cap, count, timeout)

    def _has(self, cap: str, count: int) -> bool:
        engine = self._require().engine
        return len(self._driver.ask(lambda now: engine.ready(cap, now))) >= count

    def _too_few(self, cap: str, count: int, timeout: float | None) -> ReachError:
        engine = self._driver.engine
        ready = self._driver.ask(lambda now: engine.ready(cap, now))
        idle = [each for each in self.providers(cap) if each.instance_id not in ready]
        seen = sorted({name for peer in self.peers() for name in peer.capabilities})
        more = f" and {len(seen) - SHOWN_NAMES} more" if len(seen) > SHOWN_NAMES else ""
        offers = f"they offer: {', '.join(map(shown, seen[:SHOWN_NAMES]))}{more}" if seen else "nobody offers anything yet"
        refused = self._driver.ask(lambda now: self._driver.engine.refusals[-1:])
        if refused:
            offers += f"; a link was refused: {refused[0]}"
        if idle:
            away = ", ".join(f"{each.instance_id} ({'SUSPECTED' if each.suspected else each.state.name})" for each in idle[:SHOWN_NAMES])
            offers += f"; these offer {cap!r} and take no calls now: {away}"
        return NoProvider(
            f"{len(ready)} of {count} providers of {cap!r} after {timeout:g} s; {len(self.peers())} peers are known, {offers}",
            hint="look with `reachmesh-inspect peers` from the same host, or give seeds=",
        )

    # ---------------------------------------------------------------- events

    def on(self, kind: str, fn: Callable[[Event], Any]) -> Callable[[Event], Any]:
        """Call `fn(event)` for each event of a kind ("*" = all), in a thread of the node's own. Gives `fn` back.

        Raises:
            UsageError: there is no such kind, or `fn` is no plain function.
        """
        check(NODE_RULES, {"kind": kind, "fn": fn}, error=UsageError)
        self._life.listeners.functions.append((kind, fn))
        return fn

    def events(self) -> AsyncIterator[Event]:
        """All events from now on, for `async for`; it ends when the node stops. A reader that falls 10,000 behind misses the oldest."""
        return self._life.listeners.events()

    # ---------------------------------------------------------------- inside

    @property
    def _driver(self) -> Driver:
        return self._life.driver

    def _require(self) -> Driver:
        """The driver of a node that may be used now."""
        life = self._life
        if (error := life.why_not()) is not None:
            raise error
        return life.driver

    @staticmethod
    def _check_may_block(what: str, twin: str) -> None:
        if asyncio._get_running_loop() is not None:
            raise BlockingCallInLoop(f"{what} would block this thread's event loop", hint=f"use `await {twin}`")

    def _timeout_for(self, cap: str) -> float:
        """Seconds for a call that names none: as measured, else as declared, else the default."""
        if (engine := self._life.engine) is None:
            return self.config.default_timeout
        return engine.caller.latencies.timeouts.get(cap) or engine.router.declared_timeout(cap) or self.config.default_timeout

    def _rule_of(self, cap: str) -> Rule | None:
        served = self._served.get(cap) or self._reserved.get(cap)
        return None if served is None else served.rule

    def _make_job(self, call: IncomingCall) -> ServedCall | None:
        served = self._served.get(call.capability) or self._reserved.get(call.capability)
        life = self._life
        if served is None or life.executor is None:
            error = NoProvider(f"{self.instance_id} does not offer {call.capability!r} any more")
            life.driver.post(life.driver.engine.callee.fail, call, error)
            return None
        job = call.handle = self._job_type(call, served, life.driver, life.executor)
        if self._middlewares and not call.capability.startswith(RESERVED):
            job.middlewares = self._middlewares
        if call.task is not None:
            job.reply = partial(deliver_reply, self, call)
        return job


NODE_RULES: Rules = {
    "name": name_rule(),
    "cap": name_rule(),
    "observer": FLAG,
    "drain": number(0).or_none(),
    "processes": whole(1, MOST_PROCESSES),
    "count": whole(0),
    "timeout": number(0).or_none(),
    "kind": one_of("*", *KINDS),
    "fn": PLAIN_FUNCTION,
}
"""The arguments of a node's methods."""


def _wait_limit(cap: Any, count: Any, timeout: Any) -> float | None:
    """The checked limit of a wait in seconds; None for none."""
    check(NODE_RULES, {"cap": cap, "count": count, "timeout": timeout}, error=UsageError)
    return None if timeout is None or timeout > FOR_EVER else float(timeout)
