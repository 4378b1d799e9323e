"""Bare pyzmq, DEALER to ROUTER over TCP, two parts: what the socket alone costs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import zmq

from tools.bench.interface import STREAM_REQUEST, Client, Ready, Server, items

ECHO, PRODUCE, UPLOAD = b"e0000000", b"p0000000", b"u0000000"
BURST = 100


class RawServer(Server):
    def run(self, instances: int, ready: Ready) -> None:
        context = zmq.Context()
        poller = zmq.Poller()
        addresses = []
        for _ in range(instances):
            router = context.socket(zmq.ROUTER)
            router.set_hwm(0)
            port = router.bind_to_random_port("tcp://127.0.0.1")
            addresses.append(f"tcp://127.0.0.1:{port}")
            poller.register(router, zmq.POLLIN)
        ready(addresses)
        while True:
            for router, _ in poller.poll():
                self._read(router)

    def _read(self, router: zmq.Socket[bytes]) -> None:
        for _ in range(BURST):
            try:
                route = router.recv(zmq.NOBLOCK)
            except zmq.Again:
                return
            kind = router.recv()
            if kind == ECHO:
                router.send_multipart((route, kind, router.recv()))
            elif kind == UPLOAD:
                router.send_multipart((route, kind, b"%d" % len(router.recv(copy=False).buffer)))
            else:
                for item in items(*STREAM_REQUEST.unpack(router.recv())):
                    router.send_multipart((route, kind, item))


class RawClient(Client):
    fans_out = True
    shared_by_threads = False

    def __init__(self, addresses: list[str], **options: Any) -> None:
        super().__init__(addresses, **options)
        self.context = zmq.Context()
        self.socket = self._connect()

    def _connect(self) -> zmq.Socket[bytes]:
        dealer = self.context.socket(zmq.DEALER)
        dealer.set_hwm(0)
        dealer.linger = 0
        for address in self.addresses:
            dealer.connect(address)
        return dealer

    def call(self, body: bytes) -> bytes:
        self.socket.send_multipart((ECHO, body))
        return self.socket.recv_multipart()[1]

    def thread_caller(self) -> Callable[[bytes], bytes]:
        dealer = self._connect()

        def call(body: bytes) -> bytes:
            dealer.send_multipart((ECHO, body))
            return dealer.recv_multipart()[1]

        return call

    def outstanding(self, limit: int, seconds: float) -> float:
        send, receive, message = self.socket.send_multipart, self.socket.recv_multipart, (ECHO, bytes(100))
        for _ in range(limit):
            send(message)
        count, start = 0, time.perf_counter()
        while (spent := time.perf_counter() - start) < seconds:
            for _ in range(BURST):
                receive()
                send(message)
            count += BURST
        for _ in range(limit):
            receive()
        return count / spent

    def stream(self, count: int, size: int) -> Iterator[Any]:
        self.socket.send_multipart((PRODUCE, STREAM_REQUEST.pack(count, size)))
        for _ in range(count):
            yield self.socket.recv_multipart()[1]

    def upload(self, body: bytes) -> int:
        self.socket.send_multipart((UPLOAD, body), copy=False)
        return int(self.socket.recv_multipart()[1])

    def upload_array(self, array: Any) -> int:
        self.socket.send_multipart((UPLOAD, memoryview(array).cast("B")), copy=False)
        return int(self.socket.recv_multipart()[1])
