"""The shape of every command: its own arguments, then the common options, which may also stand before the command's name."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Annotated, Any, Concatenate, ParamSpec

import typer

from reachmesh.inspect.cli import EXIT_INTERRUPTED
from reachmesh.inspect.output import Output
from reachmesh.inspect.session import LOOK, Session, Where

P = ParamSpec("P")

Mesh = Annotated[str | None, typer.Option("--mesh", help="Name of the mesh [REACHMESH_MESH].")]
Secret = Annotated[
    str | None,
    typer.Option("--secret", help="Secret of the mesh [REACHMESH_SECRET, which unlike this does not show in the list of processes]."),
]
Seeds = Annotated[str | None, typer.Option("--seeds", help="host:port of nodes to ask, comma-separated [REACHMESH_SEEDS].")]
Interfaces = Annotated[
    str | None, typer.Option("--interfaces", help="Names or addresses of interfaces, comma-separated [REACHMESH_INTERFACES].")
]
Look = Annotated[float | None, typer.Option("--look", min=0.05, max=60, help=f"Seconds to look for nodes at most [{LOOK:g}].")]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]

_COMMON: tuple[tuple[str, Any, Any], ...] = (
    ("mesh", Mesh, None),
    ("secret", Secret, None),
    ("seeds", Seeds, None),
    ("interfaces", Interfaces, None),
    ("look", Look, None),
    ("as_json", Json, False),
)

app = typer.Typer(
    help="Look into a mesh from outside, without leaving a trace in it.\n\n"
    "Exit codes: 0 fine (an empty mesh too), 1 the answer is an error, 2 wrong usage, 130 Ctrl-C.",
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    no_args_is_help=True,
)


@dataclass(frozen=True)
class View:
    """What a command works with: which mesh, and where its answer goes."""

    where: Where
    output: Output

    def session(self) -> Session:
        """A look at the mesh."""
        return Session(self.where)


@app.callback()
def _common(
    context: typer.Context,
    mesh: Mesh = None,
    secret: Secret = None,
    seeds: Seeds = None,
    interfaces: Interfaces = None,
    look: Look = None,
    as_json: Json = False,
) -> None:
    where = Where(mesh=mesh, secret=secret, seeds=seeds, interfaces=interfaces, look=LOOK if look is None else look)
    context.obj = View(where, Output(as_json))


def command(fn: Callable[Concatenate[View, P], int | None]) -> Callable[Concatenate[View, P], int | None]:
    """Register a command: `fn(view, ...)`, whose own parameters and docstring are those of the command line.

    What it raises is told as an error; what it returns is the exit code, None = 0.
    """
    signature = inspect.signature(fn, eval_str=True)
    own = list(signature.parameters.values())[1:]
    shared = [inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=value, annotation=kind) for name, kind, value in _COMMON]
    first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)

    def run(context: typer.Context, **values: Any) -> int:
        base: View = context.obj
        given = {name: values.pop(name) for name, _, _ in _COMMON}
        output = Output(given.pop("as_json") or base.output.as_json)
        view = View(replace(base.where, **{name: value for name, value in given.items() if value is not None}), output)
        try:
            return fn(view, **values) or 0  # type: ignore[call-arg]
        except KeyboardInterrupt:
            raise SystemExit(EXIT_INTERRUPTED) from None
        except BrokenPipeError:  # the reader of our output has seen enough
            raise SystemExit(0) from None
        except SystemExit:
            raise
        except BaseException as error:
            if hasattr(error, "format_message"):
                raise
            return output.error(error)

    parameters = [first, *(each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own), *shared]
    run.__name__, run.__doc__ = fn.__name__, fn.__doc__
    run.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    run.__annotations__ = {each.name: each.annotation for each in parameters}
    app.command(fn.__name__.rstrip("_"))(run)
    return fn
