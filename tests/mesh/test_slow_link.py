"""The slow link that tests of big payloads and of cut connections put in front of a node."""

from __future__ import annotations

import socket
import threading
import time

import pytest

from tests.network import SlowLink
from tests.support import eventually

MIB = 1024 * 1024


class Echo:
    """Sends back what it is sent, one connection at a time, until closed."""

    def __init__(self) -> None:
        self.server = socket.create_server(("127.0.0.1", 0))
        self.address = f"127.0.0.1:{self.server.getsockname()[1]}"
        self.thread = threading.Thread(target=self.run, daemon=True)
        self.thread.start()

    def run(self) -> None:
        while True:
            try:
                connection, _ = self.server.accept()
            except OSError:
                return
            with connection:
                try:
                    while data := connection.recv(65536):
                        connection.sendall(data)
                except OSError:
                    continue

    def close(self) -> None:
        self.server.shutdown(socket.SHUT_RDWR)
        self.server.close()
        self.thread.join(5)


def dial(address: str) -> socket.socket:
    host, _, port = address.rpartition(":")
    return socket.create_connection((host, int(port)), timeout=10)


def echo(connection: socket.socket, size: int) -> float:
    """Seconds that `size` bytes take there and back."""
    start = time.monotonic()
    sender = threading.Thread(target=connection.sendall, args=(bytes(size),))
    sender.start()
    left = size
    while left:
        piece = connection.recv(65536)
        assert piece, "connection closed"
        left -= len(piece)
    sender.join()
    return time.monotonic() - start


def is_closed(connection: socket.socket) -> bool:
    try:
        return connection.recv(1) == b""
    except ConnectionResetError:
        return True


def test_slow_link_delays_limits_cuts_and_drops() -> None:
    """A relay is invisible until told to delay, to limit the rate, to hold everything, or to close."""
    server = Echo()
    with SlowLink(server.address) as link, dial(link.address) as connection:
        assert echo(connection, 1000) < 1.0
        link.delay = 0.05
        assert echo(connection, 1) >= 0.1
        link.delay, link.rate = 0.0, 4 * MIB
        assert echo(connection, MIB) >= 0.2
        link.rate = None
        link.cut()
        connection.sendall(b"x")
        connection.settimeout(0.2)
        with pytest.raises(TimeoutError):
            connection.recv(1)
        link.heal()
        connection.settimeout(10)
        assert connection.recv(1) == b"x"
        link.drop()
        assert is_closed(connection)
        with dial(link.address) as again:
            assert echo(again, 10) < 5
        eventually(lambda: link.connections == 2)
    server.close()
