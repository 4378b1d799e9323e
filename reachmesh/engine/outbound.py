"""What waits to be sent, link by link: frames of one turn leave as one message, calls and control before bulk.

Coalescing has no timer: a lone frame leaves in the turn that made it. Chunks and items take turns, one frame each, as far as their
credit and the turn's share last, so a small call never waits behind more than that.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from reachmesh.calls.flags import CONTROL, STREAM_TO_CALLER
from reachmesh.calls.flows import Buffer
from reachmesh.calls.incoming import IncomingCall
from reachmesh.calls.ports import Flowing
from reachmesh.calls.sending import stream_frame
from reachmesh.engine.link import Link
from reachmesh.wire.frames import join_batch
from reachmesh.wire.limits import LIMITS

BULK_PER_TURN = 256 * 1024
"""Bytes of chunks and items one link may send in one turn: they are one message, and a message arrives when all of it is there."""


class Outbound:
    """The links with something to send, in the order they got it."""

    def __init__(self) -> None:
        self._ready: dict[int, Link] = {}
        self._ended: list[Flowing] = []

    def put(self, link: Link, frame: bytes, parts: Sequence[Buffer] = ()) -> None:
        """Queue one frame and its out-of-band parts."""
        link.frames.append(frame)
        if parts:
            link.parts.extend(parts)
        if not link.waiting:
            link.waiting = True
            self._ready[link.key] = link

    def flow(self, link: Link, owner: Flowing) -> None:
        """The owner's outflow may have something to send."""
        outflow = owner.outflow
        if outflow is None or outflow.is_listed:
            return
        outflow.is_listed = True
        link.flows.append((owner, outflow))
        if not link.waiting:
            link.waiting = True
            self._ready[link.key] = link

    def drop(self, key: int) -> None:
        """A link is gone; what waited for it is not sent."""
        self._ready.pop(key, None)

    @property
    def busy(self) -> bool:
        """Whether something is left for the next turn: frames to send, or flows whose end has to be told."""
        return bool(self._ready or self._ended)

    def take_sends(self) -> list[tuple[int, bytes, list[Buffer]]]:
        """Everything to be sent now: per link one batch and its out-of-band parts; calls and control go before bulk."""
        if not self._ready:
            return []
        ready, self._ready = self._ready, {}
        sends: list[tuple[int, bytes, list[Buffer]]] = []
        for link in ready.values():
            link.waiting = False
            if link.flows:
                self._pump(link)
            frames, link.frames = link.frames, []
            parts, link.parts = link.parts, []
            if len(frames) > LIMITS.frames_per_batch or len(parts) > LIMITS.parts_per_batch:
                sends.extend(_split(link.key, frames, parts))
            elif frames:
                sends.append((link.key, join_batch(frames), parts))
        return sends

    def _pump(self, link: Link) -> None:
        """Chunks and items, one frame a turn of the round, as long as credit and the turn's share last."""
        budget = BULK_PER_TURN
        flows = link.flows
        while flows and budget > 0:
            owner, outflow = flows.popleft()
            if outflow is not owner.outflow or owner.closed:  # ended, or sent again on another link
                continue
            piece = outflow.pull()
            if piece is None:
                outflow.is_listed = False
                if outflow.ended:
                    self._ended.append(owner)
                continue
            flags, body, parts = piece
            budget -= len(body) + sum(map(len, parts))
            if isinstance(owner, IncomingCall):
                flags |= STREAM_TO_CALLER
            link.frames.append(stream_frame(owner, flags, body, len(parts)))
            link.parts.extend(parts)
            flows.append((owner, outflow))
            if len(link.frames) + len(link.parts) > LIMITS.parts_per_batch - 64:
                break
        if flows and not link.waiting:
            link.waiting = True
            self._ready[link.key] = link

    def take_ended(self) -> list[Any]:
        """Calls whose outflow has left completely since the last asking."""
        if not self._ended:
            return []
        taken, self._ended = self._ended, []
        return taken


def _split(key: int, frames: list[bytes], parts: list[Buffer]) -> list[tuple[int, bytes, list[Buffer]]]:
    """More frames or parts than one batch may hold, as several; each takes the parts its own frames announce."""
    sends: list[tuple[int, bytes, list[Buffer]]] = []
    group: list[bytes] = []
    start = end = 0
    for frame in frames:
        count = int.from_bytes(frame[46:48]) if frame[3] != CONTROL else 0
        if group and (len(group) >= LIMITS.frames_per_batch or end + count - start > LIMITS.parts_per_batch):
            sends.append((key, join_batch(group), parts[start:end]))
            group, start = [], end
        group.append(frame)
        end += count
    sends.append((key, join_batch(group), parts[start:end]))
    return sends
