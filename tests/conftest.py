"""Fixtures of the whole suite: a world of processes, a LAN of namespaces, and the rule of when LAN tests are skipped."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack

import pytest

from tests.network import Lan
from tests.support import World, namespaces_refused


def pytest_configure() -> None:
    """Started in the background by a shell, we and all our children would ignore Ctrl-C, which some tests send."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip the LAN tests, with the reason, where namespaces cannot be made; tests/lan asserts that CI is no such place."""
    lan_items = [item for item in items if item.get_closest_marker("lan")]
    if lan_items and (reason := namespaces_refused()):
        for item in lan_items:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture
def world() -> Iterator[World]:
    """A mesh of its own on loopback."""
    with World() as world:
        yield world


@pytest.fixture
def lan(world: World) -> Iterator[Callable[..., Lan]]:
    """Makes LANs, `lan(hosts=3, segments=1)`, and takes them down again; the test has to be marked `lan`."""
    with ExitStack() as made:
        yield lambda **shape: made.enter_context(Lan(world, **shape))


@pytest.hookimpl(trylast=True)
def pytest_unconfigure() -> None:
    """A thread that a failed test left behind would keep the interpreter alive for ever: name it, and end with a failure."""
    left = [thread.name for thread in threading.enumerate() if not thread.daemon and thread is not threading.main_thread()]
    if left:
        print(f"threads left running: {', '.join(left)}", file=sys.stderr, flush=True)
        sys.stdout.flush()
        os._exit(1)
