"""Ctrl-C and fork at bad moments: nothing is left half done, nothing hangs."""

from __future__ import annotations

import os
import secrets
import signal
import threading
import warnings
from collections.abc import Iterator

import pytest

from reachmesh import ReachNode, UsageError
from reachmesh.node.listening import Listening
from reachmesh.node.unbroken import unbroken
from tests.support import eventually


@pytest.fixture
def node() -> Iterator[ReachNode]:
    made = ReachNode("solo", caps={"count": count}, mesh="unbroken-" + secrets.token_hex(4), interfaces=["127.0.0.1"], discovery=())
    yield made
    made.stop(drain=0)


def count(n: int) -> Iterator[int]:
    yield from range(n)


def test_an_interrupt_waits_for_the_work() -> None:
    """The work is done to its end, is told to hurry, and the interrupt comes out afterwards."""
    told, done = threading.Event(), []

    def work() -> None:
        os.kill(os.getpid(), signal.SIGINT)
        assert told.wait(10)
        done.append(True)

    with pytest.raises(KeyboardInterrupt):
        unbroken(work, interrupted=told.set)
    assert done == [True]


def test_the_works_own_error_comes_out() -> None:
    """What the work raises is raised to the caller."""

    def work() -> None:
        raise ValueError("mine")

    with pytest.raises(ValueError, match="mine"):
        unbroken(work, interrupted=lambda: None)


def test_an_interrupted_start_leaves_no_node(node: ReachNode, monkeypatch: pytest.MonkeyPatch) -> None:
    """Ctrl-C while discovery starts: the interrupt comes out of start() and the node is stopped, with all its threads."""
    discover = node._life._look_around

    def interrupted(listening: Listening) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        discover(listening)

    monkeypatch.setattr(node._life, "_look_around", interrupted)
    with pytest.raises(KeyboardInterrupt):
        with node:
            pass
    assert not node.is_running
    eventually(lambda: not [each.name for each in threading.enumerate() if each.name.startswith("reachmesh-solo")])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork here")
def test_a_forked_child_is_told_wherever_it_asks(node: ReachNode) -> None:
    """In a forked child the parent's stream, future and node give a UsageError at once, closing returns, and the parent goes on."""
    unstarted = ReachNode("later", interfaces=["127.0.0.1"], discovery=())
    node.start()
    stream = node.reach("count").stream(n=500)
    assert stream.next() == 0
    future = node.reach("nobody", timeout=30).submit()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # Python 3.12 warns of any fork beside threads
        child = os.fork()
    if child == 0:
        told = 0
        for ask in (stream.next, future.result, node.start, node.peers, unstarted.start):
            try:
                ask()
            except UsageError:
                told += 1
            except BaseException:
                pass
        stream.close()
        os._exit(told)
    ended = eventually(lambda: status if (status := os.waitpid(child, os.WNOHANG))[0] else None)
    assert ended is not None
    assert os.waitstatus_to_exitcode(ended[1]) == 5
    assert list(stream) == list(range(1, 500))
