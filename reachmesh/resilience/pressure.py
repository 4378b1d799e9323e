"""The serving side's word on its own queue: whom it still admits and the backpressure level that travels in every answer.

Low priority is refused first, normal much later, high last: the queue then holds what matters, and its length is bounded whatever
arrives. The level rises from 0 at the watermark to 255 at the point where normal calls are refused too, so callers slow down
before they are refused.
"""

from __future__ import annotations

import msgspec

from reachmesh.resilience.priorities import class_of


class PressureConfig(msgspec.Struct, frozen=True, kw_only=True):
    """Queue lengths (calls accepted and not yet started) at which something happens."""

    watermark: int = 1024
    """From here low priority is refused and the level rises, >= 1. Low refuses bursts, high lets waits grow long."""
    normal: int = 16_384
    """From here normal priority is refused, >= watermark."""
    high: int = 65_536
    """From here everything is refused: the bound of memory, >= normal."""


def admits(config: PressureConfig, priority: int, queued: int) -> bool:
    """Whether a call of this priority (0-255) is accepted while `queued` calls wait."""
    return queued < (config.high, config.normal, config.watermark)[class_of(priority)]


def level(config: PressureConfig, queued: int) -> int:
    """Backpressure level 0-255 of a queue.

    Example: with watermark 1024 and normal 16,384, 1,024 queued give 0, 8,704 give 127, 16,384 and more 255.
    """
    if queued <= config.watermark:
        return 0
    span = max(config.normal - config.watermark, 1)
    return min(255, max(1, 255 * (queued - config.watermark) // span))
