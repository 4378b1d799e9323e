"""The record: everything one node says about itself that is not liveness.

It travels whole when a peer lacks it or holds an older serial, and never inside a heartbeat. Source of the split: the
slim heartbeat of SWIM-like systems (Das, Gupta, Motivala 2002). `decode` is total: bytes that are no record, or one over
a limit, give None. The encoded form is kept with the object because gossip forwards records far more often than it
reads them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import msgpack

RECORD_LIMIT = 64 * 1024
"""Bytes of an encoded record. 64 KiB holds some 500 capabilities with options; a larger one is refused, by the owner too."""

CAPABILITY_LIMIT = 4096
"""Capabilities in one record."""

TEXT_LIMIT = 255
"""UTF-8 bytes of a name, id, host, zone, version or endpoint."""

ENDPOINT_LIMIT = 32
"""Endpoints in one record."""

BOOT_BYTES = 8
"""Length of a boot id."""

SERIAL_LIMIT = 2**32 - 1
"""Largest serial (it travels as u32 in the heartbeat)."""

INCARNATION_LIMIT = 2**53
"""Largest incarnation anybody accepts: exact in every language's numbers, out of reach in honest use."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Record:
    """What a node declares. Frozen; a change is a new record with a higher serial.

    Attributes:
        boot: 8 random bytes drawn at process start; the key of everything.
        instance_id: name-host-pid-random, for people.
        name: logical node name; many instances may share it.
        mesh: name of the mesh; records of another mesh are dropped.
        version: the node's own version, free text.
        host: host name, for same-host preference.
        zone: zone tag or None.
        endpoints: transport addresses, e.g. ("tcp://10.0.0.5:41234",), best first.
        capabilities: capability name to its options (plain JSON values, opaque here).
        tags: free tags.
        weight: declared routing weight, >= 0.
        metadata: free plain JSON values.
        started: wall clock of the start in seconds; informational only, never compared.
        incarnation: the owner's incarnation when this was encoded; only a starting value, claims carry newer ones.
        serial: raised by its owner at each change of the record.
    """

    boot: bytes
    instance_id: str
    name: str
    mesh: str = "default"
    version: str = "1"
    host: str = ""
    zone: str | None = None
    endpoints: tuple[str, ...] = ()
    capabilities: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    tags: Mapping[str, Any] = field(default_factory=dict)
    weight: float = 1.0
    metadata: Mapping[str, Any] = field(default_factory=dict)
    started: float = 0.0
    incarnation: int = 1
    serial: int = 1
    _encoded: list[bytes] = field(default_factory=list, repr=False, compare=False)

    def encode(self) -> bytes:
        """MessagePack bytes of the record; computed once.

        Raises:
            ValueError: the record is over RECORD_LIMIT or holds values MessagePack cannot carry; nothing changed.
        """
        if not self._encoded:
            try:
                data: bytes = msgpack.packb(
                    [
                        self.boot,
                        self.instance_id,
                        self.name,
                        self.mesh,
                        self.version,
                        self.host,
                        self.zone,
                        list(self.endpoints),
                        {name: dict(options) for name, options in self.capabilities.items()},
                        dict(self.tags),
                        float(self.weight),
                        dict(self.metadata),
                        float(self.started),
                        self.incarnation,
                        self.serial,
                    ],
                )
            except (TypeError, OverflowError, RecursionError) as error:
                raise ValueError(f"the record of {self.name!r} cannot travel: {error}") from error
            if len(data) > RECORD_LIMIT:
                raise ValueError(f"the record of {self.name!r} has {len(data)} bytes; the limit is {RECORD_LIMIT}")
            self._encoded.append(data)
        return self._encoded[0]

    def changed(self, **fields: Any) -> Record:
        """A copy with some fields replaced."""
        return replace(self, **fields, _encoded=[])

    @staticmethod
    def decode(data: bytes) -> Record | None:
        """The record in `data`, or None when it is malformed or over a limit."""
        if len(data) > RECORD_LIMIT:
            return None
        try:
            fields = msgpack.unpackb(data, max_map_len=CAPABILITY_LIMIT, max_array_len=CAPABILITY_LIMIT, strict_map_key=True)
        except Exception:  # any fault of the decoder is the sender's fault
            return None
        if type(fields) is not list or len(fields) != 15:
            return None
        boot, instance_id, name, mesh, version, host, zone, endpoints, capabilities, tags, weight, metadata, started, inc, serial = fields
        if not (
            type(boot) is bytes
            and len(boot) == BOOT_BYTES
            and all(map(_is_text, (instance_id, name, mesh, version, host)))
            and instance_id
            and name
            and (zone is None or _is_text(zone))
            and type(endpoints) is list
            and len(endpoints) <= ENDPOINT_LIMIT
            and all(map(_is_text, endpoints))
            and type(capabilities) is dict
            and all(_is_text(key) and type(options) is dict for key, options in capabilities.items())
            and type(tags) is dict
            and type(metadata) is dict
            and type(weight) is float
            and 0.0 <= weight < 1e9
            and type(started) is float
            and type(inc) is int
            and 0 <= inc <= INCARNATION_LIMIT
            and type(serial) is int
            and 0 <= serial <= SERIAL_LIMIT
        ):
            return None
        return Record(
            boot=boot,
            instance_id=instance_id,
            name=name,
            mesh=mesh,
            version=version,
            host=host,
            zone=zone,
            endpoints=tuple(endpoints),
            capabilities=capabilities,
            tags=tags,
            weight=weight,
            metadata=metadata,
            started=started,
            incarnation=inc,
            serial=serial,
            _encoded=[data],
        )


def _is_text(value: object) -> bool:
    return type(value) is str and len(value) <= TEXT_LIMIT and len(value.encode("utf-8", "surrogatepass")) <= TEXT_LIMIT
