"""Answers that go elsewhere, and requests that run once."""

from __future__ import annotations

import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from reachmesh import BadRequest, Context, RemoteError, UsageError, capability
from tests.support import World, eventually

BODY = """
import os, time, uuid
def tally():
    with open("ran", "a") as file:
        file.write("x")
def work(text: str, ctx: Context) -> str:
    tally()
    while not os.path.exists("gate") and not ctx.cancelled:
        time.sleep(0.01)
    if text == "bad":
        raise ValueError("no such text")
    return text.upper() + uuid.uuid4().hex
def square(n: int) -> int:
    tally()
    if n < 0:
        raise ValueError("negative")
    return n * n
"""
CAPS = "[capability('work', handler=work), capability('square', handler=square, pure=True, cache_ttl=0.5)]"


def ran(world: World) -> int:
    """Executions so far."""
    path = world.folder / "ran"
    return len(path.read_text()) if path.exists() else 0


def test_a_task_outlives_its_caller_and_tells_its_state_to_anybody(world: World) -> None:
    """The answer of a `reply_to` call arrives though the caller has gone; state, result and failure can be asked for from any node."""
    got: list[tuple[str, str | None, str]] = []

    def inbox(answer: str, ctx: Context) -> None:
        got.append((answer[:2], ctx.correlation_id, ctx.trace_id))

    world.serve("worker", CAPS, BODY)
    stays, leaves = world.node("stays", {"inbox": inbox}), world.node("leaves")
    for node in (stays, leaves):
        node.wait_for("work", timeout=10)
    leaves.wait_for("inbox", timeout=10)
    good = leaves.reach("work", reply_to="inbox", correlation_id="c-1", timeout=30).submit(text="hi")
    bad = leaves.reach("work", reply_to="inbox", timeout=30).call(text="bad")
    task_id = good.result(5).task_id
    eventually(lambda: stays.task(task_id).state == "running")
    leaves.stop()
    (world.folder / "gate").touch()
    eventually(lambda: stays.task(task_id).state == "done")
    eventually(lambda: got)
    assert got == [("HI", "c-1", good.trace_id)]
    assert stays.task(task_id).result[:2] == "HI"
    eventually(lambda: stays.task(bad.task_id).state == "failed")
    failed = stays.task(bad.task_id)
    assert isinstance(failed.error, RemoteError)
    with pytest.raises(BadRequest):
        stays.task(task_id[:17] + "ffff")
    with pytest.raises(UsageError):
        stays.task("nonsense")


def test_a_key_runs_once_however_callers_come_and_go(world: World) -> None:
    """The first caller's cancel does not end what a second one waits for; a failure is the answer of its key too."""
    world.serve("worker", CAPS, BODY)
    one, two = world.node("one"), world.node("two")
    for node in (one, two):
        node.wait_for("work", timeout=10)
    first = one.reach("work", dedup_key="k", timeout=30).submit(text="a")
    eventually(lambda: ran(world) == 1)
    others = [two.reach("work", dedup_key="k", timeout=30).submit(text="a") for _ in range(3)]
    first.cancel()
    (world.folder / "gate").touch()
    assert len({future.result(10) for future in others}) == 1
    assert two.reach("work", dedup_key="k").call(text="a") == others[0].result(0)
    assert ran(world) == 1
    for _ in range(2):
        with pytest.raises(RemoteError, match="no such text"):
            one.reach("work", dedup_key="bad").call(text="bad")
    assert ran(world) == 2


def test_a_key_nobody_waits_for_any_more_is_cancelled(world: World) -> None:
    """When all callers of a key have left, its handler is cancelled; a key that never started is free again."""
    world.serve("worker", "[capability('work', handler=work, max_concurrent=1)]", BODY)
    node = world.node()
    node.wait_for("work", timeout=10)
    running = node.reach("work", dedup_key="a", timeout=30).submit(text="x")
    eventually(lambda: ran(world) == 1)
    assert node.reach("work", dedup_key="b", timeout=30, retries=0).submit(text="y").exception(5) is not None
    running.cancel()
    answer = eventually(lambda: node.reach("work", dedup_key="a").submit(text="x").result(5))
    assert answer.startswith("X")
    (world.folder / "gate").touch()
    assert node.reach("work", dedup_key="b").call(text="y").startswith("Y")
    assert ran(world) == 2


def test_streams_take_no_keys(world: World) -> None:
    """A stream with a dedup key or reply capability is a clear error before anything is sent."""
    node = world.node("own", {"count": range})
    with pytest.raises(UsageError):
        node.reach("count", dedup_key="k").stream(3)
    with pytest.raises(UsageError):
        node.reach("count", reply_to="inbox").channel(3)


def test_a_pure_answer_is_kept_for_its_time_and_failures_are_not(world: World) -> None:
    """Repetitions within `cache_ttl` do not run; after it, and after a failure, they do."""
    world.serve("worker", CAPS, BODY)
    node = world.node()
    node.wait_for("square", timeout=10)
    assert [node.reach("square").call(n=3) for _ in range(5)] == [9] * 5
    assert ran(world) == 1
    eventually(lambda: node.reach("square").call(n=3) == 9 and ran(world) == 2, every=0.1)
    for _ in range(2):
        with pytest.raises(RemoteError):
            node.reach("square").call(n=-1)
    assert ran(world) == 4


def test_many_threads_with_one_key_get_one_answer(world: World) -> None:
    """Twenty threads on one key at once cause one execution and get equal answers."""
    count, lock = 0, threading.Lock()

    def slow() -> int:
        nonlocal count
        with lock:
            count += 1
        time.sleep(0.2)
        return count

    node = world.node("own", [capability("slow", handler=slow)])
    with ThreadPoolExecutor(20) as pool:
        answers = list(pool.map(lambda _: node.reach("slow", dedup_key="k", timeout=10).call(), range(20)))
    assert answers == [1] * 20


def test_a_key_used_with_other_arguments_is_told(world: World) -> None:
    """While the first request runs and afterwards: a BadRequest, nothing runs; the same arguments in another order are the same."""
    world.serve("worker", CAPS, BODY)
    node = world.node()
    node.wait_for("work", timeout=10)
    first = node.reach("work", dedup_key="k", timeout=30).submit(text="a")
    eventually(lambda: ran(world) == 1)
    for _ in range(2):
        error = node.reach("work", dedup_key="k", timeout=30).submit(text="b").exception(10)
        assert isinstance(error, BadRequest)
        assert (error.executed, "other arguments" in str(error)) == ("no", True)
        (world.folder / "gate").touch()
        first.result(10)
    assert node.reach("work", dedup_key="k").call(text="a") == first.result(0)
    assert ran(world) == 1
    echo = world.node("own", {"echo": lambda **given: given})
    assert echo.reach("echo", dedup_key="o").call(a=1, b=2) == echo.reach("echo", dedup_key="o").call(b=2, a=1)
