"""The suite: `unit` (pure), `sim` (seeded worlds in memory), `mesh` (real processes on 127.0.0.1), `lan` (network namespaces)."""
