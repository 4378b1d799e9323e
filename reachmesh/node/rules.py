"""What the arguments of the public face may be: a table of rules for each call, and one function that holds arguments against it.

A rule is a test and the words for what passes it, so that every refusal reads the same: the argument's name, what it takes, what was
given. Tests look at types first and never run a method of what they are given beyond that, and nothing changes before all have passed.
"""

from __future__ import annotations

import inspect
import math
import re
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from reachmesh.errors import ConfigError, ReachError, shown

_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


class Rule(msgspec.Struct, frozen=True):
    """One argument's.

    Attributes:
        accepts: words that follow "must be".
        test: whether a value passes; never raises.
        private: what was given is not to be shown.
    """

    accepts: str
    test: Callable[[Any], bool]
    private: bool = False

    def or_none(self) -> Rule:
        """The same, None too."""
        test = self.test
        return Rule(self.accepts, lambda value: value is None or test(value), self.private)

    def or_word(self, word: str) -> Rule:
        """The same, or one word."""
        test = self.test
        return Rule(f"{self.accepts} or {word!r}", lambda value: (isinstance(value, str) and value == word) or test(value), self.private)


Rules = Mapping[str, Rule]


def check(rules: Rules, given: Mapping[str, Any], *, error: type[ReachError] = ConfigError, of: str = "") -> None:
    """Raise `error` for the first argument that its rule refuses. Arguments without a rule are not looked at.

    Args:
        of: whose arguments they are, put before the name.
    """
    for name, value in given.items():
        rule = rules.get(name)
        if rule is not None and not rule.test(value):
            raise refusal(rule, name, value, error, of)


def refusal(rule: Rule, name: str, value: Any, error: type[ReachError] = ConfigError, of: str = "") -> ReachError:
    """The error of an argument that its rule refuses."""
    empty = isinstance(value, str) and not value
    given = shown(value) if empty or not rule.private else f"a value of type {type(value).__name__}"
    return error(f"{of}{': ' if of else ''}{name} must be {rule.accepts}, not {given}")


def number(low: float, high: float = math.inf, *, above: bool = False) -> Rule:
    """An int or float from `low` (`above`: not including it) to `high`; no NaN, no bool."""
    words = f"a number {'above' if above else 'from'} {low:g}" + ("" if high == math.inf else f" to {high:g}")

    def test(value: Any) -> bool:
        return is_number(value) and (low < value if above else low <= value) and value <= high

    return Rule(words, test)


def whole(low: int, high: float = math.inf) -> Rule:
    """An int from `low` to `high`; no bool."""
    words = f"a whole number from {low}" + ("" if high == math.inf else f" to {high:g}")
    return Rule(words, lambda value: isinstance(value, int) and not isinstance(value, bool) and low <= value <= high)


def is_number(value: Any) -> bool:
    """Whether it is an int or a float, NaN included, and no bool."""
    return isinstance(value, int | float) and not isinstance(value, bool)


def is_text(value: Any, limit: int) -> bool:
    """Whether it is text that can be a name: 1 to `limit` bytes of UTF-8 without control characters."""
    if not isinstance(value, str) or not value or len(value) > limit or _CONTROL.search(value):
        return False
    try:
        return len(value.encode()) <= limit
    except UnicodeEncodeError:
        return False


def name(limit: int = 255) -> Rule:
    """Text that can be a name."""
    return Rule(f"text of 1 to {limit} bytes without control characters", lambda value: is_text(value, limit))


def one_of(*values: str) -> Rule:
    """One of some words."""
    return Rule(f"one of {', '.join(values)}", lambda value: isinstance(value, str) and value in values)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list | tuple | set | frozenset) and all(isinstance(each, str) and each for each in value)


def _is_tags(value: Any, *, many: bool) -> bool:
    return isinstance(value, Mapping) and all(
        is_text(key, 255)
        and (_is_tag(each) or (many and isinstance(each, list | tuple | set | frozenset) and bool(each) and all(map(_is_tag, each))))
        for key, each in value.items()
    )


def _is_tag(value: Any) -> bool:
    return isinstance(value, str | bool) or (is_number(value) and math.isfinite(value) and abs(value) < 2**63)


FLAG = Rule("True or False", lambda value: isinstance(value, bool))
TEXT = Rule("text, not empty", lambda value: isinstance(value, str) and value != "")
TEXTS = Rule("a list of texts, none of them empty", _is_texts)
NAME_LIST = Rule(
    "text or a list of texts, not empty",
    lambda value: (
        all(is_text(each, 255) for each in value) if _is_texts(value) and value else is_text(value, 4096) and value.strip(" ,") != ""
    ),
)
FUNCTION = Rule("a function", callable)
PLAIN_FUNCTION = Rule(
    "a plain function, called in a thread of the node's; on a loop iterate node.events()",
    lambda value: callable(value) and not inspect.iscoroutinefunction(value),
)
TAGS = Rule("a mapping of texts to text, numbers or booleans", lambda value: _is_tags(value, many=False))
WANTED_TAGS = Rule("a mapping of texts to text, numbers or booleans, or lists of these", lambda value: _is_tags(value, many=True))
NAMED = Rule("a mapping of texts to values", lambda value: isinstance(value, Mapping) and all(isinstance(key, str) for key in value))
