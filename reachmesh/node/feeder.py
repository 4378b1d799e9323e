"""The sending end of a caller's stream: credit for whoever produces, and the pump that drains an iterable into a call."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterable, Callable, Iterable
from typing import Any

from reachmesh.calls.outgoing import OutgoingCall
from reachmesh.errors import BlockingCallInLoop, Cancelled, PayloadError
from reachmesh.execution.pool import blocking
from reachmesh.node.driver import Driver
from reachmesh.node.outlet import Outlet
from reachmesh.node.wakers import Waker


class Feeder:
    """Puts items into the stream that a call sends, no faster than its handler takes them.

    `failed` is told what the user's iterable raised, or why an item cannot travel; the call then ends with that.
    """

    def __init__(self, driver: Driver, call: OutgoingCall, failed: Callable[[BaseException], None]) -> None:
        self._driver, self._call, self._failed = driver, call, failed
        self._outlet = Outlet(driver, driver.engine.caller.put_items, call)
        self._ended = False
        self._closed = False
        self._lock = threading.Lock()
        self._room = threading.Condition(self._lock)
        self._waker: Waker | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def over(self) -> bool:
        """Whether nothing more can be sent: ended here, or the call is over."""
        return self._ended or self._closed or self._call.closed

    def has_room(self) -> None:
        """Credit came."""
        with self._lock:
            self._room.notify_all()
            waker, self._waker = self._waker, None
        if waker is not None:
            waker.wake()

    def close(self) -> None:
        """The call is over."""
        self._closed = True
        self.has_room()

    def send(self, item: Any) -> None:
        """Send one item, waiting for credit in this thread.

        Raises:
            PayloadError: the item cannot travel; the stream goes on.
            Cancelled: the call is over.
            BlockingCallInLoop: it would have to wait, on an event loop's thread.
        """
        encoded = self._outlet.encode(item)
        if not self.over and not self._outlet.has_credit():
            if asyncio._get_running_loop() is not None:
                raise BlockingCallInLoop("waiting for credit would block this thread's event loop", hint="await asend() instead")
            self._driver.flush()
            with blocking(), self._lock:
                while not self.over and not self._outlet.has_credit():
                    self._room.wait()
        self._put(encoded)

    async def asend(self, item: Any) -> None:
        """As `send`, waiting on the running loop."""
        encoded = self._outlet.encode(item)
        while not self.over:
            with self._lock:
                if self._outlet.has_credit():
                    break
                waker = self._waker = Waker()
            self._driver.flush()
            await waker.future
        self._put(encoded)

    def _put(self, encoded: Any) -> None:
        if self.over:
            raise Cancelled("the call is over; nothing more can be sent", executed="yes")
        self._outlet.send(encoded)

    def end(self) -> None:
        """Nothing more will be sent. Safe to call twice."""
        if not self._ended:
            self._ended = True
            self._driver.post(self._driver.engine.caller.end_input, self._call)

    def feed(self, source: Any) -> None:
        """Send a whole iterable: an async one by a task of the running loop, any other from a thread of its own."""
        if hasattr(source, "__aiter__") and (not hasattr(source, "__iter__") or asyncio._get_running_loop() is not None):
            self._task = asyncio.get_running_loop().create_task(self._apump(source))
            return
        threading.Thread(target=self._help, args=(source,), name="reachmesh-input", daemon=True).start()

    def _help(self, source: Iterable[Any]) -> None:
        me, helpers = threading.current_thread(), self._driver.helpers
        helpers.add(me)
        try:
            self._pump(source)
        finally:
            helpers.discard(me)

    def _pump(self, source: Iterable[Any]) -> None:
        try:
            iterator = iter(source)
            try:
                for item in iterator:
                    self.send(item)
                self.end()
            finally:
                close = getattr(iterator, "close", None)
                if close is not None:
                    close()
        except BaseException as error:
            if not self.over or isinstance(error, PayloadError):
                self._failed(error)

    async def _apump(self, source: AsyncIterable[Any]) -> None:
        try:
            async for item in source:
                await self.asend(item)
            self.end()
        except asyncio.CancelledError:
            raise
        except BaseException as error:
            if not self.over or isinstance(error, PayloadError):
                self._failed(error)
