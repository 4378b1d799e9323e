"""Links: who is dialled, the handshake, and which of two links to a peer is used.

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

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import msgspec

from reachmesh.calls.flows import Buffer
from reachmesh.calls.ports import Flowing
from reachmesh.calls.timers import NEVER
from reachmesh.calls.window import Pace
from reachmesh.engine.addresses import AddressBook, nearness
from reachmesh.engine.link import GREETING_TIMEOUT, Link, LinkNote, Phase
from reachmesh.engine.outbound import Outbound
from reachmesh.wire.control import Control, Goodbye, Hello, Refuse, Welcome
from reachmesh.wire.frames import encode_control
from reachmesh.wire.negotiation import highest_common

PROTOCOL = (1, 1)
"""Lowest and highest protocol version this code speaks."""

SELF = 0
"""Key of the link of a node to itself."""

CONNECT_TIMEOUT = 3.0
"""Seconds for TCP and ZMTP; then the address counts as silent."""

STAGGER = 0.25
"""Seconds after which the next address of the same peer is dialled beside the first (RFC 8305's connection attempt delay)."""

RETIRE_AFTER = 2.0
"""Seconds a spare link must have been idle before it is retired."""

DEAD_AFTER = 2.0
"""Seconds for which a link may say nothing after a fresh connection beside it was answered; then the way it takes is cut, and it is ended.
Short ends links that were merely slow, and the calls on them; long keeps calls waiting on dead ones."""

RETIRE_CHECK = 0.5
"""Seconds between two looks whether the last calls on a retired link are over."""

_OUTCOMES = ("other", "mute", "refused", "silent")
"""How a dial can fail, the most telling first: another boot answered; ZMTP answered and the process did not (it is too busy to speak);
nobody listens; nothing at all."""

INSECURE = "has another secret, or only one of us has one"
"""What a failed CURVE handshake means."""


class _Attempt(msgspec.Struct):
    """The dialling of one boot: addresses still to try, and what came of the others."""

    addresses: list[str]
    next_at: float
    open: int = 0
    outcomes: list[str] = msgspec.field(default_factory=list)


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
        self._links: dict[int, Link] = {}
        self._by_boot: dict[bytes, list[Link]] = {}
        self._best: dict[bytes, int] = {boot: SELF}
        self.book = AddressBook()
        self._dialed: dict[str, Link] = {}
        self._attempts: dict[bytes, _Attempt] = {}
        self._next_key = 0
        self._outbound = Outbound()
        self._pending: dict[int, Link] = {}
        self._doubted: dict[int, float] = {}
        self._dials: list[tuple[int, str]] = []
        self._closes: list[int] = []
        self._notes: list[LinkNote] = []
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

    def handle_candidate(self, address: str, boot: bytes | None, now: float) -> None:
        """Discovery says that somebody may be at `address`: find out, unless that is known."""
        if boot is not None:
            if boot == self.boot:
                return
            self.book.learn(boot, (address,))
            if boot not in self._best:
                self.want(boot, now)
        elif address not in self.book.own and address not in self._dialed and not self._is_linked(address):
            self._dial(address, None, now)

    def _is_linked(self, address: str) -> bool:
        """Whether a boot that is linked is known to be at an address."""
        return any(address in self.book.of(boot) for boot in self._best)

    def want(self, boot: bytes, now: float) -> bool:
        """Make a link to a boot: its addresses are dialled side by side, a quarter second apart."""
        if boot in self._best or boot in self._attempts:
            return True
        addresses = self.book.of(boot)
        if not addresses:
            return False
        self._attempts[boot] = _Attempt(addresses, now)
        self._continue(boot, now)
        return True

    def probe(self, boot: bytes, patience: float, now: float) -> bool:
        """Make one more connection to a linked boot, only to see whether it is taken; false when no address is known.

        The outcome is a note "probed". It is "mute" when the greeting is not answered within `patience` seconds. Another address of the
        boot is tried aside, of which only an answer is told.
        """
        if any(link.probes and link.expected == boot for link in self._pending.values()):
            return True
        best = self._links.get(self._best.get(boot, SELF))
        if best is not None and best.key != SELF:
            self._doubted.setdefault(best.key, NEVER)
        taken = [best.address] if best is not None and best.address else []
        addresses = list(dict.fromkeys(taken + self.book.of(boot)))[:2]
        for address in addresses:
            link = self._connect(address, boot, now)
            link.probes, link.patience, link.aside = True, patience, address != addresses[0]
        return bool(addresses)

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
            self._outbound.drop(key)
            if reason == "insecure":
                self._notes.append(LinkNote("refused", key, link.expected or b"", f"{link.address} {INSECURE}"))
            ending = "retired" if link.phase is Phase.RETIRING else reason  # the dialler ended it, as it said it would
            self._drop(link, ending, reason if reason in _OUTCOMES else "silent", now)

    def _drop(self, link: Link, reason: str, outcome: str, now: float) -> None:
        """Take a link out and tell whoever depends on it. `outcome`: how its dial ended, when it never came up."""
        del self._links[link.key]
        self._pending.pop(link.key, None)
        self._doubted.pop(link.key, None)
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
            if link.aside and outcome != "up":
                return
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

    def handle_moved(self, old: Sequence[str], new: Sequence[str], now: float) -> None:
        """This host's addresses are others now. Links that went by one that is gone are dead, and nobody will say so: end them."""
        self.book.own = self.book.own.difference(old).union(new)
        gone, kept = [each for each in old if each not in new], [each for each in old if each in new]
        for links in list(self._by_boot.values()):
            for link in list(links):
                there = link.address or next(iter(self.book.of(link.boot)), "")
                if nearness(there, gone) > nearness(there, kept):
                    self.close(link.key, "this host's address is gone", now)

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
            best = self._best.get(welcome.boot, SELF)
            if best in self._doubted:
                self._doubted[best] = min(self._doubted[best], now + DEAD_AFTER)
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
            self.book.own |= {link.address}
        elif code == "version":
            self._notes.append(LinkNote("version_refused", key, link.expected or b"", refuse.message))
        elif code not in ("mesh", "other", "unknown"):
            self._notes.append(LinkNote("refused", key, link.expected or b"", refuse.message))
        self._closes.append(key)
        self._drop(link, f"refused: {refuse.message}", "other" if code in ("other", "self", "mesh") else "silent", now)

    def handle_heard(self, keys: Iterable[int]) -> None:
        """Frames came over these links: none of them is dead."""
        if self._doubted:
            for key in keys:
                self._doubted.pop(key, None)

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
            self.book.learn(boot, (link.address,))
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
        if link is not None:
            self._outbound.put(link, frame, parts)

    def flow(self, owner: Flowing) -> None:
        """The owner's outflow may have something to send."""
        link = self._links.get(owner.key)
        if link is not None:
            self._outbound.flow(link, owner)

    def pace(self, key: int) -> Pace:
        """What is known of a link's speed; nothing, of one that is gone."""
        link = self._links.get(key)
        return link.pace if link is not None else Pace()

    def take_sends(self) -> list[tuple[int, bytes, list[Buffer]]]:
        """Everything to be sent now: per link one batch and its out-of-band parts."""
        return self._outbound.take_sends()

    def take_ended(self) -> list[Any]:
        """Calls whose outflow has left completely since the last asking."""
        return self._outbound.take_ended()

    @property
    def restless(self) -> bool:
        """Whether connections are to be made or ended."""
        return bool(self._dials or self._closes)

    @property
    def busy(self) -> bool:
        """Whether something is left for the next turn."""
        return self._outbound.busy

    # ---------------------------------------------------------------- time and outputs

    def tick(self, now: float) -> None:
        """Give up on silent addresses and greetings, and dial what is due."""
        for link in [link for link in self._pending.values() if link.deadline <= now]:
            self._expire(link, now)
        for boot in list(self._attempts):
            self._continue(boot, now)
        for key in [key for key, at in self._doubted.items() if at <= now]:
            self.close(key, "it is dead: a fresh connection was answered, and it is not", now)

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
        if not self._pending and not self._attempts and not self._doubted:
            return NEVER
        dials = min((attempt.next_at for attempt in self._attempts.values() if attempt.addresses), default=NEVER)
        return min(
            dials, min(self._doubted.values(), default=NEVER), min((link.deadline for link in self._pending.values()), default=NEVER)
        )

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
