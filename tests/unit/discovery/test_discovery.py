"""Sources side by side: none harms another, and what they report reaches the node without its own echo."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path

import pytest

from reachmesh.discovery import Announcement, Candidate, Discovery, make_sources
from reachmesh.discovery.seeds import SeedSource, parse_seed
from reachmesh.errors import ConfigError

OWN = Announcement(
    mesh="m",
    instance_id="n-h-1-x",
    boot=b"own-boot",
    name="n",
    addresses=("10.0.0.1:7000",),
    local_address="127.0.0.1:7000",
    protocol=(1, 1),
    incarnation=1,
)


class Fake:
    """A source that does as it is told."""

    def __init__(self, name: str, fails: int = 0, finds: tuple[Candidate, ...] = ()) -> None:
        self.name, self.fails, self.finds, self.problem = name, fails, finds, ""
        self.log: list[str] = []
        self.found: Callable[[Candidate], None] | None = None

    def start(self, announcement: Announcement | None, found: Callable[[Candidate], None]) -> None:
        self.log.append("start")
        if self.fails:
            self.fails -= 1
            raise OSError(f"{self.name} is broken")
        self.found = found
        for each in self.finds:
            found(each)

    def announce(self, announcement: Announcement) -> None:
        self.log.append(f"announce {announcement.incarnation}")

    def refresh(self) -> None:
        self.log.append("refresh")
        assert self.found is not None
        for each in self.finds:
            self.found(each)

    def stop(self) -> None:
        self.log.append("stop")


def test_a_broken_source_stops_no_other_and_is_tried_again(caplog: pytest.LogCaptureFixture) -> None:
    """The second source works while the first is broken; the first is logged once, named as a problem, and started again."""
    peer = Candidate("10.0.0.2:7000", None, "good")
    broken, good, found = Fake("broken", fails=3), Fake("good", finds=(peer,)), list[Candidate]()
    it = Discovery([broken, good])
    with caplog.at_level(logging.WARNING):
        it.start(OWN, found.append)
        it.refresh()
        it.refresh()
    assert found == [peer] * 3
    assert it.problems() == {"broken": "broken is broken"}
    assert len(caplog.records) == 1
    it.refresh()
    assert it.problems() == {}
    assert broken.log == ["start"] * 4


def test_a_node_does_not_find_itself() -> None:
    """Candidates with the node's own boot id or one of its own addresses are not passed on."""
    own = (
        Candidate("10.9.9.9:1", b"own-boot", "a"),
        Candidate("127.0.0.1:7000", None, "a"),
        Candidate("10.0.0.1:7000", None, "a"),
    )
    other, found = Candidate("127.0.0.1:7001", None, "a"), list[Candidate]()
    Discovery([Fake("a", finds=(*own, other))]).start(OWN, found.append)
    assert found == [other]


def test_what_is_found_may_lead_back_into_discovery() -> None:
    """The receiver of candidates may call discovery again, and may raise, without harm."""
    it = Discovery([Fake("a", finds=(Candidate("10.0.0.2:1", None, "a"),))])
    calls = []

    def receive(candidate: Candidate) -> None:
        calls.append(candidate)
        if len(calls) < 3:
            it.refresh()
        raise RuntimeError("the receiver has a bug")

    it.start(OWN, receive)
    assert len(calls) == 3


def test_announce_and_stop_reach_the_sources_that_run() -> None:
    """Changes and the end are told to running sources only; after the end nothing is reported, and a second end does nothing."""
    broken, good, found = Fake("broken", fails=9), Fake("good"), list[Candidate]()
    it = Discovery([broken, good])
    it.start(OWN, found.append)
    it.announce(OWN)
    it.stop()
    it.stop()
    it.refresh()
    assert good.log == ["start", "announce 1", "stop"]
    assert broken.log == ["start"]
    assert good.found is not None
    good.found(Candidate("10.0.0.2:1", None, "good"))
    assert found == []


def test_sources_come_in_the_order_of_their_names(tmp_path: Path) -> None:
    """`discovery=` chooses and orders; what has nothing to work with is left out."""

    def names(wanted: tuple[str, ...], seeds: tuple[str, ...] = ("a:1",), state_dir: Path | None = tmp_path) -> list[str]:
        return [each.name for each in make_sources(wanted, mesh="m", interfaces=list, seeds=seeds, state_dir=state_dir)]

    assert names(("state", "seeds", "mdns", "local", "seeds")) == ["state", "seeds", "mdns", "local"]
    assert names(("seeds", "state"), seeds=(), state_dir=None) == []
    assert names((), state_dir=None) == []


def test_unknown_names_and_malformed_seeds_are_configuration_errors() -> None:
    """A name that is none and a seed that cannot be an address are refused before anything runs, even when seeds are not in use."""
    with pytest.raises(ConfigError, match="'dns'"):
        make_sources(("dns",), mesh="m", interfaces=list)
    with pytest.raises(ConfigError, match="'nowhere'"):
        make_sources(("local",), mesh="m", interfaces=list, seeds=["nowhere"])


@pytest.mark.parametrize(
    ("text", "seed"),
    [
        ("10.0.0.1:7000", ("10.0.0.1", 7000)),
        ("tcp://10.0.0.1:7000", ("10.0.0.1", 7000)),
        (" host.example:1 ", ("host.example", 1)),
        ("my_service.ns.svc.cluster.local:65535", ("my_service.ns.svc.cluster.local", 65535)),
        ("[::1]:7000", ("::1", 7000)),
        ("[FD00::0001]:7000", ("fd00::1", 7000)),
    ],
)
def test_a_seed_is_host_and_port(text: str, seed: tuple[str, int]) -> None:
    """Numbers, names and bracketed IPv6 addresses are seeds."""
    assert parse_seed(text) == seed


@pytest.mark.parametrize(
    "text",
    ["", "host", "host:", ":7000", "host:0", "host:65536", "host:-1", "host:x", "::1:7000", "[::1]", "[host]:1", "a b:1", "-a:1", "1.2.3:4", "1.2.3.400:5",
     "a..b:1", "host:٣", "host:1:2", "x" * 64 + ":1", "http://host:1", "*:7000", None, 7000],
)  # fmt: skip
def test_a_malformed_seed_is_named(text: object) -> None:
    """Whatever is no host and port is refused with the text in the message."""
    with pytest.raises(ConfigError) as caught:
        parse_seed(text)  # type: ignore[arg-type]
    assert repr(text) in str(caught.value)


def test_seeds_never_started_can_be_stopped() -> None:
    """Stopping a source that was not started does nothing."""
    SeedSource([("127.0.0.1", 1)]).stop()
