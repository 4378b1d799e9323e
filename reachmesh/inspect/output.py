"""What a command says: JSON for programs, text and tables for people. Answers go to stdout; an error of `--json` does too.

Text of other nodes is theirs: control characters are taken out before it reaches a terminal, and it is never read as markup.
"""

from __future__ import annotations

import base64
import dataclasses
import json
import math
import re
import sys
from collections.abc import Mapping, Sequence
from datetime import date, datetime, time, timedelta
from enum import Enum
from typing import TYPE_CHECKING, Any

from reachmesh.errors import ConfigError, ReachError, RemoteError, UsageError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]")
"""Control characters, line feed and tab left out, and those that turn the direction of the line."""

_PIPE_WIDTH = 4000
"""Columns of text that goes into a pipe: never cut there."""


class Output:
    """Where a command writes.

    Args:
        as_json: one JSON document (of a running command: one a line) in place of text.
    """

    def __init__(self, as_json: bool) -> None:
        self.as_json = as_json
        self._console: Console | None = None

    def json(self, value: Any) -> None:
        """One line of JSON, sent off at once."""
        sys.stdout.write(json.dumps(plain(value)) + "\n")
        sys.stdout.flush()

    def line(self, text: str) -> None:
        """One line of text."""
        encoding = sys.stdout.encoding or "utf-8"
        sys.stdout.write(clean(text).encode(encoding, "replace").decode(encoding) + "\n")
        sys.stdout.flush()

    @property
    def console(self) -> Console:
        """The terminal, or the pipe."""
        if self._console is None:
            from rich.console import Console

            class Plain(Console):
                def on_broken_pipe(self) -> None:
                    raise BrokenPipeError  # rich would end the process as failed

            width = None if sys.stdout.isatty() else _PIPE_WIDTH
            self._console = Plain(markup=False, highlight=False, emoji=False, width=width)
        return self._console

    def table(self, headings: Sequence[str], rows: Sequence[Sequence[Any]], note: str = "") -> None:
        """A table and a line below it."""
        self.console.print(make_table(headings, rows))
        if note:
            self.line(note)

    def usage(self, error: Any) -> None:
        """A mistake in the command line."""
        if self.as_json:
            self.json({"error": {"code": "usage", "message": error.format_message()}})
        else:
            error.show()

    def error(self, error: BaseException) -> int:
        """Tell an error; gives the exit code."""
        described = describe_error(error)
        if self.as_json:
            self.json({"error": described})
        else:
            hint = f" ({described['hint']})" if described["hint"] else ""
            trace = f" [trace {described['trace_id']}]" if described["trace_id"] else ""
            sys.stderr.write(f"error: {clean(described['code'])}: {clean(described['message'])}{clean(hint)}{trace}\n")
        return 2 if isinstance(error, ConfigError | UsageError) else 1


def describe_error(error: BaseException) -> dict[str, str]:
    """An error as plain values."""
    if isinstance(error, RemoteError):
        message = f"{error.type_name}: {error.message}"
    elif isinstance(error, ReachError):
        message = error.message
    else:
        return {"code": "internal", "message": f"{type(error).__name__}: {error}", "hint": "", "trace_id": "", "executed": "maybe"}
    return {"code": error.code, "message": message, "hint": error.hint, "trace_id": error.trace_id, "executed": error.executed}


def make_table(headings: Sequence[str], rows: Sequence[Sequence[Any]]) -> Table:
    """A table of text; numbers stand to the right."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="bold")
    for index, heading in enumerate(headings):
        numbers = bool(rows) and all(isinstance(row[index], Number) for row in rows)
        table.add_column(Text(heading), justify="right" if numbers else "left", overflow="fold")
    for row in rows:
        table.add_row(*(Text(clean(str(cell)), style=_STYLES.get(str(cell), "")) for cell in row))
    return table


_STYLES = {"HEALTHY": "green", "ok": "green", "BUSY": "yellow", "DEGRADED": "yellow", "DRAINING": "yellow", "SUSPECTED": "red"}


class Number(str):
    """Text of a number."""

    __slots__ = ()


def number(value: float | None, digits: int = 1, unit: str = "") -> Number:
    """A number for people, "-" for None."""
    return Number("-" if value is None else f"{value:.{digits}f}{unit}")


def clean(text: str) -> str:
    """Text without what could steer a terminal."""
    return _CONTROL.sub("\ufffd", text)


def plain(value: Any) -> Any:
    """Any value that travels, in JSON's types: bytes in base64, times in ISO 8601, sets as lists, what is no number as null."""
    if value is None or isinstance(value, bool | int | str):
        return value.value if isinstance(value, Enum) else value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else str(plain(key)): plain(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [plain(each) for each in value]
    if isinstance(value, set | frozenset):
        return sorted((plain(each) for each in value), key=repr)
    if isinstance(value, bytes | bytearray | memoryview):
        return base64.b64encode(value).decode("ascii")
    if isinstance(value, datetime | date | time):
        return value.isoformat()
    if isinstance(value, timedelta):
        return value.total_seconds()
    if isinstance(value, Enum):
        return plain(value.value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {each.name: plain(getattr(value, each.name)) for each in dataclasses.fields(value)}
    listed = getattr(value, "tolist", None)  # numpy arrays and scalars
    return plain(listed()) if callable(listed) else str(value)
