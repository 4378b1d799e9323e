"""What other nodes say is taken only in the shape it should have."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reachmesh.errors import ProtocolError
from reachmesh.inspect.answers import read
from reachmesh.inspect.output import clean, describe_error, plain
from reachmesh.node.about import STATUS, TRACE

STATUS_ANSWER: dict[str, Any] = {
    "node": "n", "instance_id": "i", "status": "HEALTHY", "started": 1.0, "now": 2.0, "queue": 0, "running": 0, "qps": 1, "p95": None,
    "fail_rate": 0.0, "calls": [], "capabilities": {}, "links": [{"node": "m", "instance_id": "j", "rtt": 0.1}], "faults": 0,
}  # fmt: skip

ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4) | st.frozensets(st.integers(), max_size=3),
    max_leaves=20,
)


def test_a_well_formed_answer_passes() -> None:
    """The shape is kept, and what a newer node adds to it is left out."""
    assert read(STATUS, {**STATUS_ANSWER, "new": 1}) == STATUS_ANSWER
    assert read(TRACE, []) == []


@pytest.mark.parametrize("key", STATUS_ANSWER)
def test_a_missing_or_wrong_field_is_a_protocol_error(key: str) -> None:
    """Each field must be there with its type."""
    assert isinstance(read(STATUS, {name: value for name, value in STATUS_ANSWER.items() if name != key}), ProtocolError)
    assert isinstance(read(STATUS, {**STATUS_ANSWER, key: object}), ProtocolError)


@given(ANYTHING)
def test_no_answer_can_break_the_reader(answer: Any) -> None:
    """Whatever comes back, reading it gives a value and not an exception, and it can be printed."""
    assert isinstance(read(STATUS, answer), ProtocolError)
    read(TRACE, answer)
    plain(answer)


@given(st.text())
def test_no_text_steers_the_terminal(text: str) -> None:
    """No escape, no carriage return, no change of direction is left; everything else is."""
    assert not set(clean(text)) & {"\x1b", "\r", "\x07", "\x9b", "\u202e"}
    assert len(clean(text)) == len(text)


def test_an_error_of_no_tree_of_ours_is_told_by_name() -> None:
    """Even a bug of the program is one line."""
    assert describe_error(KeyError("x"))["message"] == "KeyError: 'x'"
