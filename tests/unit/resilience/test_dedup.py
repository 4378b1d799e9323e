"""Promises of the dedup table and the result cache."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reachmesh.resilience.cache import MISS, CacheConfig, ResultCache
from reachmesh.resilience.dedup import DedupConfig, DedupTable, Seen

STEPS = st.lists(st.tuples(st.sampled_from(["begin", "finish", "forget", "leave"]), st.integers(0, 5), st.floats(0.0, 60.0)), max_size=150)


@given(STEPS)
def test_a_key_runs_once(steps: list[tuple[str, int, float]]) -> None:
    """Over any interleaving a key is NEW once per 300 s after its end, unless it was forgotten because it never started."""
    table, now = DedupTable(DedupConfig(keys=4)), 0.0
    blocked: dict[int, float] = {}
    wanted: dict[int, set[int]] = {}
    for ticket, (verb, key, pause) in enumerate(steps):
        now += pause
        if verb == "begin":
            seen, answer = table.begin(key, ticket, now)
            if seen is Seen.NEW:
                assert blocked.get(key, -1.0) <= now
                assert key not in wanted
                wanted[key] = {ticket}
            elif seen is Seen.RUNNING:
                wanted[key].add(ticket)
            elif seen is Seen.FINISHED:
                assert answer == f"answer {key}"
                assert blocked[key] > now
            assert len(table) <= 4
        elif verb == "finish":
            assert set(table.finish(key, f"answer {key}", 10, now)) == wanted.get(key, set())
            if wanted.pop(key, None) is not None:
                blocked[key] = now + 300.0
        elif verb == "forget":
            assert set(table.forget(key)) == wanted.pop(key, set())
        elif wanted.get(key):
            leaving = min(wanted[key])
            wanted[key].discard(leaving)
            assert table.leave(key, leaving) == (not wanted[key])


def test_running_and_finished_repetitions_get_the_first_answer() -> None:
    """A repetition joins the running execution, later ones get its answer, until the time is over."""
    table = DedupTable()
    assert table.begin("k", 1, 0.0) == (Seen.NEW, None)
    assert table.begin("k", 2, 1.0) == (Seen.RUNNING, None)
    assert table.finish("k", "paid", 4, 2.0) == [1, 2]
    assert table.begin("k", 3, 301.0) == (Seen.FINISHED, "paid")
    assert table.begin("k", 4, 302.0) == (Seen.NEW, None)


def test_what_never_started_is_forgotten_and_may_run() -> None:
    """A key cancelled before its start runs again when it is repeated; those who still wait are handed back."""
    table = DedupTable()
    table.begin("k", 1, 0.0)
    table.begin("k", 2, 0.0)
    assert not table.leave("k", 1)
    assert table.forget("k") == [2]
    assert table.begin("k", 2, 0.0) == (Seen.NEW, None)
    assert table.leave("k", 2)


def test_a_full_table_refuses_new_keys_and_forgets_none() -> None:
    """At its limit of keys or bytes new keys are refused, old ones still answered, and time makes room."""
    table = DedupTable(DedupConfig(keys=2, size=100))
    table.begin("a", 1, 0.0)
    table.finish("a", "A", 10, 0.0)
    table.begin("b", 1, 0.0)
    assert table.begin("c", 1, 1.0)[0] is Seen.FULL
    assert table.begin("a", 2, 1.0) == (Seen.FINISHED, "A")
    assert table.begin("c", 1, 300.0)[0] is Seen.NEW
    small = DedupTable(DedupConfig(size=100))
    small.begin("a", 1, 0.0)
    small.finish("a", "A", 100, 0.0)
    assert small.begin("b", 1, 0.0)[0] is Seen.FULL
    small.expire(300.0)
    assert (len(small), small.size) == (0, 0)


def test_an_answer_too_big_to_keep_leaves_its_key() -> None:
    """When the answer does not fit, a repetition learns that it ran instead of running again."""
    table = DedupTable(DedupConfig(size=100))
    table.begin("a", 1, 0.0)
    assert table.finish("a", "x" * 101, 101, 0.0) == [1]
    assert table.begin("a", 2, 1.0) == (Seen.ANSWER_GONE, None)
    assert table.size == 0


def test_the_cache_keeps_for_its_time_and_knows_none() -> None:
    """An answer, None too, counts for its time; afterwards it is a miss."""
    cache = ResultCache()
    assert cache.get("k", 0.0) is MISS
    cache.put("k", None, 1, 0.0)
    assert cache.get("k", 29.9) is None
    assert cache.get("k", 30.0) is MISS
    cache.put("k", 5, 1, 0.0, ttl=1.0)
    assert cache.get("k", 1.5) is MISS
    assert cache.get("other", 1.5) is MISS
    assert (cache.hits, cache.misses) == (1, 4)
    assert not MISS


@pytest.mark.parametrize(("entries", "size"), [(10, 10_000), (1000, 100)])
def test_the_cache_is_bounded_and_forgets_the_least_used(entries: int, size: int) -> None:
    """Entries and bytes stay within their caps; what is used stays, what is too big is not kept."""
    cache = ResultCache(CacheConfig(entries=entries, size=size))
    for n in range(200):
        cache.put(n, n, 10, 0.0)
        assert cache.get(0, 0.0) == 0
        assert len(cache) <= entries
        assert cache.size <= size
    cache.put("big", 0, size // 4 + 1, 0.0)
    assert cache.get("big", 0.0) is MISS
    counts = Counter(cache.get(n, 0.0) is MISS for n in range(200))
    assert counts[False] == 10
