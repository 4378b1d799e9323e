"""Who is there: records, heartbeats, suspicion, states. Pure machines; see `machine.py` for the data path."""

from __future__ import annotations

from .config import MembershipConfig, preset
from .machine import DialOutcome, Membership
from .outbox import MemberEvent, Send
from .record import Record
from .states import Load, State
from .table import Member

__all__ = ["DialOutcome", "Load", "Member", "MemberEvent", "Membership", "MembershipConfig", "Record", "Send", "State", "preset"]
