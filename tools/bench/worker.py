"""The two processes of a variant: `serve` runs its server, `client` obeys one JSON line after the other.

What a peer prints goes to stderr: stdout carries the answers only. A worker ends, with all it started, when its stdin closes.
"""

from __future__ import annotations

import asyncio
import importlib
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from typing import Any, TextIO

from tools.bench.interface import Client, Server, Variant
from tools.bench.peers import VARIANTS
from tools.bench.works import WORKS, Bench, Work


def _variant(name: str) -> Variant:
    return next(variant for variant in VARIANTS if variant.name == name)


def _load(variant: Variant, what: str) -> Callable[..., Any]:
    loaded: Callable[..., Any] = getattr(importlib.import_module(f"tools.bench.peers.{variant.module}"), what)
    return loaded


def _answers() -> TextIO:
    """The real stdout; from now on fd 1 is stderr."""
    out = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    return out


def _end_with_stdin() -> None:
    sys.stdin.read()
    os.killpg(0, signal.SIGKILL)


def serve(name: str, instances: int) -> None:
    """Run a variant's server for ever."""
    variant = _variant(name)
    out = _answers()
    threading.Thread(target=_end_with_stdin, daemon=True).start()
    server: Server = _load(variant, variant.server)(**variant.options)
    server.run(instances, lambda addresses: print(json.dumps(addresses), file=out, flush=True))


def first(name: str, addresses: list[str]) -> None:
    """How long a fresh process takes to import the peer, and then to its first answer."""
    variant = _variant(name)
    out = _answers()
    start = time.perf_counter()
    make = _load(variant, variant.client)
    imported = time.perf_counter()
    client: Client = make(addresses, **variant.options)
    bench = _open(client)
    _one_call(bench)
    answered = time.perf_counter()
    print(json.dumps({"import": (imported - start) * 1000, "first-call": (answered - imported) * 1000}), file=out, flush=True)
    os._exit(0)


def _open(client: Client) -> Bench:
    runner = asyncio.Runner()
    runner.run(client.open())
    return Bench(client, runner)


def _one_call(bench: Bench) -> None:
    try:
        bench.client.call(bytes(100))
    except NotImplementedError:
        bench.runner.run(bench.client.acall(bytes(100)))


def _measure(bench: Bench, work: Work, seconds: float) -> float:
    if work.instances > 1 and not bench.client.fans_out:
        raise NotImplementedError("not offered")
    return work.measure(bench, seconds)


def client(name: str, addresses: list[str]) -> None:
    """Connect, then do what stdin asks for, `{"work": ..., "seconds": ...}` or `{"hold": verb, "count": ...}`.

    The answers are `{"value": ...}`, `{"absent": why}` or `{"failed": error}`.
    """
    variant = _variant(name)
    out = _answers()
    bench = _open(_load(variant, variant.client)(addresses, instances=len(addresses), **variant.options))
    _one_call(bench)
    print(json.dumps({"ready": True}), file=out, flush=True)
    works = {work.name: work for work in WORKS}
    for line in sys.stdin:
        asked = json.loads(line)
        answer: dict[str, Any]
        try:
            if "hold" in asked:
                bench.need(asked["hold"])
                bench.runner.run(getattr(bench.client, asked["hold"])(asked["count"]))
                answer = {"value": asked["count"]}
            else:
                answer = {"value": _measure(bench, works[asked["work"]], asked["seconds"])}
        except NotImplementedError as error:
            answer = {"absent": str(error) or "not offered"}
        except Exception as error:
            answer = {"failed": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), file=out, flush=True)
    os._exit(0)


if __name__ == "__main__":
    role, chosen, *rest = sys.argv[1:]
    if role == "serve":
        serve(chosen, int(rest[0]))
    else:
        {"client": client, "first": first}[role](chosen, rest)
