"""Which protocol version two sides speak: the highest that both understand.

Every side states a closed range (lowest, highest) in its HELLO. The one that is greeted chooses and answers WELCOME with
the version, or REFUSE with both ranges in the message. Nothing else is sent before that.
"""

from __future__ import annotations

Range = tuple[int, int]

SUPPORTED: Range = (1, 1)
"""The versions this build speaks."""


def highest_common(ours: Range, theirs: Range) -> int | None:
    """The highest version inside both closed ranges, or None.

    An inverted range (a liar or a fool sent it) contains nothing, so the answer is None. Symmetric.
    For example (1, 3) and (2, 5) give 3; (1, 1) and (2, 2) give None.
    """
    low, high = max(ours[0], theirs[0]), min(ours[1], theirs[1])
    return high if low <= high else None


def refusal(ours: Range, theirs: Range) -> str:
    """The sentence for REFUSE, events and errors when there is no common version; it has both ranges."""
    return f"no common protocol version: we speak {ours[0]} to {ours[1]}, the other side {theirs[0]} to {theirs[1]}"
