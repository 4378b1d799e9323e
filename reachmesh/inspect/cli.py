"""The program: runs a command and turns whatever happens into an exit code; nobody ever sees a traceback.

Exit codes: 0 fine (an empty mesh too), 1 the answer is an error, 2 wrong usage, 130 interrupted by Ctrl-C.

Everything else is imported inside `main`, so that an early Ctrl-C is caught as well.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

EXIT_ERROR, EXIT_USAGE, EXIT_INTERRUPTED = 1, 2, 130


def main() -> None:
    """Entry point of `reachmesh-inspect`."""
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:  # it was closed for us
            setattr(sys, name, open(os.devnull, "w"))  # noqa: SIM115
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, _interrupted)
    try:
        code = _run(sys.argv[1:])
        sys.stdout.flush()
    except KeyboardInterrupt:  # from a command that has something to put in order first
        code = EXIT_INTERRUPTED
    except BrokenPipeError:  # the reader of our output has seen enough
        code = 0
    except OSError as error:  # a full disk
        sys.stderr.write(f"error: the answer cannot be written: {error.strerror or error}\n")
        code = EXIT_ERROR
    _leave(code)


def _run(arguments: list[str]) -> int:
    try:
        import reachmesh.inspect.bench
        import reachmesh.inspect.commands  # noqa: F401  # commands enter themselves in the app when their module is imported
        from reachmesh.inspect.app import app
        from reachmesh.inspect.output import Output
    except ModuleNotFoundError as error:
        if (error.name or "reachmesh").startswith("reachmesh"):
            sys.stderr.write(f"error: this installation of reachmesh is not complete: {error}\n")
            return EXIT_ERROR
        sys.stderr.write(f"reachmesh-inspect needs {error.name}: pip install reachmesh with its dependencies\n")
        return EXIT_ERROR
    try:
        code = app(arguments, prog_name="reachmesh-inspect", standalone_mode=False)
        return code if isinstance(code, int) else 0
    except SystemExit as error:
        return error.code if isinstance(error.code, int) else EXIT_ERROR
    except Exception as error:
        output = Output("--json" in arguments)
        if hasattr(error, "format_message"):  # a mistake in the command line, as click (or the copy of it in typer) tells it
            output.usage(error)
            return EXIT_USAGE
        return output.error(error)


def _interrupted(number: int, frame: Any) -> None:
    """Ctrl-C ends the process where it stands: an observer has nothing to tell, and a stop in the middle of a start may hang."""
    os._exit(EXIT_INTERRUPTED)


def _leave(code: int) -> None:
    """End without waiting for anybody."""
    for each in (sys.stdout, sys.stderr):
        try:
            each.flush()
        except (OSError, ValueError):  # its reader is gone
            pass
    os._exit(code)


if __name__ == "__main__":
    main()
