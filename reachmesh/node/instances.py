"""`serve(processes=n)`: n instances of one node, each in a process of its own, restarted when it dies.

The parent forks the instances from the node as it was declared and then only watches: it is no node itself and opens nothing. An
instance that dies (crash, kill, out of memory) is started again, after a pause that doubles from 0.1 to 10 s while it keeps dying
young; one that stops by itself with exit code 0 is not. A stop is passed on: each instance drains, a second signal ends it. Instances
end with their parent (on Linux, whatever ends it).
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import sys
import threading
import time
import traceback
import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from reachmesh.errors import ConfigError, UsageError

if TYPE_CHECKING:
    from reachmesh.node.node import ReachNode

_log = logging.getLogger("reachmesh")

YOUNG = 5.0
"""Seconds an instance has to live for its death not to count as one more in a row."""

FIRST_PAUSE, LONGEST_PAUSE = 0.1, 10.0

KILL_AFTER = 10.0
"""Seconds beyond the drain after which an instance that does not end is killed."""

_CONFIG_EXIT = 78
_LOOK_EVERY = 0.1
_PR_SET_PDEATHSIG = 1


class _Instance:
    """One place for a process: its pid while it lives, else when it starts next."""

    __slots__ = ("deaths", "pid", "restart_at", "since")

    def __init__(self) -> None:
        self.pid = 0
        self.since = self.restart_at = 0.0
        self.deaths = 0


def serve_instances(node: ReachNode, count: int, serve: Callable[[], None]) -> None:
    """Run `count` instances until a signal or a stop; `serve` is what each does.

    Raises:
        ConfigError: an instance found its settings wrong, or this platform cannot fork. All have ended.
    """
    if not hasattr(os, "fork"):
        raise ConfigError("serve(processes=...) needs a platform with fork", hint="start the program several times")
    if node._life.phase != "new":
        raise UsageError("serve(processes=...) starts the node in other processes; this one has been started already")
    if node._settings.bind is not None and node._settings.bind[1]:
        raise ConfigError(f"{count} processes cannot all listen on port {node._settings.bind[1]}", hint='bind to port 0, as in "host:0"')
    signals = 0

    def on_signal(number: int, frame: Any) -> None:
        nonlocal signals
        signals += 1

    previous: dict[int, Any] = {}
    if threading.current_thread() is threading.main_thread():
        for number in (signal.SIGINT, signal.SIGTERM):
            previous[number] = signal.signal(number, on_signal)
    try:
        _supervise(node, [_Instance() for _ in range(count)], serve, lambda: signals + node._life.stopped.is_set())
    finally:
        for each, handler in previous.items():
            signal.signal(each, handler if handler is not None else signal.SIG_DFL)


def _supervise(node: ReachNode, places: list[_Instance], serve: Callable[[], None], asked: Callable[[], int]) -> None:
    passed_on = 0
    kill_at = float("inf")
    broken = False
    while True:
        now = time.monotonic()
        ending = asked() + broken
        if not ending:
            for place in places:
                if not place.pid and now >= place.restart_at:
                    place.pid, place.since = _fork(node, serve), now
        elif ending > passed_on:
            passed_on += 1
            kill_at = min(kill_at, now + node.config.drain + KILL_AFTER)
            _tell(places, signal.SIGTERM)
        if now >= kill_at:
            _tell(places, signal.SIGKILL)
        for place in [place for place in places if place.pid]:
            pid, status = os.waitpid(place.pid, os.WNOHANG)
            if pid:
                code, place.pid = os.waitstatus_to_exitcode(status), 0
                broken |= _bury(node, places, place, code, now, ending=bool(ending))
        if (asked() or broken or not places) and not any(place.pid for place in places):
            break
        node._life.stopped.wait(_LOOK_EVERY) if not ending else time.sleep(_LOOK_EVERY / 4)
    node._life.phase = "stopped"
    node._life.stopped.set()
    if broken:
        raise ConfigError("an instance could not start; its stderr says why")


def _bury(node: ReachNode, places: list[_Instance], place: _Instance, code: int, now: float, *, ending: bool) -> bool:
    """An instance has ended: plan its next start, or take its place away. True when none could ever start."""
    if code == 0 or ending:
        places.remove(place)
        return False
    if code == _CONFIG_EXIT:
        return True
    place.deaths = place.deaths + 1 if now - place.since < YOUNG else 1
    pause = min(LONGEST_PAUSE, FIRST_PAUSE * 2.0 ** (place.deaths - 1))
    place.restart_at = now + pause
    how = f"signal {-code}" if code < 0 else f"exit code {code}"
    _log.warning("an instance of %s died (%s); it is started again in %.1f s", node.name, how, pause)
    return False


def _tell(places: list[_Instance], number: int) -> None:
    for place in places:
        if place.pid:
            try:
                os.kill(place.pid, number)
            except ProcessLookupError:
                continue


def _fork(node: ReachNode, serve: Callable[[], None]) -> int:
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError, AttributeError):
            continue
    parent = os.getpid()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # beside threads of the user's; see `serve`
        pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        _die_with(parent)
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent passes it on
        node._renew(node._life.listeners.functions)
        serve()
        code = 0
    except ConfigError:
        traceback.print_exc()
        code = _CONFIG_EXIT
    except BaseException:
        traceback.print_exc()
    finally:
        for stream in (sys.stdout, sys.stderr):
            try:
                stream.flush()
            except (OSError, ValueError, AttributeError):
                continue
        os._exit(code)


def _die_with(parent: int) -> None:
    """Have the kernel send SIGTERM to this process when its parent ends."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:
            os._exit(1)
