"""Strangers on the port of a real node: nothing they send runs, crashes, or disturbs those who belong."""

from __future__ import annotations

import random
import socket
import struct
import threading
from typing import Any

import msgpack
import psutil
import zmq

from reachmesh.wire.control import Control, Hello
from reachmesh.wire.frames import encode_control, encode_frame, encode_request_meta, join_batch, split_batch
from tests.support import World, eventually


def address_of(world: World, **options: Any) -> tuple[str, Any]:
    node = world.node("victim", {"echo": lambda x: x, "boom": boom}, config={"heartbeat_period": 1.0}, **options)
    return node.endpoints[0].removeprefix("tcp://"), node


ran: list[str] = []


def boom() -> None:
    ran.append("boom")


def request(boot: bytes, call_id: int = 1, flags: int = 0, body: bytes = b"\x92\x90\x80") -> bytes:
    return encode_frame(1, flags, 2, 100, 0, call_id, b"t" * 16, b"s" * 8, 1000, encode_request_meta(boot, "boom", None), body)


class Stranger:
    """A ZeroMQ peer that speaks as it likes."""

    def __init__(self, context: zmq.Context[Any], address: str) -> None:
        self.socket = context.socket(zmq.DEALER)
        self.socket.set(zmq.LINGER, 0)
        self.socket.connect(f"tcp://{address}")

    def say(self, *frames: bytes) -> None:
        self.socket.send(join_batch(frames))

    def hear(self, timeout_ms: int = 2000) -> list[Any]:
        if not self.socket.poll(timeout_ms):
            return []
        batch, *parts = self.socket.recv_multipart()
        return split_batch(batch, parts)[0]

    def greet(self, mesh: str, boot: bytes) -> None:
        self.say(encode_control(Control.HELLO, Hello(lo=1, hi=1, mesh=mesh, boot=boot, instance="stranger", name="stranger").encode()))


def test_nothing_runs_before_a_greeting(world: World) -> None:
    """Requests on a connection that has not greeted, greets another mesh, or names another boot, do not execute."""
    address, node = address_of(world)
    boot = node._life.identity.boot
    ran.clear()
    with zmq.Context() as context:
        rude = Stranger(context, address)
        rude.say(request(boot))
        assert [(each.frame_type, each.flags) for each in rude.hear()] == [(4, Control.REFUSE)]
        lost = Stranger(context, address)
        lost.greet("another mesh", b"l" * 8)
        lost.say(request(boot))
        assert lost.hear()[0].flags == Control.REFUSE
        wrong = Stranger(context, address)
        wrong.greet(world.mesh, b"w" * 8)
        assert wrong.hear()[0].flags == Control.WELCOME
        wrong.say(request(b"x" * 8))
        answers = [each for _ in range(10) for each in wrong.hear(200) if each.frame_type == 2]
        assert len(answers) == 1
        assert msgpack.unpackb(answers[0].body)["executed"] == "no"
        wrong.say(request(boot, 2))
        eventually(lambda: ran == ["boom"])
        for each in (rude, lost, wrong):
            each.socket.close()


def test_a_listener_that_calls_who_dials_it_runs_nothing(world: World) -> None:
    """A seed that answers the connection with requests instead of a welcome is not served."""
    with zmq.Context() as context:
        server = context.socket(zmq.ROUTER)
        server.set(zmq.LINGER, 0)
        port = server.bind_to_random_port("tcp://127.0.0.1")
        ran.clear()
        _, node = address_of(world, discovery=["seeds"], seeds=[f"127.0.0.1:{port}"])
        for _ in range(3):
            assert server.poll(5000)
            route, batch = server.recv_multipart()[:2]
            [hello] = split_batch(batch)[0]
            assert hello.flags == Control.HELLO
            for number in range(5):
                server.send_multipart([route, join_batch([request(node._life.identity.boot, number)])])
            server.send_multipart([route, join_batch([encode_control(Control.WELCOME, b"\xff")])])
            break
        assert node.reach("echo").call(x=1) == 1
        eventually(lambda: node._driver.engine.links.strays > 0)
        assert ran == []
        server.close()


def test_noise_disturbs_nobody(world: World) -> None:
    """Port scans, HTTP, half-open connections, junk frames, true frames with false contents, replays: calls go on and memory stays flat."""
    address, node = address_of(world)
    host, _, port = address.rpartition(":")
    app = world.node("app")
    app.wait_for("echo", timeout=10)
    over = threading.Event()
    failed: list[Exception] = []
    made: list[Any] = []

    def calls() -> None:
        reach = app.reach("echo", retries=0, timeout=5)
        while not over.is_set():
            try:
                made.append(reach.call(x=len(made)))
            except Exception as error:
                failed.append(error)

    worker = threading.Thread(target=calls)
    worker.start()
    rng = random.Random(3)
    before = psutil.Process().memory_info().rss
    open_ones = []
    for index in range(60):
        each = socket.create_connection((host, int(port)))
        each.sendall([b"GET / HTTP/1.1\r\n\r\n", b"", b"\xff" + bytes(8) + b"\x7f\x03", rng.randbytes(300)][index % 4])
        if index % 2:
            each.close()
        else:
            open_ones.append(each)
    with zmq.Context() as context:
        strangers = [Stranger(context, address) for _ in range(4)]
        for number, stranger in enumerate(strangers[1:]):
            stranger.greet(world.mesh, bytes([number + 1]) * 8)
        for index in range(3000):
            stranger = rng.choice(strangers)
            kind = rng.randrange(6)
            if kind == 0:
                stranger.socket.send(rng.randbytes(rng.randrange(200)))
            elif kind == 1:
                stranger.say(encode_control(rng.randrange(256), rng.randbytes(rng.randrange(60))))
            elif kind == 2:
                flags = rng.choice([0, 1, 2, 4, 8, 16, 32, 128, 129, 130, 136])
                stranger.say(encode_frame(3, flags, 2, 0, 0, index % 50, b"", b"", 0, b"", rng.randbytes(rng.randrange(64))))
            elif kind == 3:
                stranger.say(encode_frame(2, rng.randrange(4), 2, 0, 0, rng.getrandbits(64), b"", b"", 0, b"", rng.randbytes(20)))
            elif kind == 4:
                stranger.say(request(node._life.identity.boot, index % 50, rng.randrange(32), rng.randbytes(rng.randrange(30))))
            else:
                stranger.socket.send_multipart([struct.pack(">I", rng.getrandbits(32)), *[b"x"] * rng.randrange(20)])
        eventually(lambda: node._driver.engine.faults > 300)
        for stranger in strangers:
            stranger.socket.close()
    count = len(made)
    eventually(lambda: len(made) > count + 20)
    over.set()
    worker.join(10)
    for each in open_ones:
        each.close()
    assert failed == []
    assert made == list(range(len(made)))
    assert psutil.Process().memory_info().rss - before < 64 << 20
    eventually(lambda: node._driver.engine.callee.open == 0)
    assert [peer.name for peer in app.peers()] == ["victim"]
