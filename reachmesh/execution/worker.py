"""The child side of the process domain: the template that forks workers, and a worker's life.

Place in the data path: runs in processes of their own. The template is forked from the node while that has no threads of
ours, holds every process handler, and does nothing but fork workers on demand; so a worker starts in about a millisecond,
knows handlers that nothing could import (`python -c`), and inherits no lock that some thread held. A worker runs one call
at a time.

Neither outlives the node: the template sees the end of its control socket or a new parent, a worker the end of its
socket, and the kernel kills it when the template dies (Linux). Both leave by `os._exit`, never through the code of the
process they were forked from. A terminal's Ctrl-C does not reach them (a session of their own), so that a drain can finish.
"""

from __future__ import annotations

import asyncio
import gc
import inspect
import os
import random
import select
import signal
import socket
import stat
import struct
import sys
import traceback
from collections.abc import Callable, Mapping
from typing import Any, NoReturn

from reachmesh.errors import MESSAGE_LIMIT, PayloadError, ReachError
from reachmesh.execution.channel import DONE, FAILED, ITEM, NEXT, Channel, ChannelLost, Dump, Load
from reachmesh.execution.handler import Handler

FORK, REAP = b"F", b"R"
NUMBER = struct.Struct(">i")

_PARENT_LOOKED_FOR_EVERY = 1.0
_STACK_LIMIT = 16384


def template_main(
    control: socket.socket, handlers: Mapping[int, Handler], dump: Dump, load: Load, set_death_signal: Callable[[], None]
) -> NoReturn:
    """Fork workers as the node asks, until the node is gone. Called right after the fork, never returns."""
    children: set[int] = set()
    try:
        _settle(control)
        parent = os.getppid()
        while True:
            readable, _, _ = select.select([control], [], [], _PARENT_LOOKED_FOR_EVERY)
            if not readable:
                if os.getppid() != parent:
                    break
                continue
            command, files, _, _ = socket.recv_fds(control, 1 + NUMBER.size, 1)
            if not command:
                break
            if command[:1] == FORK:
                pid = os.fork()
                if pid == 0:
                    children.clear()
                    control.close()
                    set_death_signal()
                    _worker_main(socket.socket(fileno=files[0]), handlers, dump, load)
                os.close(files[0])
                children.add(pid)
                control.sendall(NUMBER.pack(pid))
            else:
                (pid,) = NUMBER.unpack(command[1:])
                control.sendall(NUMBER.pack(_reap(pid) if pid in children else 0))
                children.discard(pid)
    except BaseException:
        traceback.print_exc()
    finally:
        for pid in children:
            try:
                os.kill(pid, signal.SIGKILL)
            except OSError:
                continue
        os._exit(0)


def _settle(control: socket.socket) -> None:
    """Let go of what was the parent's: its terminal, its signal handlers, its sockets."""
    os.setsid()
    signal.set_wakeup_fd(-1)
    for number in (signal.SIGTERM, signal.SIGCHLD, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    _let_go_of_sockets(keep=control.fileno())
    gc.freeze()


def _let_go_of_sockets(keep: int) -> None:
    """Replace every inherited socket by /dev/null: peers of the parent must see its connections end with it.

    Not closed: objects of the parent that still live in this process would close the number again, when it is another's.
    """
    null = os.open(os.devnull, os.O_RDWR)
    folder = "/proc/self/fd" if os.path.isdir("/proc/self/fd") else "/dev/fd"
    for name in os.listdir(folder):
        number = int(name)
        if number <= 2 or number in (keep, null):
            continue
        try:
            if stat.S_ISSOCK(os.fstat(number).st_mode):
                os.dup2(null, number, inheritable=False)
        except OSError:
            continue
    os.close(null)


def _reap(pid: int) -> int:
    """End a worker, if it still lives, and give its exit status as `subprocess` does: the code, or minus the signal."""
    try:
        os.kill(pid, signal.SIGKILL)
        _, status = os.waitpid(pid, 0)
    except OSError:
        return 0
    return os.waitstatus_to_exitcode(status)


class _Interrupts:
    """SIGINT raises KeyboardInterrupt while user code runs, and nothing at any other time."""

    def __init__(self) -> None:
        self.armed = False
        signal.signal(signal.SIGINT, self._handle)

    def _handle(self, number: int, frame: Any) -> None:
        if self.armed:
            self.armed = False
            raise KeyboardInterrupt


def _worker_main(sock: socket.socket, handlers: Mapping[int, Handler], dump: Dump, load: Load) -> NoReturn:
    """Run calls one after the other until the node closes the socket."""
    try:
        random.seed()
        numpy = sys.modules.get("numpy")
        if numpy is not None:
            numpy.random.seed()
        channel = Channel(sock, dump, load)
        interrupts = _Interrupts()
        while True:
            _, (key, args, kwargs) = channel.receive()
            _serve(channel, handlers[key], list(args), kwargs, interrupts)
            _flush()
    except ChannelLost:
        pass
    except BaseException:
        traceback.print_exc()
    finally:
        _flush()
        os._exit(0)


def _serve(channel: Channel, handler: Handler, args: list[Any], kwargs: dict[str, Any], interrupts: _Interrupts) -> None:
    """Run one call; its answer, or its error, goes back."""
    try:
        args, kwargs = handler.convert(args, kwargs)
        interrupts.armed = True
        try:
            value = handler.fn(*args, **kwargs)
            if inspect.iscoroutine(value):
                value = asyncio.run(value)
            if handler.streams:
                _pump(channel, value, interrupts)
                value = None
        finally:
            interrupts.armed = False
        _give(channel, DONE, value)
    except ChannelLost:
        raise
    except _UnsendableError as unsendable:
        channel.send(FAILED, describe_failure(unsendable.error) | {"unsendable": True})
    except BaseException as error:
        channel.send(FAILED, describe_failure(error))


def _pump(channel: Channel, items: Any, interrupts: _Interrupts) -> None:
    """Send item by item, the next one when the node says so; closed here in any case."""
    if not hasattr(items, "__next__"):
        raise TypeError(f"declared as a stream, but returned {type(items).__name__}")
    try:
        for item in items:
            interrupts.armed = False  # half a message would be the end of the channel
            _give(channel, ITEM, item)
            wanted = channel.receive()[0] == NEXT
            interrupts.armed = True
            if not wanted:
                break
    finally:
        close = getattr(items, "close", None)
        if close is not None:
            close()


class _UnsendableError(Exception):
    """The handler's answer or item cannot travel, as `error` says."""

    def __init__(self, error: PayloadError) -> None:
        super().__init__()
        self.error = error


def _give(channel: Channel, kind: int, value: Any) -> None:
    """Send what the handler gave."""
    try:
        channel.send(kind, value)
    except PayloadError as error:
        raise _UnsendableError(error) from None


def describe_failure(error: BaseException) -> dict[str, Any]:
    """An exception as plain values: what `process.rebuild_failure` makes an exception of again."""
    try:
        message = error.message if isinstance(error, ReachError) else str(error)
    except Exception:
        message = "(the exception cannot be printed)"
    fields: dict[str, Any] = {}
    if isinstance(error, ReachError):
        fields = {"code": error.code, "retryable": error.retryable, "hint": error.hint}
        fields |= {name: getattr(error, name) for name in ("path", "retry_after", "type_name") if hasattr(error, name)}
    stack = "".join(traceback.format_exception(error))
    return {
        "kind": error.default_code if isinstance(error, ReachError) else "",
        "type": type(error).__name__,
        "message": _sendable(message),
        "fields": {name: _sendable(value) if isinstance(value, str) else value for name, value in fields.items()},
        "stack": _sendable(stack[-_STACK_LIMIT:]),
    }


def _sendable(text: str) -> str:
    return text[: max(MESSAGE_LIMIT, _STACK_LIMIT)].encode("utf-8", "replace").decode()


def _flush() -> None:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
