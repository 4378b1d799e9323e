"""The process domain of a node, made only when a capability asks for it: nothing of it is imported otherwise."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from reachmesh.node.capability import Served
from reachmesh.wire.values import dump, load

if TYPE_CHECKING:
    from reachmesh.execution.process import ProcessDomain


def process_domain(name: str, served: Iterable[Served], found: ProcessDomain | None = None) -> ProcessDomain | None:
    """A domain that knows the handlers of these capabilities, `found` if there is one already; None when none runs in a process.

    Call it before the node's threads start: the template process is forked here.

    Raises:
        ConfigError: this platform cannot fork.
    """
    handlers = [each.handler for each in served if each.domain == "process"]
    if not handlers:
        return found
    if found is None:
        from reachmesh.execution.process import ProcessDomain

        found = ProcessDomain(dump, load, name=name)
    for handler in handlers:
        found.register(handler)
    found.start()
    return found
