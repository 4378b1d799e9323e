"""How long to wait before trying again: a short ladder with jitter, so that many callers do not come back together."""

from __future__ import annotations

import random
from collections.abc import Sequence

LADDER = (1.0, 2.0, 4.0)
"""Seconds before the first, second, and every later retry."""
JITTER = 0.2
"""Part by which a delay may be shorter or longer, 0 to 1. 0 lets callers come back in step, 1 makes delays meaningless."""


def backoff(retry: int, rng: random.Random | None, *, ladder: Sequence[float] = LADDER, jitter: float = JITTER) -> float:
    """Delay in seconds before retry number `retry` (0 = the first one); exact without an `rng`.

    Example: the second retry waits 2 s x (0.8 to 1.2).
    """
    delay = ladder[min(max(retry, 0), len(ladder) - 1)]
    return delay if rng is None else delay * (1.0 + jitter * (2.0 * rng.random() - 1.0))
