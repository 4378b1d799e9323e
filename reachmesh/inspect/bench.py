"""`bench`: call a capability as fast as a number of outstanding calls allows, and tell how fast that was and who answered."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Annotated, Any

import typer

from reachmesh.errors import ReachError
from reachmesh.inspect.app import View, command
from reachmesh.inspect.commands import CALL_TIMEOUT, Arguments, Target, parse_arguments
from reachmesh.inspect.output import number
from reachmesh.node.reach import Reach


@command
def bench(
    view: View,
    capability: Annotated[str, typer.Argument(metavar="CAP", help="What to call; it is really executed, again and again.")],
    arguments: Arguments = "{}",
    target: Target = None,
    seconds: Annotated[float, typer.Option(min=0.1, max=3600, help="How long to begin new calls.")] = 2.0,
    outstanding: Annotated[int, typer.Option(min=1, max=10_000, help="Calls that are under way at a time.")] = 16,
    timeout: Annotated[float, typer.Option(min=0.001, help="Seconds a call may take.")] = CALL_TIMEOUT,
) -> None:
    """Call a capability again and again: calls per second, P50 / P90 / P99, failures, and who answered."""
    args, kwargs = parse_arguments(arguments)
    with view.session() as session:
        reach: Reach = session.node.reach(capability, target=target, timeout=timeout, retries=0)
        reach.call(*args, **kwargs)  # what cannot work at all is told as by `call`
        found = _measure(reach, args, kwargs, seconds, outstanding)
        stats = session.node.stats(capability)
        report = {"capability": capability, **found, "p50_ms": stats.p50_ms, "p90_ms": stats.p90_ms, "p99_ms": stats.p99_ms}
        if view.output.as_json:
            view.output.json(report)
            return
        failed = ", ".join(f"{count} {code}" for code, count in report["errors"].items()) or "none"
        spread = " / ".join(number(report[key], 2) for key in ("p50_ms", "p90_ms", "p99_ms"))
        view.output.line(f"{report['calls']} calls in {report['seconds']:.2f} s, {outstanding} at a time: {report['rate']:.0f} calls/s")
        view.output.line(f"P50 / P90 / P99 {spread} ms; failed: {failed}")
        view.output.table(("ANSWERED BY", "CALLS"), list(report["instances"].items()))


def _measure(reach: Reach, args: Sequence[Any], kwargs: Mapping[str, Any], seconds: float, outstanding: int) -> dict[str, Any]:
    errors: Counter[str] = Counter()
    instances: Counter[str] = Counter()
    room = threading.Semaphore(outstanding)
    lock = threading.Lock()

    def ended(future: Any) -> None:
        error = future.exception()
        with lock:
            if error is not None:
                errors[error.code if isinstance(error, ReachError) else type(error).__name__] += 1
            elif future.instance_id is not None:
                instances[future.instance_id] += 1
        room.release()

    began, calls = time.monotonic(), 0
    while time.monotonic() - began < seconds:
        room.acquire()
        reach.submit(*args, **kwargs).add_done_callback(ended)
        calls += 1
    for _ in range(outstanding):
        room.acquire()
    took = time.monotonic() - began
    return {
        "calls": calls,
        "failures": errors.total(),
        "seconds": took,
        "outstanding": outstanding,
        "rate": (calls - errors.total()) / took,
        "errors": dict(errors.most_common()),
        "instances": dict(instances.most_common()),
    }
