"""Runs handlers, each in its domain: a pool of threads, a thread of its own, an event loop, in place, or another process."""
