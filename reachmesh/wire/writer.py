"""The careful way of writing a value: walks it, converts what needs converting, and names the path of what cannot travel.

`values.dump` comes here for anything that is not plain numbers, text, lists and dicts. The packer is fed piece by piece, so
a plain subtree still goes through it in one step, and big buffers are put beside the body uncopied.
"""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable, Iterable
from enum import Enum
from typing import Any

from msgpack import ExtType, Packer

from reachmesh.errors import PayloadError, PayloadTooLarge
from reachmesh.wire import arrays
from reachmesh.wire.extensions import MARK_OF, WRITERS, Ext, write_int
from reachmesh.wire.limits import LIMITS

_STEPS = 12
"""Steps of a path that are shown; of a longer one the middle is left out."""

SCALARS = frozenset({int, str, float, bool, type(None)})
CONTAINER_COST = 8


class Refused(Exception):
    """Internal: why a value cannot travel, and the steps to it, innermost first."""

    def __init__(self, reason: str, *, hint: str = "", too_large: bool = False) -> None:
        super().__init__(reason)
        self.reason, self.hint, self.too_large = reason, hint, too_large
        self.steps: list[object] = []

    def error(self, root: str) -> PayloadError:
        """The error for the user, with the path from `root` on."""
        path = render_path(root, self.steps[::-1])
        kind = PayloadTooLarge if self.too_large else PayloadError
        return kind(f"{path}: {self.reason}" if path else self.reason, path=path, hint=self.hint)


class NotPlain(Exception):
    """Internal: a subtree taken for plain has an element that is not; write again, looking at each."""


class Element:
    """A step of a path: some element of a set, or a key of a dict."""

    def __init__(self, text: str) -> None:
        self.text = text


def render_path(root: str, steps: Iterable[object]) -> str:
    """`root` and steps as one reads them: `rows[3].when`. A key that is no identifier is shown as `['a b']`, many steps as the first and last."""
    path = root
    whole = list(steps)
    for index, step in enumerate(whole):
        if len(whole) > _STEPS and _STEPS // 2 <= index < len(whole) - _STEPS // 2:
            if index == _STEPS // 2:
                path += "..."
            continue
        if isinstance(step, Element):
            path += step.text
        elif isinstance(step, str) and len(step) <= LIMITS.name and step.isidentifier():
            path = f"{path}.{step}" if path else step
        else:
            path += f"[{_shown(step)}]"
        if len(path) > LIMITS.text:
            return path[: LIMITS.text] + "..."
    return path


def _shown(step: object) -> str:
    """An index or key as text, short, whatever its own `repr` does."""
    try:
        text = ascii(step[:40] if isinstance(step, str | bytes) else step)
    except Exception:  # the user's own code, or an integer of too many digits
        text = type(step).__qualname__
    return text if len(text) <= 40 else text[:37] + "..."


class Writer:
    """Writes one value.

    Args:
        strict: look at every scalar (integers over 64 bits, text that is no UTF-8) instead of trusting flat containers.
    """

    def __init__(self, *, strict: bool) -> None:
        self.buffers: list[Any] = []
        self._strict = strict
        self._packer = Packer(strict_types=True, autoreset=False)
        self._size = 0
        self._cost = 0

    def body(self) -> bytes:
        """What was written."""
        written: bytes = self._packer.bytes()
        return written

    def write(self, value: Any, level: int = 1, *, key: bool = False) -> None:
        """Write `value`, which is `level` containers deep (1 = outermost); as `key` it must stay hashable at the receiver.

        Raises:
            Refused: it cannot travel.
            NotPlain: see `strict`.
        """
        kind = type(value)
        if kind in SCALARS:
            self._scalar(value, kind)
        elif kind is list:
            self._sequence(value, None, level, key)
        elif kind is dict:
            self._map(value, level)
        elif kind in MARK_OF:
            self._sequence(value, MARK_OF[kind], level, key or kind is not tuple)
        elif kind is bytes or kind is bytearray:
            self._bytes(value, kind, key)
        elif kind in WRITERS:
            try:
                self._pack(WRITERS[kind](value))
            except ValueError as error:
                raise Refused(str(error)) from None
        else:
            self._rarer(value, kind, level, key)

    def _rarer(self, value: Any, kind: type, level: int, key: bool) -> None:
        """What is converted before it travels, and numpy's values; all else is refused."""
        if isinstance(value, Enum):
            self.write(value.value, level + 1, key=key)
        elif arrays.is_array(value):
            self._array(value)
        elif arrays.is_scalar(value):
            try:
                self._pack(arrays.write_scalar(value))
            except ValueError as error:
                raise Refused(str(error)) from None
        elif dataclasses.is_dataclass(value) and not isinstance(value, type):
            self._record(value, _fields, level, key)
        elif is_model(value):
            self._record(value, _dumped, level, key)
        else:
            raise Refused(*_refusal(kind))

    def _record(self, value: Any, fields: Callable[[Any], Any], level: int, key: bool) -> None:
        name = type(value).__qualname__
        if key:
            raise Refused(f"a {name} becomes a dict on the way, and a dict cannot be a key or in a set")
        try:
            converted = fields(value)
        except Exception as error:  # properties and serializers are the user's own code
            raise Refused(f"a {name} could not be read: {type(error).__name__}: {error}") from error
        self.write(converted, level)

    def _pack(self, value: Any) -> None:
        self._packer.pack(value)

    def _scalar(self, value: Any, kind: type) -> None:
        try:
            self._pack(write_int(value) if kind is int else value)
        except UnicodeEncodeError:
            raise Refused("text with a lone surrogate is no UTF-8 and cannot travel") from None

    def _enter(self, size: int, level: int) -> None:
        """Count a container in; refuses too deep and too many."""
        if level > LIMITS.depth:
            raise Refused(f"nested deeper than {LIMITS.depth} levels (or a cycle)")
        self._cost += size + CONTAINER_COST
        if self._cost > LIMITS.values:
            raise Refused(f"more than {LIMITS.values} elements", too_large=True)

    def _sequence(self, value: Any, mark: ExtType | None, level: int, key: bool) -> None:
        self._enter(len(value), level)
        items = list(value)
        if not self._strict and SCALARS.issuperset(map(type, items)):
            return self._flat(items if mark is None else [mark, *items])
        self._packer.pack_array_header(len(items) + (mark is not None))
        if mark is not None:
            self._pack(mark)
        as_key = key and mark is not None
        unordered = mark is not None and type(value) is not tuple
        for index, item in enumerate(items):
            try:
                self.write(item, level + 1, key=as_key)
            except Refused as refused:
                refused.steps.append(Element("{...}") if unordered else index)
                raise
        if unordered:
            self._distinct(items)

    def _map(self, value: dict[Any, Any], level: int) -> None:
        self._enter(2 * len(value), level)
        items = list(value.items())
        self._packer.pack_map_header(len(items))
        for key, item in items:
            if type(key) is str:
                self._guarded(key, level, Element(f" key {ascii(key)[:40]}"), key=True)
            else:
                self._guarded(key, level + 1, Element(f" key of type {type(key).__qualname__}"), key=True)
            self._guarded(item, level + 1, key, key=False)
        self._distinct(value)

    def _guarded(self, value: Any, level: int, step: object, *, key: bool) -> None:
        try:
            self.write(value, level, key=key)
        except Refused as refused:
            refused.steps.append(step)
            raise

    def _flat(self, items: list[Any]) -> None:
        try:
            self._pack(items)
        except (OverflowError, UnicodeEncodeError):
            raise NotPlain from None

    def _distinct(self, keys: Iterable[Any]) -> None:
        """Refuse keys or elements that become equal, or unhashable, when their enums turn into values."""
        if all(type(key) in SCALARS for key in keys):
            return
        values = list(map(_as_sent, keys))
        try:
            distinct = len(set(values)) == len(values)
        except TypeError:
            distinct = False
        if not distinct:
            raise Refused("enum members travel as their values, and these are not distinct keys any more")

    def _bytes(self, value: bytes | bytearray, kind: type, key: bool) -> None:
        if len(value) < LIMITS.inline or key:
            self._pack(value if kind is bytes else ExtType(Ext.BYTEARRAY, bytes(value)))
            return
        self._pack(ExtType(Ext.BYTES_BUFFER if kind is bytes else Ext.BYTEARRAY_BUFFER, b""))
        self._beside(value if kind is bytes else memoryview(value))

    def _array(self, value: Any) -> None:
        try:
            described, view = arrays.write_array(value, LIMITS.inline)
        except ValueError as error:
            raise Refused(str(error)) from None
        self._pack(described)
        if view is not None:
            self._beside(view)

    def _beside(self, buffer: Any) -> None:
        self._size += len(buffer)
        if self._size > LIMITS.message or len(self.buffers) + 2 > LIMITS.segments:
            raise Refused(f"more than {LIMITS.message} bytes or {LIMITS.segments} buffers in one message", too_large=True)
        self.buffers.append(buffer)


def _fields(value: Any) -> dict[str, Any]:
    """The fields of a dataclass instance, not copied deeply."""
    return {field.name: getattr(value, field.name) for field in dataclasses.fields(value)}


def _dumped(model: Any) -> Any:
    """A pydantic model as its own dict; by alias, because that is what validation takes."""
    return model.model_dump(by_alias=True)


def _as_sent(key: Any) -> Any:
    """A key as the receiver will see it: enum members as their values, also inside tuples."""
    if isinstance(key, Enum):
        return _as_sent(key.value)
    if type(key) is tuple or type(key) is frozenset:
        return type(key)(map(_as_sent, key))
    return key


def is_model(value: Any) -> bool:
    """Whether `value` is a pydantic model; never imports pydantic."""
    base = getattr(sys.modules.get("pydantic"), "BaseModel", None)
    return base is not None and isinstance(value, base)


def _refusal(kind: type) -> tuple[str]:
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    for base in kind.__mro__[1:]:
        if base in SCALARS or base in MARK_OF or base in WRITERS or base in (list, dict, bytes, bytearray):
            return (f"a value of type {name} cannot travel: it would come back as {base.__name__}; convert it first",)
    return (f"a value of type {name} cannot travel",)
