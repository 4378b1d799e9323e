"""Access rules: who fits, who does not, and what is refused as a rule."""

from __future__ import annotations

import pytest

from reachmesh import ConfigError
from reachmesh.engine.access import AccessRules
from reachmesh.membership.record import Record

OPS = Record(boot=b"12345678", instance_id="ops-1", name="ops", zone="z1", tags={"role": "admin", "level": 3})


@pytest.mark.parametrize(
    ("rule", "allowed"),
    [
        ("name:ops", True),
        ("name:op", False),
        ("instance:ops-1", True),
        ("instance:ops-2", False),
        ("zone:z1", True),
        ("zone:z2", False),
        ("tag:role=admin", True),
        ("tag:level=3", True),
        ("tag:role=guest", False),
        ("tag:absent=", False),
    ],
)
def test_one_rule(rule: str, allowed: bool) -> None:
    """A caller is let in by a rule that fits what it declared, and by no other."""
    assert AccessRules({"reset": [rule]}).allows("reset", "ops", "ops-1", OPS) is allowed


def test_rules_are_alternatives_and_absence_is_freedom() -> None:
    """One rule that fits is enough; a capability without rules is everybody's, one with an empty list nobody's."""
    rules = AccessRules({"reset": ["name:admin", "name:ops"], "never": []})
    assert rules.allows("reset", "ops", "ops-1", OPS)
    assert rules.allows("other", "guest", "guest-1", None)
    assert not rules.allows("never", "ops", "ops-1", OPS)


def test_an_unknown_caller_has_no_tags() -> None:
    """Without a record only the handshake's name and instance count."""
    rules = AccessRules({"reset": ["tag:role=admin", "zone:z1"]})
    assert not rules.allows("reset", "ops", "ops-1", None)


@pytest.mark.parametrize("rule", ["ops", "name:", "who:ops", "tag:role", "", 5])
def test_a_rule_that_cannot_be_read_is_refused(rule: object) -> None:
    """A rule with a mistake is an error at once, never a door left open or shut."""
    with pytest.raises(ConfigError, match="rule"):
        AccessRules({"reset": [rule]})  # type: ignore[list-item]
