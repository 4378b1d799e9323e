"""How nodes find each other: same host, multicast DNS, seeds, and the peers of last time.

Every source yields addresses to try and nothing more: who answers there is settled by the handshake, and liveness by membership.
"""

from __future__ import annotations

from reachmesh.discovery.discovery import NAMES, Discovery, make_sources
from reachmesh.discovery.source import Announcement, Candidate, Source

__all__ = ["NAMES", "Announcement", "Candidate", "Discovery", "Source", "make_sources"]
