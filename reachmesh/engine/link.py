"""One link as the tables of the engine know it: a connection, how far it has come, and what waits to be sent on it."""

from __future__ import annotations

from collections import deque
from enum import Enum

import msgspec

from reachmesh.calls.flows import Buffer, Outflow
from reachmesh.calls.ports import Flowing
from reachmesh.calls.window import Pace

GREETING_TIMEOUT = 3.0
"""Seconds between HELLO and its answer."""


class Phase(Enum):
    """How far a link has come."""

    CONNECTING = 1
    GREETING = 2
    UP = 3
    RETIRING = 4


class Link:
    """One connection. `key` > 0: dialled here; < 0: accepted; 0: the node itself."""

    __slots__ = (
        "address",
        "aside",
        "boot",
        "deadline",
        "expected",
        "flows",
        "frames",
        "instance_id",
        "key",
        "name",
        "observer",
        "pace",
        "parts",
        "patience",
        "phase",
        "probes",
        "spare_since",
        "waiting",
    )

    def __init__(self, key: int, phase: Phase, *, address: str = "", expected: bytes | None = None, deadline: float = 0.0) -> None:
        self.key, self.phase, self.address, self.expected, self.deadline = key, phase, address, expected, deadline
        self.boot = b""
        self.name = self.instance_id = ""
        self.observer = self.probes = self.aside = False
        self.patience = GREETING_TIMEOUT
        self.frames: list[bytes] = []
        self.parts: list[Buffer] = []
        self.flows: deque[tuple[Flowing, Outflow]] = deque()
        self.pace = Pace()
        self.spare_since: float | None = None
        self.waiting = False


class LinkNote(msgspec.Struct, frozen=True):
    """What happened to a link: kind is up, down, dial_failed, probed, refused or version_refused."""

    kind: str
    key: int
    boot: bytes
    detail: str = ""
    observer: bool = False
