"""A process in a world: what is to happen in it, while it lives and is not stopped."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from contextvars import Context
from typing import Any, TypeVarTuple, Unpack

from .schedule import Schedule

Ts = TypeVarTuple("Ts")


class Process:
    """Things that happen in one process. They wait while it is frozen (SIGSTOP), and never happen after its end.

    Attributes:
        loop: its event loop, where async handlers run.
    """

    def __init__(self, schedule: Schedule) -> None:
        self.schedule = schedule
        self.alive = True
        self.frozen = False
        self.loop = VirtualLoop(schedule.time, self.at)
        self._waiting: deque[Callable[[], object]] = deque()

    def at(self, time: float, action: Callable[[], object]) -> None:
        """Have something happen in this process at a time."""
        self.schedule.at(time, lambda: self._do(action))

    def soon(self, action: Callable[[], object]) -> None:
        """Have something happen next."""
        self.at(self.schedule.now, action)

    def freeze(self) -> None:
        """SIGSTOP."""
        self.frozen = True

    def thaw(self) -> None:
        """SIGCONT: what was due meanwhile happens now, in its order."""
        self.frozen = False
        while self._waiting:
            self.soon(self._waiting.popleft())

    def end(self) -> None:
        """Nothing happens in it any more."""
        self.alive = False
        self._waiting.clear()

    def _do(self, action: Callable[[], object]) -> None:
        if self.frozen and self.alive:
            self._waiting.append(action)
        elif self.alive:
            action()


class VirtualLoop(asyncio.BaseEventLoop):
    """An event loop under virtual time: `asyncio.sleep(60)` takes no time at all. It has no selector and no thread of its own; its
    callbacks are things that happen in the world.

    Args:
        now: the clock.
        at: has something happen at a time.
    """

    def __init__(self, now: Callable[[], float], at: Callable[[float, Callable[[], object]], None]) -> None:
        self._now, self._at = now, at
        super().__init__()

    def set_debug(self, enabled: bool) -> None:
        """As of any loop, but nothing has to be done for it."""
        self._debug = enabled

    def __del__(self) -> None:
        """Holds nothing that would have to be closed."""

    def time(self) -> float:
        """Virtual seconds."""
        return self._now()

    def is_running(self) -> bool:
        """It runs whenever the world does."""
        return not self.is_closed()

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """As of any loop, but tasks may be left behind: a killed process does that, and so does a test that ends."""
        if context.get("message") != "Task was destroyed but it is pending!":
            super().call_exception_handler(context)

    def call_soon(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        """As of any loop."""
        handle = asyncio.Handle(callback, args, self, context)
        self._at(self._now(), lambda: self._run(handle))
        return handle

    def call_soon_threadsafe(self, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None) -> asyncio.Handle:
        """As `call_soon`: there is one thread."""
        return self.call_soon(callback, *args, context=context)

    def call_at(
        self, when: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As of any loop."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._at(when, lambda: self._run(handle))
        return handle

    def call_later(
        self, delay: float, callback: Callable[[Unpack[Ts]], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """As of any loop."""
        return self.call_at(self._now() + delay, callback, *args, context=context)

    def run_in_executor(self, executor: Any, func: Callable[[Unpack[Ts]], Any], *args: *Ts) -> asyncio.Future[Any]:
        """Runs the function next, in the one thread there is; it takes no virtual time unless it waits."""
        future: asyncio.Future[Any] = self.create_future()

        def run() -> None:
            try:
                value = func(*args)
            except BaseException as error:
                if not future.cancelled():
                    future.set_exception(error)
            else:
                if not future.cancelled():
                    future.set_result(value)

        self._at(self._now(), run)
        return future

    def _run(self, handle: asyncio.Handle) -> None:
        if handle.cancelled():
            return
        asyncio._set_running_loop(self)
        try:
            handle._run()
        finally:
            asyncio._set_running_loop(None)
