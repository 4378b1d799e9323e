"""Bodies of the membership's control frames: encoders, and total decoders that give None for anything malformed.

::

    HEARTBEAT  49 bytes, fixed: incarnation, counter, serial, state, load, wall clock, digest of the sender's table
    GOSSIP     MessagePack array of items: claims (with the record where it is news) and votes
    PING       u32 number
    ACK        u32 number, verdict (1 alive, 2 its port refused), boot id the verdict is about
    PING_REQ   u32 number, boot id to probe
    SYNC       MessagePack array [operation, argument]; see `sync.py`
"""

from __future__ import annotations

import struct
from typing import Any, NamedTuple

import msgpack

from .record import BOOT_BYTES, INCARNATION_LIMIT, RECORD_LIMIT, SERIAL_LIMIT
from .states import REASON_LIMIT, STATE_BY_RANK, Load, State

BODY_LIMIT = 1 << 20
"""Bytes of a GOSSIP or SYNC body; a larger one is dropped unread. Senders cut far below it."""

ITEM_LIMIT = 16_384
"""Items in one GOSSIP or entries in one SYNC body."""

ALIVE, REFUSED = 1, 2
"""Verdicts of an ACK."""

_BEAT = struct.Struct(">QIIBBHHHBHHIdQ")
_PING = struct.Struct(">I")
_ACK = struct.Struct(">IB8s")
_PING_REQ = struct.Struct(">I8s")


class Heartbeat(NamedTuple):
    """The self-report of a node to its observers."""

    incarnation: int
    counter: int
    serial: int
    state: State
    load: Load
    wall: float
    digest: int


class Claim(NamedTuple):
    """What is said about one member. `record` is the encoded record or None; `reason` the last change's, for people."""

    boot: bytes
    incarnation: int
    state: State
    serial: int
    record: bytes | None
    reason: str


class Vote(NamedTuple):
    """One observer's suspicion. `dead`: the connection dropped and its port refused, which no slow node does."""

    boot: bytes
    incarnation: int
    voter: bytes
    dead: bool


Item = Claim | Vote


def encode_heartbeat(beat: Heartbeat) -> bytes:
    """49 bytes; loads saturate."""
    load = beat.load
    return _BEAT.pack(
        beat.incarnation,
        beat.counter & 0xFFFFFFFF,
        beat.serial,
        beat.state.rank,
        _clip(load.backpressure, 0xFF),
        _clip(load.outstanding, 0xFFFF),
        _clip(load.limit, 0xFFFF),
        _clip(load.queue, 0xFFFF),
        _clip(load.failure_rate * 255, 0xFF),
        _clip(load.p95_ms, 0xFFFF),
        _clip(load.loop_lag_ms, 0xFFFF),
        _clip(load.qps * 100, 0xFFFFFFFF),
        beat.wall,
        beat.digest,
    )


def decode_heartbeat(body: bytes) -> Heartbeat | None:
    """The heartbeat, or None."""
    if len(body) != _BEAT.size:
        return None
    inc, counter, serial, state, back, outstanding, limit, queue, failure, p95, lag, qps, wall, digest = _BEAT.unpack(body)
    if inc > INCARNATION_LIMIT or state not in STATE_BY_RANK or STATE_BY_RANK[state] is State.LOST:
        return None
    load = Load(
        outstanding=outstanding,
        limit=limit,
        queue=queue,
        failure_rate=failure / 255,
        p95_ms=float(p95),
        loop_lag_ms=float(lag),
        qps=qps / 100,
        backpressure=back,
    )
    return Heartbeat(inc, counter, serial, STATE_BY_RANK[state], load, wall, digest)


def encode_items(items: list[Item]) -> bytes:
    """Body of a GOSSIP frame."""
    packed: bytes = msgpack.packb([_pack_item(item) for item in items])
    return packed


def decode_items(body: bytes) -> list[Item] | None:
    """The well-formed items; None when the body as a whole, or any item, is malformed."""
    plain = unpack(body)
    if type(plain) is not list or len(plain) > ITEM_LIMIT:
        return None
    items: list[Item] = []
    for fields in plain:
        item = _read_item(fields)
        if item is None:
            return None
        items.append(item)
    return items


def item_size(item: Item) -> int:
    """About the bytes of an item when encoded."""
    if isinstance(item, Claim):
        return 24 + len(item.reason) + (len(item.record) if item.record else 0)
    return 32


def encode_ping(number: int) -> bytes:
    """Body of a PING."""
    return _PING.pack(number & 0xFFFFFFFF)


def decode_ping(body: bytes) -> int | None:
    """The number, or None."""
    return int(_PING.unpack(body)[0]) if len(body) == _PING.size else None


def encode_ack(number: int, verdict: int, boot: bytes) -> bytes:
    """Body of an ACK."""
    return _ACK.pack(number, verdict, boot)


def decode_ack(body: bytes) -> tuple[int, int, bytes] | None:
    """(number, verdict, boot), or None."""
    return _ACK.unpack(body) if len(body) == _ACK.size else None


def encode_ping_req(number: int, boot: bytes) -> bytes:
    """Body of a PING_REQ."""
    return _PING_REQ.pack(number & 0xFFFFFFFF, boot)


def decode_ping_req(body: bytes) -> tuple[int, bytes] | None:
    """(number, boot), or None."""
    return _PING_REQ.unpack(body) if len(body) == _PING_REQ.size else None


def pack(value: Any) -> bytes:
    """MessagePack of plain values that this room made itself."""
    packed: bytes = msgpack.packb(value)
    return packed


def unpack(body: bytes) -> Any:
    """Plain values out of a peer's bytes, bounded; None when malformed."""
    if len(body) > BODY_LIMIT:
        return None
    try:
        return msgpack.unpackb(body, max_array_len=ITEM_LIMIT, max_map_len=0, max_ext_len=0, max_bin_len=BODY_LIMIT, max_str_len=1024)
    except Exception:  # any fault of the decoder is the sender's fault
        return None


def is_boot(value: object) -> bool:
    """Whether a decoded value can be a boot id."""
    return type(value) is bytes and len(value) == BOOT_BYTES


def _pack_item(item: Item) -> list[Any]:
    if isinstance(item, Claim):
        return [item.boot, item.incarnation, item.state.rank, item.serial, item.record, item.reason[:REASON_LIMIT]]
    return [item.boot, item.incarnation, item.voter, item.dead]


def _read_item(fields: Any) -> Item | None:
    if type(fields) is not list:
        return None
    if len(fields) == 6:
        boot, incarnation, state, serial, record, reason = fields
        if (
            is_boot(boot)
            and _is_count(incarnation, INCARNATION_LIMIT)
            and type(state) is int
            and state in STATE_BY_RANK
            and _is_count(serial, SERIAL_LIMIT)
            and (record is None or (type(record) is bytes and len(record) <= RECORD_LIMIT))
            and type(reason) is str
            and len(reason) <= REASON_LIMIT
        ):
            return Claim(boot, incarnation, STATE_BY_RANK[state], serial, record, reason)
    elif len(fields) == 4:
        boot, incarnation, voter, dead = fields
        if is_boot(boot) and _is_count(incarnation, INCARNATION_LIMIT) and is_boot(voter) and type(dead) is bool:
            return Vote(boot, incarnation, voter, dead)
    return None


def _is_count(value: object, limit: int) -> bool:
    return type(value) is int and 0 <= value <= limit


def _clip(value: float, limit: int) -> int:
    """`value` as an integer within 0 and `limit`; a NaN or infinity counts as the nearer end."""
    if not value > 0:
        return 0
    return limit if value >= limit else int(value)
