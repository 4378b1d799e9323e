"""The table keeps its sums."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from reachmesh.membership.record import Record
from reachmesh.membership.states import State
from reachmesh.membership.table import BUCKETS, Member, Table, bucket_of, entry_hash

GOLDEN = 0x9C7ADFA1CD529F31
BOOTS = [bytes([number]) * 8 for number in range(8)]


def member(boot: bytes, incarnation: int = 1, state: State = State.HEALTHY) -> Member:
    return Member(Record(boot=boot, instance_id="i", name="n"), incarnation, state, "", 0.0)


def check(table: Table) -> None:
    """Digest, buckets and count against a count from scratch."""
    sums = [0] * BUCKETS
    for boot in table:
        found = table[boot]
        if not found.state.gone:
            sums[bucket_of(boot)] ^= entry_hash(boot, found.incarnation, found.state, found.record.serial)
    assert [table.bucket_sum(bucket) for bucket in range(BUCKETS)] == sums
    root = 0
    for total in sums:
        root ^= total
    assert table.root == root
    assert table.live_count == len(list(table.live()))
    assert len(table) == len(list(table)) == table.live_count + len(table.dead())


operations = st.tuples(st.sampled_from(["add", "state", "record", "remove"]), st.sampled_from(BOOTS), st.sampled_from(State))


@settings(max_examples=80)
@given(st.lists(operations, max_size=40), st.booleans())
def test_sums_are_right_after_any_changes(changes: list[tuple[str, bytes, State]], layered: bool) -> None:
    """Digest, buckets and counts hold after any operations, on a table of its own and on one over another."""
    shared = Table()
    for boot in BOOTS[:5]:
        shared.add(member(boot))
    table = shared.over(BOOTS[0]) if layered else Table()
    for step, (what, boot, state) in enumerate(changes):
        if what == "add" and boot not in table:
            table.add(member(boot, 1, state))
        elif what == "state" and boot in table:
            table.restate(boot, step, state, "", float(step))
        elif what == "record" and boot in table:
            table.replace_record(table[boot].record.changed(serial=step))
        elif what == "remove" and boot in table:
            table.remove(boot)
        check(table)
    assert list(shared) == BOOTS[:5]
    assert all(shared[boot].incarnation == 1 for boot in shared)


def test_the_dead_are_forgotten_oldest_first() -> None:
    """By age, and by number."""
    table = Table()
    for at, boot in enumerate(BOOTS):
        table.add(member(boot))
        table.restate(boot, 2, State.LOST, "", float(at))
    assert table.purge(3.0, keep=100) == BOOTS[:3]
    assert table.purge(0.0, keep=2) == BOOTS[3:6]
    assert list(table) == BOOTS[6:]


def test_the_digest_is_the_same_in_every_process() -> None:
    """One known value, so that other languages can check theirs."""
    assert entry_hash(b"\x01\x02\x03\x04\x05\x06\x07\x08", 5, State.HEALTHY, 3) == GOLDEN
