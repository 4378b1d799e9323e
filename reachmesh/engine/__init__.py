"""The engine: links, membership, routing and calls joined into one state machine that turns when it is told to.

No I/O, no clock, no lock, no callback: the driver in `node` gives it what the sockets gave, the time, and takes what is to be sent.
"""

from reachmesh.engine.engine import Engine, Identity, Note

__all__ = ["Engine", "Identity", "Note"]
