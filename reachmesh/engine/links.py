"""Links: who is dialled, the handshake, which of two links to a peer is used, and what waits to be sent on each.

A link begins as a TCP connection that proves nothing. The dialler says HELLO (who it is, whom it means, which protocol versions
it speaks); the other side answers WELCOME or REFUSE. Only then is the link *up*, tied for life to one boot id, and only then does
anything but a handshake go over it or count. A connection is never made again under the same link: what was pending on a dropped
one is failed, and a new dial is a new link, so nothing queued for a dead process can reach the one that took over its port.

States of a link: CONNECTING -> GREETING -> UP -> (RETIRING ->) gone. Two peers that dial each other at once get two links; both
sides prefer the one dialled by the smaller boot id, and the dialler of the other retires it once it is idle: it says so, the
peer answers and begins nothing new there, and when the calls that crossed are over it is closed, so no frame is lost.

Everything a stranger can make grow is capped: addresses per boot, boots with hints, links that have not greeted.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from reachmesh.calls.flags import CONTROL, MSGPACK, STREAM, STREAM_TO_CALLER
from reachmesh.calls.flows import Buffer, Outflow
from reachmesh.calls.incoming import IncomingCall
from reachmesh.calls.ports import Flowing
from reachmesh.calls.timers import NEVER
from reachmesh.wire.control import Control, Goodbye, Hello, Refuse, Welcome
from reachmesh.wire.frames import NO_DEADLINE, encode_control, encode_frame, join_batch
from reachmesh.wire.limits import LIMITS
from reachmesh.wire.negotiation import highest_common

PROTOCOL = (1, 1)
"""Lowest and highest protocol version this code speaks."""

SELF = 0
"""Key of the link of a node to itself."""

CONNECT_TIMEOUT = 3.0
"""Seconds for TCP and ZMTP; then the address counts as silent."""

GREETING_TIMEOUT = 3.0
"""Seconds between HELLO and its answer."""

STAGGER = 0.25
"""Seconds after which the next address of the same peer is dialled beside the first (RFC 8305's connection attempt delay)."""

RETIRE_AFTER = 2.0
"""Seconds a spare link must have been idle before it is retired."""

RETIRE_CHECK = 0.5
"""Seconds between two looks whether the last calls on a retired link are over."""

BULK_PER_TURN = 1 << 20
"""Bytes of chunks and items one link may send in one turn, so that a turn stays short."""

_OUTCOMES = ("other", "mute", "refused", "silent")
"""How a dial can fail, the most telling first: another boot answered; ZMTP answered and the process did not (it is too busy to speak);
nobody listens; nothing at all."""

INSECURE = "has another secret, or only one of us has one"
"""What a failed CURVE handshake means."""

ADDRESSES_PER_BOOT = 16
HINTED_BOOTS = 16_384


class Phase(Enum):
    """How far a link has come."""

    CONNECTING = 1
    GREETING = 2
    UP = 3
    RETIRING = 4


class Link:
    """One connection. `key` > 0: dialled here; < 0: accepted; 0: the node itself."""

    __slots__ = (
        "address",
        "boot",
        "deadline",
        "expected",
        "flows",
        "frames",
        "instance_id",
        "key",
        "name",
        "observer",
        "parts",
        "patience",
        "phase",
        "probes",
        "spare_since",
        "waiting",
    )

    def __init__(self, key: int, phase: Phase, *, address: str = "", expected: bytes | None = None, deadline: float = 0.0) -> None:
        self.key, self.phase, self.address, self.expected, self.deadline = key, phase, address, expected, deadline
        self.boot = b""
        self.name = self.instance_id = ""
        self.observer = self.probes = False
        self.patience = GREETING_TIMEOUT
        self.frames: list[bytes] = []
        self.parts: list[Buffer] = []
        self.flows: deque[tuple[Flowing, Outflow]] = deque()
        self.spare_since: float | None = None
        self.waiting = False


@dataclass(slots=True)
class _Attempt:
    """The dialling of one boot: addresses still to try, and what came of the others."""

    addresses: list[str]
    next_at: float
    open: int = 0
    outcomes: list[str] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class LinkNote:
    """What happened to a link: kind is up, down, dial_failed, probed, refused or version_refused."""

    kind: str
    key: int
    boot: bytes
    detail: str = ""
    observer: bool = False


class LinkTable:
    """All links of one node, and everything about making and ending them.

    Inputs: `handle_*`, `want`, `learn`, `send`, `flow`, `tick`. Outputs: `take_dials`, `take_closes`, `take_sends`, `take_notes`.

    Args:
        in_use: whether a call is open on a link; one that retires is kept for it.
    """

    def __init__(
        self,
        boot: bytes,
        instance_id: str,
        name: str,
        mesh: str,
        *,
        observer: bool = False,
        in_use: Callable[[int], bool] = lambda key: False,
    ) -> None:
        self._in_use = in_use
        self.boot, self.instance_id, self.name, self.mesh, self.observer = boot, instance_id, name, mesh, observer
        self.incarnation = 0
        self.own_addresses: frozenset[str] = frozenset()
        self._links: dict[int, Link] = {}
        self._by_boot: dict[bytes, list[Link]] = {}
        self._best: dict[bytes, int] = {boot: SELF}
        self._book: dict[bytes, dict[str, None]] = {}
        self._dialed: dict[str, Link] = {}
        self._attempts: dict[bytes, _Attempt] = {}
        self._next_key = 0
        self._ready: dict[int, Link] = {}
        self._pending: dict[int, Link] = {}
        self._dials: list[tuple[int, str]] = []
        self._closes: list[int] = []
        self._notes: list[LinkNote] = []
        self._ended: list[Flowing] = []
        self.strays = 0
        myself = Link(SELF, Phase.UP)
        myself.boot, myself.name, myself.instance_id = boot, name, instance_id
        self._links[SELF] = myself

    # ---------------------------------------------------------------- reads

    def get(self, key: int) -> Link | None:
        """The link with this key, in whatever phase."""
        return self._links.get(key)

    def link_to(self, boot: bytes) -> int | None:
        """The preferred link to a boot that is up, or None."""
        return self._best.get(boot)

    def second_link(self, boot: bytes) -> int | None:
        """A link for control frames where there is no preferred one: a silent observer's, or one that retires; or None."""
        links = self._by_boot.get(boot, ())
        return next((link.key for link in links if link.observer or link.phase is Phase.RETIRING), None)

    def linked(self) -> Sequence[bytes]:
        """Boots with a link that is up, this node's own left out, in the order they came up."""
        return [boot for boot in self._by_boot if boot != self.boot]

    def greeting(self) -> list[str]:
        """Addresses that were dialled and have not answered yet, in order."""
        return sorted({link.address for link in self._pending.values() if link.phase in (Phase.CONNECTING, Phase.GREETING)})

    # ---------------------------------------------------------------- addresses and dialling

    def learn(self, boot: bytes, addresses: Sequence[str]) -> None:
        """Remember where a boot may be reached, best guess first; newer hints go before older ones."""
        if boot == self.boot or (boot not in self._book and len(self._book) >= HINTED_BOOTS):
            return
        known = self._book.get(boot, {})
        merged = {address: None for address in addresses if address not in self.own_addresses} | known
        self._book[boot] = dict(list(merged.items())[:ADDRESSES_PER_BOOT])

    def forget(self, boot: bytes) -> None:
        """Drop the addresses of a boot that is gone for good."""
        self._book.pop(boot, None)

    def handle_candidate(self, address: str, boot: bytes | None, now: float) -> None:
        """Discovery says that somebody may be at `address`: find out, unless that is known."""
        if boot is not None:
            if boot == self.boot:
                return
            self.learn(boot, (address,))
            if boot not in self._best:
                self.want(boot, now)
        elif address not in self.own_addresses and address not in self._dialed and not self._is_linked(address):
            self._dial(address, None, now)

    def _is_linked(self, address: str) -> bool:
        """Whether a boot that is linked is known to be at an address."""
        return any(address in self._book.get(boot, ()) for boot in self._best)

    def want(self, boot: bytes, now: float) -> bool:
        """Make a link to a boot: its addresses are dialled side by side, a quarter second apart."""
        if boot in self._best or boot in self._attempts:
            return True
        addresses = self._book.get(boot)
        if not addresses:
            return False
        self._attempts[boot] = _Attempt(self._order(addresses), now)
        self._continue(boot, now)
        return True

    def probe(self, boot: bytes, patience: float, now: float) -> bool:
        """Make one more connection to a linked boot, only to see whether it is taken; false when no address is known.

        The outcome is a note "probed". It is "mute" when the greeting is not answered within `patience` seconds.
        """
        if any(link.probes and link.expected == boot for link in self._pending.values()):
            return True
        best = self._links.get(self._best.get(boot, SELF))
        address = best.address if best is not None else ""
        if not address:
            known = self._order(self._book.get(boot, {}))
            if not known:
                return False
            address = known[0]
        link = self._connect(address, boot, now)
        link.probes, link.patience = True, patience
        return True

    def _order(self, addresses: dict[str, None]) -> list[str]:
        """Loopback hints first (same host), then addresses that share most with one of our own."""
        own = [address.rpartition(":")[0].split(".") for address in self.own_addresses]

        def nearness(address: str) -> int:
            host = address.rpartition(":")[0].split(".")
            return max((sum(1 for _ in _common(host, mine)) for mine in own), default=0)

        return sorted(addresses, key=lambda address: (not address.startswith("127."), -nearness(address)))

    def _continue(self, boot: bytes, now: float) -> None:
        """Dial the next address of an attempt when its time has come, or close the attempt when all have failed."""
        attempt = self._attempts.get(boot)
        if attempt is None:
            return
        while attempt.addresses and (attempt.next_at <= now or attempt.open == 0):
            address = attempt.addresses.pop(0)
            busy = self._dialed.get(address)
            if busy is not None and busy.phase is Phase.RETIRING:
                busy = None
            if busy is not None and busy.expected is not None and busy.expected != boot:
                attempt.outcomes.append("other" if busy.phase is Phase.UP else "silent")
                continue
            if busy is not None and busy.phase is not Phase.UP:
                busy.expected = boot
            elif busy is not None:
                attempt.outcomes.append("other")
                continue
            else:
                self._dial(address, boot, now)
            attempt.open += 1
            attempt.next_at = now + STAGGER
        if attempt.open == 0 and not attempt.addresses:
            del self._attempts[boot]
            outcome = next((each for each in _OUTCOMES if each in attempt.outcomes), "silent")
            self._notes.append(LinkNote("dial_failed", 0, boot, outcome))

    def _dial(self, address: str, expected: bytes | None, now: float) -> None:
        link = self._connect(address, expected, now)
        link.address = address
        self._dialed[address] = link

    def _connect(self, address: str, expected: bytes | None, now: float) -> Link:
        self._next_key += 1
        link = Link(self._next_key, Phase.CONNECTING, expected=expected, deadline=now + CONNECT_TIMEOUT)
        self._links[link.key] = self._pending[link.key] = link
        self._dials.append((link.key, address))
        return link

    # ---------------------------------------------------------------- what the sockets report

    def handle_opened(self, key: int, now: float) -> None:
        """A dialled connection stands: greet."""
        link = self._links.get(key)
        if link is None or link.phase is not Phase.CONNECTING:
            return
        link.phase, link.deadline = Phase.GREETING, now + link.patience
        hello = Hello(
            lo=PROTOCOL[0],
            hi=PROTOCOL[1],
            mesh=self.mesh,
            boot=self.boot,
            instance=self.instance_id,
            name=self.name,
            observer=self.observer,
            target=link.expected,
            inc=self.incarnation,
        )
        self.send(key, encode_control(Control.HELLO, hello.encode()))

    def handle_closed(self, key: int, reason: str, now: float) -> None:
        """A connection is gone. For one that never opened `reason` is "refused" or "silent"."""
        link = self._links.get(key)
        if link is not None:
            self._ready.pop(key, None)
            if reason == "insecure":
                self._notes.append(LinkNote("refused", key, link.expected or b"", f"{link.address} {INSECURE}"))
            self._drop(link, reason, reason if reason in _OUTCOMES else "silent", now)

    def _drop(self, link: Link, reason: str, outcome: str, now: float) -> None:
        """Take a link out and tell whoever depends on it. `outcome`: how its dial ended, when it never came up."""
        del self._links[link.key]
        self._pending.pop(link.key, None)
        if link.address and self._dialed.get(link.address) is link:
            del self._dialed[link.address]
        if link.phase in (Phase.UP, Phase.RETIRING):
            links = self._by_boot[link.boot]
            links.remove(link)
            if not links:
                del self._by_boot[link.boot]
            self._prefer(link.boot, now)
            self._notes.append(LinkNote("down", link.key, link.boot, reason, link.observer))
        elif link.probes:
            self._notes.append(LinkNote("probed", link.key, link.expected or b"", outcome))
        elif link.expected is not None and link.key > 0:
            self._dial_ended(link.expected, outcome, now)

    def _dial_ended(self, boot: bytes, outcome: str, now: float) -> None:
        attempt = self._attempts.get(boot)
        if attempt is not None:
            attempt.open -= 1
            attempt.outcomes.append(outcome)
            attempt.next_at = now
            self._continue(boot, now)

    # ---------------------------------------------------------------- the handshake

    def handle_hello(self, key: int, body: bytes, now: float) -> None:
        """Somebody introduces itself on an accepted connection."""
        if key >= 0 or key in self._links:
            self.strays += 1
            return
        hello = Hello.decode(body)
        if hello is None:
            self._refuse(key, "protocol", "the greeting could not be read")
            return
        version = highest_common(PROTOCOL, (hello.lo, hello.hi))
        if hello.mesh != self.mesh:
            self._refuse(key, "mesh", "this is another mesh")
        elif version is None:
            text = f"{self.instance_id} speaks protocol {PROTOCOL[0]}-{PROTOCOL[1]}, {hello.instance} speaks {hello.lo}-{hello.hi}"
            self._refuse(key, "version", text)
            self._notes.append(LinkNote("version_refused", key, hello.boot, text))
        elif hello.boot == self.boot:
            self._refuse(key, "self", "this is yourself")
        elif hello.target is not None and hello.target != self.boot:
            self._refuse(key, "other", "another instance is here")
        else:
            link = self._links[key] = Link(key, Phase.UP)
            link.name, link.instance_id, link.observer = hello.name, hello.instance, hello.observer
            welcome = Welcome(v=version, boot=self.boot, instance=self.instance_id, name=self.name, inc=self.incarnation)
            self.send(key, encode_control(Control.WELCOME, welcome.encode()))
            self._up(link, hello.boot, now)

    def _refuse(self, key: int, code: str, text: str) -> None:
        """Answer a stranger and forget it; the answer leaves before the connection is dropped."""
        link = self._links[key] = self._pending[key] = Link(key, Phase.GREETING)
        self.send(key, encode_control(Control.REFUSE, Refuse(code=code, message=text).encode()))
        link.deadline = 0.0

    def handle_welcome(self, key: int, body: bytes, now: float) -> None:
        """The other side accepted the greeting: the link is up, if it is who was meant."""
        link = self._links.get(key)
        welcome = Welcome.decode(body)
        if link is None or key <= 0 or link.phase is not Phase.GREETING or welcome is None:
            self.strays += 1
            return
        if (link.expected is not None and welcome.boot != link.expected) or welcome.boot == self.boot:
            self._closes.append(key)
            self._drop(link, "another instance is here", "other", now)
            return
        if link.probes:
            self._closes.append(key)
            self._drop(link, "not needed", "up", now)
            return
        link.phase, link.name, link.instance_id = Phase.UP, welcome.name, welcome.instance
        self._up(link, welcome.boot, now)

    def handle_refuse(self, key: int, body: bytes, now: float) -> None:
        """The other side will not talk to us."""
        link = self._links.get(key)
        refuse = Refuse.decode(body)
        if link is None or key <= 0 or refuse is None:
            self.strays += 1
            return
        code = refuse.code
        if code == "self":
            self.own_addresses |= {link.address}
        elif code == "version":
            self._notes.append(LinkNote("version_refused", key, link.expected or b"", refuse.message))
        elif code not in ("mesh", "other", "unknown"):
            self._notes.append(LinkNote("refused", key, link.expected or b"", refuse.message))
        self._closes.append(key)
        self._drop(link, f"refused: {refuse.message}", "other" if code in ("other", "self", "mesh") else "silent", now)

    def handle_unknown(self, key: int) -> None:
        """A frame on an accepted connection that has not greeted (or was forgotten): say so, so that its dialler starts afresh."""
        self.strays += 1
        if key < 0 and key not in self._links:
            self._refuse(key, "unknown", "greet first")

    def handle_goodbye(self, key: int, body: bytes, now: float) -> None:
        """The other side ends a link, or offers to."""
        link = self._links.get(key)
        goodbye = Goodbye.decode(body)
        if link is None or goodbye is None or link.phase not in (Phase.UP, Phase.RETIRING):
            return
        if goodbye.reason == "spare" and key < 0:
            link.phase, link.deadline = Phase.RETIRING, now + 2 * GREETING_TIMEOUT
            self._pending[key] = link
            self._prefer(link.boot, now)
            self.send(key, encode_control(Control.GOODBYE, Goodbye(reason="spare").encode()))
        elif goodbye.reason == "spare" and link.phase is Phase.RETIRING:
            link.deadline = now  # at once, but for calls that came before the answer
            self._expire(link, now)
        elif goodbye.reason != "spare":
            self.close(key, goodbye.reason or "left", now)

    def _up(self, link: Link, boot: bytes, now: float) -> None:
        link.boot = boot
        link.phase = Phase.UP
        self._pending.pop(link.key, None)
        self._by_boot.setdefault(boot, []).append(link)
        if link.address:
            self.learn(boot, (link.address,))
        if link.observer:
            self._notes.append(LinkNote("up", link.key, boot, "", True))
            return
        first = boot not in self._best
        self._prefer(boot, now)
        if self._attempts.pop(boot, None) is not None:
            for other in list(self._dialed.values()):
                if other.expected == boot and other.phase is Phase.CONNECTING:  # one that has greeted may be up over there
                    other.expected = None
                    self.close(other.key, "not needed", now)
        if first:
            self._notes.append(LinkNote("up", link.key, boot))

    def _prefer(self, boot: bytes, now: float) -> None:
        """Choose among the links to a boot; the dialler of each other one will retire it."""
        links = [link for link in self._by_boot.get(boot, ()) if link.phase is Phase.UP and not link.observer]
        if not links:
            self._best.pop(boot, None)
            return
        dialed_by_me = self.boot < boot
        best = next((link for link in links if (link.key > 0) == dialed_by_me), links[0])
        self._best[boot] = best.key
        for link in links:
            link.spare_since = None if link is best else now

    def spare(self, now: float) -> list[int]:
        """Keys of links dialled here that another link has replaced for long enough; the engine retires those without calls."""
        return [
            link.key
            for links in self._by_boot.values()
            if len(links) > 1
            for link in links
            if link.key > 0 and link.phase is Phase.UP and link.spare_since is not None and now - link.spare_since >= RETIRE_AFTER
        ]

    def retire(self, key: int, now: float) -> None:
        """Offer the other side to end a link that was dialled here."""
        link = self._links.get(key)
        if link is not None and link.phase is Phase.UP and key > 0:
            link.phase, link.deadline = Phase.RETIRING, now + GREETING_TIMEOUT
            self._pending[key] = link
            self._prefer(link.boot, now)
            self.send(key, encode_control(Control.GOODBYE, Goodbye(reason="spare").encode()))

    def close(self, key: int, reason: str, now: float) -> None:
        """End a link from this side; what was queued for it still leaves."""
        link = self._links.get(key)
        if link is not None and key != SELF:
            self._closes.append(key)
            self._drop(link, reason, reason if reason in _OUTCOMES else "silent", now)

    def close_boot(self, boot: bytes, reason: str, now: float) -> None:
        """End every link to a boot."""
        for link in list(self._by_boot.get(boot, ())):
            self.close(link.key, reason, now)

    def say_goodbye(self, reason: str) -> None:
        """The last frame on every link; what follows is the closing of the sockets."""
        body = encode_control(Control.GOODBYE, Goodbye(reason=reason).encode())
        for link in self._links.values():
            if link.key != SELF and link.phase in (Phase.UP, Phase.RETIRING):
                self.send(link.key, body)

    # ---------------------------------------------------------------- sending

    def send(self, key: int, frame: bytes, parts: Sequence[Buffer] = ()) -> None:
        """Queue one frame; everything queued for a link in one turn leaves as one message."""
        link = self._links.get(key)
        if link is None:
            return
        link.frames.append(frame)
        if parts:
            link.parts.extend(parts)
        if not link.waiting:
            link.waiting = True
            self._ready[key] = link

    def flow(self, owner: Flowing) -> None:
        """The owner's outflow may have something to send."""
        outflow = owner.outflow
        if outflow is None or outflow.is_listed:
            return
        link = self._links.get(owner.key)
        if link is None:
            return
        outflow.is_listed = True
        link.flows.append((owner, outflow))
        if not link.waiting:
            link.waiting = True
            self._ready[link.key] = link

    def take_sends(self) -> list[tuple[int, bytes, list[Buffer]]]:
        """Everything to be sent now: per link one batch and its out-of-band parts; calls and control go before bulk."""
        if not self._ready:
            return []
        ready, self._ready = self._ready, {}
        sends: list[tuple[int, bytes, list[Buffer]]] = []
        for link in ready.values():
            link.waiting = False
            if link.flows:
                self._pump(link)
            frames, link.frames = link.frames, []
            parts, link.parts = link.parts, []
            if len(frames) > LIMITS.frames_per_batch or len(parts) > LIMITS.parts_per_batch:
                sends.extend(_split(link.key, frames, parts))
            elif frames:
                sends.append((link.key, join_batch(frames), parts))
        return sends

    def _pump(self, link: Link) -> None:
        """Chunks and items, one frame a turn of the round, as long as credit and the turn's share last."""
        budget = BULK_PER_TURN
        flows = link.flows
        while flows and budget > 0:
            owner, outflow = flows.popleft()
            if outflow is not owner.outflow or owner.closed:  # ended, or sent again on another link
                continue
            piece = outflow.pull()
            if piece is None:
                outflow.is_listed = False
                if outflow.ended:
                    self._ended.append(owner)
                continue
            flags, body, parts = piece
            budget -= len(body) + sum(map(len, parts))
            if isinstance(owner, IncomingCall):
                flags |= STREAM_TO_CALLER
            link.frames.append(
                encode_frame(
                    STREAM,
                    flags,
                    MSGPACK,
                    owner.priority,
                    0,
                    owner.call_id,
                    owner.trace_id,
                    owner.span_id,
                    NO_DEADLINE,
                    b"",
                    body,
                    len(parts),
                )
            )
            link.parts.extend(parts)
            flows.append((owner, outflow))
            if len(link.frames) + len(link.parts) > LIMITS.parts_per_batch - 64:
                break
        if flows and not link.waiting:
            link.waiting = True
            self._ready[link.key] = link

    def take_ended(self) -> list[Any]:
        """Calls whose outflow has left completely since the last asking."""
        if not self._ended:
            return []
        taken, self._ended = self._ended, []
        return taken

    @property
    def restless(self) -> bool:
        """Whether connections are to be made or ended."""
        return bool(self._dials or self._closes)

    @property
    def busy(self) -> bool:
        """Whether something is left for the next turn: frames to send, or flows whose end has to be told."""
        return bool(self._ready or self._ended)

    # ---------------------------------------------------------------- time and outputs

    def tick(self, now: float) -> None:
        """Give up on silent addresses and greetings, and dial what is due."""
        for link in [link for link in self._pending.values() if link.deadline <= now]:
            self._expire(link, now)
        for boot in list(self._attempts):
            self._continue(boot, now)

    def _expire(self, link: Link, now: float) -> None:
        """A link's deadline has come; one that retires stays until its calls are over."""
        if link.phase is not Phase.RETIRING:
            self.close(link.key, "mute" if link.phase is Phase.GREETING else "silent", now)
        elif self._in_use(link.key):
            link.deadline = now + RETIRE_CHECK
        else:
            self.close(link.key, "retired", now)

    def next_timeout(self) -> float:
        """The next deadline of a handshake, or the next staggered dial."""
        if not self._pending and not self._attempts:
            return NEVER
        dials = min((attempt.next_at for attempt in self._attempts.values() if attempt.addresses), default=NEVER)
        return min(dials, min((link.deadline for link in self._pending.values()), default=NEVER))

    def take_dials(self) -> list[tuple[int, str]]:
        """Connections to make: (key, "host:port")."""
        taken, self._dials = self._dials, []
        return taken

    def take_closes(self) -> list[int]:
        """Connections to end, after what was queued for them has been sent."""
        taken, self._closes = self._closes, []
        return taken

    def take_notes(self) -> list[LinkNote]:
        """What happened, oldest first."""
        taken, self._notes = self._notes, []
        return taken


def _common(left: Sequence[str], right: Sequence[str]) -> Sequence[str]:
    """The leading parts two addresses share."""
    shared = 0
    for one, other in zip(left, right, strict=False):
        if one != other:
            break
        shared += 1
    return left[:shared]


def _split(key: int, frames: list[bytes], parts: list[Buffer]) -> list[tuple[int, bytes, list[Buffer]]]:
    """More frames or parts than one batch may hold, as several; each takes the parts its own frames announce."""
    sends: list[tuple[int, bytes, list[Buffer]]] = []
    group: list[bytes] = []
    start = end = 0
    for frame in frames:
        count = int.from_bytes(frame[46:48]) if frame[3] != CONTROL else 0
        if group and (len(group) >= LIMITS.frames_per_batch or end + count - start > LIMITS.parts_per_batch):
            sends.append((key, join_batch(group), parts[start:end]))
            group, start = [], end
        group.append(frame)
        end += count
    sends.append((key, join_batch(group), parts[start:end]))
    return sends
