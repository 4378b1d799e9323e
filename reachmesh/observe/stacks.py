"""Writes the stack of a user's exception into a log, whatever it carries: a text of 10 MB, a thousand frames, a `__str__` that fails."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Mapping
from typing import Any

from reachmesh.errors import shortened

STACK_LIMIT = 16 * 1024
"""Characters of a stack in a log, its exceptions' texts included; of a longer one the middle is left out."""


def log_failure(log: logging.Logger, error: BaseException, message: str, *args: Any, extra: Mapping[str, Any] | None = None) -> None:
    """Log `message % args` as an error with the stack of `error`, of at most `STACK_LIMIT` characters.

    The record carries the exception itself as usual; only its text is bounded, through the place where formatters keep it.
    """
    if not log.isEnabledFor(logging.ERROR):
        return
    file, line, function, _ = log.findCaller(stacklevel=2)
    info = (type(error), error, error.__traceback__)
    record = log.makeRecord(log.name, logging.ERROR, file, line, message, args, info, function, extra)
    record.exc_text = shortened("".join(traceback.format_exception(error)).rstrip("\n"), STACK_LIMIT)
    log.handle(record)
