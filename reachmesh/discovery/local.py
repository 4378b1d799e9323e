"""Same-host rendezvous: one small file per node in directories only this user can enter. No socket, no multicast.

The file is held by `flock` for the node's life and replaced by rename, so a file nobody holds is a dead node's. Its mesh removes it when
it next looks, any other node of this user when it next starts: a crash leaves nothing behind for long. A node writes its own file
before it looks for others; of two that start at the same instant at least one therefore sees the other, and links work both ways. Living
nodes of other network namespaces are left alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import re
import stat
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

from reachmesh.discovery.source import Announcement, Candidate, Found

_MAX_FILE = 4096
_MAX_FILES = 10_000
_DRAFT_AGE = 60.0
_SWEPT = 1_000
"""Files of other meshes that a start looks at, 50 us each where it removes them. The dead among them go, so the next start comes farther."""

_NAME = re.compile(r"\.?[0-9a-f]{16}-[0-9a-f]{16}(\.[0-9]+)?")
"""Names of our files, finished and drafts; nothing else in the directory is ours to touch."""


def rendezvous_directories() -> list[Path]:
    """`$XDG_RUNTIME_DIR/reachmesh` and `<tmp>/reachmesh-<uid>`, not created here.

    Both, because a service and a login shell of one user differ in that variable and are to meet all the same.
    """
    found = [Path(tempfile.gettempdir()) / f"reachmesh-{os.getuid()}"]
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    if runtime and os.path.isdir(runtime):
        found.insert(0, Path(runtime) / "reachmesh")
    return found


class LocalSource:
    """Meets the nodes of this user on this host.

    Every refresh reports every live node again; costs about 30 us a node.
    """

    name = "local"

    def __init__(self, mesh: str, directories: Sequence[Path] | None = None) -> None:
        self._mesh = mesh
        self._lock = threading.Lock()
        self._boards = [_Board(mesh, each) for each in directories or rendezvous_directories()]
        self._announcement: Announcement | None = None
        self._found: Found | None = None
        self.problem = ""

    def start(self, announcement: Announcement | None, found: Found) -> None:
        """Write this node's file, remove those of dead nodes of any mesh, then report every other node; all before this returns.

        Raises:
            OSError: no directory can be made or is safe to use (another owner).
        """
        with self._lock:
            self._announcement, self._found = announcement, found
        self._look(starting=True)

    def announce(self, announcement: Announcement) -> None:
        """Replace this node's file; readers see the old or the new one, never half of one."""
        with self._lock:
            if self._found is None or self._announcement is None:
                return
            self._announcement = announcement
            for board in self._boards:
                with contextlib.suppress(OSError):
                    board.write(announcement)

    def refresh(self) -> None:
        """Report every live node; remove the files of dead ones; write this node's file again if somebody removed it."""
        self._look()

    def stop(self) -> None:
        """Remove this node's file."""
        with self._lock:
            self._found = None
            for board in self._boards:
                board.remove()

    def _look(self, starting: bool = False) -> None:
        seen: dict[Candidate, None] = {}
        failures = []
        with self._lock:
            found = self._found
            if found is None:
                return
            for board in self._boards:
                try:
                    board.open()
                    if self._announcement is not None and not board.is_written():
                        board.write(self._announcement)
                    if starting:
                        board.sweep()
                    seen.update(dict.fromkeys(board.scan()))
                except OSError as error:
                    failures.append(error)
        works = len(failures) < len(self._boards)
        self.problem = "" if works else str(failures[0])
        if starting and not works:
            self.stop()
            raise failures[0]
        for candidate in seen:
            found(candidate)


class _Board:
    """One directory with a file per node; the caller serialises access."""

    def __init__(self, mesh: str, directory: Path) -> None:
        self._prefix = hashlib.sha256(mesh.encode("utf-8", "surrogatepass")).hexdigest()[:16] + "-"
        self._mesh = mesh
        self._directory = directory
        self._held: int | None = None
        self._own: Path | None = None

    def open(self) -> None:
        """Make the directory; refuse one that is somebody else's, close one that is open to others."""
        self._directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = os.lstat(self._directory)
        if not stat.S_ISDIR(found.st_mode) or found.st_uid != os.getuid():
            raise PermissionError(f"{self._directory} is not a directory of this user")
        if found.st_mode & 0o077:
            os.chmod(self._directory, 0o700)

    def is_written(self) -> bool:
        """Whether this node's file is where others look; tidy systems remove old files from temporary directories."""
        if self._held is None or self._own is None:
            return False
        try:
            return os.fstat(self._held).st_ino == self._own.stat().st_ino
        except OSError:
            return False

    def write(self, announcement: Announcement) -> None:
        """Put the announcement where others look. The lock is taken before the name appears, so it is never seen unheld."""
        own = self._directory / f"{self._prefix}{announcement.boot.hex()}"
        fields = {
            "mesh": announcement.mesh,
            "boot": announcement.boot.hex(),
            "instance": announcement.instance_id,
            "address": announcement.local_address,
            "pid": os.getpid(),
            "spaces": _namespaces(),
        }
        draft = self._directory / f".{own.name}.{os.getpid()}"
        handle = os.open(draft, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            os.write(handle, json.dumps(fields).encode())
            os.replace(draft, own)
        except BaseException:
            os.close(handle)
            draft.unlink(missing_ok=True)
            raise
        before, self._held, self._own = self._held, handle, own
        if before is not None:
            os.close(before)

    def remove(self) -> None:
        """Take this node's file away, unless the name leads to another file by now."""
        held, own = self._held, self._own
        if held is None or own is None:
            return
        if self.is_written():
            own.unlink(missing_ok=True)
        self._held = self._own = None
        os.close(held)

    def scan(self) -> Iterator[Candidate]:
        """Every live node of the mesh but this one."""
        own = self._own.name if self._own else ""
        here = _namespaces()
        ours = (each for each in sorted(os.listdir(self._directory)) if each.removeprefix(".").startswith(self._prefix))
        for each in islice(ours, _MAX_FILES):
            if each.startswith("."):
                _remove_old(self._directory / each)
            elif each != own:
                fields = _read_live(self._directory / each, here)
                candidate = self._candidate(fields, here) if fields is not None else None
                if candidate:
                    yield candidate

    def sweep(self) -> None:
        """Remove what dead nodes of other meshes left; those who would look for them may never start again."""
        here = _namespaces()
        left = (each for each in os.listdir(self._directory) if self._prefix not in each and _NAME.fullmatch(each))
        for each in islice(left, _SWEPT):
            if each.startswith("."):
                _remove_old(self._directory / each)
            else:
                _read_live(self._directory / each, here)

    def _candidate(self, fields: Any, here: dict[str, str]) -> Candidate | None:
        """The node a file speaks of; None when it is malformed, of another mesh, or of another network namespace."""
        try:
            boot, address = bytes.fromhex(fields["boot"]), fields["address"]
            if fields["mesh"] != self._mesh or len(boot) != 8 or not isinstance(address, str) or not address:
                return None
            if fields["spaces"]["net"] != here["net"]:
                return None
        except (ValueError, TypeError, KeyError):
            return None
        return Candidate(address, boot, LocalSource.name)


def _read_live(path: Path, here: dict[str, str]) -> Any:
    """What is in a file that its owner still holds, or None. A file nobody holds is removed, and so is one whose process is gone.

    Between taking the lock and removing, the name is checked to still lead to the file that was locked: its owner may have
    replaced it meanwhile. The lock may be held though the process is gone: by a child that it forked.
    """
    try:
        handle = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            fields = json.loads(os.read(handle, _MAX_FILE))
            if fields["spaces"]["pid"] != here["pid"] or not _is_gone(fields["pid"]):
                return fields
        if path.stat().st_ino == os.fstat(handle).st_ino:
            path.unlink()
    except (OSError, ValueError, TypeError, KeyError, RecursionError):
        pass
    finally:
        os.close(handle)
    return None


def _remove_old(draft: Path) -> None:
    """Remove a draft whose writer died; a young one may be between being made and being named, and is not even opened."""
    with contextlib.suppress(OSError):
        if time.time() - draft.stat().st_mtime > _DRAFT_AGE:
            draft.unlink()


def _is_gone(pid: Any) -> bool:
    """Whether no process has this id."""
    if type(pid) is not int or not 0 < pid < 2**31:
        return False
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return True
    except OSError:
        pass
    return False


def _namespaces() -> dict[str, str]:
    """Which network and process-id namespace this thread is in; "" where the system has none."""
    found = {}
    for kind in ("net", "pid"):
        try:
            found[kind] = os.readlink(f"/proc/thread-self/ns/{kind}")
        except OSError:
            found[kind] = ""
    return found
