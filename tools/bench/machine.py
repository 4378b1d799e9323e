"""What the numbers were taken on and with: the machine, the versions, and how the peers are brought in."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
import platform
import shutil
import subprocess
import sys
from pathlib import Path

from tools.bench.interface import Variant


def program(name: str) -> str | None:
    """Path of a program; Debian puts servers where a user's PATH does not look."""
    return shutil.which(name, path=os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/usr/local/sbin"]))


def version(distribution: str) -> str | None:
    """Installed version of a distribution, or None."""
    try:
        return importlib.metadata.version(distribution)
    except importlib.metadata.PackageNotFoundError:
        return None


def _last_line(text: str) -> str:
    lines = [line for line in text.strip().splitlines() if line and not line.startswith(("WARNING", "[notice]"))]
    return lines[-1] if lines else "no reason given"


def _run(command: list[str]) -> str | None:
    """Run an installer; its last word if it fails."""
    print("+", *command, file=sys.stderr, flush=True)
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    except (OSError, subprocess.TimeoutExpired) as error:
        return str(error)
    return _last_line(done.stderr or done.stdout) if done.returncode else None


def bring(variant: Variant) -> str | None:
    """Install what a variant needs and is not here yet; the reason if it cannot be had."""
    missing = [name for name in variant.distributions if version(name) is None]
    if missing and (reason := _run([sys.executable, "-m", "pip", "install", "--quiet", *missing])):
        return f"pip install {' '.join(missing)}: {reason}"
    for name in variant.programs:
        if program(name) is None:
            if os.geteuid() != 0 or program("apt-get") is None:
                return f"no program {name}"
            _run(["apt-get", "update", "-qq"])
            if reason := _run(["apt-get", "install", "-y", "-qq", "--no-install-recommends", name]):
                return f"apt-get install {name}: {reason}"
    return None


def versions(variants: list[Variant]) -> dict[str, str]:
    """Versions of everything the variants use."""
    found = {"python": platform.python_version()}
    for name in sorted({name for variant in variants for name in (*variant.distributions, "reachmesh", "pyzmq", "msgpack", "numpy")}):
        if present := version(name):
            found[name] = present
    for name in sorted({name for variant in variants for name in variant.programs}):
        if path := program(name):
            said = subprocess.run([path, "--version"], capture_output=True, text=True, check=False)
            found[name] = (said.stdout or said.stderr).strip().removeprefix(f"{name}: ")
    with contextlib.suppress(ImportError):
        import zmq

        found["libzmq"] = zmq.zmq_version()
    return found


def machine() -> dict[str, str]:
    """Processor, cores, memory and kernel."""
    model = platform.processor() or "unknown"
    with contextlib.suppress(OSError):
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.partition(":")[2].strip() for line in lines if line.startswith("model name")), model)
    facts = {"processor": model, "cores": str(os.cpu_count()), "system": f"{platform.system()} {platform.release()}"}
    with contextlib.suppress(OSError, ValueError, AttributeError):
        facts["memory"] = f"{os.sysconf('SC_PHYS_PAGES') * os.sysconf('SC_PAGE_SIZE') / 2**30:.0f} GiB"
        facts["load before"] = f"{os.getloadavg()[0]:.1f}"
    return facts


class Usage:
    """CPU seconds and resident memory of a process group, from /proc; zeros where there is none."""

    def __init__(self, group: int) -> None:
        self.cpu = 0.0
        self.memory = 0
        tick = os.sysconf("SC_CLK_TCK") if hasattr(os, "sysconf") else 100
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError, IndexError, ValueError):
                fields = (entry / "stat").read_text().rpartition(")")[2].split()
                if int(fields[2]) == group:
                    self.cpu += (int(fields[11]) + int(fields[12])) / tick
                    self.memory += int(fields[21]) * os.sysconf("SC_PAGE_SIZE")
