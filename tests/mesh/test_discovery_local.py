"""Same-host rendezvous with real files and real processes."""

from __future__ import annotations

import json
import os
import stat
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest

from reachmesh.discovery import Announcement, Candidate, local
from reachmesh.discovery.local import LocalSource, rendezvous_directories
from tests.support import World, eventually

HOLDER = """
import os, sys
from pathlib import Path
from reachmesh.discovery import Announcement
from reachmesh.discovery.local import LocalSource
boot = os.urandom(8)
source = LocalSource("m", [Path(sys.argv[1])])
source.start(Announcement(mesh="m", instance_id="i", boot=boot, name="n", addresses=(), local_address="127.0.0.1:7999",
                          protocol=(1, 1), incarnation=1), lambda candidate: print("FOUND", candidate.address, flush=True))
if len(sys.argv) > 2 and not os.fork():
    print("READY", boot.hex(), os.getpid(), flush=True)
    sys.stdin.read()
    os._exit(0)
if len(sys.argv) == 2:
    print("READY", boot.hex(), os.getpid(), flush=True)
sys.stdin.read()
"""


def announcement(number: int, mesh: str = "m") -> Announcement:
    return Announcement(
        mesh=mesh,
        instance_id=f"n-h-{number}-x",
        boot=bytes([number]) * 8,
        name="n",
        addresses=(),
        local_address=f"127.0.0.1:{7000 + number}",
        protocol=(1, 1),
        incarnation=1,
    )


class Node:
    """One source with what it found."""

    def __init__(self, directory: Path, number: int | None, mesh: str = "m") -> None:
        self.found: list[Candidate] = []
        self.source = LocalSource(mesh, [directory])
        self.source.start(None if number is None else announcement(number, mesh), self.found.append)

    def sees(self) -> set[str]:
        self.found.clear()
        self.source.refresh()
        return {each.address for each in self.found}


@pytest.fixture
def board(tmp_path: Path) -> Iterator[Path]:
    """A rendezvous directory, empty again at the end."""
    yield tmp_path / "board"
    if (tmp_path / "board").is_dir():
        assert os.listdir(tmp_path / "board") == []


def test_the_second_node_finds_the_first_before_start_returns(board: Path) -> None:
    """A node knows everybody of its host when its start is over; those before it learn of it at their next look."""
    first, second = Node(board, 1), Node(board, 2)
    assert second.found == [Candidate("127.0.0.1:7001", b"\1" * 8, "local")]
    assert first.sees() == {"127.0.0.1:7002"}
    second.source.stop()
    assert first.sees() == set()
    first.source.stop()


def test_an_observer_looks_and_leaves_no_file(board: Path) -> None:
    """A source started without an announcement sees others and is seen by nobody."""
    node, observer = Node(board, 1), Node(board, None)
    assert observer.sees() == {"127.0.0.1:7001"}
    assert node.sees() == set()
    observer.source.stop()
    node.source.stop()


def test_other_meshes_share_the_directory_unseen(board: Path) -> None:
    """Nodes of another mesh are not reported, though their files lie beside ours."""
    ours, theirs = Node(board, 1), Node(board, 2, mesh="other")
    assert ours.sees() == theirs.sees() == set()
    ours.source.stop()
    theirs.source.stop()


def test_a_changed_announcement_replaces_the_old_one(board: Path) -> None:
    """After `announce` others read the new address, and one file is there."""
    node, observer = Node(board, 1), Node(board, None)
    changed = msgspec.structs.replace(announcement(1), local_address="127.0.0.1:9")
    node.source.announce(changed)
    assert observer.sees() == {"127.0.0.1:9"}
    assert len(os.listdir(board)) == 1
    node.source.stop()


def test_a_killed_node_leaves_nothing_for_long(world: World, board: Path) -> None:
    """The file of a process that was killed is not reported, and the next look removes it."""
    child = world.start(HOLDER, str(board))
    observer = Node(board, None)
    assert observer.sees() == {"127.0.0.1:7999"}
    child.kill()
    assert observer.sees() == set()
    assert os.listdir(board) == []


def test_a_forked_child_does_not_keep_a_dead_node_alive(world: World, board: Path) -> None:
    """A node whose forked child lives on and still holds the lock is not reported once the node itself is dead, and its file goes."""
    child = world.start(HOLDER, str(board), "fork")
    observer = Node(board, None)
    assert observer.sees() == {"127.0.0.1:7999"}
    child.kill()
    assert observer.sees() == set()
    assert os.listdir(board) == []


def test_a_start_removes_what_dead_nodes_of_any_mesh_left(world: World, board: Path) -> None:
    """Whoever starts removes files and old drafts of dead nodes of other meshes; living ones and what is not ours stay."""
    dead = world.start(HOLDER, str(board))
    lives_on = world.start(HOLDER, str(board), "fork")
    boot = world.start(HOLDER, str(board), ready=None).expect("READY (.*) ")[1]
    dead.kill()
    lives_on.kill()
    (board / "notes.txt").write_text("mine")
    for age in (0, 3600):
        draft = board / f".{'0' * 16}-{age:016x}.17"
        draft.write_bytes(b"")
        os.utime(draft, (time.time() - age, time.time() - age))
    assert len(os.listdir(board)) == 6
    late = Node(board, 9, mesh="other")
    names = os.listdir(board)
    assert {each.partition("-")[2] for each in names if each[0] not in ".n"} == {boot, "09" * 8}
    assert {each for each in names if each[0] in ".n"} == {"notes.txt", f".{'0' * 16}-{'0' * 16}.17"}
    assert Node(board, None).sees() == {"127.0.0.1:7999"}
    late.source.stop()
    world.close()
    (board / "notes.txt").unlink()
    (board / f".{'0' * 16}-{'0' * 16}.17").unlink()
    Node(board, None)


def test_ours_are_found_among_ten_thousand_others(board: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The limit of files looked at counts those of the own mesh: however many others lie there, nobody is hidden by them."""
    monkeypatch.setattr(local, "_MAX_FILES", 20)
    monkeypatch.setattr(local, "_SWEPT", 0)
    node = Node(board, 1)
    for number in range(50):
        (board / f"{'0' * 16}-{number:016x}").write_bytes(b"")
    observer = Node(board, None)
    assert observer.sees() == {"127.0.0.1:7001"}
    node.source.stop()
    monkeypatch.undo()
    Node(board, None)


def test_a_file_removed_by_others_is_written_again(board: Path) -> None:
    """A tidy system that empties temporary directories hides a node for one period at most."""
    node, observer = Node(board, 1), Node(board, None)
    for each in board.iterdir():
        each.unlink()
    assert observer.sees() == set()
    node.sees()
    assert observer.sees() == {"127.0.0.1:7001"}
    node.source.stop()


def test_junk_in_the_directory_is_no_trouble(board: Path) -> None:
    """Malformed, huge, foreign and strange files are left out and hide nobody."""
    node = Node(board, 1)
    (name,) = os.listdir(board)
    prefix = name.partition("-")[0]
    junk = [b"", b"{", b"[]", b"\xff" * 10_000, b"[" * 5000, json.dumps({"mesh": "m", "boot": "zz"}).encode()]
    held = []
    for index, content in enumerate(junk):
        path = board / f"{prefix}-{index:016x}"
        path.write_bytes(content)
        held.append(path.open("rb"))
    import fcntl

    for handle in held:
        fcntl.flock(handle, fcntl.LOCK_SH)
    (board / f"{prefix}-directory").mkdir()
    os.mkfifo(board / f"{prefix}-pipe")
    (board / f"{prefix}-loop").symlink_to(board / f"{prefix}-loop")
    observer = Node(board, None)
    assert observer.sees() == {"127.0.0.1:7001"}
    for handle in held:
        handle.close()
    (board / f"{prefix}-directory").rmdir()
    (board / f"{prefix}-loop").unlink()
    observer.sees()
    node.source.stop()


def test_the_directory_is_for_this_user_alone(board: Path) -> None:
    """The directory is made for its owner only, and closed to others when it was open."""
    board.mkdir(mode=0o777)
    board.chmod(0o777)
    node = Node(board, 1)
    assert stat.S_IMODE(board.stat().st_mode) == 0o700
    node.source.stop()


def test_a_directory_that_is_not_ours_is_refused(tmp_path: Path) -> None:
    """A link in the directory's place is not followed, and the start says so; with another directory the source works."""
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere")
    source = LocalSource("m", [tmp_path / "link"])
    with pytest.raises(PermissionError, match="not a directory of this user"):
        source.start(announcement(1), lambda candidate: None)
    assert os.listdir(tmp_path / "elsewhere") == []
    both = LocalSource("m", [tmp_path / "link", tmp_path / "good"])
    both.start(announcement(1), lambda candidate: None)
    assert len(os.listdir(tmp_path / "good")) == 1
    both.stop()


def test_a_service_and_a_login_shell_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A process with XDG_RUNTIME_DIR and one without, of one user, share the directory under the temporary one."""
    monkeypatch.setattr("tempfile.gettempdir", lambda: str(tmp_path))
    (tmp_path / "run").mkdir()
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    with_variable = rendezvous_directories()
    monkeypatch.delenv("XDG_RUNTIME_DIR")
    assert with_variable == [tmp_path / "run" / "reachmesh", tmp_path / f"reachmesh-{os.getuid()}"]
    assert rendezvous_directories() == with_variable[1:]


def test_two_processes_that_start_together_meet(world: World, board: Path) -> None:
    """Of two nodes that start at once at least one sees the other."""
    children = [world.start(HOLDER, str(board), ready=None) for _ in range(2)]
    for child in children:
        child.expect("READY")
    eventually(lambda: any("FOUND 127.0.0.1:7999" in child.lines for child in children))
    for child in children:
        child.kill()
    Node(board, None)
