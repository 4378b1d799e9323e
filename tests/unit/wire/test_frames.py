"""Frames and batches: total on any bytes, exact on good ones."""

from __future__ import annotations

import struct

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from reachmesh.errors import BY_CODE, MESSAGE_LIMIT, PayloadError, ProtocolError, QuotaExceeded, ReachError, RemoteError, SemanticError
from reachmesh.wire.frames import (
    HEADER_SIZE,
    NO_DEADLINE,
    Frame,
    decode_error,
    decode_request_meta,
    encode_control,
    encode_error,
    encode_frame,
    encode_request_meta,
    join_batch,
    split_batch,
)
from reachmesh.wire.limits import LIMITS

TRACE, SPAN, BOOT = bytes(range(16)), bytes(range(8)), b"bootboot"
STREAM_MEANINGS = [0, 1, 2, 4, 8, 16, 32]


def a_frame(body: bytes = b"body", parts: int = 0, call_id: int = 1) -> bytes:
    return encode_frame(1, 0, 2, 100, 0, call_id, TRACE, SPAN, 3000, b"meta", body, parts)


@st.composite
def frames(draw: st.DrawFn) -> Frame:
    """Any legal frame."""
    frame_type = draw(st.integers(1, 4))
    body = draw(st.binary(max_size=64))
    if frame_type == 4:
        return Frame(4, draw(st.integers(0, 255)), 0, 0, 0, 0, bytes(16), bytes(8), 0, b"", body, ())
    flags = draw(
        {
            1: st.integers(0, 31),
            2: st.integers(0, 3),
            3: st.builds(lambda meaning, direction: meaning | direction, st.sampled_from(STREAM_MEANINGS), st.sampled_from([0, 128])),
        }[frame_type]
    )
    byte = st.integers(0, 255)
    return Frame(
        frame_type, flags, draw(st.integers(0, 2)), draw(byte), draw(byte), draw(st.integers(0, 2**64 - 1)),
        draw(st.binary(min_size=16, max_size=16)), draw(st.binary(min_size=8, max_size=8)), draw(st.integers(0, NO_DEADLINE)),
        draw(st.binary(max_size=16)), body, tuple(draw(st.lists(st.binary(max_size=4), max_size=3))),
    )  # fmt: skip


def encoded(frame: Frame) -> bytes:
    if frame.frame_type == 4:
        return encode_control(frame.flags, bytes(frame.body))
    return encode_frame(*frame[:-1], part_count=len(frame.parts))


@given(st.lists(frames(), max_size=8))
def test_any_legal_frames_come_back(sent: list[Frame]) -> None:
    """Frames and their parts survive the way through a batch, in order."""
    got, fault = split_batch(join_batch([encoded(frame) for frame in sent]), [part for frame in sent for part in frame.parts])
    assert fault is None
    assert [frame._replace(parts=tuple(frame.parts)) for frame in got] == sent


@given(st.binary(max_size=400), st.lists(st.binary(max_size=4), max_size=3))
@example(bytes(400), [])
@example(b"\xff" * 400, [])
def test_any_bytes_give_frames_or_a_fault(batch: bytes, parts: list[bytes]) -> None:
    """Nothing that a peer sends raises, and what is not wholly understood is a fault."""
    got, fault = split_batch(batch, parts)
    assert fault is not None or join_batch([encoded(frame) for frame in got]) == batch


@given(st.lists(frames(), min_size=1, max_size=4), st.data())
def test_damaged_batches_never_raise(sent: list[Frame], data: st.DataObject) -> None:
    """A good batch with a few bytes changed or cut gives frames, and each of them is legal."""
    batch = bytearray(join_batch([encoded(frame) for frame in sent]))
    for _ in range(data.draw(st.integers(1, 3))):
        batch[data.draw(st.integers(0, len(batch) - 1))] = data.draw(st.integers(0, 255))
    got, _ = split_batch(bytes(batch[: data.draw(st.integers(0, len(batch)))]), [part for frame in sent for part in frame.parts])
    for frame in got:
        assert split_batch(join_batch([encoded(frame)]), frame.parts)[1] is None


@pytest.mark.parametrize("cut", range(1, 56))
def test_a_truncated_tail_costs_only_its_own_frame(cut: int) -> None:
    """Wherever the last frame is cut, those before it are delivered."""
    batch = join_batch([a_frame(call_id=1), encode_control(5, b"x"), a_frame(call_id=2)])
    got, fault = split_batch(batch[:-cut])
    assert [frame.call_id for frame in got] == [1, 0]
    assert fault is not None


def test_parts_go_to_their_frames_in_order() -> None:
    """Each frame takes as many parts as its header says."""
    got, fault = split_batch(join_batch([a_frame(parts=2), a_frame(), a_frame(parts=1)]), [b"a", b"b", b"c"])
    assert fault is None
    assert [list(frame.parts) for frame in got] == [[b"a", b"b"], [], [b"c"]]


def test_a_big_body_is_a_view_and_a_small_one_a_copy() -> None:
    """A small body does not keep its batch alive; a big one is not copied."""
    [small, big], _ = split_batch(join_batch([a_frame(b"s"), a_frame(b"b" * LIMITS.inline)]))
    assert type(small.body) is bytes
    assert type(big.body) is memoryview
    assert len(big.body) == LIMITS.inline


def test_counts_are_capped() -> None:
    """More frames or parts than the limits allow are a fault, not work."""
    ping = encode_control(7, b"")
    got, fault = split_batch(join_batch([ping] * (LIMITS.frames_per_batch + 1)))
    assert len(got) == LIMITS.frames_per_batch
    assert fault is not None
    assert split_batch(b"", [b""] * (LIMITS.parts_per_batch + 1))[1] is not None


def test_header_has_48_bytes_and_control_frames_8() -> None:
    """The sizes of the specification; a heartbeat of 52 bytes stays within 64 with its length."""
    assert len(a_frame(b"")) == HEADER_SIZE + len(b"meta") == 52
    assert len(join_batch([encode_control(5, bytes(52))])) == 64


def test_a_number_that_does_not_fit_is_our_own_error() -> None:
    """Local misuse raises at once."""
    with pytest.raises(struct.error):
        encode_frame(1, 0, 2, 256, 0, 1, TRACE, SPAN, 0, b"", b"")


EXTRAS = {"v": "2", "s": "s", "d": "d", "r": "cap", "c": "c", "m": {"a": [1]}, "w": [64, 1], "n": 1, "k": "t"}


def test_request_meta_comes_back() -> None:
    """Boot, capability and every known extra survive; an empty map of extras is none."""
    assert decode_request_meta(encode_request_meta(BOOT, "translate", EXTRAS)) == (BOOT, "translate", EXTRAS)
    assert decode_request_meta(encode_request_meta(BOOT, "translate", {})) == (BOOT, "translate", None)
    assert decode_request_meta(encode_request_meta(BOOT, "t", {"later": [1]})) == (BOOT, "t", {"later": [1]})


@pytest.mark.parametrize(
    ("boot", "capability", "extras"),
    [
        (b"short", "c", None), (BOOT, "", None), (BOOT, "x" * 256, None), (BOOT, "\ud800", None), (BOOT, "c", {"m": {"x": "y" * 70_000}}),
        (BOOT, "c", {"m": object()}), (BOOT, "c", {"m": "text"}), (BOOT, "c", {"s": []}), (BOOT, "c", {"w": [1]}), (BOOT, "c", {"n": -1}),
        (BOOT, "c", {"m": {"deep": 2**64}}),
    ],
)  # fmt: skip
def test_request_meta_that_cannot_travel_is_refused(boot: bytes, capability: str, extras: dict[str, object] | None) -> None:
    """The sender finds out, as a PayloadError."""
    with pytest.raises(PayloadError):
        encode_request_meta(boot, capability, extras)


@given(st.binary(max_size=64))
@example(encode_request_meta(BOOT, "c", None)[:-1])
@example(b"\x93\xc4\x08bootboot\xa1c\x81\x91\x01\x02")
@example(b"\x93\xc4\x08bootboot\xa1c\x81\xa1s\xd4\x01\x00")
@example(b"\x91" * 1000)
def test_any_meta_is_read_or_none(meta: bytes) -> None:
    """Any bytes give a RequestMeta or None."""
    decoded = decode_request_meta(meta)
    assert decoded is None or (len(decoded.boot) == 8 and decoded.capability)


@pytest.mark.parametrize("kind", BY_CODE.values())
def test_every_error_of_the_tree_comes_back(kind: type[ReachError]) -> None:
    """Class, code, message, hint and honesty survive."""
    sent = kind("what", hint="do this", executed="yes", retryable=True)
    got = decode_error(encode_error(sent))
    assert type(got) is kind
    assert (got.code, got.message, got.hint, got.executed, got.retryable) == (sent.code, "what", "do this", "yes", True)


def test_the_particulars_of_errors_come_back() -> None:
    """The handler's own code, the type's name, the wait and the path survive."""
    assert decode_error(encode_error(SemanticError("m", code="not_found"))).code == "not_found"
    quota = decode_error(encode_error(QuotaExceeded("m", retry_after=1.5)))
    assert isinstance(quota, QuotaExceeded)
    assert quota.retry_after == 1.5
    payload = decode_error(encode_error(PayloadError("m", path="rows[3]")))
    assert isinstance(payload, PayloadError)
    assert payload.path == "rows[3]"


def test_a_huge_or_odd_message_is_cut_and_cleaned() -> None:
    """A remote message never passes its limit, says that it was cut, and always can be sent."""
    got = decode_error(encode_error(RemoteError("x" * 1_000_000 + "\ud800", type_name="K\ud800")))
    assert isinstance(got, RemoteError)
    assert len(got.message) == MESSAGE_LIMIT
    assert "(cut from 1000001 characters)" in got.message
    assert got.type_name == "K?"


def test_an_error_of_the_users_own_class_comes_back_as_its_base() -> None:
    """The nearest class of the tree is used, with the code the error had."""

    class Missing(SemanticError):
        default_code = "missing"

    got = decode_error(encode_error(Missing("m")))
    assert (type(got), got.code) == (SemanticError, "missing")


@settings(max_examples=300)
@given(st.binary(max_size=64))
@example(b"")
@example(b"\x80")
@example(b"\x81\xa4code\x01")
@example(b"\x81\xa8executed\xa5never")
@example(bytes(1_000_000))
def test_any_error_body_gives_an_error(body: bytes) -> None:
    """Any bytes give an error of the tree; unreadable ones a ProtocolError."""
    error = decode_error(body)
    assert isinstance(error, ReachError)
    assert isinstance(error, ProtocolError) or body[:1] in (b"\x80", b"\x81", b"\x82", b"\x83", b"\xde", b"\xdf")
    assert error.executed in ("no", "maybe", "yes")
