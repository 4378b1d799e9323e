"""How much of anything the wire carries, in one frozen value.

Both sides apply the same figures: the sender so that a mistake is an error at the call, the receiver because it
trusts nobody. Changing a figure on one side only makes that side refuse earlier; it never makes it accept less safely.
"""

from __future__ import annotations

import msgspec

KIB = 1024
MIB = 1024 * KIB


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """Caps of the wire. Bytes and counts.

    Attributes:
        message: bytes of one payload (body and out-of-band buffers together), 1 to 2**32 - 1. Higher lets one message
            take more memory of the receiver; lower refuses big tensors and files.
        depth: levels of containers inside one value, 1 to 500. Higher walks deeper into hostile input; lower refuses
            trees that people really have. The value itself is level 1, so a list of numbers has depth 1.
        values: elements of all containers of one value together; a map entry counts twice and a container itself 8. A
            one-byte element becomes dozens of bytes of Python objects, so this, not `message`, bounds what decoding
            may allocate (about 1 GiB). Higher lets a small message take more memory, lower refuses long lists.
        segments: buffers of one payload: its body and what travels out of band beside it.
        chunk: bytes of one piece of a payload that is sent in pieces. Bigger delays small calls behind bulk on a slow
            link, smaller costs more frames (64 KiB took the small call's P99 from 885 to 33 ms at 10 MiB/s).
        large_chunk: the same once the link has shown that it is fast (`calls/window.py`): half the credit, up to this.
        inline: buffers of at least so many bytes leave the body and travel out of band, uncopied. Lower costs a part per
            small buffer, higher copies more.
        frames_per_batch: frames in one ZeroMQ part.
        parts_per_batch: out-of-band parts behind one batch.
        meta: bytes of a request's meta section; the header counts it in 16 bits.
        name: bytes of a name on the wire: node, mesh, instance, capability.
        text: characters of a free text in a control frame or beside an error's message (hint, reason, path).
    """

    message: int = 256 * MIB
    depth: int = 128
    values: int = 16 * MIB
    segments: int = 4096
    chunk: int = 64 * KIB
    large_chunk: int = MIB
    inline: int = 16 * KIB
    frames_per_batch: int = 4096
    parts_per_batch: int = 4096
    meta: int = 65_535
    name: int = 255
    text: int = 1024


LIMITS = Limits()
"""The figures of protocol version 1."""
