"""Who may use what: rules by capability, over what a caller's handshake and record say.

A rule is `name:NODE`, `instance:ID`, `zone:ZONE` or `tag:KEY=VALUE`; one that fits is enough. A capability without rules is everybody's.
In a mesh with a secret only its holders get as far as this; among them names and tags are taken at their word.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from reachmesh.errors import ConfigError, shown
from reachmesh.membership.record import Record

KINDS = ("name", "instance", "zone", "tag")


class AccessRules:
    """The checked rules of one node.

    Args:
        rules: capability name to its rules.

    Raises:
        ConfigError: a rule that cannot be read.
    """

    def __init__(self, rules: Mapping[str, Sequence[str]]) -> None:
        if not isinstance(rules, Mapping):
            raise ConfigError(f"access must map capabilities to rules, not {shown(rules)}")
        self._rules: dict[str, list[tuple[str, str]]] = {}
        for capability, texts in rules.items():
            if isinstance(texts, str) or not isinstance(texts, Sequence):
                raise ConfigError(f"access: the rules of {shown(capability)} must be a list of strings, not {shown(texts)}")
            self._rules[capability] = [_parse(capability, text) for text in texts]

    def __bool__(self) -> bool:
        return bool(self._rules)

    def allows(self, capability: str, name: str, instance_id: str, record: Record | None) -> bool:
        """Whether a caller may use a capability. `record`: what it declared, None for an observer or one not known yet."""
        rules = self._rules.get(capability)
        if rules is None:
            return True
        for kind, wanted in rules:
            if kind == "name":
                fits = name == wanted
            elif kind == "instance":
                fits = instance_id == wanted
            elif record is None:
                fits = False
            elif kind == "zone":
                fits = record.zone == wanted
            else:
                key, _, value = wanted.partition("=")
                fits = key in record.tags and str(record.tags[key]) == value
            if fits:
                return True
        return False


def _parse(capability: str, text: object) -> tuple[str, str]:
    kind, colon, wanted = text.partition(":") if isinstance(text, str) else ("", "", "")
    if not colon or kind not in KINDS or not wanted or (kind == "tag" and "=" not in wanted):
        raise ConfigError(
            f"access: {shown(text)} for {shown(capability)} is no rule", hint="write name:NODE, instance:ID, zone:ZONE or tag:KEY=VALUE"
        )
    return kind, wanted
