"""`serve()`: the one place of the library that touches signals, and only while it runs."""

from __future__ import annotations

import asyncio
import signal
import threading
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from reachmesh.node.node import ReachNode

SIGNALS = (signal.SIGINT, signal.SIGTERM)


def serve_here(node: ReachNode, signals: Sequence[signal.Signals] = SIGNALS) -> None:
    """Serve in this thread until a signal or a stop; the first signal drains, the second ends."""
    wake = threading.Event()
    count = 0

    def on_signal(number: int, frame: Any) -> None:
        nonlocal count
        count += 1
        if count > 1:
            node._life.kill.set()
        wake.set()

    previous: dict[signal.Signals, Any] = {}
    main = threading.current_thread() is threading.main_thread()
    try:
        if main:
            for number in signals:
                previous[number] = signal.signal(number, on_signal)
        node.start()
        stopper: threading.Thread | None = None
        while not node._life.stopped.is_set():
            if wake.wait(0.25 if stopper is None else 0.05) and stopper is None:
                stopper = threading.Thread(target=node.stop, name=f"reachmesh-{node.name}-stop", daemon=True)
                stopper.start()
            if stopper is not None:
                node._life.stopped.wait(0.05)
        if stopper is not None:
            stopper.join(2.0)
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler if handler is not None else signal.SIG_DFL)


async def serve_on_loop(node: ReachNode) -> None:
    """Serve on the running loop until a signal, a stop, or a cancel."""
    loop = asyncio.get_running_loop()
    wake = asyncio.Event()
    count = 0

    def on_signal() -> None:
        nonlocal count
        count += 1
        if count > 1:
            node._life.kill.set()
        wake.set()

    installed: list[signal.Signals] = []
    if threading.current_thread() is threading.main_thread():
        for number in SIGNALS:
            try:
                loop.add_signal_handler(number, on_signal)
                installed.append(number)
            except (NotImplementedError, RuntimeError):  # Windows, or a loop without signals: stop() remains
                break
    try:
        async with node:
            stopped = asyncio.ensure_future(asyncio.to_thread(node._life.stopped.wait))
            waking = asyncio.ensure_future(wake.wait())
            try:
                await asyncio.wait([stopped, waking], return_when=asyncio.FIRST_COMPLETED)
            finally:
                waking.cancel()
                await node.stop_async()
                await stopped
    finally:
        for each in installed:
            loop.remove_signal_handler(each)
