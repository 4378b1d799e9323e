"""Why a connection did not come about: libzmq does not say, so the kernel and the other side's greeting are asked.

A port that refuses means a dead process. Whoever takes the connection and greets as ZeroMQ does (RFC 23, ZMTP) names in its greeting how it
authenticates; a connection that it ended all the same ended over that. Never waits: `go_on` does what a ready descriptor allows.
"""

from __future__ import annotations

import contextlib
import errno
import selectors
import socket

_GREETING_SIZE = 64
_SIGNATURE, _VERSION = b"\xff" + bytes(8) + b"\x7f", b"\x03\x00"
_MECHANISM = slice(12, 32)


class Probe:
    """One connection, made to learn a verdict: "refused", "insecure" or "silent".

    Args:
        address: "host:port", the host an IP address.
        mechanism: how this node authenticates, "NULL" or "CURVE", if the other side is to be asked how it does; None to ask the kernel only.

    Attributes:
        sock: to be watched by a selector for `events`, then `go_on`.
        verdict: "" until it is known.
    """

    def __init__(self, address: str, mechanism: str | None = None) -> None:
        host, _, port = address.rpartition(":")
        host = host.strip("[]")
        self._mechanism = None if mechanism is None else mechanism.encode()
        self._heard = b""
        self.events = selectors.EVENT_WRITE
        self.verdict = ""
        self.sock = socket.socket(socket.AF_INET6 if ":" in host else socket.AF_INET, socket.SOCK_STREAM)
        self.sock.setblocking(False)
        try:
            outcome = self.sock.connect_ex((host, int(port)))
        except (OSError, ValueError, OverflowError):
            outcome = errno.EINVAL
        if outcome not in (0, errno.EINPROGRESS, errno.EWOULDBLOCK):
            self._judge(outcome)

    def go_on(self) -> None:
        """Its descriptor is ready: take the next step."""
        if self.events == selectors.EVENT_READ:
            self._listen()
            return
        outcome = self.sock.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR)
        if outcome or self._mechanism is None:
            self._judge(outcome)
            return
        try:
            self.sock.send(_SIGNATURE + _VERSION)  # no more: told our mechanism, the other side may hang up before it names its own
        except OSError:
            self._judge(errno.EPIPE)
        self.events = selectors.EVENT_READ

    def _listen(self) -> None:
        data = b""
        with contextlib.suppress(OSError):
            data = self.sock.recv(_GREETING_SIZE - len(self._heard))
        self._heard += data
        if not data or not _SIGNATURE.startswith(self._heard[:1]):
            self.verdict = "silent"
        elif len(self._heard) >= _MECHANISM.stop:
            theirs = self._heard[_MECHANISM].rstrip(b"\0")
            speaks = self._heard[9:10] == b"\x7f" and theirs in (b"NULL", b"PLAIN", b"CURVE", b"GSSAPI")
            self.verdict = "insecure" if speaks and (theirs != self._mechanism or theirs == b"CURVE") else "silent"

    def _judge(self, outcome: int) -> None:
        self.verdict = "refused" if outcome == errno.ECONNREFUSED else "silent"

    def close(self) -> None:
        """End the connection."""
        self.sock.close()
