"""The sockets of one node: one ROUTER that others dial, one DEALER per link that this node dials, and a selector over all of them.

The only user of ZeroMQ. It moves bytes and reports what happened to connections; what the bytes mean, and whether a link is any
good, is the engine's business. Not thread-safe by itself: the driver's seat makes sure that one thread at a time is in here
(libzmq allows sockets to move between threads under a full fence, which the seat's lock is). `wake` alone may be called from
anywhere.

Choices that libzmq 4.3 forces, each measured:

- ROUTER_MANDATORY: without it a send to a route that is gone reports success; with it, it says so at once.
- High-water marks of 0: at the mark a ROUTER drops; what bounds memory is the credit of the calls above.
- No routing id is set (a duplicate is a silent black hole); the ROUTER names each connection itself.
- RECONNECT_IVL -1: a dropped connection stays dropped, so that nothing queued for a dead process reaches its successor.
- ZMTP heartbeats off: they cut healthy slow readers. TCP keepalive is the janitor of dead hosts; liveness is the engine's.
- The socket's descriptor is edge-triggered: after every read to the end and every send its EVENTS are looked at again.
"""

from __future__ import annotations

import contextlib
import errno
import os
import selectors
import socket
from collections.abc import Sequence
from typing import Any, Final

import zmq
from zmq.utils.monitor import parse_monitor_message

from reachmesh.errors import ConfigError
from reachmesh.transport.keys import Keys
from reachmesh.transport.probe import Probe
from reachmesh.wire.limits import LIMITS

Buffer = bytes | bytearray | memoryview
Socket = Any
"""A ZeroMQ socket; pyzmq types every option as int or bytes, which is of no help here."""

MESSAGES_PER_READ: Final = 256
"""Messages taken from one socket before the others have their turn."""

MAX_SOCKETS: Final = 16_384
"""Sockets of the node's context; each dialled link takes three (itself and the two ends of its monitor)."""

MAX_ROUTES: Final = 16_384
"""Accepted connections that are remembered; beyond it new strangers are ignored."""

ANY_HOST: Final = ("*", "0.0.0.0", "::")
"""Hosts that mean every address there is and will be."""

BACKLOG: Final = 512
HANDSHAKE_IVL_MS: Final = 3_000
TCP_MAXRT_MS: Final = 20_000
ZERO_COPY_FROM: Final = 64 * 1024
"""Parts from this size on are handed to libzmq without a copy; below, the copy is cheaper than the bookkeeping."""

# Plain integers: pyzmq's enums cost microseconds at each use.
_EVENTS, _RCVMORE, _READABLE = int(zmq.EVENTS), int(zmq.RCVMORE), int(zmq.POLLIN)
_NOW, _MORE = int(zmq.NOBLOCK), int(zmq.NOBLOCK | zmq.SNDMORE)

_WATCHED: Final = (
    zmq.EVENT_HANDSHAKE_SUCCEEDED
    | zmq.EVENT_DISCONNECTED
    | zmq.EVENT_CLOSED
    | zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL
    | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL
    | zmq.EVENT_HANDSHAKE_FAILED_AUTH
)
_SECRETS_DIFFER: Final = (zmq.PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC, zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
"""Values of a failed handshake that mean: another secret, or a secret on one side only."""

_SWEEPS: Final = (0.0, 0.02, 0.1)
"""Seconds after a drop seen by the ROUTER at which its routes are looked through; the route itself goes a little later."""

_WAKE, _ROUTER, _ROUTER_MONITOR, _DEALER, _MONITOR, _PROBE, _BROKEN = (
    "wake",
    "router",
    "router monitor",
    "dealer",
    "monitor",
    "probe",
    "broken",
)
"""What a descriptor in the selector is."""

Message = tuple[int, bytes, list[Any]]
"""Link key, batch, out-of-band parts."""


_FOR_A_NODE, _FOR_A_LINK = 16, 8
"""Descriptors that a node's own sockets, and those of one more link, take at most."""


class _Dialed:
    """One DEALER with its monitor."""

    __slots__ = ("address", "key", "monitor", "opened", "socket")

    def __init__(self, key: int, address: str, sock: Socket, monitor: Socket) -> None:
        self.key, self.address, self.socket, self.monitor, self.opened = key, address, sock, monitor, False


class Transport:
    """Sockets of one node, driven from outside: `wait`, then `read`, then `send` and `flush`.

    With `keys` every link is encrypted, and only nodes with the same keys get one.

    Raises:
        ConfigError: the system gives no more sockets; nothing is left open.

    Outputs of `read`: messages, and `take_changes()`: ("opened", key, "") and ("closed", key, reason), where the reason of a
    connection that never opened is "refused", "silent" or "insecure"; ("stranger", 0, "insecure") for one that was turned away here.
    """

    def __init__(self, keys: Keys | None = None) -> None:
        self._keyring = keys
        with contextlib.ExitStack() as undo:
            try:
                _check_room(_FOR_A_NODE)
                self._context: zmq.Context[Any] = zmq.Context()
                undo.callback(self._context.term)
                self._selector = selectors.DefaultSelector()
                undo.callback(self._selector.close)
                self._wake_in, self._wake_out = socket.socketpair()
            except (zmq.ZMQError, OSError) as error:
                raise _scarce(error) from None
            undo.pop_all()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._selector.register(self._wake_in, selectors.EVENT_READ, (_WAKE, None))
        self._router: Socket | None = None
        self._bound: set[str] = set()
        self._port = 0
        self._router_monitor: Socket | None = None
        self._dialed: dict[int, _Dialed] = {}
        self._routes: dict[bytes, int] = {}
        self._keys: dict[int, bytes] = {}
        self._next_route = 0
        self._changes: list[tuple[str, int, str]] = []
        self._check: dict[Any, None] = {}
        self._probes: dict[int, Probe] = {}
        self._sweeps: list[float] = []
        self._closed = False
        with contextlib.suppress(zmq.ZMQError):
            self._context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)

    # ---------------------------------------------------------------- making and ending

    def bind(self, hosts: Sequence[str], port: int) -> int:
        """Listen on `port` (0 = any free one) of each host ("*" = all interfaces); the same port on all.

        Returns:
            The port.

        Raises:
            ConfigError: the port is taken, a host is not ours, or the system gives no more sockets.
        """
        try:
            router = self._context.socket(zmq.ROUTER)
        except zmq.ZMQError as error:
            raise _scarce(error) from None
        self._set(router)
        router.set(zmq.ROUTER_MANDATORY, 1)
        if self._keyring is not None:
            router.set(zmq.CURVE_SERVER, 1)
            router.set(zmq.CURVE_PUBLICKEY, self._keyring.public)
            router.set(zmq.CURVE_SECRETKEY, self._keyring.secret)
        router.set(zmq.BACKLOG, BACKLOG)
        router.set(zmq.MAXMSGSIZE, LIMITS.message + LIMITS.chunk)
        host = ""
        try:
            for host in hosts:
                router.bind(f"tcp://{host}:{port or '*'}")
                if not port:
                    port = int(router.getsockopt(zmq.LAST_ENDPOINT).rstrip(b"\0").rpartition(b":")[2])
        except zmq.ZMQError as error:
            router.close(0)
            text = "the port is taken" if error.errno == errno.EADDRINUSE else str(error)
            raise ConfigError(f"cannot listen on {host}:{port or '*'}: {text}") from None
        self._router, self._bound, self._port = router, set(hosts), port  # from here on `close` ends it
        try:
            self._router_monitor = router.get_monitor_socket(zmq.EVENT_DISCONNECTED | zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
        except zmq.ZMQError as error:
            raise _scarce(error) from None
        self._register(router, _ROUTER)
        self._register(self._router_monitor, _ROUTER_MONITOR)
        return port

    def bind_also(self, hosts: Sequence[str]) -> bool:
        """Listen on further addresses of this host, at the same port; false when one of them cannot be had."""
        for host in hosts:
            if self._router is not None and self._bound.isdisjoint((*ANY_HOST, host)):
                try:
                    self._router.bind(f"tcp://{host}:{self._port}")
                except zmq.ZMQError:
                    return False
                self._bound.add(host)
        return True

    def _set(self, sock: Socket) -> None:
        sock.set(zmq.LINGER, 0)
        sock.set(zmq.SNDHWM, 0)
        sock.set(zmq.RCVHWM, 0)
        sock.set(zmq.HANDSHAKE_IVL, HANDSHAKE_IVL_MS)
        sock.set(zmq.TCP_KEEPALIVE, 1)
        sock.set(zmq.TCP_KEEPALIVE_IDLE, 10)
        sock.set(zmq.TCP_KEEPALIVE_INTVL, 5)
        sock.set(zmq.TCP_KEEPALIVE_CNT, 3)
        sock.set(zmq.TCP_MAXRT, TCP_MAXRT_MS)
        sock.set(zmq.IPV6, 1)

    def dial(self, key: int, address: str) -> None:
        """Begin to connect to "host:port"; the outcome comes as a change. Never raises for a bad address."""
        try:
            _check_room(_FOR_A_LINK)
            dealer = self._context.socket(zmq.DEALER)
        except (zmq.ZMQError, OSError):  # out of sockets or descriptors
            self._changes.append(("closed", key, "silent"))
            return
        try:
            self._set(dealer)
            dealer.set(zmq.RECONNECT_IVL, -1)
            if self._keyring is not None:
                dealer.set(zmq.CURVE_SERVERKEY, self._keyring.public)
                dealer.set(zmq.CURVE_PUBLICKEY, self._keyring.public)
                dealer.set(zmq.CURVE_SECRETKEY, self._keyring.secret)
            dealer.set(zmq.MAXMSGSIZE, LIMITS.message + LIMITS.chunk)
            monitor = dealer.get_monitor_socket(_WATCHED)
            dealer.connect(f"tcp://{address}")
        except (zmq.ZMQError, OSError):
            dealer.close(0)
            self._changes.append(("closed", key, "silent"))
            return
        link = self._dialed[key] = _Dialed(key, address, dealer, monitor)
        self._register(dealer, _DEALER, link)
        self._register(monitor, _MONITOR, link)

    def close_link(self, key: int, linger_ms: int = 0) -> None:
        """End a dialled connection, or forget an accepted one."""
        link = self._dialed.pop(key, None)
        if link is not None:
            self._end(link, linger_ms)
        elif (probe := self._probes.pop(key, None)) is not None:
            self._selector.unregister(probe.sock)
            probe.close()
        else:
            route = self._keys.pop(key, None)
            if route is not None:
                self._routes.pop(route, None)

    def _end(self, link: _Dialed, linger_ms: int = 0) -> None:
        for sock in (link.socket, link.monitor):
            self._selector.unregister(sock.fd)
        with contextlib.suppress(zmq.ZMQError):
            link.socket.disable_monitor()
        link.monitor.close(0)
        link.socket.close(linger_ms)

    def close(self, linger_ms: int = 200) -> None:
        """Close everything; what was sent has `linger_ms` to leave. Safe to call twice."""
        if self._closed:
            return
        self._closed = True
        for link in self._dialed.values():
            self._end(link, linger_ms)
        self._dialed.clear()
        for probe in self._probes.values():
            probe.close()
        self._probes.clear()
        if self._router is not None:
            with contextlib.suppress(zmq.ZMQError):
                self._router.disable_monitor()
            if self._router_monitor is not None:
                self._router_monitor.close(0)
            self._router.close(linger_ms)
        self._selector.close()
        self._wake_in.close()
        self._wake_out.close()
        self._context.term()

    # ---------------------------------------------------------------- waiting and reading

    def _register(self, sock: Socket, kind: str, link: _Dialed | None = None) -> None:
        source = (kind, link)
        self._selector.register(sock.fd, selectors.EVENT_READ, source)
        self._check[source] = None

    def fileno(self) -> int:
        """A descriptor that is readable when a socket has something, for another selector; -1 where the system has none."""
        fileno = getattr(self._selector, "fileno", None)
        return int(fileno()) if fileno is not None else -1

    def wake(self) -> None:
        """End a `wait` that runs in another thread. Callable from anywhere, also after `close`."""
        with contextlib.suppress(OSError):
            self._wake_out.send(b"\0")

    def wait(self, timeout: float) -> list[Any]:
        """Sleep until a socket has something or `timeout` seconds are over; what is ready is to be given to `read`.

        May run in a thread that does not hold the seat, beside another that does.
        """
        if self._closed:
            return []
        ready = self._selector.select(0.0 if self._check or timeout < 0 else timeout)
        return [key.data for key, _ in ready]

    def read(self, ready: Sequence[Any], now: float) -> list[Message]:
        """Take what the ready sockets, and those known to have more, hold: a bounded number of messages from each."""
        messages: list[Message] = []
        check, self._check = self._check, {}
        for source in (*ready, *(source for source in check if source not in ready)):
            kind, link = source
            if kind is _WAKE:
                self._drain_wake()
            elif kind is _DEALER:
                if link.key in self._dialed and self._read_dealer(link, messages):
                    self._check[source] = None
            elif kind is _MONITOR:
                if link.key in self._dialed:
                    self._read_monitor(link, messages)
            elif kind is _BROKEN:
                if link.key in self._dialed:
                    self._fail(link, "disconnected", messages)
            elif kind is _ROUTER:
                if self._read_router(messages):
                    self._check[source] = None
            elif kind is _ROUTER_MONITOR:
                self._read_router_monitor(now)
            else:
                self._read_probe(link)
        if self._sweeps and self._sweeps[0] <= now:
            self._sweep(now)
        return messages

    @property
    def pending(self) -> bool:
        """Whether a socket is known to have more, or a change waits to be taken."""
        return bool(self._check or self._changes)

    def next_timeout(self) -> float:
        """When `read` has something to do although no socket is ready."""
        return self._sweeps[0] if self._sweeps else float("inf")

    def take_changes(self) -> list[tuple[str, int, str]]:
        """Connections that opened and closed, in order."""
        if not self._changes:
            return []
        taken, self._changes = self._changes, []
        return taken

    def _drain_wake(self) -> None:
        with contextlib.suppress(OSError):
            while self._wake_in.recv(4096):
                pass

    def _read_dealer(self, link: _Dialed, messages: list[Message]) -> bool:
        sock, key = link.socket, link.key
        try:
            for _ in range(MESSAGES_PER_READ):
                batch = sock.recv(_NOW)
                messages.append((key, batch, self._read_parts(sock) if sock.getsockopt(_RCVMORE) else []))
                if not sock.getsockopt(_EVENTS) & _READABLE:
                    return False
        except zmq.Again:
            return False
        return True

    def _read_router(self, messages: list[Message]) -> bool:
        sock = self._router
        assert sock is not None
        more = True
        for _ in range(MESSAGES_PER_READ):
            try:
                route = sock.recv(_NOW)
            except zmq.Again:
                return False
            batch = sock.recv(_NOW) if sock.getsockopt(_RCVMORE) else b""
            parts = self._read_parts(sock) if sock.getsockopt(_RCVMORE) else []
            more = bool(sock.getsockopt(_EVENTS) & _READABLE)
            key = self._routes.get(route)
            if key is None:
                if len(self._routes) >= MAX_ROUTES:
                    if not more:
                        return False
                    continue
                self._next_route -= 1
                key = self._routes[route] = self._next_route
                self._keys[key] = route
            messages.append((key, batch, parts))
            if not more:
                return False
        return True

    def _read_parts(self, sock: Socket) -> list[Any]:
        """The rest of a message, not copied; a message of more parts or bytes than the protocol allows is cut short (a fault later)."""
        parts: list[Any] = []
        size = 0
        while sock.getsockopt(_RCVMORE):
            frame = sock.recv(_NOW, copy=False)
            size += len(frame)
            if len(parts) <= LIMITS.parts_per_batch and size <= 2 * LIMITS.message:
                parts.append(frame.buffer)
        return parts

    def _read_monitor(self, link: _Dialed, messages: list[Message]) -> None:
        monitor = link.monitor
        while monitor.getsockopt(_EVENTS) & _READABLE:
            message = parse_monitor_message(monitor.recv_multipart(_NOW))
            event = message["event"]
            if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
                link.opened = True
                self._changes.append(("opened", link.key, ""))
            elif link.opened:
                self._fail(link, "disconnected", messages)
                return
            elif event == zmq.EVENT_CLOSED:
                self._probe(link)
                return
            elif event == zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL:
                self._probe(link, "NULL" if self._keyring is None else "CURVE")
                return
            else:
                differ = event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL and message["value"] in _SECRETS_DIFFER
                self._fail(link, "insecure" if differ else "silent", messages)
                return

    def _fail(self, link: _Dialed, reason: str, messages: list[Message]) -> None:
        """Drop a dialled link; messages that came before the end are still read first."""
        while self._read_dealer(link, messages):
            pass
        del self._dialed[link.key]
        self._end(link)
        self._changes.append(("closed", link.key, reason))

    def _probe(self, link: _Dialed, mechanism: str | None = None) -> None:
        """Libzmq does not say why a connection failed: find out."""
        del self._dialed[link.key]
        self._end(link)
        probe = Probe(link.address, mechanism)
        if probe.verdict:
            self._end_probe(link.key, probe)
        else:
            self._probes[link.key] = probe
            self._selector.register(probe.sock, probe.events, (_PROBE, link))

    def _read_probe(self, link: _Dialed) -> None:
        probe = self._probes.get(link.key)
        if probe is not None:
            probe.go_on()
            if probe.verdict:
                del self._probes[link.key]
                self._selector.unregister(probe.sock)
                self._end_probe(link.key, probe)
            else:
                self._selector.modify(probe.sock, probe.events, (_PROBE, link))

    def _end_probe(self, key: int, probe: Probe) -> None:
        probe.close()
        self._changes.append(("closed", key, probe.verdict))

    def _read_router_monitor(self, now: float) -> None:
        monitor = self._router_monitor
        assert monitor is not None
        dropped = False
        while monitor.getsockopt(_EVENTS) & _READABLE:
            message = parse_monitor_message(monitor.recv_multipart(_NOW))
            if message["event"] == zmq.EVENT_DISCONNECTED:
                dropped = True
            elif message["value"] in _SECRETS_DIFFER and not any(what == "stranger" for what, _, _ in self._changes):
                self._changes.append(("stranger", 0, "insecure"))
        if dropped:
            self._sweeps = [now + delay for delay in _SWEEPS]

    def _sweep(self, now: float) -> None:
        """A connection to the ROUTER dropped, but not which: an empty message to each route finds those that are gone."""
        self._sweeps = [at for at in self._sweeps if at > now]
        for key in list(self._keys):
            self.send(key, b"", ())

    # ---------------------------------------------------------------- sending

    def send(self, key: int, batch: bytes, parts: Sequence[Buffer]) -> None:
        """Send one message on a link; one that is gone is reported as closed."""
        link = self._dialed.get(key)
        try:
            if link is not None:
                sock = link.socket
            else:
                route = self._keys.get(key)
                if route is None or self._router is None:
                    return
                sock = self._router
                sock.send(route, _MORE)
            if not parts:
                sock.send(batch, _NOW)
            else:
                sock.send(batch, _MORE)
                last = len(parts) - 1
                for index, part in enumerate(parts):
                    sock.send(part, _MORE if index < last else _NOW, copy=len(part) < ZERO_COPY_FROM)
        except zmq.ZMQError:
            if link is not None:
                self._check[(_BROKEN, link)] = None
            else:
                self.close_link(key)
                self._changes.append(("closed", key, "disconnected"))
            return
        if sock.getsockopt(_EVENTS) & _READABLE:
            self._check[(_DEALER, link) if link is not None else (_ROUTER, None)] = None


def _check_room(count: int) -> None:
    """Raise OSError unless this process may open `count` more descriptors: libzmq ends the whole process when it gets none."""
    opened: list[int] = []
    try:
        while len(opened) < count:
            opened += os.pipe()
    finally:
        for each in opened:
            os.close(each)


def _scarce(error: Exception) -> ConfigError:
    return ConfigError(f"the system gives no more sockets: {error}", hint="raise the limit of open files (ulimit -n)")
