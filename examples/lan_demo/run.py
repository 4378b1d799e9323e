"""The newsroom on three hosts of a LAN that this script makes for itself: three network namespaces on a bridge, found by real mDNS.

    sudo python examples/lan_demo/run.py

    desk 10.99.0.1      library 10.99.0.2     studio 10.99.0.3
    editor, reader      two search agents     two summarisers, writer, press
         |                    |                    |
         +-------------- bridge (no host sees more than its own cable) ----

The hosts share no directory and no loopback, and only mDNS is switched on, so whoever is met was met by multicast. The namespaces are
removed at the end; the machine's own network is not touched. Needs Linux, root and the `ip` command. How to run the same on three
real machines stands in examples/README.md.
"""

from __future__ import annotations

import ctypes
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from types import TracebackType
from typing import Self

NEWSROOM = Path(__file__).resolve().parents[1] / "newsroom" / "run.py"
HOSTS = {"library": ["search"], "studio": ["summary", "writer", "press"], "desk": ["editor", "reader"]}
ADDRESSES = {"desk": "10.99.0.1", "library": "10.99.0.2", "studio": "10.99.0.3"}
GOODBYE = 15.0
CANNOT = 77
"""Exit code that says: nothing is wrong, but it cannot run here."""

CLONE_NEWNET, CLONE_NEWUTS = 0x40000000, 0x04000000


class NotPermitted(Exception):
    """This machine or this user may not make network namespaces; the text says why."""


def ip(*arguments: str) -> None:
    done = subprocess.run(["ip", *arguments], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NotPermitted(f"`ip {' '.join(arguments)}` says: {done.stderr.strip()}")


class Lan:
    """One bridge and one namespace per host, removed when the `with` block is left."""

    def __init__(self) -> None:
        self.tag = f"rmdemo{secrets.token_hex(2)}"
        self._made: list[str] = []
        self.folder = Path(tempfile.mkdtemp(prefix="reachmesh-lan-demo-"))

    def __enter__(self) -> Self:
        try:
            switch = self._namespace("switch")
            ip("-n", switch, "link", "add", "br0", "type", "bridge", "mcast_snooping", "0")
            ip("-n", switch, "link", "set", "br0", "up")
            for host in HOSTS:
                space = self._namespace(host)
                ip("-n", switch, "link", "add", host, "type", "veth", "peer", "name", "eth0", "netns", space)
                ip("-n", switch, "link", "set", host, "master", "br0", "up")
                ip("-n", space, "addr", "add", f"{ADDRESSES[host]}/24", "dev", "eth0")
                ip("-n", space, "link", "set", "eth0", "up")
                ip("-n", space, "route", "add", "default", "dev", "eth0")  # multicast needs a route too
        except BaseException:
            self.close()
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    def _namespace(self, host: str) -> str:
        name = f"{self.tag}-{host}"
        ip("netns", "add", name)
        self._made.append(name)
        ip("-n", name, "link", "set", "lo", "up")
        return name

    def start(self, host: str, *command: str) -> subprocess.Popen[bytes]:
        """Run a command on a host. Its folders are its own, so that the hosts have nothing in common but the wire."""
        folder = self.folder / host
        folder.mkdir()
        env = os.environ | {"TMPDIR": str(folder), "XDG_RUNTIME_DIR": str(folder), "HOME": str(folder), "REACHMESH_DISCOVERY": "mdns"}
        env.pop("REACHMESH_INTERFACES", None)
        return subprocess.Popen(
            [sys.executable, __file__, "--enter", f"{self.tag}-{host}", host, *command], env=env, start_new_session=True
        )

    def close(self) -> None:
        for name in reversed(self._made):
            subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
        self._made.clear()
        shutil.rmtree(self.folder, ignore_errors=True)


def enter(space: str, host: str, command: list[str]) -> None:
    """Become `command` inside a namespace, under the host's name; the process id stays."""
    libc = ctypes.CDLL(None, use_errno=True)
    with open(f"/run/netns/{space}", "rb") as handle:
        if libc.setns(handle.fileno(), CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), "setns")
    if libc.unshare(CLONE_NEWUTS) == 0:
        socket.sethostname(host)
    os.execvp(command[0], command)


def demo(arguments: list[str]) -> int:
    """Build the LAN, run one newsroom/run.py per host, end when the reader has its article."""
    ended = threading.Event()
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, lambda *_: ended.set())
    running: dict[str, subprocess.Popen[bytes]] = {}
    with Lan() as lan:
        print(f"namespaces {lan.tag}-switch, {', '.join(f'{lan.tag}-{host}' for host in HOSTS)}", flush=True)
        try:
            for host, parts in HOSTS.items():
                print(f"host {host}, {ADDRESSES[host]}: {', '.join(parts)}", flush=True)
                command = [sys.executable, str(NEWSROOM), "--lan", "--mesh", "lan-demo", *arguments, *parts]
                running[host] = lan.start(host, *command)
            while not ended.wait(0.05) and all(each.poll() is None for each in running.values()):
                pass
        finally:
            codes = {}
            for process in running.values():
                process.terminate()
            for host, process in running.items():
                try:
                    codes[host] = process.wait(GOODBYE)
                except subprocess.TimeoutExpired:
                    process.kill()
                    codes[host] = process.wait()
    print(f"exit codes: {codes}; the namespaces are gone", flush=True)
    return 130 if ended.is_set() else max(map(abs, codes.values()))


def main() -> int:
    if sys.argv[1:2] == ["--enter"]:
        enter(sys.argv[2], sys.argv[3], sys.argv[4:])
    try:
        if sys.platform != "linux":
            raise NotPermitted("network namespaces are Linux's")
        if shutil.which("ip") is None:
            raise NotPermitted("there is no `ip` command; it is in the package iproute2")
        return demo(sys.argv[1:])
    except NotPermitted as reason:
        print(f"cannot make a LAN here: {reason}\nIt takes root: try sudo. On real machines none of this is needed.", file=sys.stderr)
        return CANNOT


if __name__ == "__main__":
    sys.exit(main())
