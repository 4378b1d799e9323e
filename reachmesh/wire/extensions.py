"""Leaf values that MessagePack has no type for: their extension types, written and read. SPEC.md, section 8.

Only exact types are written: a subclass would come back as its base. Readers may raise anything for bad data; the caller
turns that into its one error. Dates and numbers travel as their ISO or decimal text, which every language reads.
"""

from __future__ import annotations

import datetime as dt
import struct
import uuid
from collections.abc import Callable, Mapping
from decimal import Decimal
from enum import IntEnum
from typing import Any

from msgpack import ExtType

_DELTA = struct.Struct(">iii")
_TEXT_LIMIT = 64


class Ext(IntEnum):
    """Codes of our extension types."""

    COLLECTION = 1
    INT = 2
    DATETIME = 3
    DATE = 4
    TIME = 5
    TIMEDELTA = 6
    UUID = 7
    DECIMAL = 8
    BYTEARRAY = 9
    BYTES_BUFFER = 10
    BYTEARRAY_BUFFER = 11
    ARRAY = 12
    SCALAR = 13


class Mark:
    """First element of an array that is not a list; says what it is."""

    __slots__ = ("kind", "make")

    def __init__(self, kind: type, make: Callable[[Any], Any]) -> None:
        self.kind = kind
        self.make = make


MARKS: Mapping[bytes, Mark] = {b"\0": Mark(tuple, tuple), b"\1": Mark(set, set), b"\2": Mark(frozenset, frozenset)}
MARK_OF: Mapping[type, ExtType] = {mark.kind: ExtType(Ext.COLLECTION, data) for data, mark in MARKS.items()}


def _write_int(value: int) -> ExtType:
    # One bit more than the magnitude for the sign, rounded up to bytes.
    return ExtType(Ext.INT, value.to_bytes(value.bit_length() // 8 + 1, "big", signed=True))


def _check_offset(offset: dt.timedelta | None) -> None:
    if offset is None:
        raise ValueError("a time zone without a fixed offset here cannot travel")
    if offset.microseconds:
        raise ValueError("a time zone whose offset has fractions of a second cannot travel")


def _write_datetime(value: dt.datetime) -> ExtType:
    if value.tzinfo is not None:
        _check_offset(value.utcoffset())
    return ExtType(Ext.DATETIME, value.isoformat().encode())


def _write_time(value: dt.time) -> ExtType:
    if value.tzinfo is not None:
        _check_offset(value.utcoffset())
    return ExtType(Ext.TIME, value.isoformat().encode())


WRITERS: Mapping[type, Callable[[Any], ExtType]] = {
    dt.datetime: _write_datetime,
    dt.date: lambda value: ExtType(Ext.DATE, value.isoformat().encode()),
    dt.time: _write_time,
    dt.timedelta: lambda value: ExtType(Ext.TIMEDELTA, _DELTA.pack(value.days, value.seconds, value.microseconds)),
    uuid.UUID: lambda value: ExtType(Ext.UUID, value.bytes),
    Decimal: lambda value: ExtType(Ext.DECIMAL, str(value).encode()),
}
"""How a value of each exact type becomes an extension; ValueError when this one cannot travel."""


def write_int(value: int) -> int | ExtType:
    """`value` itself when MessagePack has room for it (64 bits), else as an extension."""
    return value if -0x8000000000000000 <= value <= 0xFFFFFFFFFFFFFFFF else _write_int(value)


def _text(data: bytes) -> str:
    if len(data) > _TEXT_LIMIT:
        raise ValueError("too long for a date or time")
    return data.decode("ascii")


def _read_timedelta(data: bytes) -> dt.timedelta:
    days, seconds, microseconds = _DELTA.unpack(data)
    return dt.timedelta(days, seconds, microseconds)


TAME: Mapping[int, Callable[[bytes], Any]] = {
    Ext.DATETIME: lambda data: dt.datetime.fromisoformat(_text(data)),
    Ext.DATE: lambda data: dt.date.fromisoformat(_text(data)),
    Ext.TIME: lambda data: dt.time.fromisoformat(_text(data)),
    Ext.TIMEDELTA: _read_timedelta,
    Ext.BYTEARRAY: bytearray,
}
"""Readers of types with which nobody can choose the hash of a dict key at will."""

WILD: Mapping[int, Callable[[bytes], Any]] = {
    Ext.INT: lambda data: int.from_bytes(data, "big", signed=True),
    Ext.UUID: lambda data: uuid.UUID(bytes=data),
    Ext.DECIMAL: lambda data: Decimal(data.decode("ascii")),
}
"""Readers of types whose hash is arithmetic: a sender can make thousands of keys that all collide."""
