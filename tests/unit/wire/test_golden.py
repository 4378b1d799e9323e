"""The golden vectors: bytes that every implementation, in any language, reads and writes alike."""

from __future__ import annotations

import datetime as dt
import json
import uuid
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

from reachmesh.errors import PayloadError
from reachmesh.wire.control import Goodbye, Hello, Refuse, Welcome
from reachmesh.wire.frames import Frame, encode_control, encode_frame, join_batch, split_batch
from reachmesh.wire.transfer import Assembler, Cutter
from reachmesh.wire.values import dump, load

GOLDEN = Path(__file__).parent / "golden"
Vector = dict[str, Any]


def vectors(name: str) -> list[Any]:
    loaded = json.loads((GOLDEN / f"{name}.json").read_text(encoding="utf-8"))
    return [pytest.param(vector, id=vector["name"]) for vector in loaded]


FRAMES: dict[str, Vector] = {param.values[0]["name"]: param.values[0] for param in vectors("frames")}


def raw(text: str) -> bytes:
    """Bytes from hex; `78*100` is one byte, a hundred times."""
    digits, _, times = text.partition("*")
    return bytes.fromhex(digits) * int(times or 1)


def value_of(tagged: Any) -> Any:
    """A value from its tagged JSON form."""
    if not isinstance(tagged, dict):
        return tagged
    [(kind, content)] = tagged.items()
    if kind in ("list", "tuple", "set", "frozenset"):
        makers: dict[str, Any] = {"list": list, "tuple": tuple, "set": set, "frozenset": frozenset}
        return makers[kind](value_of(item) for item in content)
    if kind == "map":
        return {value_of(key): value_of(item) for key, item in content}
    readers: dict[str, Any] = {
        "int": int, "float": float, "bytes": raw, "bytearray": lambda text: bytearray(raw(text)), "datetime": dt.datetime.fromisoformat,
        "date": dt.date.fromisoformat, "time": dt.time.fromisoformat, "timedelta": lambda parts: dt.timedelta(*parts),
        "uuid": uuid.UUID, "decimal": Decimal,
    }  # fmt: skip
    return readers[kind](content)


def fields_of(frame: Frame) -> Vector:
    return {
        key: value.hex() if isinstance(value, bytes | memoryview) else str(value) if key == "call_id" else value
        for key, value in frame._asdict().items()
        if key != "parts"
    }


@pytest.mark.parametrize("vector", vectors("frames"))
def test_frames_are_written_as_specified(vector: Vector) -> None:
    """Encoding the fields of a vector gives its bytes."""
    fields = dict(vector["fields"])
    meta, body, trace, span = (bytes.fromhex(fields[key]) for key in ("meta", "body", "trace_id", "span_id"))
    if fields["frame_type"] == 4:
        written = encode_control(fields["flags"], body)
    else:
        written = encode_frame(
            fields["frame_type"], fields["flags"], fields["payload_format"], fields["priority"], fields["depth"], int(fields["call_id"]),
            trace, span, fields["remaining_ms"], meta, body, fields["parts"],
        )  # fmt: skip
    assert written.hex() == vector["hex"]


@pytest.mark.parametrize("vector", vectors("frames"))
def test_frames_are_read_as_specified(vector: Vector) -> None:
    """Decoding the bytes of a vector gives its fields."""
    expected = dict(vector["fields"])
    parts = [b"part"] * expected.pop("parts")
    frames, fault = split_batch(join_batch([bytes.fromhex(vector["hex"])]), parts)
    assert fault is None
    assert [fields_of(frame) for frame in frames] == [expected]
    assert list(frames[0].parts) == parts


@pytest.mark.parametrize("vector", vectors("batches"))
def test_batches_are_split_as_specified(vector: Vector) -> None:
    """Frames before a fault are delivered, and a fault is found exactly where there is one."""
    frames, fault = split_batch(bytes.fromhex(vector["hex"]), [bytes.fromhex(part) for part in vector["parts"]])
    expected = [{key: value for key, value in FRAMES[name]["fields"].items() if key != "parts"} for name in vector["frames"]]
    assert [fields_of(frame) for frame in frames] == expected
    assert (fault is not None) == vector["fault"]


@pytest.mark.parametrize("vector", vectors("values"))
def test_values_are_written_and_read_as_specified(vector: Vector) -> None:
    """A value gives the segments of its vector, and they give the value, type by type."""
    value, segments = value_of(vector["value"]), [raw(text) for text in vector["segments"]]
    assert [bytes(segment) for segment in dump(value)] == segments
    loaded = load(segments)
    assert repr(loaded) == repr(value)
    assert type(loaded) is type(value)


@pytest.mark.parametrize("vector", vectors("refused"))
def test_malformed_values_are_refused_as_specified(vector: Vector) -> None:
    """Bytes that are no value of ours are a PayloadError."""
    with pytest.raises(PayloadError):
        load([bytes.fromhex(vector["hex"])])


@pytest.mark.parametrize("vector", vectors("control"))
def test_handshake_bodies_are_as_specified(vector: Vector) -> None:
    """Bodies of the handshake are read and written as their vectors say."""
    fields = {key: bytes.fromhex(value) if key in ("boot", "target") and value else value for key, value in vector["fields"].items()}
    kinds: dict[str, Any] = {"hello": Hello, "welcome": Welcome, "refuse": Refuse, "goodbye": Goodbye}
    kind = kinds[vector["name"].split("_")[0]]
    assert kind(**fields).encode().hex() == vector["hex"]
    assert kind.decode(bytes.fromhex(vector["hex"])) == kind(**fields)


@pytest.mark.parametrize("vector", vectors("transfer"))
def test_payloads_in_pieces_are_as_specified(vector: Vector) -> None:
    """The sequence of a payload in pieces begins with the table, and its pieces give the segments again."""
    segments = [raw(text) for text in vector["segments"]]
    cutter, pieces = Cutter(segments), []
    while cutter.left:
        pieces.append(b"".join(cutter.take(vector["chunk"])))
    assert b"".join(pieces)[:64].hex() == vector["stream_head"]
    assert [len(piece) for piece in pieces] == vector["pieces"]
    assembler = Assembler()
    for piece in pieces[:-1]:
        assert assembler.add(piece) is None
    joined = assembler.done(pieces[-1])
    assert isinstance(joined, list)
    assert [bytes(each) for each in joined] == segments
