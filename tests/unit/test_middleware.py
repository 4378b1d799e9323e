"""The rules of middleware, without calls."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from reachmesh.errors import ConfigError, UsageError
from reachmesh.node.middleware import UNSET, Exchange, Passage, as_middleware


def run(middlewares: list[Any], answer: Any = "answer", error: BaseException | None = None) -> Any:
    """Take one call through; gives its outcome, or raises it."""
    passage = Passage(Exchange("caller", "echo", [], {}))
    if not passage.enter([as_middleware(each) for each in middlewares]):
        return passage.exchange.answer
    passage.exchange.answer = answer
    return passage.leave(error)


def noting(log: list[str], name: str) -> Any:
    def middleware(call: Exchange) -> Iterator[None]:
        log.append(f"before {name}")
        try:
            yield
        except ValueError:
            log.append(f"failed {name}")
            raise
        log.append(f"after {name} {call.answer}")

    return middleware


def test_the_first_is_the_outermost() -> None:
    """Entered in order of use, left in reverse."""
    log: list[str] = []
    assert run([noting(log, "a"), noting(log, "b")]) == "answer"
    assert log == ["before a", "before b", "after b answer", "after a answer"]


def test_a_failure_is_raised_at_the_yield_and_goes_on() -> None:
    """Each sees it, and the caller gets it."""
    log: list[str] = []
    with pytest.raises(ValueError, match="oops"):
        run([noting(log, "a"), noting(log, "b")], error=ValueError("oops"))
    assert log[2:] == ["failed b", "failed a"]


def test_one_that_swallows_does_not_turn_a_failure_into_none() -> None:
    """Catching alone changes nothing; setting an answer replaces the failure."""

    def swallows(call: Exchange) -> Iterator[None]:
        try:
            yield
        except ValueError:
            pass

    def replaces(call: Exchange) -> Iterator[None]:
        try:
            yield
        except ValueError:
            call.answer = "plan b"

    with pytest.raises(ValueError, match="oops"):
        run([swallows], error=ValueError("oops"))
    assert run([swallows, replaces], error=ValueError("oops")) == "plan b"
    log: list[str] = []
    assert run([noting(log, "outer"), replaces], error=ValueError("oops")) == "plan b"
    assert log == ["before outer", "after outer plan b"]


def test_one_that_raises_first_fails_the_call_and_the_outer_ones_see_it() -> None:
    """Nothing inside it is entered."""
    log: list[str] = []

    def bars(call: Exchange) -> Iterator[None]:
        raise ValueError("not today")
        yield

    with pytest.raises(ValueError, match="not today"):
        run([noting(log, "outer"), bars, noting(log, "inner")])
    assert log == ["before outer", "failed outer"]


def test_one_that_returns_first_answers_in_place_of_the_call() -> None:
    """With an answer set, that is it; with none, the mistake is told."""
    log: list[str] = []

    def answers(call: Exchange) -> Iterator[None]:
        call.answer = "from the cache"
        return
        yield

    def forgets(call: Exchange) -> Iterator[None]:
        return
        yield

    assert run([noting(log, "outer"), answers, noting(log, "inner")]) == "from the cache"
    assert log == ["before outer", "after outer from the cache"]
    with pytest.raises(UsageError, match="forgets"):
        run([forgets])


def test_one_that_yields_twice_is_told() -> None:
    """That is a mistake of its author, not silence."""

    def twice(call: Exchange) -> Iterator[None]:
        yield
        yield

    with pytest.raises(UsageError, match="once"):
        run([twice])


def test_before_and_after_do_as_well() -> None:
    """An object with either method is a middleware; anything else is a ConfigError."""

    class Both:
        def __init__(self) -> None:
            self.seen: list[Any] = []

        def before(self, call: Exchange) -> None:
            self.seen.append(call.answer)

        def after(self, call: Exchange, error: BaseException | None) -> None:
            self.seen.append((call.answer, error))

    both, error = Both(), ValueError("oops")
    assert run([both]) == "answer"
    with pytest.raises(ValueError, match="oops"):
        run([both], error=error)
    assert both.seen == [UNSET, ("answer", None), UNSET, (UNSET, error)]
    for wrong in (print, 3, Both):
        with pytest.raises(ConfigError):
            as_middleware(wrong)
