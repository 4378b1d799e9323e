"""All sources of a node as one: started, refreshed and stopped together, each kept from harming the others.

A source that fails is logged once per distinct failure, listed in `problems()` for the doctor, and started again at the next refresh.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from reachmesh.discovery.local import LocalSource
from reachmesh.discovery.mdns import MdnsSource
from reachmesh.discovery.seeds import SeedSource, parse_seed
from reachmesh.discovery.source import Announcement, Candidate, Found, Interfaces, Source
from reachmesh.discovery.state import StateSource
from reachmesh.errors import ConfigError, shown

NAMES = ("local", "mdns", "seeds", "state")
"""The sources there are, in their default order."""

_MAX_LOGGED = 100

_log = logging.getLogger(__name__)


class Discovery:
    """Runs several sources side by side. All methods may be called from any thread; none raises, `stop` is final.

    `found` is never called with a lock held, so it may take locks that callers of `refresh` hold.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = tuple(sources)
        self._lock = threading.Lock()
        self._holder = 0
        self._collected: list[Candidate] = []
        self._started: set[str] = set()
        self._problems: dict[str, str] = {}
        self._logged: set[tuple[str, str]] = set()
        self._announcement: Announcement | None = None
        self._found: Found | None = None

    def start(self, announcement: Announcement | None, found: Found) -> None:
        """Start every source in order; `found` gets candidates that are not this node itself.

        Args:
            announcement: what to tell others, or None for an observer that only looks.
            found: called from any thread, for same-host nodes before this returns.
        """
        with self._collecting():
            self._announcement, self._found = announcement, found
            for source in self._sources:
                self._start_one(source)

    def announce(self, announcement: Announcement) -> None:
        """Tell others something new."""
        with self._collecting():
            self._announcement = announcement
            for source in self._running():
                self._attempt(source, partial(source.announce, announcement))

    def refresh(self) -> None:
        """Look again, and start again what failed."""
        with self._collecting():
            if self._found is None:
                return
            running = self._running()
            for source in self._sources:
                if source in running:
                    self._attempt(source, source.refresh)
                else:
                    self._start_one(source)

    def stop(self) -> None:
        """Take every announcement back; no candidate is reported after this returns."""
        with self._collecting():
            self._found = None
            for source in self._running():
                self._attempt(source, source.stop)
            self._started.clear()

    def remember(self, peers: Sequence[tuple[str, str]]) -> None:
        """Keep (instance id, address) of present peers for the next start, where a state directory is in use."""
        for source in self._sources:
            if isinstance(source, StateSource):
                self._attempt(source, partial(source.remember, peers))

    def problems(self) -> dict[str, str]:
        """What is wrong, by source name; empty when all work."""
        found = dict(self._problems)
        found.update({source.name: source.problem for source in self._sources if source.problem})
        return found

    def _running(self) -> list[Source]:
        return [source for source in self._sources if source.name in self._started]

    def _start_one(self, source: Source) -> None:
        if self._attempt(source, partial(source.start, self._announcement, self._report)):
            self._started.add(source.name)

    def _attempt(self, source: Source, action: Callable[[], None]) -> bool:
        """Run one step of one source; keep what it raises as that source's problem."""
        try:
            action()
        except Exception as error:
            problem = str(error) or type(error).__name__
            self._problems[source.name] = problem
            if (source.name, problem) not in self._logged and len(self._logged) < _MAX_LOGGED:
                self._logged.add((source.name, problem))
                _log.warning("discovery by %s does not work: %s", source.name, problem)
            return False
        self._problems.pop(source.name, None)
        return True

    @contextmanager
    def _collecting(self) -> Iterator[None]:
        """Hold the lock; what sources report on this thread meanwhile is passed on once it is free."""
        with self._lock:
            self._holder = threading.get_ident()
            try:
                yield
            finally:
                self._holder = 0
                collected, self._collected = self._collected, []
        for candidate in collected:
            self._pass_on(candidate)

    def _report(self, candidate: Candidate) -> None:
        """What the sources call."""
        if self._holder == threading.get_ident():
            self._collected.append(candidate)
        else:
            self._pass_on(candidate)

    def _pass_on(self, candidate: Candidate) -> None:
        """Hand a candidate over unless it is this node."""
        found, own = self._found, self._announcement
        if found is None:
            return
        if own is not None and (candidate.boot == own.boot or candidate.address in (own.local_address, *own.addresses)):
            return
        try:
            found(candidate)
        except Exception:
            _log.exception("a discovered address could not be taken in: %s", candidate)


def make_sources(
    names: Sequence[str],
    *,
    mesh: str,
    interfaces: Interfaces,
    seeds: Sequence[str] = (),
    state_dir: str | Path | None = None,
) -> list[Source]:
    """The sources named, in that order; `seeds` without seeds and `state` without a directory are left out.

    With a directory, peers are remembered in it even where `state` is not named; they are then not tried.

    Args:
        names: any of `local`, `mdns`, `seeds`, `state`; empty turns discovery off.
        mesh: name of the mesh.
        interfaces: lists the interfaces that multicast is kept to, as they are at the time of asking.
        seeds: `host:port` each.
        state_dir: directory of the node's own state.

    Raises:
        ConfigError: an unknown name or a malformed seed (checked even when `seeds` is not named).
    """
    parsed = [parse_seed(seed) for seed in seeds]
    sources: list[Source] = []
    for name in dict.fromkeys(names):
        if name == "local":
            sources.append(LocalSource(mesh))
        elif name == "mdns":
            sources.append(MdnsSource(mesh, interfaces))
        elif name == "seeds":
            if parsed:
                sources.append(SeedSource(parsed))
        elif name == "state":
            if state_dir is not None:
                sources.append(StateSource(mesh, state_dir))
        else:
            raise ConfigError(f"unknown kind of discovery {shown(name)}", hint=f"choose among {', '.join(NAMES)}")
    if state_dir is not None and "state" not in names:
        sources.append(StateSource(mesh, state_dir, tries=False))
    return sources
