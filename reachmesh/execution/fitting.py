"""Single kinds of values under their hints: what fits, what is converted, and how a misfit is told.

Place in the data path: the leaves of the functions `conversion.Compiler` makes; the rules are told there.
"""

from __future__ import annotations

import datetime as dt
import decimal
import enum
import sys
import types
import typing
import uuid
from collections.abc import Callable
from typing import Any, Union

import msgspec

Convert = Callable[[Any], Any]
"""Gives the value in the type of its hint, or raises `Misfit`."""


class Misfit(Exception):
    """A value does not fit its hint.

    Args:
        expected: the hint in words.
        problem: what is there instead, in words.
    """

    def __init__(self, expected: str, problem: str) -> None:
        super().__init__(expected, problem)
        self.expected = expected
        self.problem = problem
        self.path = ""

    def under(self, step: str) -> Misfit:
        """The same misfit seen from one level further out."""
        self.path = step + self.path
        return self


def passes(value: Any) -> Any:
    """Any value fits."""
    return value


def describe_hint(hint: Any) -> str:
    """A hint as a person writes it: `int`, `list[int]`, `Point | None`."""
    if hint is type(None) or hint is None:
        return "None"
    if isinstance(hint, str):
        return hint
    if isinstance(hint, type) and not isinstance(hint, types.GenericAlias):
        return hint.__name__
    if is_union(hint):
        return " | ".join(describe_hint(arm) for arm in typing.get_args(hint))
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin is typing.Annotated:
        return describe_hint(args[0])
    if origin is typing.Literal:
        return f"Literal[{', '.join(map(repr, args))}]"
    if isinstance(origin, type) and args:
        inner = ", ".join("..." if arg is Ellipsis else describe_hint(arg) for arg in args)
        return f"{origin.__name__}[{inner}]"
    return str(getattr(hint, "__name__", hint)).removeprefix("typing.")


def is_union(hint: Any) -> bool:
    """Whether a hint is `A | B`, `Union` or `Optional`."""
    return typing.get_origin(hint) in (Union, types.UnionType)


def misfit_of(expected: str, value: Any) -> Misfit:
    """The misfit of a value of the wrong type."""
    return Misfit(expected, "None" if value is None else type(value).__name__)


def none_only(value: Any) -> Any:
    """None and nothing else."""
    if value is None:
        return None
    raise misfit_of("None", value)


def instances(kind: type, text: str) -> Convert:
    """Instances of a class that is never built from parts."""

    def convert(value: Any) -> Any:
        try:
            fits = isinstance(value, kind)
        except TypeError:  # a Protocol that cannot be checked at run time
            return value
        if fits:
            return value
        raise misfit_of(text, value)

    return convert


def _exactly(kind: type) -> Convert:
    """Instances of `kind`; a bool is no int here."""
    text = kind.__name__

    def convert(value: Any) -> Any:
        if isinstance(value, kind) and (type(value) is not bool or kind is bool):
            return value
        raise misfit_of(text, value)

    return convert


def _float(value: Any) -> Any:
    if isinstance(value, float):
        return value
    if isinstance(value, int) and type(value) is not bool:
        try:
            return float(value)
        except OverflowError:
            raise Misfit("float", "an int that is too large") from None
    raise misfit_of("float", value)


def _bytes(kind: type) -> Convert:
    def convert(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        if isinstance(value, (bytes, bytearray, memoryview)):
            return kind(value)
        raise misfit_of(kind.__name__, value)

    return convert


def _from_text(kind: type, also: tuple[type, ...] = ()) -> Convert:
    """Instances of `kind`, or their ISO text (what JSON and other languages send)."""

    def convert(value: Any) -> Any:
        if isinstance(value, kind) and (kind is not dt.date or not isinstance(value, dt.datetime)):  # a datetime is more than a date
            return value
        if isinstance(value, (str, *also)) and type(value) is not bool:
            try:
                return msgspec.convert(value, kind)
            except msgspec.ValidationError:
                raise Misfit(kind.__name__, repr(value)[:80]) from None
        raise misfit_of(kind.__name__, value)

    return convert


def literal(hint: Any, choices: tuple[Any, ...]) -> Convert:
    """One of the choices, of the same type (1 is not True); members of an Enum by their values."""
    text = describe_hint(hint)

    def convert(value: Any) -> Any:
        for choice in choices:
            sent = choice.value if isinstance(choice, enum.Enum) and not isinstance(value, enum.Enum) else choice
            if type(sent) is type(value) and sent == value:
                return choice
        raise Misfit(text, repr(value)[:80])

    return convert


def enum_member(kind: type[enum.Enum]) -> Convert:
    """A member by its value."""

    def convert(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        try:
            member = kind(value)
        except (ValueError, KeyError, TypeError):
            raise Misfit(f"{kind.__name__} (one of {[each.value for each in kind][:10]})", repr(value)[:80]) from None
        if isinstance(value, bool) is not isinstance(member.value, bool):  # True == 1, but is not the value 1
            raise misfit_of(kind.__name__, value)
        return member

    return convert


def struct(kind: type) -> Convert:
    """A `msgspec.Struct` by the rules of msgspec."""

    def convert(value: Any) -> Any:
        try:
            return value if isinstance(value, kind) else msgspec.convert(value, kind)
        except msgspec.ValidationError as error:
            raise Misfit(kind.__name__, str(error)) from None

    return convert


def model(kind: Any) -> Convert:
    """A pydantic model, by its own rules."""
    refused = sys.modules["pydantic"].ValidationError

    def convert(value: Any) -> Any:
        if isinstance(value, kind):
            return value
        try:
            return kind.model_validate(value)
        except refused as error:
            first = error.errors(include_url=False, include_context=False, include_input=False)[0]
            path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in first["loc"])
            raise Misfit(kind.__name__, str(first["msg"])).under(path) from None

    return convert


EXACT = frozenset({int, str, bool, float, bytes, bytearray, list, dict, tuple, set, frozenset, type(None), dt.datetime, dt.date,
                    dt.time, dt.timedelta, uuid.UUID, decimal.Decimal})  # fmt: skip

LEAVES: dict[Any, Convert] = {
    int: _exactly(int),
    str: _exactly(str),
    bool: _exactly(bool),
    float: _float,
    bytes: _bytes(bytes),
    bytearray: _bytes(bytearray),
    dt.datetime: _from_text(dt.datetime),
    dt.date: _from_text(dt.date),
    dt.time: _from_text(dt.time),
    dt.timedelta: _from_text(dt.timedelta),
    uuid.UUID: _from_text(uuid.UUID),
    decimal.Decimal: _from_text(decimal.Decimal, (int, float)),
}
