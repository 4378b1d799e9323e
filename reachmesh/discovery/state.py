"""The peers of last time: a small file in the node's state directory, tried again at every start.

Written whole and renamed, so a crash leaves the old or the new one. What is in it is a hint like any other: peers that moved are
simply not there. A file that cannot be read is an empty one and a warning.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import os
import threading
from collections.abc import Sequence
from pathlib import Path

from reachmesh.discovery.seeds import parse_seed
from reachmesh.discovery.source import Announcement, Candidate, Found
from reachmesh.errors import ConfigError

MAX_PEERS = 256
"""Peers kept. More would only lengthen a restart: one that answers brings all the others."""

KEPT_OLDER = 32
"""Of these, how many from earlier writes that are not present now, so that a lonely run forgets nothing, yet dead addresses do not pile up."""

_MAX_FILE = 1 << 20
_MAX_TEXT = 512

_log = logging.getLogger(__name__)


class StateSource:
    """Remembers (instance id, address) of peers in `<state_dir>/peers-<mesh>.json`; reports them only if it `tries` them."""

    name = "state"
    problem = ""

    def __init__(self, mesh: str, state_dir: str | Path, *, tries: bool = True) -> None:
        self._tries = tries
        digest = hashlib.sha256(mesh.encode("utf-8", "surrogatepass")).hexdigest()[:16]
        self._path = Path(state_dir).expanduser() / f"peers-{digest}.json"
        self._lock = threading.Lock()
        self._remembered: list[tuple[str, str]] = []
        self._written: list[tuple[str, str]] | None = None
        self._found: Found | None = None

    def start(self, announcement: Announcement | None, found: Found) -> None:
        """Report the peers of last time before this returns.

        Raises:
            OSError: nothing can be written there; reported all the same.
        """
        self._remembered = self._load()
        self._found = found
        self.refresh()
        folder = self._path.parent
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError(f"{folder} cannot be written: peers will not be remembered there")

    def announce(self, announcement: Announcement) -> None:
        """Nobody reads this but the node itself."""

    def refresh(self) -> None:
        """Report the peers of last time again: they may come up after this node."""
        found = self._found
        if found is None or not self._tries:
            return
        for address in dict.fromkeys(address for _, address in self._remembered):
            found(Candidate(address, None, self.name))

    def stop(self) -> None:
        """Report nothing more; the file stays."""
        self._found = None

    def remember(self, peers: Sequence[tuple[str, str]]) -> None:
        """Write the peers that are present now, and some of the earlier ones after them; nothing when they are those of last time.

        Args:
            peers: (instance id, `host:port`) each, the most useful first.

        Raises:
            OSError: the directory cannot be written; the file is as it was.
        """
        with self._lock:
            present = [(instance, address) for instance, address in peers if _is_address(address)][:MAX_PEERS]
            if sorted(present) == self._written and self._path.exists():
                return
            instances, addresses = {each[0] for each in present}, {each[1] for each in present}
            older = [each for each in self._load() if each[0] not in instances and each[1] not in addresses]
            self._write((present + older[:KEPT_OLDER])[:MAX_PEERS])
            self._written = sorted(present)

    def _write(self, peers: list[tuple[str, str]]) -> None:
        self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        draft = self._path.with_name(f".{self._path.name}.{os.getpid()}.{threading.get_ident()}")
        try:
            draft.write_text(json.dumps({"version": 1, "peers": peers}, indent=1))
            os.replace(draft, self._path)
        except BaseException:
            with contextlib.suppress(OSError):
                draft.unlink(missing_ok=True)
            raise

    def _load(self) -> list[tuple[str, str]]:
        """What the file says, bounded; entries that make no sense are left out."""
        try:
            with self._path.open("rb") as file:
                fields = json.loads(file.read(_MAX_FILE))
            entries = fields["peers"]
            if not isinstance(entries, list):
                raise TypeError("peers is not a list")
        except FileNotFoundError:
            return []
        except (OSError, ValueError, TypeError, KeyError, RecursionError) as error:
            _log.warning("the remembered peers in %s cannot be read and are left aside: %s", self._path, error)
            return []
        peers = []
        for entry in entries[:MAX_PEERS]:
            if isinstance(entry, list) and len(entry) == 2 and all(isinstance(each, str) and len(each) <= _MAX_TEXT for each in entry):
                instance, address = entry
                if _is_address(address):
                    peers.append((instance, address))
        return peers


def _is_address(text: str) -> bool:
    try:
        parse_seed(text)
    except ConfigError:
        return False
    return True
