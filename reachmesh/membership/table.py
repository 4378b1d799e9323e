"""The table: one entry per known instance, living or remembered dead, and a digest over all of it.

It keeps order and sums, and judges nothing. The digest is the exclusive or of one 64-bit hash per entry over what every
node must agree on (boot, incarnation, state, serial), kept per bucket and up to date at each change, so comparing two
tables costs one number. The dead are left out of the digest: they are forgotten at different times.

`base` is a shared, read-only first layer for simulations of very many nodes; entries are copied out of it on their first
change. In production it is empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from hashlib import blake2b

from .record import Record
from .states import Load, State

BUCKETS = 64
"""Buckets of the digest, by the low bits of the boot id's first byte."""


class Member:
    """One known instance. Read it; only the membership writes it.

    Attributes:
        record: what it declares.
        incarnation: of the newest claim.
        state: of the newest claim.
        reason: why it is in this state, for people.
        suspected: an observer suspects it: do not route to it now.
        verified: a direct handshake proved its identity.
        announced: `peer_joined` was told and neither `peer_left` nor `peer_lost` since.
        mute: its process takes connections but says nothing; shown as DEGRADED by `shown`.
        load: the last one it reported to this node, or None.
        since: when it was first known, local monotonic seconds.
        changed: when its state changed last.
        last_heard: when any frame of it arrived last; 0.0 = never.
        rtt: seconds of the last round trip, or None.
    """

    __slots__ = (
        "announced",
        "changed",
        "incarnation",
        "last_heard",
        "load",
        "mute",
        "reason",
        "record",
        "rtt",
        "since",
        "state",
        "suspected",
        "verified",
    )

    def __init__(self, record: Record, incarnation: int, state: State, reason: str, now: float) -> None:
        self.record = record
        self.incarnation = incarnation
        self.state = state
        self.reason = reason
        self.suspected = False
        self.verified = False
        self.announced = False
        self.mute = False
        self.load: Load | None = None
        self.since = now
        self.changed = now
        self.last_heard = 0.0
        self.rtt: float | None = None

    @property
    def shown(self) -> State:
        """The state to show and to route by: DEGRADED while a living node is mute."""
        return State.DEGRADED if self.mute and self.state.rank < State.DEGRADED.rank else self.state

    def __repr__(self) -> str:
        return f"<Member {self.record.instance_id} {self.state.name} {self.incarnation}{' suspected' if self.suspected else ''}>"

    def copy(self) -> Member:
        """An independent copy."""
        twin = Member.__new__(Member)
        for name in Member.__slots__:
            setattr(twin, name, getattr(self, name))
        return twin


def bucket_of(boot: bytes) -> int:
    """The bucket of a boot id."""
    return boot[0] % BUCKETS


def entry_hash(boot: bytes, incarnation: int, state: State, serial: int) -> int:
    """64-bit hash of what the digest covers; the same in every process and language (SPEC: little-endian, BLAKE2b-64)."""
    data = boot + incarnation.to_bytes(8, "little") + bytes((state.rank,)) + serial.to_bytes(4, "little")
    return int.from_bytes(blake2b(data, digest_size=8).digest(), "little")


class Table(Mapping[bytes, Member]):
    """Members by boot id, without oneself. Iteration order: base, then order of arrival."""

    def __init__(self) -> None:
        self._base: Mapping[bytes, Member] = {}
        self._own: dict[bytes, Member] = {}
        self._hidden: set[bytes] = set()
        self._sums = [0] * BUCKETS
        self.root = 0
        self._dead: dict[bytes, float] = {}
        self.live_count = 0

    def over(self, me: bytes) -> Table:
        """A table that starts with the entries of this one, all but `me`, and shares them until it changes them."""
        table = Table()
        table._base, table._sums, table.root, table.live_count = self._own, list(self._sums), self.root, self.live_count
        table.remove(me)
        return table

    def __getitem__(self, boot: bytes) -> Member:
        member = self.find(boot)
        if member is None:
            raise KeyError(boot)
        return member

    def find(self, boot: bytes) -> Member | None:
        """The entry, or None; not to be written to (see `edit`)."""
        member = self._own.get(boot)
        if member is None and self._base and boot not in self._hidden:
            return self._base.get(boot)
        return member

    def edit(self, boot: bytes) -> Member:
        """The entry, safe to write to fields that the digest does not cover."""
        member = self._own.get(boot)
        if member is None:
            member = self._own[boot] = self[boot].copy()
        return member

    def __iter__(self) -> Iterator[bytes]:
        if not self._base:
            return iter(list(self._own))
        return iter([b for b in self._base if b not in self._hidden] + [b for b in self._own if b not in self._base or b in self._hidden])

    def __len__(self) -> int:
        return self.live_count + len(self._dead)

    def __contains__(self, boot: object) -> bool:
        return isinstance(boot, bytes) and self.find(boot) is not None

    def add(self, member: Member) -> None:
        """Take a new entry in; it must not be there yet."""
        boot = member.record.boot
        self._own[boot] = member
        if member.state.gone:
            self._dead[boot] = member.changed
        else:
            self.live_count += 1
        self._flip(member)

    def restate(self, boot: bytes, incarnation: int, state: State, reason: str, now: float) -> Member:
        """Write a new claim into the entry; keeps digest, count and the order of the dead."""
        member = self.edit(boot)
        self._flip(member)
        if member.state.gone and not state.gone:
            self.live_count += 1
            del self._dead[boot]
        elif state.gone and not member.state.gone:
            self.live_count -= 1
            self._dead[boot] = now
        if member.state is not state:
            member.changed = now
        member.incarnation, member.state, member.reason = incarnation, state, reason
        self._flip(member)
        return member

    def replace_record(self, record: Record) -> Member:
        """Write a newer record into its entry."""
        member = self.edit(record.boot)
        self._flip(member)
        member.record = record
        self._flip(member)
        return member

    def remove(self, boot: bytes) -> None:
        """Forget an entry."""
        member = self[boot]
        self._flip(member)
        if member.state.gone:
            del self._dead[boot]
        else:
            self.live_count -= 1
        self._own.pop(boot, None)
        if boot in self._base:
            self._hidden.add(boot)

    def purge(self, before: float, keep: int) -> list[bytes]:
        """Forget the dead that died before `before`, and the oldest over `keep`; the forgotten ones. O(forgotten)."""
        forgotten: list[bytes] = []
        for boot, died in self._dead.items():
            if died >= before and len(self._dead) - len(forgotten) <= keep:
                break
            forgotten.append(boot)
        for boot in forgotten:
            self.remove(boot)
        return forgotten

    def dead(self) -> list[bytes]:
        """The remembered dead, longest dead first."""
        return list(self._dead)

    def live(self) -> Iterator[Member]:
        """Members neither LOST nor LEFT."""
        for boot in self:
            member = self.find(boot)
            if member is not None and not member.state.gone:
                yield member

    def bucket_sum(self, bucket: int) -> int:
        """Digest of one bucket."""
        return self._sums[bucket]

    def _flip(self, member: Member) -> None:
        """Exclusive-or a living entry into, or out of, the digest."""
        if not member.state.gone:
            record = member.record
            change = entry_hash(record.boot, member.incarnation, member.state, record.serial)
            self._sums[bucket_of(record.boot)] ^= change
            self.root ^= change
