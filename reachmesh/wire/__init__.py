"""The wire: bytes to frames and values, and back. Pure; no socket, no clock, no state beyond one payload in the making.

First room of the data path. Reading is total everywhere: whatever bytes a peer sends, the answer is a frame, a value, a
fault's text or a typed error, within the caps of `limits.py`. Nothing is ever unpickled. SPEC.md beside this file is the
specification for other languages, with golden vectors in tests/unit/wire/golden.

- `frames`: header, batches, a request's meta section, the body of an error.
- `control`: kinds of control frames, bodies of the handshake.
- `negotiation`: the version two sides speak.
- `values`: Python values as MessagePack (with extension types) or JSON, and the buffers that travel beside them.
- `transfer`: payloads cut in pieces and put together again.
- `limits`: every cap, with its reason.
"""
