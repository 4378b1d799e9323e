"""Declaring a capability: a plain function and what the mesh should know about it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar

import msgspec

from reachmesh.calls.admission import Rule
from reachmesh.engine.providers import RESERVED
from reachmesh.errors import ConfigError, shown
from reachmesh.execution.executor import DOMAINS, PROFILES, resolve_domain
from reachmesh.execution.handler import Handler, inspect_handler
from reachmesh.node.context import Context
from reachmesh.node.rules import FLAG, FUNCTION, TEXTS, Rules, check, number, one_of, whole
from reachmesh.node.rules import name as name_rule

F = TypeVar("F", bound=Callable[..., Any])

_MARK = "__reachmesh_capability__"


@dataclass(frozen=True, kw_only=True)
class Capability:
    """A declared capability; made by `capability(...)`. Calling it with a function marks that function and gives it back."""

    name: str
    handler: Callable[..., Any] | None = None
    domain: str | None = None
    profile: str | None = None
    max_concurrent: int | Literal["auto"] | None = None
    idempotent: bool = False
    pure: bool = False
    cache_ttl: float | None = None
    timeout: float | None = None
    version: str = "1"
    compatible_from: str | None = None
    semantic_errors: tuple[str, ...] = ()
    weight: float | None = None
    requires: tuple[str, ...] = ()

    def check(self) -> None:
        """Raise ConfigError for what cannot be meant."""
        check(CAPABILITY_RULES, {"name": self.name})
        check(CAPABILITY_RULES, {each: getattr(self, each) for each in CAPABILITY_RULES}, of=self.name)
        if self.name.startswith(RESERVED):
            raise ConfigError(f"{self.name!r}: names that begin with {RESERVED!r} belong to the library")

    def __call__(self, fn: F) -> F:
        """Mark `fn`, so that `ReachNode(caps=[fn])` serves it as this capability.

        Raises:
            ConfigError: it is no function, or nothing can be written on it (a bound method, a builtin): give it as `handler=` then.
        """
        check(CAPABILITY_RULES, {"handler": fn}, of=self.name)
        try:
            setattr(fn, _MARK, replace(self, handler=fn))
        except AttributeError:
            raise ConfigError(f"{self.name}: {shown(fn)} cannot be decorated", hint="use capability(..., handler=it)") from None
        return fn


def capability(
    name: str,
    *,
    handler: Callable[..., Any] | None = None,
    domain: str | None = None,
    profile: str | None = None,
    max_concurrent: int | Literal["auto"] | None = None,
    idempotent: bool = False,
    pure: bool = False,
    cache_ttl: float | None = None,
    timeout: float | None = None,
    version: str = "1",
    compatible_from: str | None = None,
    semantic_errors: Sequence[str] = (),
    weight: float | None = None,
    requires: Sequence[str] = (),
) -> Capability:
    """Declare a capability, for `ReachNode(caps=[...])` or as a decorator.

    Args:
        name: what callers ask for; 1 to 255 bytes of UTF-8 without control characters.
        handler: the function; leave it out to decorate one.
        domain: where it runs: "pool" (default of `def`), "loop" (default of `async def`), "thread" (one of its own, calls in order),
            "inline" (in place, for what takes microseconds), "process".
        profile: "short" (< 0.5 s), "medium" (< 5 s) or "long", so that slow handlers do not fill the pool of quick ones; measured
            when not said.
        max_concurrent: calls at once per instance; a call waits 0.2 s for its turn, then `QuotaExceeded`. "auto": as many as the rate and
            the duration of its calls ask for, found while it runs, 4 to 1024 (see `resilience.adaptive`).
        idempotent: running it twice does no harm, so it may be tried again after a timeout or a lost peer.
        pure, cache_ttl: the answer depends on the arguments only and may be kept for `cache_ttl` seconds.
        timeout: seconds a call usually takes at most; callers that say nothing use it.
        version, compatible_from: version of the capability and the oldest version whose callers it understands.
        semantic_errors: codes of `SemanticError` that count as failures of the instance; all of them when none is named.
        weight: share of calls relative to other instances; the node's when not said.
        requires: names of capabilities this one needs; informational.

    Raises:
        ConfigError: an option is wrong.
    """
    declared = Capability(
        name=name,
        handler=handler,
        domain=domain,
        profile=profile,
        max_concurrent=max_concurrent,
        idempotent=idempotent,
        pure=pure,
        cache_ttl=cache_ttl,
        timeout=timeout,
        version=version,
        compatible_from=compatible_from,
        semantic_errors=semantic_errors,  # type: ignore[arg-type]  # checked by its rule
        weight=weight,
        requires=requires,  # type: ignore[arg-type]  # checked by its rule
    )
    declared.check()
    return replace(declared, semantic_errors=tuple(semantic_errors), requires=tuple(requires))


CAPABILITY_RULES: Rules = {
    "name": name_rule(),
    "handler": FUNCTION.or_none(),
    "domain": one_of(*DOMAINS).or_none(),
    "profile": one_of(*PROFILES).or_none(),
    "max_concurrent": whole(1, 1_000_000).or_word("auto").or_none(),
    "idempotent": FLAG,
    "pure": FLAG,
    "cache_ttl": number(0, 1e9).or_none(),
    "timeout": number(0, 1e9, above=True).or_none(),
    "version": name_rule(),
    "compatible_from": name_rule().or_none(),
    "semantic_errors": TEXTS,
    "weight": number(0, 1e8).or_none(),
    "requires": TEXTS,
}
"""The options of a capability."""


class Served:
    """A capability ready to be served: its declaration, its inspected handler, and what the record says of it."""

    __slots__ = ("capability", "domain", "handler", "name", "options", "rule")

    def __init__(self, declared: Capability, localns: Mapping[str, Any] | None = None) -> None:
        if declared.handler is None or not callable(declared.handler):
            raise ConfigError(f"capability {declared.name!r} has no handler", hint="give handler=, or decorate a function with it")
        self.capability, self.name = declared, declared.name
        self.handler: Handler = inspect_handler(declared.handler, context_type=Context, localns=localns)
        self.handler.name = declared.name
        self.handler.profile = declared.profile
        self.domain = resolve_domain(self.handler, declared.domain)
        self.options = self._options()
        self.rule = Rule(
            max_concurrent=declared.max_concurrent,
            version=declared.version,
            compatible_from=declared.compatible_from,
            cache_ttl=declared.cache_ttl if declared.pure else None,
        )

    def limit(self, max_concurrent: int | Literal["auto"] | None) -> None:
        """Run so many calls at once from now on; None = as many as come. A limit that moves is not advertised."""
        self.rule = msgspec.structs.replace(self.rule, max_concurrent=max_concurrent)
        self.options.pop("max_concurrent", None)
        if isinstance(max_concurrent, int):
            self.options["max_concurrent"] = max_concurrent

    def at(self, node_version: str) -> dict[str, Any]:
        """Its options in the record of a node of this version, which is the capability's own where that says none."""
        version = node_version if self.capability.version == "1" else self.capability.version
        self.rule = msgspec.structs.replace(self.rule, version=version, node_version=node_version)
        return {**self.options, "version": version}

    def _options(self) -> dict[str, Any]:
        declared, described = self.capability, self.handler.describe()
        options: dict[str, Any] = {"version": declared.version, "streams": self.handler.streams, "doc": described["doc"]}
        for name in ("compatible_from", "max_concurrent", "timeout", "weight"):
            if (value := getattr(declared, name)) is not None and value != "auto":
                options[name] = value
        for name in ("idempotent", "pure"):
            if getattr(declared, name):
                options[name] = True
        if declared.semantic_errors:
            options["semantic_errors"] = list(declared.semantic_errors)
        if declared.requires:
            options["requires"] = list(declared.requires)
        if self.handler.input_param is not None:
            options["input"] = self.handler.input_param
        return options


def read_caps(caps: Any) -> list[Capability]:
    """The `caps=` argument of a node: a mapping of name to function (or `capability(...)`), or a list of declarations.

    Raises:
        ConfigError: something else, or a name twice.
    """
    declared: list[Capability] = []
    if caps is None:
        return declared
    if isinstance(caps, Mapping):
        for name, value in caps.items():
            if isinstance(value, Capability):
                declared.append(replace(value, name=name))
            else:
                declared.append(capability(name, handler=value))
    elif isinstance(caps, list | tuple | set):
        for value in caps:
            mark = value if isinstance(value, Capability) else getattr(value, _MARK, None)
            if not isinstance(mark, Capability):
                raise ConfigError(
                    f"caps: {shown(value)} is no capability", hint="give a mapping of names to functions, or a list of capability(...)"
                )
            declared.append(mark)
    else:
        raise ConfigError(f"caps must be a mapping or a list, not {type(caps).__name__}")
    for each in declared:
        each.check()
    names = [each.name for each in declared]
    if twice := sorted({name for name in names if names.count(name) > 1}):
        raise ConfigError(f"caps: declared twice: {', '.join(twice)}")
    return declared
