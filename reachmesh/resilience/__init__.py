"""Policies of failure as pure values: when to wait, retry, hedge, eject, limit, remember.

Place in the data path: beside it. `calls/` and `routing/` ask these values and obey; nothing here sends, sleeps, reads a
clock or draws randomness of its own (`now` is monotonic seconds, `rng` a seeded `random.Random`). Keys are opaque hashables.
"""
