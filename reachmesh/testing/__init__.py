"""Meshes in memory under a virtual clock, for tests: the same machines as in production, only the wire is fake."""

from __future__ import annotations

from .members import SimulatedMember
from .mesh import Mesh
from .network import Faults, Network

__all__ = ["Faults", "Mesh", "Network", "SimulatedMember"]
