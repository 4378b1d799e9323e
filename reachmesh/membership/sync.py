"""Anti-entropy: two neighbours compare tables and exchange only what differs.

::

    ROOT     digest of the whole table                                   both equal: done
    BUCKETS  64 digests                                                  answer to a ROOT that differs
    ENTRIES  (boot, incarnation, state, serial) of the differing buckets, the dead included; wants the like back, once
    WANT     boot ids whose record the asker lacks; answered by GOSSIP claims with records

Source: Merkle anti-entropy as in Dynamo (DeCandia et al. 2007, section 4.7), one level deep. Nothing here changes the
table: claims learned are handed to the machine, which judges them as any other news.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator

from reachmesh.wire.control import Control

from .gossip import encode_batches
from .messages import ITEM_LIMIT, Claim, Item, is_boot, pack, unpack
from .outbox import Outbox
from .record import BOOT_BYTES, INCARNATION_LIMIT
from .states import STATE_BY_RANK
from .table import BUCKETS, Table, bucket_of, entry_hash

ROOT, BUCKET_SUMS, ENTRIES, WANT = 0, 1, 2, 3
_ENTRY = struct.Struct(">8sQBI")
_SUMS = struct.Struct(f">{BUCKETS}Q")
SMALL = 64
"""Up to this many members the step with bucket digests is left out."""


class AntiEntropy:
    """Comparison of tables; `own` gives this node's own claim with its record."""

    def __init__(self, table: Table, own: Callable[[], Claim], outbox: Outbox) -> None:
        self._table = table
        self._own = own
        self._outbox = outbox
        self._hashed: tuple[Claim | None, int] = (None, 0)

    def root(self) -> int:
        """Digest of the table and oneself."""
        return self._table.root ^ self._own_hash(self._own())

    def _own_hash(self, own: Claim) -> int:
        """This node's own entry; kept, because every heartbeat asks for it."""
        known, value = self._hashed
        if known is None or (known.incarnation, known.state, known.serial) != (own.incarnation, own.state, own.serial):
            value = entry_hash(own.boot, own.incarnation, own.state, own.serial)
            self._hashed = (own, value)
        return value

    def begin(self, boot: bytes) -> None:
        """Start a comparison with a neighbour."""
        self._send(boot, ROOT, self.root())

    def want(self, boot: bytes, wanted: list[bytes]) -> None:
        """Ask a neighbour for records."""
        if wanted:
            self._send(boot, WANT, b"".join(wanted[:ITEM_LIMIT]))

    def handle(self, sender: bytes, body: bytes) -> list[Claim] | None:
        """One SYNC frame: claims learned (without records), or None when it is malformed."""
        plain = unpack(body)
        if type(plain) is not list or len(plain) != 2:
            return None
        operation, argument = plain
        if operation == ROOT and type(argument) is int:
            if argument != self.root():
                if self._table.live_count <= SMALL:
                    self._send_entries(sender, list(range(BUCKETS)), True)
                else:
                    self._send(sender, BUCKET_SUMS, _SUMS.pack(*self._sums()))
            return []
        if operation == BUCKET_SUMS and type(argument) is bytes and len(argument) == _SUMS.size:
            theirs = _SUMS.unpack(argument)
            self._send_entries(sender, [b for b, mine in enumerate(self._sums()) if mine != theirs[b]], True)
            return []
        if operation == ENTRIES and type(argument) is list and len(argument) == 3:
            return self._handle_entries(sender, *argument)
        if operation == WANT and type(argument) is bytes and len(argument) % BOOT_BYTES == 0:
            wanted = {argument[at : at + BOOT_BYTES]: None for at in range(0, len(argument), BOOT_BYTES)}
            self.send_claims(sender, [claim for claim in self._claims(set(map(bucket_of, wanted))) if claim.boot in wanted])
            return []
        return None

    def send_claims(self, boot: bytes, claims: list[Claim]) -> None:
        """Send claims with their records."""
        items: list[Item] = list(claims)
        for body in encode_batches(items):
            self._outbox.sends.append((boot, Control.GOSSIP, body))

    def snapshot(self, boot: bytes) -> None:
        """Send everything known, oneself included."""
        self.send_claims(boot, list(self._claims(set(range(BUCKETS)))))

    def _handle_entries(self, sender: bytes, buckets: object, packed: object, reply: object) -> list[Claim] | None:
        if not (type(buckets) is bytes and len(buckets) <= BUCKETS and all(b < BUCKETS for b in buckets)):
            return None
        if type(packed) is not bytes or len(packed) % _ENTRY.size or len(packed) > ITEM_LIMIT * _ENTRY.size or type(reply) is not bool:
            return None
        claims = []
        for boot, incarnation, state, serial in _ENTRY.iter_unpack(packed):
            if state not in STATE_BY_RANK or incarnation > INCARNATION_LIMIT or not is_boot(boot):
                return None
            claims.append(Claim(boot, incarnation, STATE_BY_RANK[state], serial, None, ""))
        if reply:
            self._send_entries(sender, sorted(set(buckets)), False)
        return claims

    def _send_entries(self, boot: bytes, buckets: list[int], reply: bool) -> None:
        if not buckets:
            return
        entries = [_ENTRY.pack(c.boot, c.incarnation, c.state.rank, c.serial) for c in self._claims(set(buckets), False)]
        self._send(boot, ENTRIES, [bytes(buckets), b"".join(entries[:ITEM_LIMIT]), reply])

    def _claims(self, buckets: set[int], records: bool = True) -> Iterator[Claim]:
        """Own and members' claims in some buckets; one pass over the table."""
        own = self._own()
        if bucket_of(own.boot) in buckets:
            yield own
        for boot in self._table:
            if bucket_of(boot) in buckets:
                member = self._table[boot]
                record = member.record
                encoded = record.encode() if records and not member.state.gone else None
                yield Claim(boot, member.incarnation, member.state, record.serial, encoded, member.reason)

    def _sums(self) -> list[int]:
        own = self._own()
        sums = [self._table.bucket_sum(bucket) for bucket in range(BUCKETS)]
        sums[bucket_of(own.boot)] ^= self._own_hash(own)
        return sums

    def _send(self, boot: bytes, operation: int, argument: object) -> None:
        self._outbox.sends.append((boot, Control.SYNC, pack([operation, argument])))
