"""Sockets alone: what a connection's fate is reported as, and that nothing that arrived is lost with it."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack

import psutil
import pytest

from reachmesh import ConfigError
from reachmesh.transport.sockets import Transport

Change = tuple[str, int, str]


class End:
    """A transport that is turned until something is there."""

    def __init__(self) -> None:
        self.transport = Transport()
        self.port = self.transport.bind(["127.0.0.1"], 0)
        self.messages: list[tuple[int, bytes, list[bytes]]] = []
        self.changes: list[Change] = []

    def turn(self, wait: float = 0.01) -> None:
        transport = self.transport
        ready = transport.wait(wait)
        for key, batch, parts in transport.read(ready, time.monotonic()):
            if batch or parts:
                self.messages.append((key, batch, [bytes(part) for part in parts]))
        self.changes += transport.take_changes()


@pytest.fixture
def ends() -> Iterator[tuple[End, End]]:
    one, other = End(), End()
    yield one, other
    one.transport.close(0)
    other.transport.close(0)


def until(condition: object, *ends: End, timeout: float = 5.0) -> None:
    limit = time.monotonic() + timeout
    while not condition():  # type: ignore[operator]
        assert time.monotonic() < limit, [(each.messages, each.changes) for each in ends]
        for each in ends:
            each.turn()


def connect(one: End, other: End, key: int = 1) -> int:
    """Dial and say something; the key of the other end."""
    one.transport.dial(key, f"127.0.0.1:{other.port}")
    until(lambda: ("opened", key, "") in one.changes, one, other)
    one.transport.send(key, b"hello", ())
    until(lambda: other.messages, one, other)
    return other.messages.pop(0)[0]


def test_messages_go_both_ways_with_their_parts(ends: tuple[End, End]) -> None:
    """Order, batches and parts of every size are kept, in both directions."""
    one, other = ends
    back = connect(one, other)
    sizes = [0, 1, 1000, 70_000, 3_000_000]
    for index, size in enumerate(sizes):
        one.transport.send(1, bytes([index]) * 10, [b"p" * size] * (index % 3))
        other.transport.send(back, bytes([index]) * 10, [b"q" * size] * (index % 3))
    until(lambda: len(other.messages) == len(one.messages) == len(sizes), one, other)
    for letter, key, end in ((b"p", back, other), (b"q", 1, one)):
        assert end.messages == [(key, bytes([index]) * 10, [letter * size] * (index % 3)) for index, size in enumerate(sizes)]


def test_a_refused_port_is_told_from_silence(ends: tuple[End, End]) -> None:
    """Nobody listening is "refused"; somebody who takes the connection and hangs up is "silent"."""
    one, _ = ends
    with ExitStack() as stack:
        free = socket.create_server(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        rude = stack.enter_context(socket.create_server(("127.0.0.1", 0)))

        def hang_up_twice() -> None:
            for _ in range(2):
                rude.accept()[0].close()

        threading.Thread(target=hang_up_twice, daemon=True).start()
        one.transport.dial(1, f"127.0.0.1:{port}")
        one.transport.dial(2, f"127.0.0.1:{rude.getsockname()[1]}")
        until(lambda: len(one.changes) == 2, one)
    assert sorted(one.changes) == [("closed", 1, "refused"), ("closed", 2, "silent")]


def test_what_came_before_the_end_is_read_before_it(ends: tuple[End, End]) -> None:
    """A peer that sends and closes: all of its messages, then the end, on dialled and accepted links alike."""
    one, other = ends
    back = connect(one, other)
    for index in range(600):
        other.transport.send(back, index.to_bytes(2, "big"), ())
    other.transport.close(2000)
    until(lambda: ("closed", 1, "disconnected") in one.changes, one)
    assert [int.from_bytes(batch) for _, batch, _ in one.messages] == list(range(600))


def test_a_dropped_dialler_is_noticed_by_the_listener(ends: tuple[End, End]) -> None:
    """The accepted side learns of the end without having anything to send, and only of that one."""
    one, other = ends
    back, stays = connect(one, other), connect(one, other, 2)
    one.transport.close_link(1)
    until(lambda: ("closed", back, "disconnected") in other.changes, one, other)
    other.transport.send(stays, b"still here", ())
    until(lambda: one.messages, one, other)
    assert ("closed", stays, "disconnected") not in other.changes


def test_sending_to_who_is_gone_is_said_and_never_raises(ends: tuple[End, End]) -> None:
    """Unknown keys are swallowed, dropped ones reported."""
    one, other = ends
    back = connect(one, other)
    one.transport.send(99, b"x", ())
    other.transport.send(-99, b"x", ())
    one.transport.close_link(1)
    one.transport.close_link(1)
    until(lambda: any(key == back for _, key, _ in other.changes), one, other)
    other.transport.send(back, b"x", ())


def test_a_wait_is_ended_from_another_thread(ends: tuple[End, End]) -> None:
    """`wake` ends a long wait at once, and is harmless after the close."""
    one, _ = ends
    for _ in range(3):
        one.turn(0.0)
    start = time.monotonic()
    threading.Timer(0.05, one.transport.wake).start()
    one.turn(10.0)
    assert time.monotonic() - start < 5.0
    one.transport.close(0)
    one.transport.close(0)
    one.transport.wake()


def test_a_taken_port_leaves_nothing_open() -> None:
    """The error names the port, and every descriptor is closed again."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        before = psutil.Process().num_fds()
        transport = Transport()
        with pytest.raises(ConfigError, match=str(taken.getsockname()[1])):
            transport.bind(["127.0.0.1"], taken.getsockname()[1])
        transport.close(0)
        assert psutil.Process().num_fds() <= before
