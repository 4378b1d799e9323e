"""Meshes in memory under a virtual clock, for tests: the same machines as in production, only the wire is fake.

`World` holds whole nodes that serve and call; `Mesh` holds memberships only, a thousand of them if need be.
"""

from __future__ import annotations

from .faults import Faults
from .members import SimulatedMember
from .mesh import Mesh
from .network import Network
from .node import SimulatedNode
from .world import World

__all__ = ["Faults", "Mesh", "Network", "SimulatedMember", "SimulatedNode", "World"]
