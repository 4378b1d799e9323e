"""Links that only note what is sent, and the frames of the other side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reachmesh.calls.flags import MSGPACK, REQUEST, RESPONSE, STREAM, STREAM_TO_CALLER
from reachmesh.calls.flows import Gathered
from reachmesh.calls.incoming import IncomingCall
from reachmesh.calls.window import Pace
from reachmesh.wire.frames import NO_DEADLINE, Frame, encode_error, encode_frame, encode_request_meta, split_batch
from reachmesh.wire.frames import join_batch as join


class FakeLinks:
    """`calls.ports.Links`: `up` says which boots are linked, `sent` what left, decoded, oldest first."""

    def __init__(self, **up: int) -> None:
        self.up: dict[bytes, int] = {name.encode() * 8: key for name, key in up.items()}
        self.known: set[bytes] = set()
        self.wanted: list[bytes] = []
        self.sent: list[tuple[int, Frame]] = []
        self.flows: list[Any] = []
        self.paces: dict[int, Pace] = {}

    def send(self, key: int, frame: bytes, parts: Sequence[Any] = ()) -> None:
        frames, fault = split_batch(join([frame]), list(parts))
        assert fault is None
        self.sent.append((key, frames[0]))

    def flow(self, owner: Any) -> None:
        self.flows.append(owner)

    def link_to(self, boot: bytes) -> int | None:
        return self.up.get(boot)

    def pace(self, key: int) -> Pace:
        return self.paces.setdefault(key, Pace())

    def want(self, boot: bytes, now: float) -> bool:
        self.wanted.append(boot)
        return boot in self.known

    def pump(self) -> list[Any]:
        """Pull what the flows have, as the link table would; gives the owners whose flow has ended."""
        ended = []
        flows, self.flows = self.flows, []
        for owner in flows:
            while owner.outflow is not None and (piece := owner.outflow.pull()) is not None:
                flags, body, parts = piece
                if isinstance(owner, IncomingCall):
                    flags |= STREAM_TO_CALLER
                self.sent.append((owner.key, frame(STREAM, flags, owner.call_id, body, parts=parts)))
            if owner.outflow is not None and owner.outflow.ended:
                ended.append(owner)
        return ended

    def take(self) -> list[tuple[int, Frame]]:
        taken, self.sent = self.sent, []
        return taken


def frame(kind: int, flags: int, call_id: int, body: bytes = b"", **fields: Any) -> Frame:
    """A frame as it is received."""
    parts = fields.get("parts", ())
    encoded = encode_frame(
        kind,
        flags,
        MSGPACK,
        fields.get("priority", 100),
        fields.get("depth", 0),
        call_id,
        fields.get("trace_id", b"t" * 16),
        b"s" * 8,
        fields.get("remaining", NO_DEADLINE),
        fields.get("meta", b""),
        body,
        len(parts),
    )
    frames, fault = split_batch(join([encoded]), list(parts))
    assert fault is None
    return frames[0]


def request(
    call_id: int, capability: str = "echo", *, boot: bytes = b"m" * 8, flags: int = 0, body: bytes = b"\x92\x90\x80", **fields: Any
) -> Frame:
    """A REQUEST to the node with this boot."""
    return frame(REQUEST, flags, call_id, body, meta=encode_request_meta(boot, capability, None), **fields)


def answer(call_id: int, body: bytes = b"\xc0", flags: int = 0) -> Frame:
    return frame(RESPONSE, flags, call_id, body, priority=0)


def refusal(call_id: int, error: Any) -> Frame:
    return frame(RESPONSE, 2, call_id, encode_error(error), priority=0)


def gathered(*items: list[Any]) -> Gathered:
    """Encoded items, as their maker leaves them for the engine."""
    made = Gathered()
    for item in items:
        made.put(item[0] if len(item) == 1 and len(item[0]) < 16_384 else item)
    return made
