"""A variant that is up: its server processes and its client process, each spoken to by lines of JSON."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import tempfile
import threading
from typing import Any

from tools.bench.interface import Variant
from tools.bench.machine import Usage
from tools.bench.table import Cell
from tools.bench.works import Work

START_LIMIT = 60.0
ANSWER_LIMIT = 60.0
PER_SERVER = 10
"""Instances in one server process when there are many."""


class WorkerFailed(Exception):
    """A worker process ended, or did not answer in time."""


class Worker:
    """A worker process, its answers, and an end to it. `folder`: where it may leave files behind."""

    def __init__(self, role: str, variant: Variant, folder: str, *arguments: str) -> None:
        command = [sys.executable, "-m", "tools.bench.worker", role, variant.name, *arguments]
        self.errors: list[str] = []
        self.process = subprocess.Popen(
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            bufsize=1,
            start_new_session=True,
            env={**os.environ, "TMPDIR": folder},
        )
        self._lines: queue.Queue[str | None] = queue.Queue()
        threading.Thread(target=self._read, daemon=True).start()
        threading.Thread(target=self._read_errors, daemon=True).start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)
        self._lines.put(None)

    def _read_errors(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.errors = [*self.errors[-20:], line.rstrip()]

    def answer(self, limit: float) -> Any:
        """The next line it prints."""
        try:
            line = self._lines.get(timeout=limit)
        except queue.Empty:
            raise WorkerFailed(f"no answer within {limit:.0f} s") from None
        if line is None:
            raise WorkerFailed(f"ended: {self.errors[-1] if self.errors else 'without a word'}")
        return json.loads(line)

    def ask(self, question: dict[str, Any], limit: float) -> Any:
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(question) + "\n")
        except BrokenPipeError:
            raise WorkerFailed(f"ended: {self.errors[-1] if self.errors else 'without a word'}") from None
        return self.answer(limit)

    def close(self) -> None:
        try:
            os.killpg(self.process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait(10)


class Pair:
    """A variant that is up: its servers and its client."""

    def __init__(self, variant: Variant, instances: int = 1) -> None:
        self.variant = variant
        self.workers: list[Worker] = []
        self._folder = tempfile.TemporaryDirectory(prefix="reachmesh-bench-", ignore_cleanup_errors=True)
        try:
            self.addresses: list[str] = []
            while instances > 0:
                self.addresses += self._serve(min(instances, PER_SERVER))
                instances -= PER_SERVER
            self.client = self._start("client", *self.addresses)
            self.client.answer(START_LIMIT)
        except BaseException:
            self.close()
            raise

    def _start(self, role: str, *arguments: str) -> Worker:
        worker = Worker(role, self.variant, self._folder.name, *arguments)
        self.workers.append(worker)
        return worker

    def _serve(self, instances: int) -> list[str]:
        addresses: list[str] = self._start("serve", str(instances)).answer(START_LIMIT)
        return addresses

    def measure(self, work: Work, seconds: float) -> Cell:
        """One round of one work; a variant that hangs is given up for this run."""
        answer = self.client.ask({"work": work.name, "seconds": seconds}, ANSWER_LIMIT + 20 * seconds)
        if "value" in answer:
            return Cell([answer["value"]])
        return Cell([], answer.get("absent") or answer["failed"])

    def first_call(self) -> dict[str, float]:
        """Import time and time to the first answer, each in a fresh process."""
        worker = self._start("first", *self.addresses)
        found: dict[str, float] = worker.answer(START_LIMIT)
        worker.close()
        self.workers.remove(worker)
        return found

    def hold(self, verb: str, count: int) -> bool:
        """Open `count` calls or streams and keep them; False if the client does not offer that."""
        answer = self.client.ask({"hold": verb, "count": count}, ANSWER_LIMIT)
        if "failed" in answer:
            raise WorkerFailed(answer["failed"])
        return "value" in answer

    def usage(self, *, client_only: bool = False) -> tuple[float, int]:
        """CPU seconds so far and resident bytes of all its processes, or of its client."""
        used = [Usage(worker.process.pid) for worker in ([self.client] if client_only else self.workers)]
        return sum(each.cpu for each in used), sum(each.memory for each in used)

    def close(self) -> None:
        for worker in self.workers:
            worker.close()
        self._folder.cleanup()
