"""Bodies of the handshake, and the version two sides agree on."""

from __future__ import annotations

from typing import Any

import msgpack
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from reachmesh.wire.control import Control, Goodbye, Hello, Refuse, Welcome
from reachmesh.wire.negotiation import SUPPORTED, highest_common, refusal

HELLO = Hello(lo=1, hi=2, mesh="default", boot=b"bootboot", instance="i", name="n", observer=True, target=b"whomever", inc=3)
WELCOME = Welcome(v=1, boot=b"bootboot", instance="i", name="n", inc=1)
ranges = st.tuples(st.integers(0, 9), st.integers(0, 9))


@pytest.mark.parametrize("sent", [HELLO, WELCOME, Refuse(code="mesh", message="another mesh"), Goodbye(reason="stop"), Goodbye()])
def test_handshake_bodies_come_back(sent: Any) -> None:
    """Each body is read as it was written."""
    assert type(sent).decode(sent.encode()) == sent


def test_keys_of_later_versions_are_ignored() -> None:
    """A body with more in it is still understood."""
    fields = msgpack.unpackb(WELCOME.encode()) | {"later": 1}
    assert Welcome.decode(msgpack.packb(fields)) == WELCOME


@pytest.mark.parametrize(
    "change",
    [
        {"lo": "1"}, {"hi": -1}, {"hi": 65_536}, {"lo": True}, {"mesh": ""}, {"mesh": 5}, {"name": "x" * 256}, {"name": "é" * 128},
        {"boot": b"short"}, {"boot": "bootboot"}, {"boot": None}, {"target": b""}, {"observer": 1}, {"inc": -1}, {"inc": 2**63}, {"inc": 1.0},
        {"instance": None}, {"padding": "x" * 10_000},
    ],
)  # fmt: skip
def test_a_hello_with_a_wrong_field_is_malformed(change: dict[str, Any]) -> None:
    """Types and lengths are checked; nothing half-understood gets in."""
    assert Hello.decode(msgpack.packb(msgpack.unpackb(HELLO.encode()) | change)) is None


@given(st.binary(max_size=100))
@example(b"\x80")
@example(b"\x81\x90\x01")
@example(b"\x91" * 2000)
def test_any_bytes_are_read_or_none(body: bytes) -> None:
    """No body raises."""
    for kind in (Hello, Welcome, Refuse, Goodbye):
        decoded = kind.decode(body)
        assert decoded is None or isinstance(decoded, kind)


def test_long_texts_are_cut_by_the_sender() -> None:
    """A refusal or goodbye with a long reason still arrives."""
    refused, left = Refuse.decode(Refuse(code="c", message="x" * 5000).encode()), Goodbye.decode(Goodbye(reason="\ud800" * 5000).encode())
    assert refused is not None
    assert refused.message == "x" * 1024
    assert left is not None


def test_control_kinds_have_their_numbers() -> None:
    """The kinds are part of the protocol."""
    assert [kind.value for kind in Control] == list(range(1, 11))


@given(ranges, ranges)
def test_the_highest_common_version_is_found(ours: tuple[int, int], theirs: tuple[int, int]) -> None:
    """It is the greatest of both ranges' common members, the same from both sides, or None."""
    common = set(range(ours[0], ours[1] + 1)) & set(range(theirs[0], theirs[1] + 1))
    assert highest_common(ours, theirs) == highest_common(theirs, ours) == (max(common) if common else None)


def test_a_refusal_names_both_ranges() -> None:
    """Whoever reads it sees what each side speaks."""
    assert highest_common(SUPPORTED, SUPPORTED) == SUPPORTED[1]
    assert refusal((1, 2), (3, 4)) == "no common protocol version: we speak 1 to 2, the other side 3 to 4"
