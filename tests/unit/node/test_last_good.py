from __future__ import annotations

import pytest

from reachmesh import LAST_GOOD, NoProvider
from reachmesh.node.last_good import LastGood
from reachmesh.routing import RouteRequest
from reachmesh.wire.values import dump_arguments, dump_body


def test_the_store_is_bounded_in_entries_and_bytes() -> None:
    """However many questions are asked, however big the answers: the least used go first, and a huge one is not kept."""
    store, error = LastGood(entries=10, size=1000), NoProvider("x")
    keys = [store.key(RouteRequest(capability="c"), dump_arguments((n,), {})) for n in range(100)]
    for key in keys:
        store.put(key, 60, 2, dump_body(2, "y" * 90))
    assert len(store) == 10
    assert store.fallback(keys[99])(error) == "y" * 90
    with pytest.raises(NoProvider):
        store.fallback(keys[0])(error)
    store.put(keys[99], 60, 2, dump_body(2, "y" * 251))
    with pytest.raises(NoProvider):
        store.fallback(keys[99])(error)


def test_only_the_same_question_has_the_same_key() -> None:
    """Capability, version, tags, target, session, metadata and arguments all count; the order of tags does not."""
    asked = [
        (RouteRequest(capability="a"), (1,)),
        (RouteRequest(capability="b"), (1,)),
        (RouteRequest(capability="a"), (2,)),
        (RouteRequest(capability="a", version="2"), (1,)),
        (RouteRequest(capability="a", tags={"x": "1", "y": "2"}), (1,)),
        (RouteRequest(capability="a", target="one"), (1,)),
        (RouteRequest(capability="a", session="one"), (1,)),
        (RouteRequest(capability="a", metadata={"x": 1}), (1,)),
    ]
    keys = [LastGood.key(request, dump_arguments(args, {})) for request, args in asked]
    assert len(set(keys)) == len(asked)
    assert LastGood.key(RouteRequest(capability="a", tags={"y": "2", "x": "1"}), dump_arguments((1,), {})) == keys[4]


def test_it_has_a_name() -> None:
    """What shows in a repr can be read."""
    assert repr(LAST_GOOD) == "LAST_GOOD"
