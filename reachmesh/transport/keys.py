"""From one shared secret to the CURVE keys of a mesh.

Every node of the mesh derives the same key pair. Whoever does not know the secret does not know the public key either, and without a
server's public key nobody completes a CURVE handshake (CurveZMQ, RFC 26: the client's HELLO is boxed for the server's permanent
key), so knowing the secret is what authenticates both sides, and every link is encrypted with keys of its own.

The derivation is slow on purpose: who records a handshake can test guesses of the secret offline, at this price per guess. Use a long
secret all the same. The secret itself is never kept, sent, announced or logged.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field

import zmq
from zmq.utils import z85

from reachmesh.errors import ConfigError

_COST = 2**14
"""Work factor of scrypt (RFC 7914): about 50 ms and 16 MiB a guess."""


@dataclass(frozen=True, slots=True)
class Keys:
    """A CURVE key pair, Z85-encoded as libzmq takes it."""

    public: bytes
    secret: bytes = field(repr=False)


def derive(secret: str, mesh: str) -> Keys:
    """The keys of a mesh; the same secret gives other keys in another mesh. Takes about 50 ms.

    Raises:
        ConfigError: this build of ZeroMQ has no CURVE.
    """
    if not zmq.has("curve"):
        raise ConfigError("a secret needs CURVE, which this build of ZeroMQ lacks", hint="install pyzmq from its wheels")
    salt = hashlib.sha256(b"reachmesh curve 1\0" + mesh.encode()).digest()
    raw = hashlib.scrypt(secret.encode("utf-8", "surrogatepass"), salt=salt, n=_COST, r=8, p=1, maxmem=64 << 20, dklen=32)
    private = z85.encode(raw)
    return Keys(zmq.curve_public(private), private)
