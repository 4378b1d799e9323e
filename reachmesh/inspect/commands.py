"""The commands. Each takes one look, asks, prints, and leaves; `watch` and `events` go on until Ctrl-C.

Times are seconds where the name does not say otherwise; `at` is the wall clock's.
"""

from __future__ import annotations

import json
import queue
import signal
import time
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Annotated, Any

import typer

from reachmesh.errors import BadRequest, DeadlineExceeded, ReachError
from reachmesh.inspect import doctor as diagnosis
from reachmesh.inspect.app import View, app, command
from reachmesh.inspect.output import Number, make_table, number
from reachmesh.inspect.session import Session, state_of
from reachmesh.node.about import SETTINGS, STATUS, TRACE
from reachmesh.node.peers import Event, PeerInfo
from reachmesh.node.reach import Reach

__all__ = ["app"]

HEADINGS = ("NODE", "STATUS", "QPS", "P95", "FAIL_RATE", "QUEUE", "INSTANCE")
LAST_CALLS = 20
CALL_TIMEOUT = 10.0
"""Seconds for `call`, when it does not say: a person who calls by hand may call something slow."""

Target = Annotated[str | None, typer.Option("--target", help="Node name or instance id that is to answer.")]
Arguments = Annotated[str, typer.Argument(metavar="JSON", help="Arguments: an object by name, or a list in order.")]


@command
def peers(view: View) -> None:
    """List every node: state, calls served per second, P95 and share of failures in the last minute, calls that wait."""
    with view.session() as session:
        rows = session.rows(session.look())
        if view.output.as_json:
            view.output.json(rows)
        else:
            view.output.table(HEADINGS, [_line(row) for row in rows], _count(rows, session))


def _line(row: Mapping[str, Any]) -> list[Any]:
    p95, rate, queued = row["p95"], row["fail_rate"], row["queue"]
    return [
        row["node"],
        row["status"],
        number(row["qps"]),
        number(None if p95 is None else p95 * 1000, 1, " ms"),
        number(None if rate is None else rate * 100, 1, " %"),
        Number("-" if queued is None else queued),
        row["instance_id"],
    ]


def _count(rows: Sequence[Any], session: Session) -> str:
    count = f"{len(rows)} node{'' if len(rows) == 1 else 's'}"
    return f"{count}; {session.about}" + ("" if rows else "; `reachmesh-inspect doctor` looks for the reason")


@command
def watch(view: View, interval: Annotated[float, typer.Option(min=0.1, max=3600, help="Seconds between two looks.")] = 2.0) -> None:
    """Show `peers` again and again, until Ctrl-C."""
    with view.session() as session:
        session.look()
        if view.output.as_json:
            for rows in _again(session, interval):
                view.output.json(rows)
        elif not view.output.console.is_terminal:
            for rows in _again(session, interval):
                view.output.table(HEADINGS, [_line(row) for row in rows], f"{datetime.now():%H:%M:%S} {_count(rows, session)}\n")
        else:
            from rich.live import Live

            signal.signal(signal.SIGINT, signal.default_int_handler)  # the screen has to be given back
            with Live(console=view.output.console, auto_refresh=False, screen=True) as live:
                for rows in _again(session, interval):
                    table = make_table(HEADINGS, [_line(row) for row in rows])
                    table.title, table.title_justify = f"{datetime.now():%H:%M:%S}  {_count(rows, session)}", "left"
                    live.update(table, refresh=True)


def _again(session: Session, interval: float) -> Any:
    """Rows every `interval` seconds, for ever; a look that takes longer is followed by the next at once."""
    due = time.monotonic()
    while True:
        yield session.rows(session.peers())
        due = max(due + interval, time.monotonic())
        time.sleep(max(0.0, due - time.monotonic()))


@command
def caps(view: View) -> None:
    """List what the mesh offers, and who offers it."""
    with view.session() as session:
        found: dict[str, list[PeerInfo]] = {}
        for peer in session.look():
            for name in peer.capabilities:
                found.setdefault(name, []).append(peer)
        rows = [_capability(name, found[name]) for name in sorted(found)]
        if view.output.as_json:
            view.output.json(rows)
        else:
            cells = [[r["capability"], ", ".join(r["nodes"]), ", ".join(r["versions"]), r["kind"], r["doc"]] for r in rows]
            view.output.table(("CAPABILITY", "NODES", "VERSION", "ANSWER", ""), cells, session.about)


def _capability(name: str, offered_by: Sequence[PeerInfo]) -> dict[str, Any]:
    options = [peer.capabilities[name] for peer in offered_by]
    first: Mapping[str, Any] = options[0] if isinstance(options[0], Mapping) else {}
    versions = {str(each.get("version", peer.version)) for each, peer in zip(options, offered_by, strict=True)}
    return {
        "capability": name,
        "nodes": sorted({peer.name for peer in offered_by}),
        "instances": sorted(peer.instance_id for peer in offered_by),
        "versions": sorted(versions),
        "kind": "stream" if first.get("streams") else "one",
        "doc": str(first.get("doc") or ""),
    }


@command
def status(view: View, node: Annotated[str, typer.Argument(help="Node name or instance id.")]) -> None:
    """Show a node's last 20 calls, newest first, and its figures. Several instances of one name are shown together."""
    with view.session() as session:
        instances = session.named(node)
        answers = session.ask(STATUS, instances, calls=LAST_CALLS)
        told = {key: value for key, value in answers.items() if isinstance(value, Mapping)}
        if not told:
            raise _silent(node, list(answers.values()))
        calls = [{**call, "instance_id": key} for key, value in told.items() for call in value["calls"]]
        calls.sort(key=lambda call: call["at"] + call["duration_ms"] / 1000, reverse=True)
        rows = [_instance(peer, answers[peer.instance_id]) for peer in instances]
        shown = {
            "node": instances[0].name,
            "status": next((row["status"] for row in rows if row["status"] != "HEALTHY"), "HEALTHY"),
            "calls": calls[:LAST_CALLS],
            "instances": rows,
        }
        if view.output.as_json:
            view.output.json(shown)
        else:
            _print_status(view, shown)


@command
def config(view: View, node: Annotated[str, typer.Argument(help="Node name or instance id.")]) -> None:
    """Show every setting of a node's instances, and where its value came from: argument, environment, file, default, reconfigure."""
    with view.session() as session:
        answers = session.ask(SETTINGS, session.named(node))
        shown = {key: value for key, value in answers.items() if isinstance(value, list)}
        if not shown:
            raise _silent(node, list(answers.values()))
        if view.output.as_json:
            view.output.json([{"instance_id": key, "settings": value} for key, value in shown.items()])
            return
        for key, value in shown.items():
            cells = [["" if each["value"] is None else _text(each["value"]), each["origin"]] for each in value]
            names = [each["name"] for each in value]
            view.output.table((key, "VALUE", "ORIGIN"), [[name, *rest] for name, rest in zip(names, cells, strict=True)])


def _instance(peer: PeerInfo, answer: Any) -> dict[str, Any]:
    told = answer if isinstance(answer, Mapping) else {}
    figures = ("qps", "p95", "fail_rate", "queue", "running", "capabilities", "started")
    own = {"instance_id": peer.instance_id, "status": state_of(peer, answer), "reason": peer.reason, "endpoints": list(peer.endpoints)}
    return own | {name: told.get(name) for name in figures}


def _silent(node: str, errors: Sequence[Any]) -> ReachError:
    error = next((each for each in errors if isinstance(each, ReachError)), None)
    if isinstance(error, DeadlineExceeded) or error is None:
        return DeadlineExceeded(f"{node} is known and does not answer", hint="it may be frozen, overloaded or cut off", executed="maybe")
    return error


def _print_status(view: View, shown: Mapping[str, Any]) -> None:
    for row in shown["instances"]:
        p95, rate = row["p95"], row["fail_rate"]
        figures = (
            f"{number(row['qps'])} calls/s, P95 {number(None if p95 is None else p95 * 1000, 1, ' ms')}, "
            f"{number(None if rate is None else rate * 100, 1, ' %')} failed, {row['running']} running, {row['queue']} waiting"
        )
        view.output.line(f"{row['instance_id']}  {row['status']}  {figures}")
        for name, stats in (row["capabilities"] or {}).items():
            spread = " / ".join(f"{stats[key]:.1f}" for key in ("p50_ms", "p90_ms", "p99_ms"))
            view.output.line(f"    {name}: {stats['count']} calls in 5 min, {stats['failures']} failed, P50 / P90 / P99 {spread} ms")
    cells = [
        [_clock(call["at"]), call["capability"], call["status"], number(call["duration_ms"], 1, " ms"), call["caller"], call["trace_id"]]
        for call in shown["calls"]
    ]
    view.output.table(("AT", "CAPABILITY", "STATUS", "DURATION", "CALLER", "TRACE"), cells)


def _clock(at: float) -> str:
    return f"{datetime.fromtimestamp(at):%H:%M:%S.%f}"[:-3]


@command
def call(
    view: View,
    capability: Annotated[str, typer.Argument(metavar="CAP", help="What to call.")],
    arguments: Arguments = "{}",
    target: Target = None,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds to wait for the answer.")] = CALL_TIMEOUT,
) -> None:
    """Call a capability and print its answer; bytes in it are shown in base64, times in ISO 8601."""
    args, kwargs = parse_arguments(arguments)
    with view.session() as session:
        began = time.monotonic()
        future = session.node.reach(capability, target=target, timeout=timeout).submit(*args, **kwargs)
        try:
            result = future.result()
        except BadRequest as error:
            if any(each.capabilities[capability].get("streams") for each in session.node.providers(capability)):
                raise BadRequest(error.message, hint=f"use `reachmesh-inspect stream {capability}`") from None
            raise
        took = (time.monotonic() - began) * 1000
        if view.output.as_json:
            answer = {"result": result, "instance_id": future.instance_id, "trace_id": future.trace_id, "duration_ms": took}
            view.output.json(answer)
        else:
            view.output.line(_text(result))


@command
def stream(
    view: View,
    capability: Annotated[str, typer.Argument(metavar="CAP", help="What to call.")],
    arguments: Arguments = "{}",
    target: Target = None,
    idle_timeout: Annotated[float | None, typer.Option(min=0.001, help="Seconds to wait for one item; without it, for ever.")] = None,
) -> None:
    """Call a streaming capability and print its items as they come, one a line; bytes in them are shown in base64."""
    args, kwargs = parse_arguments(arguments)
    with view.session() as session:
        reach: Reach = session.node.reach(capability, target=target, idle_timeout=idle_timeout)
        with reach.stream(*args, **kwargs) as items:
            for item in items:
                if view.output.as_json:
                    view.output.json(item)
                else:
                    view.output.line(_text(item))


def parse_arguments(text: str) -> tuple[list[Any], dict[str, Any]]:
    """Positional and named arguments of a call, from JSON text."""
    try:
        given = json.loads(text)
    except ValueError as error:
        raise typer.BadParameter(f"the arguments are not JSON: {error}") from None
    if isinstance(given, dict):
        return [], given
    if isinstance(given, list):
        return given, {}
    raise typer.BadParameter("the arguments are a JSON object (by name) or a list (in order)")


def _text(value: Any) -> str:
    from reachmesh.inspect.output import plain

    return value if isinstance(value, str) else json.dumps(plain(value), ensure_ascii=False, indent=2)


@command
def trace(view: View, trace_id: Annotated[str, typer.Argument(metavar="ID", help="32 hex digits.")]) -> None:
    """Show each call of a trace, on whatever node it ran, callers before those they called; running ones too."""
    wanted = trace_id.lower()
    if len(wanted) != 32 or any(each not in "0123456789abcdef" for each in wanted):
        raise typer.BadParameter("a trace id has 32 hex digits")
    with view.session() as session:
        found = session.look()
        answers = session.ask(TRACE, found, trace_id=wanted)
        hops = _in_order([hop for answer in answers.values() if isinstance(answer, list) for hop in answer])
        silent = sorted(peer.name for peer in found if not isinstance(answers[peer.instance_id], list))
        if view.output.as_json:
            view.output.json({"trace_id": wanted, "hops": hops, "unanswered": silent})
            return
        cells = [
            ["  " * hop["depth"] + hop["capability"], hop["node"], hop["status"], number(hop["duration_ms"], 1, " ms"), _clock(hop["at"])]
            for hop in hops
        ]
        note = f"these did not answer: {', '.join(silent)}" if silent else "" if hops else "no node remembers this trace"
        view.output.table(("CAPABILITY", "NODE", "STATUS", "DURATION", "AT"), cells, note)


def _in_order(hops: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each hop before those that its instance called; clocks of several hosts are not trusted across a call."""
    waiting = sorted(hops, key=lambda hop: (hop["depth"], hop["at"]))
    placed: list[dict[str, Any]] = []

    def place(hop: dict[str, Any]) -> None:
        placed.append(hop)
        while True:
            below = (each for each in waiting if each["depth"] == hop["depth"] + 1 and each["caller"] == hop["instance_id"])
            child = next(below, None)
            if child is None:
                return
            waiting.remove(child)
            place(child)

    while waiting:
        place(waiting.pop(0))
    return placed


@command
def events(
    view: View,
    kind: Annotated[str | None, typer.Option(help="Only events of this kind, e.g. peer_lost.")] = None,
    seconds: Annotated[float | None, typer.Option(min=0.0, help="End after so many seconds; without it, at Ctrl-C.")] = None,
    count: Annotated[int | None, typer.Option(min=1, help="End after so many events.")] = None,
) -> None:
    """Print what happens to nodes from now on, one a line."""
    with view.session() as session:
        session.look()
        heard: queue.SimpleQueue[Event] = queue.SimpleQueue()
        session.node.on(kind or "*", heard.put)
        wall = time.time() - time.monotonic()
        end = None if seconds is None else time.monotonic() + seconds
        left = count
        while left is None or left > 0:
            try:
                event = heard.get(timeout=None if end is None else max(0.0, end - time.monotonic()))
            except queue.Empty:
                return
            left = None if left is None else left - 1
            name = event.peer.name if event.peer is not None else None
            instance_id = event.peer.instance_id if event.peer is not None else None
            at = event.at + wall
            if view.output.as_json:
                view.output.json({"kind": event.kind, "node": name, "instance_id": instance_id, "reason": event.reason, "at": at})
            else:
                view.output.line(f"{_clock(at)}  {event.kind}  {instance_id or '-'}  {event.reason}")


@command
def topology(view: View) -> None:
    """Show the nodes and which of them are linked."""
    with view.session() as session:
        found = session.look()
        answers = session.ask(STATUS, found, calls=0)
        nodes: list[dict[str, Any]] = [
            {
                "node": peer.name,
                "instance_id": peer.instance_id,
                "status": state_of(peer, answers[peer.instance_id]),
                "endpoints": list(peer.endpoints),
                "zone": peer.zone,
                "version": peer.version,
                "capabilities": sorted(peer.capabilities),
            }
            for peer in found
        ]
        links = _links(answers)
        if view.output.as_json:
            view.output.json({"nodes": nodes, "links": links})
            return
        names = {peer.instance_id: peer.name for peer in found}
        linked: dict[str, list[str]] = {}
        for link in links:
            for one, other in ((link["from"], link["to"]), (link["to"], link["from"])):
                linked.setdefault(one, []).append(names.get(other, other))
        cells = [
            [n["node"], n["status"], n["zone"] or "-", ", ".join(n["endpoints"]), ", ".join(sorted(linked.get(n["instance_id"], [])))]
            for n in nodes
        ]
        view.output.table(("NODE", "STATUS", "ZONE", "ENDPOINTS", "LINKED WITH"), cells, _count(nodes, session))


def _links(answers: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Each link once, with the shorter of the two round trips."""
    found: dict[tuple[str, str], float | None] = {}
    for one, answer in answers.items():
        for link in answer["links"] if isinstance(answer, Mapping) else ():
            other, rtt = link["instance_id"], link["rtt"]
            pair = (one, other) if one < other else (other, one)
            known = found.get(pair)
            found[pair] = rtt if known is None else known if rtt is None else min(known, rtt)
    return [{"from": one, "to": other, "rtt": rtt} for (one, other), rtt in sorted(found.items())]


@command
def doctor(view: View) -> None:
    """Check this host, the way to the mesh, and its nodes, and say what is wrong. The exit code is 0 once all checks were made."""
    with view.session() as session:
        report = diagnosis.examine(session)
        if view.output.as_json:
            view.output.json(report)
            return
        view.output.line(f"security: {report['security']}")
        for check in report["checks"]:
            view.output.line(f"{'ok   ' if check['ok'] else 'WRONG'}  {check['name']}: {check['detail']}")
