"""The old system: a stock list behind TCP, one command a line, one connection at a time. Nobody dares to change it."""

from __future__ import annotations

import socketserver
import sys

STOCK = {"bolt": 1200, "nut": 900, "washer": 0}


class Session(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        for line in self.rfile:
            command, _, article = line.decode("latin-1").strip().partition(" ")
            if command != "QTY":
                self.wfile.write(b"ERR 500 what?\r\n")
            elif article not in STOCK:
                self.wfile.write(b"ERR 404 unknown article\r\n")
            else:
                self.wfile.write(f"OK {STOCK[article]}\r\n".encode())


if __name__ == "__main__":
    with socketserver.TCPServer(("127.0.0.1", int(sys.argv[1])), Session) as server:
        print(f"listening on {server.server_address[1]}", flush=True)
        server.serve_forever()
