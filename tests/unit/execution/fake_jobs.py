"""A job that remembers what the executor did with it, and a context type of the tests' own."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from typing import Any

from reachmesh.execution.handler import Handler, inspect_handler

LIMIT = 20.0
"""Seconds a test waits for anything before it fails."""


class Context:
    """Stands for the node's context."""


def handler_of(fn: Callable[..., Any], localns: Mapping[str, Any] | None = None) -> Handler:
    """`fn`, inspected."""
    return inspect_handler(fn, context_type=Context, localns=localns)


class FakeJob:
    """A job with a credit of `credit` items; the end of it is `outcome`, ("finished", value) or ("failed", error)."""

    def __init__(
        self, fn: Callable[..., Any] | Handler, *args: Any, domain: str = "pool", priority: int = 100, credit: int = 1 << 30, **kwargs: Any
    ) -> None:
        self.handler = fn if isinstance(fn, Handler) else handler_of(fn)
        self.domain = domain
        self.priority = priority
        self.cancelled = False
        self.refused = False
        self.items: list[Any] = []
        self.steps: list[str] = []
        self.threads: list[threading.Thread] = []
        self.outcomes: list[tuple[str, Any]] = []
        self.waiting = threading.Event()
        self._arguments = (list(args), kwargs)
        self._credit = credit
        self._room = threading.Semaphore(0)
        self._over = threading.Event()

    def begin(self) -> tuple[list[Any], dict[str, Any]] | None:
        self._step("begin")
        if self.refused or self.cancelled:
            self._over.set()
            return None
        return self.handler.bind(*self._arguments)

    def entered(self) -> Any:
        self._step("entered")
        return "token"

    def left(self, token: Any) -> None:
        assert token == "token"
        self._step("left")

    def finish(self, value: Any) -> None:
        self._end("finished", value)

    def fail(self, exc: BaseException) -> None:
        self._end("failed", exc)

    def emit(self, item: Any) -> bool:
        self.items.append(item)
        self._credit -= 1
        return self._credit > 0

    def wait_room(self) -> bool:
        self.waiting.set()
        assert self._room.acquire(timeout=LIMIT)
        self.waiting.clear()
        self._credit = 1
        return not self.cancelled

    async def room(self) -> bool:
        import asyncio

        self.waiting.set()
        assert await asyncio.to_thread(self._room.acquire, True, LIMIT)
        self.waiting.clear()
        self._credit = 1
        return not self.cancelled

    def grant(self) -> None:
        """Give credit for one more item."""
        self._room.release()

    def cancel(self) -> None:
        """Nobody wants the answer any more."""
        self.cancelled = True
        self._room.release()

    @property
    def outcome(self) -> tuple[str, Any]:
        """How the job ended; waits for it."""
        assert self._over.wait(LIMIT), f"{self.handler.name} has not ended: {self.steps}"
        [outcome] = self.outcomes
        return outcome

    @property
    def value(self) -> Any:
        """The answer; waits for it."""
        kind, value = self.outcome
        assert kind == "finished", value
        return value

    @property
    def error(self) -> BaseException:
        """The error; waits for it."""
        kind, error = self.outcome
        assert kind == "failed", error
        assert isinstance(error, BaseException)
        return error

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def wait(self) -> None:
        """Wait for the end, whichever."""
        assert self._over.wait(LIMIT), f"{self.handler.name} has not ended: {self.steps}"

    def _step(self, name: str) -> None:
        self.steps.append(name)
        self.threads.append(threading.current_thread())

    def _end(self, kind: str, value: Any) -> None:
        self._step(kind)
        self.outcomes.append((kind, value))
        self._over.set()
