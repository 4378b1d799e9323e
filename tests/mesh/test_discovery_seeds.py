"""Seeds with the system's resolver, and the file of remembered peers."""

from __future__ import annotations

import json
import logging
import socket
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from reachmesh.discovery import Candidate, Discovery, make_sources
from reachmesh.discovery.seeds import SeedSource
from reachmesh.discovery.state import KEPT_OLDER, MAX_PEERS, StateSource
from tests.support import eventually


def no_more_threads() -> bool:
    return not any(each.name == "reachmesh-seeds" for each in threading.enumerate())


def test_numeric_seeds_are_there_at_once_and_come_again() -> None:
    """A numeric seed is reported inside start and repeated, so that one which starts later is found."""
    found: list[Candidate] = []
    source = SeedSource([("127.0.0.1", 1), ("::1", 2)])
    source.start(None, found.append)
    assert [each.address for each in found] == ["127.0.0.1:1", "[::1]:2"]
    eventually(lambda: len(found) >= 6, 5)
    source.stop()
    assert no_more_threads()
    assert source.problem == ""


def test_every_address_of_a_name_is_a_candidate(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name with several addresses, of both families, yields each of them once a round."""
    answers = [
        (socket.AF_INET, 1, 6, "", ("10.0.0.1", 7)),
        (socket.AF_INET6, 1, 6, "", ("fd00::1", 7, 0, 0)),
        (socket.AF_INET, 1, 6, "", ("10.0.0.2", 7)),
    ]
    monkeypatch.setattr(socket, "getaddrinfo", lambda *args, **kwargs: answers)
    found: list[Candidate] = []
    source = SeedSource([("headless.example", 7)])
    source.start(None, found.append)
    eventually(lambda: len(found) >= 3)
    source.stop()
    assert [each.address for each in found[:3]] == ["10.0.0.1:7", "[fd00::1]:7", "10.0.0.2:7"]
    assert {each.boot for each in found} == {None}


def test_a_resolver_that_hangs_blocks_nobody(monkeypatch: pytest.MonkeyPatch) -> None:
    """While one name hangs in the resolver, start and stop return, and the other seeds are reported."""
    release = threading.Event()

    def resolve(host: str, port: int, **kwargs: Any) -> list[Any]:
        if host == "slow.example":
            release.wait(20)
            raise OSError("timed out")
        return [(socket.AF_INET, 1, 6, "", ("10.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    found: list[Candidate] = []
    source = SeedSource([("slow.example", 1), ("good.example", 2), ("127.0.0.1", 3)])
    began = time.monotonic()
    source.start(None, found.append)
    eventually(lambda: {each.address for each in found} == {"10.0.0.1:2", "127.0.0.1:3"})
    source.stop()
    assert time.monotonic() - began < 5
    seen = len(found)
    release.set()
    eventually(no_more_threads)
    assert len(found) == seen


def test_a_name_that_resolves_later_is_used_later(monkeypatch: pytest.MonkeyPatch) -> None:
    """A name unknown at first is a named problem and is asked for again until it is known; later failures keep what was known."""
    rounds: list[int] = []

    def resolve(host: str, port: int, **kwargs: Any) -> list[Any]:
        rounds.append(1)
        if len(rounds) in (1, 3):
            raise socket.gaierror(-2, "Name or service not known")
        return [(socket.AF_INET, 1, 6, "", ("10.0.0.1", port))]

    monkeypatch.setattr(socket, "getaddrinfo", resolve)
    found: list[Candidate] = []
    source = SeedSource([("late.example", 7)])
    source.start(None, found.append)
    eventually(lambda: source.problem == "late.example: Name or service not known")
    eventually(lambda: [each.address for each in found] >= ["10.0.0.1:7"] * 2, 5)
    source.stop()


def test_a_host_name_of_this_machine_resolves() -> None:
    """`localhost` is a seed like any other."""
    found: list[Candidate] = []
    source = SeedSource([("localhost", 7)])
    source.start(None, found.append)
    eventually(lambda: Candidate("127.0.0.1:7", None, "seeds") in found)
    source.stop()


def remembered(directory: Path, mesh: str = "m") -> list[str]:
    found: list[Candidate] = []
    source = StateSource(mesh, directory)
    source.start(None, found.append)
    source.stop()
    return [each.address for each in found]


def test_peers_are_remembered_for_the_next_start(tmp_path: Path) -> None:
    """What was written is reported at the next start, by mesh, in the order given; the directory is made when it is missing."""
    StateSource("m", tmp_path / "new" / "dir").remember([("a", "10.0.0.1:1"), ("b", "[fd00::1]:2")])
    assert remembered(tmp_path / "new" / "dir") == ["10.0.0.1:1", "[fd00::1]:2"]
    assert remembered(tmp_path / "new" / "dir", "other") == []
    assert [each.suffix for each in (tmp_path / "new" / "dir").iterdir()] == [".json"]


def test_the_file_is_written_when_something_changed(tmp_path: Path) -> None:
    """Remembering the same peers again, in any order, does not touch the file; it comes back when somebody removed it."""
    source, peers = StateSource("m", tmp_path), [("a", "10.0.0.1:1"), ("b", "10.0.0.2:1")]
    source.remember(peers)
    (path,) = tmp_path.iterdir()
    before = path.stat().st_ino
    source.remember(peers[::-1])
    assert path.stat().st_ino == before
    path.unlink()
    source.remember(peers)
    assert remembered(tmp_path) == ["10.0.0.1:1", "10.0.0.2:1"]


def test_with_a_directory_alone_peers_are_kept_and_not_tried(tmp_path: Path) -> None:
    """Where `state` is not among the ways to find others, what is remembered waits for a start that names it."""
    found: list[Candidate] = []
    it = Discovery(make_sources((), mesh="m", interfaces=list, state_dir=tmp_path))
    it.start(None, found.append)
    it.remember([("a", "10.0.0.1:1")])
    it.refresh()
    it.stop()
    assert found == []
    assert remembered(tmp_path) == ["10.0.0.1:1"]


def test_a_lonely_run_forgets_nothing_and_old_peers_do_not_pile_up(tmp_path: Path) -> None:
    """Earlier peers stay behind present ones, a bounded number of them; one that came back elsewhere is there once."""
    source = StateSource("m", tmp_path)
    source.remember([("a", "10.0.0.1:1")])
    source.remember([])
    assert remembered(tmp_path) == ["10.0.0.1:1"]
    source.remember([("a", "10.0.0.1:2")])
    assert remembered(tmp_path) == ["10.0.0.1:2"]
    for each in range(400):
        source.remember([(f"n{each}", f"10.0.1.1:{each + 1}")])
    assert len(remembered(tmp_path)) <= 1 + KEPT_OLDER
    source.remember([(f"n{each}", f"10.0.2.1:{each + 1}") for each in range(1000)])
    assert len(remembered(tmp_path)) == MAX_PEERS


@pytest.mark.parametrize(
    "content", [b"", b"{", b"[]", b'{"peers": 3}', b"\xff\xfe", b"[" * 100_000, b'{"peers": [["a"], [1, 2], ["a", "nowhere"], 7, null]}']
)
def test_a_corrupt_file_is_an_empty_one(tmp_path: Path, content: bytes, caplog: pytest.LogCaptureFixture) -> None:
    """Whatever is in the file, the node starts; what makes no sense is left aside, and writing mends it."""
    source = StateSource("m", tmp_path)
    source.remember([("a", "10.0.0.1:1")])
    (path,) = tmp_path.iterdir()
    path.write_bytes(content)
    with caplog.at_level(logging.WARNING):
        assert remembered(tmp_path) == []
    assert len(caplog.records) == (0 if content.startswith(b'{"peers": [') else 1)
    source.remember([("b", "10.0.0.2:1")])
    assert json.loads(path.read_bytes())["peers"] == [["b", "10.0.0.2:1"]]
