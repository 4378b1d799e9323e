"""Turns decoded values into what a type hint says, or tells where they do not fit.

Place in the data path: `handler.Handler.bind` compiles every hint of a handler once, at registration, into a function of
one value, and runs these on each request. Values come from the codec, so they are exact built-in types.

Rules (the strict form of what typing allows): an int fits float, a bool fits only bool, a list fits tuple and set hints
and a tuple fits list hints (JSON knows lists only), text fits datetime, date, time, timedelta, UUID and Decimal in their
ISO forms, and nothing else changes type. An Enum is found by its value, a dataclass, TypedDict or NamedTuple is built
from a map of its fields, a pydantic model by its own `model_validate`, any other class is checked by isinstance.

Never runs code of the remote side's choosing: only constructors of classes named in hints are called.
"""

from __future__ import annotations

import collections.abc as abc
import dataclasses
import enum
import functools
import operator
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from reachmesh.execution.fitting import (
    EXACT,
    LEAVES,
    Convert,
    Misfit,
    describe_hint,
    enum_member,
    instances,
    is_union,
    literal,
    misfit_of,
    model,
    none_only,
    passes,
    struct,
)


def exact_type(hint: Any) -> type | None:
    """The type whose exact instances need no conversion under `hint`; None when there is none."""
    return hint if isinstance(hint, type) and hint in EXACT else None


class Compiler:
    """Compiles the hints of one handler; classes met twice (recursive ones too) are compiled once.

    Args:
        resolve: gives the resolved hints of a class by field name; raises whatever is wrong with them.

    Raises:
        TypeError: from `compile`, for what is not a type.
    """

    def __init__(self, resolve: Callable[[type], Mapping[str, Any]]) -> None:
        self._resolve = resolve
        self._classes: dict[type, Convert] = {}

    def compile(self, hint: Any) -> Convert:
        """The conversion for one hint."""
        hint = _bare(hint)
        if hint is Any or hint is object:
            return passes
        if hint is None or hint is type(None):
            return none_only
        if isinstance(hint, typing.TypeVar):
            return self._type_variable(hint)
        if is_union(hint):
            return self._union(hint)
        origin, args = typing.get_origin(hint), typing.get_args(hint)
        if origin is typing.Annotated:
            return self._annotated(hint, args)
        if origin is typing.Literal:
            return literal(hint, args)
        kind: Any = origin or hint
        if not isinstance(kind, type):
            if getattr(hint, "__name__", "") == "LiteralString":
                return LEAVES[str]
            if getattr(hint, "__module__", "") in ("typing", "typing_extensions"):
                return passes
            raise TypeError(f"{hint!r} is not a type")
        if kind in LEAVES:
            return LEAVES[kind]
        if kind in _CONTAINERS:
            return self._container(hint, kind, args)
        if kind is abc.Callable:
            return instances(kind, "Callable")
        return self._class(kind)

    def _type_variable(self, hint: typing.TypeVar) -> Convert:
        if hint.__constraints__:
            return self.compile(functools.reduce(operator.or_, hint.__constraints__))
        return self.compile(hint.__bound__) if hint.__bound__ is not None else passes

    def _annotated(self, hint: Any, args: tuple[Any, ...]) -> Convert:
        """Annotated[T, ...]: T, and the limits of every `msgspec.Meta`."""
        inner = self.compile(args[0])
        metas = tuple(meta for meta in args[1:] if isinstance(meta, msgspec.Meta))
        if not metas:
            return inner
        limited = typing.Annotated[(args[0], *metas)]  # type: ignore[valid-type]

        def convert(value: Any) -> Any:
            value = inner(value)
            try:
                msgspec.convert(value, limited)
            except msgspec.ValidationError as error:
                raise Misfit(describe_hint(args[0]), str(error)) from None
            return value

        return convert

    def _union(self, hint: Any) -> Convert:
        arms = typing.get_args(hint)
        text = describe_hint(hint)
        exact = {kind for arm in arms if (kind := exact_type(_bare(arm))) is not None}
        converts = [self.compile(arm) for arm in arms if arm is not type(None)]
        optional = len(converts) < len(arms)
        only = converts[0] if len(converts) == 1 else None

        def convert(value: Any) -> Any:
            if value is None and optional:
                return None
            if type(value) in exact:
                return value
            if only is not None:
                return only(value)
            deepest: Misfit | None = None
            for each in converts:
                try:
                    return each(value)
                except Misfit as misfit:
                    if misfit.path and deepest is None:
                        deepest = misfit
            raise deepest or misfit_of(text, value)

        return convert

    def _container(self, hint: Any, kind: type, args: tuple[Any, ...]) -> Convert:
        text = describe_hint(hint)
        accepted, build = _CONTAINERS[kind]
        if build is dict:
            return self._mapping(text, args)
        if kind is tuple and args and args[-1] is not Ellipsis:
            return self._fixed_tuple(text, args)
        if kind is tuple and not args and isinstance(hint, types.GenericAlias):
            return self._fixed_tuple(text, ())
        item = args[0] if args else Any
        each = self.compile(item)
        plain = exact_type(_bare(item))

        def convert(given: Any) -> Any:
            if not isinstance(given, accepted):
                raise misfit_of(text, given)
            value: Any = given
            try:
                if each is not passes and not set(map(type, value)) <= {plain} and not isinstance(value, dict):
                    value = type(value)(_items(each, value))
                return value if build is None or type(value) is build else build(value)
            except TypeError as error:
                raise Misfit(text, f"items that do not fit: {error}") from None

        return convert

    def _fixed_tuple(self, text: str, args: tuple[Any, ...]) -> Convert:
        converts = [self.compile(arg) for arg in args]

        def convert(value: Any) -> Any:
            if not isinstance(value, (tuple, list)):
                raise misfit_of(text, value)
            if len(value) != len(converts):
                raise Misfit(text, f"{len(value)} items")
            result = []
            for index, (each, item) in enumerate(zip(converts, value, strict=True)):
                try:
                    result.append(each(item))
                except Misfit as misfit:
                    raise misfit.under(f"[{index}]") from None
            return tuple(result)

        return convert

    def _mapping(self, text: str, args: tuple[Any, ...]) -> Convert:
        key_hint, item_hint = args if len(args) == 2 else (Any, Any)
        key_of, item_of = self.compile(key_hint), self.compile(item_hint)
        plain_key, plain_item = exact_type(_bare(key_hint)), exact_type(_bare(item_hint))

        def convert(value: Any) -> Any:
            if not isinstance(value, dict):
                raise misfit_of(text, value)
            keys_fit = key_of is passes or set(map(type, value)) <= {plain_key}
            if keys_fit and (item_of is passes or set(map(type, value.values())) <= {plain_item}):
                return value
            result = {}
            for key, item in value.items():
                try:
                    result[key_of(key)] = item_of(item)
                except Misfit as misfit:
                    raise misfit.under(f"[{key!r}]") from None
                except TypeError as error:
                    raise Misfit(text, f"a key that cannot be one: {error}") from None
            return result

        return convert

    def _class(self, kind: type) -> Convert:
        known = self._classes.get(kind)
        if known is not None:
            return known
        if issubclass(kind, enum.Enum):
            made = enum_member(kind)
        elif dataclasses.is_dataclass(kind):
            return self._record(kind, *_dataclass_fields(kind))
        elif typing.is_typeddict(kind):
            return self._record(kind, None, self._required_keys(kind), frozenset())
        elif issubclass(kind, tuple) and hasattr(kind, "_fields"):
            return self._named_tuple(kind)
        elif issubclass(kind, msgspec.Struct):
            made = struct(kind)
        elif (pydantic := sys.modules.get("pydantic")) is not None and issubclass(kind, pydantic.BaseModel):
            made = model(kind)
        else:
            made = instances(kind, describe_hint(kind))
        self._classes[kind] = made
        return made

    def _required_keys(self, kind: Any) -> frozenset[str]:
        """Required keys of a TypedDict; it cannot tell them itself when its annotations are text."""
        marks = {name: typing.get_origin(hint) for name, hint in self._resolve(kind).items()}
        told = {name for name in kind.__required_keys__ if marks.get(name) is not typing.NotRequired}
        return frozenset(told | {name for name, mark in marks.items() if mark is typing.Required})

    def _record(self, kind: type, fields: frozenset[str] | None, required: frozenset[str], ignored: frozenset[str]) -> Convert:
        """A dataclass or TypedDict from a map; `fields` None = every hinted one, `ignored` ones may be there and are dropped."""
        text = describe_hint(kind)
        converts: dict[str, Convert] = {}
        is_instance = None if typing.is_typeddict(kind) else kind

        def convert(value: Any) -> Any:
            if is_instance is not None and isinstance(value, is_instance):
                return value
            if not isinstance(value, dict):
                raise misfit_of(text, value)
            result = {}
            for key, item in value.items():
                each = converts.get(key)
                if each is None:
                    if key in ignored:
                        continue
                    raise Misfit(text, f"unknown field {key!r}")
                try:
                    result[key] = each(item)
                except Misfit as misfit:
                    raise misfit.under(f".{key}") from None
            if not required <= result.keys():
                raise Misfit(text, f"missing field {min(required - result.keys())!r}")
            return result if is_instance is None else _construct(is_instance, text, result)

        self._classes[kind] = convert
        for name, hint in self._resolve(kind).items():
            if fields is None or name in fields:
                converts[name] = self.compile(hint)
        return convert

    def _named_tuple(self, kind: type) -> Convert:
        text = describe_hint(kind)
        names: tuple[str, ...] = kind._fields  # type: ignore[attr-defined]
        required = frozenset(names) - frozenset(kind._field_defaults)  # type: ignore[attr-defined]
        record = self._record(kind, frozenset(names), required, frozenset())

        def convert(value: Any) -> Any:
            if isinstance(value, (tuple, list)) and not isinstance(value, kind):
                if len(value) > len(names):
                    raise Misfit(text, f"{len(value)} items")
                value = dict(zip(names, value, strict=False))
            return record(value)

        self._classes[kind] = convert
        return convert


def _bare(hint: Any) -> Any:
    """The hint without what only type checkers look at."""
    while True:
        if typing.get_origin(hint) in (typing.Required, typing.NotRequired, typing.Final, typing.ClassVar):
            hint = typing.get_args(hint)[0]
        elif isinstance(hint, dataclasses.InitVar):
            hint = hint.type
        elif isinstance(hint, typing.NewType):
            hint = hint.__supertype__
        elif type(hint).__name__ == "TypeAliasType":
            hint = hint.__value__
        else:
            return hint


def _items(each: Convert, value: Any) -> list[Any]:
    result = []
    for index, item in enumerate(value):
        try:
            result.append(each(item))
        except Misfit as misfit:
            raise misfit.under(f"[{index}]") from None
    return result


def _construct(kind: type, text: str, fields: dict[str, Any]) -> Any:
    """Run the constructor; what it objects to is the caller's mistake."""
    try:
        return kind(**fields)
    except Exception as error:
        raise Misfit(text, f"fields it refuses: {error}") from None


def _dataclass_fields(kind: type) -> tuple[frozenset[str], frozenset[str], frozenset[str]]:
    """Fields of the constructor, those without a default, and those only computed."""
    fields = dataclasses.fields(kind)
    pseudo = kind.__dataclass_fields__.items()  # type: ignore[attr-defined]
    init_vars = {name: field for name, field in pseudo if field._field_type.name == "_FIELD_INITVAR"}
    missing = dataclasses.MISSING
    taken = {field.name for field in fields if field.init} | init_vars.keys()
    required = {field.name for field in fields if field.init and field.default is missing and field.default_factory is missing}
    required |= {name for name, field in init_vars.items() if field.default is missing}
    return frozenset(taken), frozenset(required), frozenset(field.name for field in fields if not field.init)


_ANY_GROUP = (list, tuple, set, frozenset, dict)

_CONTAINERS: dict[type, tuple[tuple[type, ...], Any]] = {
    list: ((list, tuple), list),
    tuple: ((tuple, list), tuple),
    set: ((set, frozenset, list), set),
    frozenset: ((frozenset, set, list), frozenset),
    abc.Sequence: ((list, tuple), None),
    abc.MutableSequence: ((list, tuple), list),
    abc.Set: ((set, frozenset, list), frozenset),
    abc.MutableSet: ((set, frozenset, list), set),
    abc.Collection: (_ANY_GROUP, None),
    abc.Iterable: (_ANY_GROUP, None),
    abc.Container: (_ANY_GROUP, None),
    dict: ((dict,), dict),
    abc.Mapping: ((dict,), dict),
    abc.MutableMapping: ((dict,), dict),
}
"""Container hints: what is accepted, and what it becomes (None: it stays what it is)."""
