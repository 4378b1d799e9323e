"""Resolves the annotations of a handler, also where `typing.get_type_hints` gives up.

An annotation may be text (`from __future__ import annotations`) that names something local to the function that made
the handler, or something imported for type checkers only. So each is resolved alone, in this order: the handler's own
globals with its closure and the locals given by the caller; then the same with the names of `typing`,
`collections.abc` and the context type added; then, for a dotted context type, by its last name. What is left is a
`ConfigError` that names function and parameter. Used at registration only.
"""

from __future__ import annotations

import builtins
import collections.abc
import functools
import inspect
import re
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

from reachmesh.errors import ConfigError, shown

_WELL_KNOWN: dict[str, Any] = {
    **{name: getattr(collections.abc, name) for name in collections.abc.__all__},
    **{name: getattr(typing, name) for name in typing.__all__},
}


class HintResolver:
    """Resolves annotations as the handler `fn` would see them.

    Args:
        fn: the handler.
        context_type: the class that stands for the call's context.
        localns: names local to whoever registers the handler.
    """

    def __init__(self, fn: Callable[..., Any], context_type: type, localns: Mapping[str, Any] | None) -> None:
        function = innermost(fn)
        self.context_type = context_type
        self.globals: dict[str, Any] = getattr(function, "__globals__", {})
        self.locals: dict[str, Any] = {**(localns or {}), **_closure(function)}
        for parameter in getattr(function, "__type_params__", ()):
            self.locals[parameter.__name__] = parameter
        self.fallback: dict[str, Any] = {**_WELL_KNOWN, context_type.__name__: context_type}

    def resolve(self, annotation: Any) -> Any:
        """The annotation as a type.

        Raises:
            Exception: whatever evaluating it raised (NameError, SyntaxError, ...).
        """
        try:
            return _evaluate(annotation, self.globals, self.locals)
        except Exception:
            text = annotation_text(annotation)
            try:
                return _evaluate(annotation, {**self.fallback, **self.globals}, self.locals)
            except Exception:
                if re.fullmatch(rf"(?:\w+\.)+{re.escape(self.context_type.__name__)}(?:\s*\|\s*None)?", text.strip()):
                    return self.context_type
                raise

    def of_class(self, kind: type) -> Mapping[str, Any]:
        """Resolved hints of a dataclass, TypedDict or NamedTuple, its bases included."""
        try:
            return typing.get_type_hints(kind, localns={**self.locals, kind.__name__: kind}, include_extras=True)
        except Exception:
            space = {**self.fallback, **self.globals, **vars(sys.modules.get(kind.__module__, builtins)), **self.locals}
            return typing.get_type_hints(kind, globalns=space, localns={kind.__name__: kind}, include_extras=True)


def annotation_text(annotation: Any) -> str:
    """An annotation as written, as far as that is known."""
    return annotation if isinstance(annotation, str) else str(getattr(annotation, "__forward_arg__", annotation))


def innermost(fn: Callable[..., Any]) -> Any:
    """The function behind partials, methods, callable objects and `functools.wraps`."""
    seen = 0
    while seen < 100:
        seen += 1
        if isinstance(fn, (functools.partial, functools.partialmethod)):
            fn = fn.func
        elif inspect.ismethod(fn):
            fn = fn.__func__
        elif hasattr(fn, "__wrapped__"):
            fn = getattr(fn, "__wrapped__")  # noqa: B009
        elif not inspect.isroutine(fn) and not isinstance(fn, type) and callable(fn):
            inner = type(fn).__call__
            if not hasattr(inner, "__globals__") and not hasattr(inner, "__wrapped__"):
                return fn
            fn = inner
        else:
            return fn
    return fn


def signature(fn: Callable[..., Any]) -> inspect.Signature | None:
    """The signature with annotations as they are; None for builtins that do not tell."""
    try:
        if sys.version_info >= (3, 14):
            import annotationlib

            return inspect.signature(fn, annotation_format=annotationlib.Format.FORWARDREF)
        return inspect.signature(fn)
    except ValueError:
        return None
    except TypeError as error:
        raise ConfigError(f"{shown(fn)} cannot be a handler: {error}", hint="give a function, a method or a callable object") from None


def _closure(function: Any) -> dict[str, Any]:
    """What the free variables of a function hold right now."""
    code, cells = getattr(function, "__code__", None), getattr(function, "__closure__", None)
    found: dict[str, Any] = {}
    for name, cell in zip(code.co_freevars if code else (), cells or (), strict=False):
        try:
            found[name] = cell.cell_contents
        except ValueError:  # not assigned yet
            continue
    return found


def _evaluate(annotation: Any, globalns: dict[str, Any], localns: dict[str, Any]) -> Any:
    holder = types.SimpleNamespace(__annotations__={"it": annotation})
    return typing.get_type_hints(holder, globalns, localns, include_extras=True)["it"]
