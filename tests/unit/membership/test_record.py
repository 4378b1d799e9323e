"""The record and its bytes."""

from __future__ import annotations

import msgpack
import pytest
from hypothesis import given
from hypothesis import strategies as st

from reachmesh.membership.record import RECORD_LIMIT, Record


def record(**fields: object) -> Record:
    known = {"boot": b"12345678", "instance_id": "n-h-1-x", "name": "n"}
    return Record(**{**known, **fields})  # type: ignore[arg-type]


def test_a_record_comes_back_as_it_left() -> None:
    """Every field survives the wire."""
    sent = record(
        mesh="m",
        version="2",
        host="h",
        zone="z",
        endpoints=("tcp://1.2.3.4:5", "tcp://[::1]:5"),
        capabilities={"echo": {"idempotent": True, "max_concurrent": 3}},
        tags={"gpu": "a100"},
        weight=0.5,
        metadata={"a": [1, None, "x"]},
        started=12.5,
        incarnation=4,
        serial=7,
    )
    assert Record.decode(sent.encode()) == sent


@given(st.binary(max_size=400))
def test_any_bytes_are_a_record_or_nothing(data: bytes) -> None:
    """Decoding raises for no input."""
    found = Record.decode(data)
    assert found is None or found.encode() == data


@given(st.integers(0, 14), st.none() | st.integers() | st.text(max_size=300) | st.binary(max_size=12) | st.floats() | st.lists(st.none()))
def test_one_field_of_another_kind_is_refused_or_harmless(index: int, value: object) -> None:
    """A record with any one field replaced by something else either fits the type or is refused."""
    try:
        fields = msgpack.unpackb(record().encode())
        fields[index] = value
        data = msgpack.packb(fields)
    except (OverflowError, UnicodeEncodeError):
        return
    found = Record.decode(data)
    assert found is None or type(found.boot) is bytes


def test_an_owner_cannot_make_a_record_that_others_would_refuse() -> None:
    """Too large, or not sendable: ValueError at the owner."""
    with pytest.raises(ValueError, match=str(RECORD_LIMIT)):
        record(tags={"x": "y" * RECORD_LIMIT}).encode()
    with pytest.raises(ValueError, match="cannot travel"):
        record(metadata={"x": object()}).encode()


def test_a_changed_record_is_encoded_anew() -> None:
    """The kept bytes belong to one version of the record."""
    first = record()
    assert first.encode() != first.changed(serial=2).encode()
    assert Record.decode(first.changed(serial=2).encode()) == record(serial=2)


@pytest.mark.parametrize("name", ["", "x" * 256, "\u00e4" * 128])
def test_names_have_a_length(name: str) -> None:
    """1 to 255 bytes."""
    assert Record.decode(record(name=name).encode()) is None
