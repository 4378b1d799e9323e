"""Which instance a call goes to: index of capabilities, filters, strategies, sessions, and the explanation of it all.

Place in the data path: between `membership/` (who is there) and `calls/` (what is asked). `router.Router` is the whole face.
"""

from __future__ import annotations

from reachmesh.routing.config import RoutingConfig
from reachmesh.routing.model import Candidate, NoPick, Outcome, Provider, RouteEvent, RouteRequest, Verdict
from reachmesh.routing.router import Router
from reachmesh.routing.strategies import STRATEGIES, check_strategy, choose
from reachmesh.routing.versions import accepts, check_version

__all__ = [
    "STRATEGIES",
    "Candidate",
    "NoPick",
    "Outcome",
    "Provider",
    "RouteEvent",
    "RouteRequest",
    "Router",
    "RoutingConfig",
    "Verdict",
    "accepts",
    "check_strategy",
    "check_version",
    "choose",
]
