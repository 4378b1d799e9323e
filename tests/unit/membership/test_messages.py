"""Bodies of control frames: small, and total to decode."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from reachmesh.membership import messages
from reachmesh.membership.messages import Claim, Heartbeat, Vote
from reachmesh.membership.states import Load, State
from reachmesh.wire.control import Control
from reachmesh.wire.frames import encode_control

boots = st.binary(min_size=8, max_size=8)
incarnations = st.integers(0, 2**53)
living = st.sampled_from([state for state in State if state is not State.LOST])
claims = st.builds(
    Claim, boots, incarnations, st.sampled_from(State), st.integers(0, 2**32 - 1), st.none() | st.binary(max_size=50), st.text(max_size=200)
)
votes = st.builds(Vote, boots, incarnations, boots, st.booleans())


@given(incarnations, st.integers(0, 2**32 - 1), living, st.integers(0, 2**64 - 1))
def test_a_heartbeat_fits_in_64_bytes_with_its_header(incarnation: int, counter: int, state: State, digest: int) -> None:
    """And comes back as it left."""
    load = Load(outstanding=3, limit=8, queue=2, failure_rate=1.0, p95_ms=12.0, loop_lag_ms=1.0, qps=2.5, backpressure=9)
    beat = Heartbeat(incarnation, counter, 5, state, load, 1.5, digest)
    body = messages.encode_heartbeat(beat)
    assert len(encode_control(Control.HEARTBEAT, body)) <= 64
    assert messages.decode_heartbeat(body) == beat


@given(st.builds(Load, outstanding=st.integers(), limit=st.integers(), queue=st.integers(), qps=st.floats(), p95_ms=st.floats()))
def test_loads_saturate(load: Load) -> None:
    """No measurement, however absurd, stops a heartbeat."""
    beat = messages.decode_heartbeat(messages.encode_heartbeat(Heartbeat(1, 1, 1, State.BUSY, load, 0.0, 0)))
    assert beat is not None
    assert 0 <= beat.load.outstanding <= 0xFFFF


@given(st.lists(claims | votes, max_size=20))
def test_gossip_comes_back_as_it_left(items: list[Claim | Vote]) -> None:
    """Claims and votes survive the wire in order."""
    assert messages.decode_items(messages.encode_items(list(items))) == items


@given(st.binary(max_size=100))
def test_any_bytes_are_a_message_or_nothing(body: bytes) -> None:
    """No decoder raises, whatever comes in."""
    messages.decode_heartbeat(body)
    messages.decode_items(body)
    messages.decode_ping(body)
    messages.decode_ack(body)
    messages.decode_ping_req(body)
    messages.unpack(body)
