"""What the two call machines need from the links below them, and what they hand up.

The machines write frames and ask for links through `Links`; what concerns the world outside the engine leaves as `Delivery`
tuples, in order, in one list that the driver takes after the turn.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import IntEnum
from typing import Any, Protocol

from reachmesh.calls.flows import Buffer, Outflow
from reachmesh.calls.window import Pace


class Kind(IntEnum):
    """What a delivery says about its target."""

    ANSWER = 1  # target: handle of a call made here; value: (payload_format, segments)
    FAILED = 2  # target: handle; value: ReachError
    ITEMS = 3  # target: handle; value: Batch
    ROOM = 4  # target: handle of a call made here whose input may go on
    REQUEST = 5  # target: IncomingCall, complete and to be executed
    STOPPED = 6  # target: IncomingCall that was cancelled, expired, or lost its caller
    INPUT = 7  # target: IncomingCall; value: Batch
    INPUT_END = 8  # target: IncomingCall; value: ReachError or None
    OUTPUT_ROOM = 9  # target: IncomingCall whose stream may go on
    ACCEPTED = 10  # target: handle of a one-way call: it is on its way


Delivery = tuple[Kind, Any, Any]

Ended = tuple[bool, str, str, float, float | None, float, bytes, bytes, int, str, int, Mapping[str, float] | None]
"""A call that has ended, for whoever keeps count: made here (else served), capability, status ("ok", "sent" or an error's code),
arrived, started, ended, trace id, span id, depth, instance id of the other side, retries, seconds of each sub-task or None. A tuple of plain values: thousands are kept, and the garbage collector passes them over."""


class Flowing(Protocol):
    """A call with something to send under credit."""

    key: int
    call_id: int
    trace_id: bytes
    span_id: bytes
    priority: int
    closed: bool
    outflow: Outflow | None


class Links(Protocol):
    """The links as calls see them."""

    def send(self, key: int, frame: bytes, parts: Sequence[Buffer] = ()) -> None:
        """Queue one frame on a link; a link that is gone swallows it (its calls are told separately)."""

    def flow(self, owner: Flowing) -> None:
        """The owner's outflow has something to pull; it takes its turn among the others of its link."""

    def link_to(self, boot: bytes) -> int | None:
        """Key of an established link to a boot, or None."""

    def pace(self, key: int) -> Pace:
        """What is known of a link's speed."""

    def want(self, boot: bytes, now: float) -> bool:
        """Start to make a link; false when no address of the boot is known. The outcome comes back to the caller machine."""
