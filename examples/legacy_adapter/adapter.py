"""Puts a system that cannot be changed into the mesh: `adapter.py HOST:PORT` offers `stock` for it.

What an adapter is for: the address stays in one place, the old protocol's answers become values and errors with a meaning, the caller's
deadline becomes the socket's timeout, and a system that takes one connection at a time gets one (`domain="thread"`: calls in order).
"""

from __future__ import annotations

import socket
import sys

from reachmesh import Context, ReachNode, SemanticError, capability

PATIENCE = 5.0


class OldSystem:
    """One connection to the old system, made when it is first needed and made again after a failure."""

    def __init__(self, address: str) -> None:
        host, _, port = address.rpartition(":")
        self._address = host, int(port)
        self._connection: socket.socket | None = None

    def ask(self, command: str, timeout: float) -> str:
        """The answer to one command line."""
        try:
            if self._connection is None:
                self._connection = socket.create_connection(self._address, timeout)
            self._connection.settimeout(timeout)
            self._connection.sendall(f"{command}\r\n".encode("latin-1"))
            with self._connection.makefile("rb") as reader:
                answer = reader.readline(1024)
            if not answer.endswith(b"\n"):
                raise ConnectionError("the old system hung up")
        except OSError:
            if self._connection is not None:
                self._connection.close()
                self._connection = None
            raise
        return answer.decode("latin-1").strip()


def main(address: str) -> None:
    system = OldSystem(address)

    @capability("stock", domain="thread", idempotent=True, semantic_errors=["old_system_down"])
    def stock(article: str, ctx: Context) -> int:
        """How many of an article are there."""
        if not article.isalnum():  # a line break would be a second command
            raise SemanticError(f"{article!r} is no article", code="bad_article")
        try:
            status, _, rest = system.ask(f"QTY {article}", min(PATIENCE, ctx.remaining())).partition(" ")
        except OSError as error:
            raise SemanticError(f"the old system does not answer: {error}", code="old_system_down") from error
        if status != "OK":
            raise SemanticError(rest, code="unknown_article" if rest.startswith("404") else "old_system_error")
        return int(rest)

    ReachNode("stock-adapter", caps=[stock]).serve()


if __name__ == "__main__":
    main(sys.argv[1])
