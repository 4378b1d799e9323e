"""JSON payloads: for other languages, the gateway and people. JSON's own types only.

Enums, dataclasses and pydantic models are converted as they are for MessagePack; whatever JSON would change silently (tuples,
numbers as keys, NaN, bytes) is refused with its path.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from enum import Enum
from typing import Any

from reachmesh.errors import PayloadError, PayloadTooLarge
from reachmesh.wire.limits import LIMITS
from reachmesh.wire.writer import CONTAINER_COST, Refused, is_model

_TEXT = re.compile(rb'"(?:[^"\\]|\\.)*+"')
_INT_BITS = 13_000
"""Python refuses to convert integers of more than 4,300 digits."""


def dump_json(value: Any, root: str = "value") -> bytes:
    """`value` as UTF-8 JSON. Raises PayloadError with the path, as `values.dump`."""
    try:
        text = json.dumps(_Walk().walk(value, 1), ensure_ascii=False, allow_nan=False, separators=(",", ":"))
    except Refused as refused:
        raise refused.error(root) from None
    except Exception as error:  # properties and models are the user's own code
        raise PayloadError(f"{root or 'a value'} cannot travel: {type(error).__name__}: {error}", path=root) from error
    body = text.encode()
    if len(body) > LIMITS.message:
        raise PayloadTooLarge(f"a message of {len(body)} bytes, {LIMITS.message} are allowed", path=root)
    return body


def load_json(body: Any) -> Any:
    """The value in UTF-8 JSON text. Raises PayloadError when it is malformed or over `Limits`."""
    try:
        raw = body if type(body) is bytes else bytes(body)
        if len(raw) > LIMITS.message:
            raise PayloadTooLarge(f"a message of {len(raw)} bytes, {LIMITS.message} are allowed")
        if _cost(raw) > LIMITS.values and _cost(_TEXT.sub(b"", raw)) > LIMITS.values:
            raise PayloadTooLarge(f"a value of more than {LIMITS.values} elements")
        value = json.loads(raw.decode(), parse_constant=_no_constant)
        return _Walk().walk(value, 1)
    except PayloadError:
        raise
    except Refused as refused:
        raise refused.error("") from None
    except Exception as error:  # any bytes can come here; deep nesting is a RecursionError
        raise PayloadError(f"malformed JSON came: {type(error).__name__}: {str(error)[:200]}") from None


def _cost(raw: bytes) -> int:
    """An upper bound of the cost (see `Limits.values`) of JSON text: the punctuation in it, strings included."""
    return raw.count(b",") + raw.count(b":") + CONTAINER_COST * (raw.count(b"[") + raw.count(b"{"))


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


class _Walk:
    """Checks a value for JSON and converts what JSON has no type for."""

    def __init__(self) -> None:
        self._cost = 0

    def walk(self, value: Any, level: int) -> Any:
        kind = type(value)
        if kind is str:
            if not value.isascii():
                try:
                    value.encode()
                except UnicodeEncodeError:
                    raise Refused("text with a lone surrogate is no UTF-8 and cannot travel") from None
            return value
        if kind is bool or value is None:
            return value
        if kind is int:
            if value.bit_length() > _INT_BITS:
                raise Refused("an integer too long for JSON")
            return value
        if kind is float:
            if not math.isfinite(value):
                raise Refused(f"{value} is no JSON")
            return value
        if kind is list or kind is dict:
            return self._container(value, level)
        if isinstance(value, Enum):
            return self.walk(value.value, level + 1)
        if dataclasses.is_dataclass(value) and not isinstance(value, type):
            return self._container({field.name: getattr(value, field.name) for field in dataclasses.fields(value)}, level)
        if is_model(value):
            return self.walk(value.model_dump(by_alias=True), level)
        raise Refused(f"a value of type {kind.__qualname__} cannot travel as JSON")

    def _container(self, value: Any, level: int) -> Any:
        if level > LIMITS.depth:
            raise Refused(f"nested deeper than {LIMITS.depth} levels (or a cycle)")
        self._cost += len(value) + CONTAINER_COST
        if self._cost > LIMITS.values:
            raise Refused(f"more than {LIMITS.values} elements", too_large=True)
        if type(value) is list:
            return [self._step(item, index, level + 1) for index, item in enumerate(value)]
        made: dict[str, Any] = {}
        for key, item in value.items():
            name = self._step(key, "a key", level + 1)
            if type(name) is not str or name in made:
                raise Refused(f"JSON's keys are distinct texts, not {type(key).__qualname__}")
            made[name] = self._step(item, name, level + 1)
        return made

    def _step(self, value: Any, step: object, level: int) -> Any:
        try:
            return self.walk(value, level)
        except Refused as refused:
            refused.steps.append(step)
            raise
