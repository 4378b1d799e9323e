"""Control frames: what two nodes say about themselves and each other, apart from calls.

This file names every kind and holds the bodies of the handshake; the kinds from HEARTBEAT on belong to membership, which
writes and reads their bodies itself. Reading is total: a malformed body is None, and every length is capped.
The layout is SPEC.md, section 6.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from typing import Any

import msgpack
import msgspec

from reachmesh.wire.limits import LIMITS


class Control(IntEnum):
    """Kinds of control frames: the flags byte of a CONTROL header."""

    HELLO = 1
    WELCOME = 2
    REFUSE = 3
    GOODBYE = 4
    HEARTBEAT = 5
    GOSSIP = 6
    PING = 7
    ACK = 8
    PING_REQ = 9
    SYNC = 10


class Hello(msgspec.Struct, frozen=True, kw_only=True):
    """First frame on a new connection, from the side that opened it.

    Attributes:
        lo: lowest protocol version spoken.
        hi: highest protocol version spoken.
        mesh: name of the mesh; another one is refused.
        boot: 8 bytes, this process.
        instance: instance id, for people and logs.
        name: node name.
        observer: a silent one that looks and must not be listed or gossiped about.
        target: boot id meant to be reached, or None when only an address was known. The process that is greeted
            refuses when it is somebody else.
        inc: incarnation of the greeter.
    """

    lo: int
    hi: int
    mesh: str
    boot: bytes
    instance: str
    name: str
    observer: bool = False
    target: bytes | None = None
    inc: int = 0

    def encode(self) -> bytes:
        """The body of a HELLO."""
        return _encode(self)

    @classmethod
    def decode(cls, body: bytes) -> Hello | None:
        """Read a HELLO; None when malformed."""
        fields = _fields(body)
        if fields is None:
            return None
        lo, hi, inc, boot, target = _values(fields, "lo", "hi", "inc", "boot", "target")
        mesh, instance, name = _values(fields, "mesh", "instance", "name")
        observer = fields.get("observer", False)
        if not (_is_version(lo) and _is_version(hi) and _is_counter(inc) and _is_name(mesh) and _is_name(instance) and _is_name(name)):
            return None
        if not (_is_boot(boot) and (target is None or _is_boot(target)) and type(observer) is bool):
            return None
        return cls(lo=lo, hi=hi, mesh=mesh, boot=boot, instance=instance, name=name, observer=observer, target=target, inc=inc)


class Welcome(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a HELLO: the link is open and speaks version `v`."""

    v: int
    boot: bytes
    instance: str
    name: str
    inc: int = 0

    def encode(self) -> bytes:
        """The body of a WELCOME."""
        return _encode(self)

    @classmethod
    def decode(cls, body: bytes) -> Welcome | None:
        """Read a WELCOME; None when malformed."""
        fields = _fields(body)
        if fields is None:
            return None
        v, boot, instance, name, inc = _values(fields, "v", "boot", "instance", "name", "inc")
        if not (_is_version(v) and _is_boot(boot) and _is_name(instance) and _is_name(name) and _is_counter(inc)):
            return None
        return cls(v=v, boot=boot, instance=instance, name=name, inc=inc)


class Refuse(msgspec.Struct, frozen=True, kw_only=True):
    """Answer to a HELLO: no link, and why. `code` is for machines, `message` for people."""

    code: str
    message: str = ""

    def encode(self) -> bytes:
        """The body of a REFUSE; the message is cut to `Limits.text` characters."""
        return _encode(self)

    @classmethod
    def decode(cls, body: bytes) -> Refuse | None:
        """Read a REFUSE; None when malformed."""
        fields = _fields(body)
        if fields is None:
            return None
        [code] = _values(fields, "code")
        message = fields.get("message", "")
        return cls(code=code, message=message) if _is_name(code) and _is_text(message) else None


class Goodbye(msgspec.Struct, frozen=True, kw_only=True):
    """Last frame of a node that leaves by its own will."""

    reason: str = ""

    def encode(self) -> bytes:
        """The body of a GOODBYE; the reason is cut to `Limits.text` characters."""
        return _encode(self)

    @classmethod
    def decode(cls, body: bytes) -> Goodbye | None:
        """Read a GOODBYE; None when malformed."""
        fields = _fields(body)
        if fields is None:
            return None
        reason = fields.get("reason", "")
        return cls(reason=reason) if _is_text(reason) else None


def _encode(message: Hello | Welcome | Refuse | Goodbye) -> bytes:
    """All fields as a MessagePack map; free texts are cut."""
    fields: dict[str, Any] = {}
    for key in message.__struct_fields__:
        value = getattr(message, key)
        fields[key] = value[: LIMITS.text] if type(value) is str else value
    packed: bytes = msgpack.packb(fields, unicode_errors="replace")
    return packed


def _fields(body: bytes) -> Mapping[str, Any] | None:
    """The map in a body, or None. Keys this version does not know are ignored by the callers."""
    if len(body) > 8 * LIMITS.text:
        return None
    try:
        fields = msgpack.unpackb(body, strict_map_key=True)
    except Exception:  # any bytes can come here, and msgpack raises a dozen kinds
        return None
    return fields if type(fields) is dict else None


def _values(fields: Mapping[str, Any], *keys: str) -> list[Any]:
    """The values of `keys`, None for a missing one."""
    return [fields.get(key) for key in keys]


def _is_version(value: Any) -> bool:
    return type(value) is int and 0 <= value <= 0xFFFF


def _is_counter(value: Any) -> bool:
    return type(value) is int and 0 <= value < 1 << 63


def _is_boot(value: Any) -> bool:
    return type(value) is bytes and len(value) == 8


def _is_name(value: Any) -> bool:
    return type(value) is str and 0 < len(value.encode()) <= LIMITS.name


def _is_text(value: Any) -> bool:
    return type(value) is str and len(value) <= LIMITS.text
