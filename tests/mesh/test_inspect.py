"""`reachmesh-inspect` against real nodes: what it shows, how it ends, and that nobody notices it."""

from __future__ import annotations

import json
import os
import pty
import signal
import subprocess
import time
from typing import Any

import pytest

from tests.support import PATIENCE, World, eventually

FAST = {"heartbeat_period": 0.5, "warmup": 0}
TRACE = "0af7651916cd43dd8448eb211c80319c"


def look(world: World, *arguments: str, code: int = 0) -> Any:
    """The JSON answer of one command."""
    done = world.run("reachmesh-inspect", *arguments, "--json")
    assert done.returncode == code, (done.returncode, done.stdout, done.stderr)
    assert "Traceback" not in done.stderr
    return json.loads(done.stdout)


def start(world: World, *arguments: str, stdout: int = subprocess.PIPE) -> subprocess.Popen[str]:
    command = ["reachmesh-inspect", *arguments]
    return subprocess.Popen(command, env=world.env, stdout=stdout, stderr=subprocess.PIPE, text=True)


def test_figures_are_of_what_a_node_serves(world: World) -> None:
    """`peers` and `status` tell rates, durations and failures of served calls, and the inspector's own looks do not count."""
    world.serve("calc", '{"half": half}', "def half(n: int) -> int:\n    assert n % 2 == 0\n    return n // 2\n", config=FAST)
    with world.node("app", config=FAST) as app:
        app.wait_for("half", timeout=10)
        for n in range(10):
            app.reach("half", retries=0).submit(n=n).exception(10)
        shown = look(world, "status", "calc")
        assert [call["status"] for call in shown["calls"]] == ["remote_error", "ok"] * 5
        (row,) = shown["instances"]
        assert (row["capabilities"]["half"]["count"], row["capabilities"]["half"]["failures"]) == (10, 5)
        rows = {row["node"]: row for row in look(world, "peers")}
        assert rows["calc"]["fail_rate"] == 0.5
        assert rows["calc"]["qps"] > 0
        assert 0 < rows["calc"]["p95"] < 5
        assert rows["app"]["p95"] is None
        assert app.stats("reachmesh.status").count == 0


def test_a_stuck_pool_does_not_keep_a_node_silent(world: World) -> None:
    """A node whose threads all hang still tells about itself, and a trace shows where its calls are stuck."""
    world.serve("stuck", '{"hang": hang}', "def hang() -> None:\n    time.sleep(600)\n", config={**FAST, "pool_threads": 1})
    with world.node("app", config=FAST) as app:
        app.wait_for("hang", timeout=10)
        hung = [app.reach("hang", timeout=60, trace_id=TRACE).submit() for _ in range(3)]
        hops: Any = eventually(lambda: found if len(found := look(world, "trace", TRACE)["hops"]) == 3 else None)
        assert sorted(hop["status"] for hop in hops) == ["queued", "queued", "running"]
        (row,) = look(world, "status", "stuck")["instances"]
        assert row["running"] >= 1
        for future in hung:
            future.cancel()


def test_instances_of_one_name_are_shown_together(world: World) -> None:
    """`status` by name tells of all instances, by instance id of one."""
    for _ in range(2):
        world.serve("twin", '{"who": who}', "def who() -> str:\n    return node.instance_id\n", config=FAST)
    with world.node("app", config=FAST) as app:
        app.wait_for("who", count=2, timeout=10)
        answered = {app.reach("who", target=peer.instance_id).call() for peer in app.providers("who") for _ in range(3)}
        assert len(answered) == 2
        shown = look(world, "status", "twin")
        assert {row["instance_id"] for row in shown["instances"]} == answered
        assert {call["instance_id"] for call in shown["calls"]} == answered
        one = min(answered)
        assert {call["instance_id"] for call in look(world, "status", one)["calls"]} == {one}


def test_topology_names_nodes_and_their_links(world: World) -> None:
    """Each pair of linked nodes is there once."""
    with world.node("a", config=FAST) as a, world.node("b", config=FAST) as b:
        eventually(lambda: a.peers() and b.peers())
        shown: Any = eventually(lambda: found if (found := look(world, "topology"))["links"] else None)
        assert {node["node"] for node in shown["nodes"]} == {"a", "b"}
        (link,) = shown["links"]
        assert {link["from"], link["to"]} == {a.instance_id, b.instance_id}


def test_events_are_printed_as_they_happen(world: World) -> None:
    """`events` says nothing of those already here, and tells of the next who joins."""
    with world.node("first", config=FAST), start(world, "events", "--kind", "peer_joined", "--count", "1", "--json") as events:
        try:
            with world.node("warm", config=FAST) as warm:
                eventually(lambda: len(warm.peers()) == 1)
            late: list[Any] = []
            assert events.stdout is not None

            def said() -> bool:
                late.append(world.node(f"late{len(late)}", config=FAST))
                try:
                    return events.wait(1.0) == 0
                except subprocess.TimeoutExpired:
                    return False

            eventually(said, 15)
            event = json.loads(events.stdout.read())
            assert event["kind"] == "peer_joined"
            assert event["node"] != "first"
            assert abs(event["at"] - time.time()) < 60
        finally:
            events.kill()


@pytest.mark.parametrize(
    ("arguments", "code"),
    [
        (["peers"], 0),
        (["caps"], 0),
        (["topology"], 0),
        (["doctor"], 0),
        (["trace", TRACE], 0),
        (["status", "nobody"], 1),
        (["call", "absent"], 1),
        (["stream", "absent"], 1),
        (["call", "absent", "{"], 2),
        (["call", "absent", "3"], 2),
        (["trace", "xyz"], 2),
        (["nonsense"], 2),
        (["peers", "--look", "-1"], 2),
        (["peers", "--seeds", "no-port"], 2),
        (["peers", "--interfaces", "no-such-interface"], 2),
        (["bench", "absent"], 1),
        (["bench", "absent", "--outstanding", "0"], 2),
        (["events", "--kind", "peer_joned"], 2),
        (["status"], 2),
    ],
)
def test_exit_codes_and_json_whatever_happens(world: World, arguments: list[str], code: int) -> None:
    """Each outcome has its documented exit code, and stdout is one JSON document in all of them."""
    answer = look(world, *arguments, "--look", "0.2", code=code) if "--look" not in arguments else look(world, *arguments, code=code)
    assert ("error" in answer) == (code != 0)
    if code:
        assert answer["error"]["code"]
        assert answer["error"]["message"]


@pytest.mark.parametrize("arguments", [["watch"], ["events"], ["call", "nap", '{"seconds": 60}', "--timeout", "60"]])
def test_ctrl_c_ends_with_130(world: World, arguments: list[str]) -> None:
    """Ctrl-C ends a running command at once, with its exit code and without a word."""
    world.serve("bed", '{"nap": nap}', "def nap(seconds: float) -> None:\n    open('asleep', 'w').close()\n    time.sleep(seconds)\n")
    with start(world, *arguments) as running:
        try:
            if arguments[0] == "watch":
                assert running.stdout is not None
                running.stdout.readline()
            elif arguments[0] == "call":
                eventually((world.folder / "asleep").exists)
            else:
                eventually(lambda: _listens(running.pid))
            began = time.monotonic()
            running.send_signal(signal.SIGINT)
            assert running.wait(10 * PATIENCE) == 130
            assert time.monotonic() - began < 3 * PATIENCE
            assert running.stderr is not None
            assert running.stderr.read() == ""
        finally:
            running.kill()


def _listens(pid: int) -> bool:
    """Whether the process has opened sockets: its imports are over."""
    try:
        return any("socket:" in os.readlink(f"/proc/{pid}/fd/{fd}") for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


@pytest.mark.parametrize("form", [["--json"], []])
def test_a_reader_that_leaves_is_no_error(world: World, form: list[str]) -> None:
    """`watch | head -1` ends by itself, without a word, in text as in JSON."""
    world.serve("alpha", "{}", config=FAST)
    with start(world, "watch", "--interval", "0.1", *form) as watch:
        try:
            assert watch.stdout is not None
            assert watch.stderr is not None
            watch.stdout.readline()
            watch.stdout.close()
            assert watch.wait(10 * PATIENCE) == 0
            assert watch.stderr.read() == ""
        finally:
            watch.kill()


def test_a_call_of_a_stream_says_which_command_it_wants(world: World) -> None:
    """`call` of a streaming capability names `stream`, with the words of the command line and not those of the library."""
    world.serve("teller", '{"tell": tell}', "def tell():\n    yield 1\n", config=FAST)
    world.serve("strict", '{"strict": strict}', "def strict(n: int) -> int:\n    return n\n", config=FAST)
    done = world.run("reachmesh-inspect", "call", "tell")
    assert (done.returncode, "`reachmesh-inspect stream tell`" in done.stderr) == (1, True)
    done = world.run("reachmesh-inspect", "call", "strict", '{"n": "x"}')
    assert (done.returncode, "reachmesh-inspect stream" in done.stderr) == (1, False)


def test_what_nodes_say_cannot_steer_the_terminal(world: World) -> None:
    """Control characters in answers are replaced in text, and never taken for markup."""
    world.serve("sly", '{"say": say}', "def say():\n    yield '\\x1b[31mred\\x1b[0m [bold]x[/bold]'\n", config=FAST)
    done = world.run("reachmesh-inspect", "stream", "say")
    assert done.returncode == 0
    assert "\x1b" not in done.stdout
    assert "[bold]x[/bold]" in done.stdout


def test_watch_on_a_terminal(world: World) -> None:
    """On a terminal `watch` redraws a table and gives the screen back at Ctrl-C."""
    world.serve("alpha", "{}", config=FAST)
    master, slave = pty.openpty()
    with start(world, "watch", "--interval", "0.2", stdout=slave) as watch:
        os.close(slave)
        try:
            text = ""
            limit = time.monotonic() + 15 * PATIENCE
            while text.count("HEALTHY") < 2 and time.monotonic() < limit:
                text += os.read(master, 65536).decode(errors="replace")
            assert text.count("HEALTHY") >= 2
            watch.send_signal(signal.SIGINT)
            assert watch.wait(10 * PATIENCE) == 130
        finally:
            watch.kill()
            os.close(master)


def test_values_that_json_does_not_know(world: World) -> None:
    """Bytes come in base64, times in ISO 8601, sets as lists, infinity as null."""
    body = "import datetime, math\ndef odd():\n    return {'b': b'\\x00\\xff', 'd': datetime.date(2024, 2, 29), 's': {1, 2}, 'i': math.inf, 3: 4}\n"
    world.serve("odd", '{"odd": odd}', body, config=FAST)
    assert look(world, "call", "odd")["result"] == {"b": "AP8=", "d": "2024-02-29", "s": [1, 2], "i": None, "3": 4}


def test_arguments_by_name_in_order_and_by_target(world: World) -> None:
    """A JSON object gives arguments by name, a list in order; `--target` chooses who answers."""
    for name in ("one", "two"):
        world.serve(name, '{"pair": pair}', "def pair(a: int, b: int) -> list:\n    return [a, b, node.name]\n", config=FAST)
    assert look(world, "call", "pair", '{"a": 1, "b": 2}', "--target", "two")["result"] == [1, 2, "two"]
    assert look(world, "call", "pair", "[1, 2]", "--target", "one")["result"] == [1, 2, "one"]


def test_options_may_stand_before_the_command(world: World) -> None:
    """`reachmesh-inspect --json --mesh x peers` is the same as the other way round."""
    world.serve("alpha", "{}", config=FAST)
    done = world.run("reachmesh-inspect", "--json", "--mesh", world.mesh, "peers", env={"REACHMESH_MESH": "elsewhere"})
    assert [row["node"] for row in json.loads(done.stdout)] == ["alpha"]


def test_the_port_of_a_serving_node_is_left_alone(world: World) -> None:
    """REACHMESH_BIND and REACHMESH_STATE_DIR of this host's node do not concern the inspector."""
    alpha = world.serve("alpha", "{}", config=FAST)
    port = alpha.lines[0].rpartition(":")[2]
    state = world.folder / "state"
    state.mkdir()
    env = {"REACHMESH_BIND": f"127.0.0.1:{port}", "REACHMESH_STATE_DIR": str(state)}
    done = world.run("reachmesh-inspect", "peers", "--json", env=env)
    assert [row["node"] for row in json.loads(done.stdout)] == ["alpha"], done.stderr
    assert list(state.iterdir()) == []


def test_doctor_finds_a_frozen_node(world: World) -> None:
    """A node that does not answer is named by the doctor, who asks the others all the same."""
    world.serve("alpha", "{}", config=FAST)
    frozen = world.serve("frozen", "{}", config=FAST)
    eventually(lambda: len(look(world, "peers")) == 2)
    frozen.freeze()
    checks = {check["name"]: check for check in look(world, "doctor")["checks"]}
    assert not checks["answers"]["ok"] or not checks["greeting"]["ok"]
    assert checks["nodes"]["ok"]
    assert look(world, "doctor")["security"] == "OPEN"


def test_config_shows_values_and_origins(world: World) -> None:
    """Each setting of a node with where it came from; secrets are not shown."""
    world.serve("calc", '{"half": len}', config={**FAST, "retries": 0}, env={"REACHMESH_DRAIN": "3"})
    (instance,) = look(world, "config", "calc")
    told = {each["name"]: (each["value"], each["origin"]) for each in instance["settings"]}
    assert told["retries"] == (0, "argument")
    assert told["drain"] == (3.0, "environment REACHMESH_DRAIN")
    assert told["mesh"] == (world.mesh, "environment REACHMESH_MESH")
    assert told["grace"] == (1.5, "default")
    done = world.run("reachmesh-inspect", "config", "calc")
    assert done.returncode == 0
    assert "environment REACHMESH_DRAIN" in done.stdout


def test_sub_tasks_are_counted_with_their_call(world: World) -> None:
    """Parts of a handler's work measured by `ctx.subtask` show in the record of its call, here and over the mesh."""
    body = "def work(ctx: Context) -> None:\n    with ctx.subtask('rest'):\n        time.sleep(0.05)\n    with ctx.subtask('rest'):\n        time.sleep(0.05)\n"
    world.serve("calc", '{"work": work}', body, config=FAST)
    app = world.node("app", config=FAST)
    app.wait_for("work", timeout=10)
    app.reach("work").call()
    (call,) = look(world, "status", "calc")["calls"]
    assert 100 <= call["subtasks_ms"]["rest"] <= call["duration_ms"] + 1


@pytest.mark.parametrize("where", [">&-", "2>&-", ">/dev/full"])
def test_an_answer_that_nobody_takes_is_no_traceback(world: World, where: str) -> None:
    """With its output closed the inspector does its work all the same; on a full disk it says so and fails."""
    world.serve("alpha", "{}", config=FAST)
    for form in ("--json", ""):
        done = world.run("sh", "-c", f"exec reachmesh-inspect peers {form} {where}")
        assert "Traceback" not in done.stderr
        assert done.returncode == (1 if "full" in where else 0), done.stderr


def test_bench_measures_a_capability(world: World) -> None:
    """Rate, percentiles, failures by code and who answered; what cannot be called at all is an error."""
    body = "import itertools\nturn = itertools.count()\ndef third(ok: bool = False) -> None:\n    assert ok or next(turn) % 3 == 0\n"
    for _ in range(2):
        world.serve("calc", '{"third": third}', body, config={**FAST, "breaker_consecutive": 10**6, "breaker_min_calls": 10**6})
    options = ["--seconds", "0.5", "--outstanding", "4"]
    report = look(world, "bench", "third", '{"ok": true}', *options)
    assert report["calls"] > 10
    assert report["failures"] == 0
    assert report["rate"] > 0
    assert 0 < report["p50_ms"] <= report["p99_ms"]
    assert sum(report["instances"].values()) == report["calls"]
    assert len(report["instances"]) == 2
    mixed = look(world, "bench", "third", *options)
    assert mixed["errors"] == {"remote_error": mixed["failures"]}
    assert 0 < mixed["failures"] < mixed["calls"]
    told = world.run("reachmesh-inspect", "bench", "third", '{"ok": true}', *options)
    assert "calls/s" in told.stdout
    assert "P50" in told.stdout
    look(world, "bench", "third", '{"wrong": 1}', *options, code=1)
