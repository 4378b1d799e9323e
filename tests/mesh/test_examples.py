"""The examples run as a person would run them: the scripts themselves, in processes of their own."""

from __future__ import annotations

import os
import re
import signal
import sys
import textwrap
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import psutil
import pytest

from reachmesh import SemanticError
from tests.support import Child, World, eventually

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
NEWSROOM = EXAMPLES / "newsroom" / "run.py"

Start = Callable[..., Child]


@pytest.fixture
def start(world: World) -> Iterator[Start]:
    """Runs a script of the examples beside the test, `start("hello/app.py")`, and ends it with the test."""
    with ExitStack() as running:

        def start(script: str | Path, *arguments: str, **env: str) -> Child:
            child = Child([sys.executable, "-u", str(EXAMPLES / script), *arguments], env=world.env | env, cwd=world.folder)
            running.callback(child.close)
            return child

        yield start


def ends_well(child: Child) -> None:
    """A serving script leaves the mesh on SIGTERM, with exit code 0."""
    child.terminate()
    assert child.wait() == 0, child.report()


def pids_of(output: str) -> set[int]:
    """Process ids of the instances that a newsroom's reader met."""
    return {int(pid) for pid in re.findall(r"met +[a-z]+-\S*?-(\d+)-[0-9a-f]+ at", output)}


def test_the_pair_answers(start: Start) -> None:
    """`hello`: the app prints the translator's answer, whichever of them comes first."""
    app = start("hello/app.py")
    translator = start("hello/translator.py")
    app.expect(r"^\[en\] hola$")
    assert app.wait() == 0, app.report()
    ends_well(translator)


def test_the_pair_of_the_readme_runs(start: Start, tmp_path: Path) -> None:
    """The two programs in the README work as they are printed there, and have at most eight lines each."""
    blocks = re.findall(r"^```python\n(.*?)^```", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    offering, calling = (textwrap.dedent(block) for block in blocks[:2])
    assert [len([line for line in block.splitlines() if line.strip()]) <= 8 for block in (offering, calling)] == [True, True]
    (tmp_path / "offering.py").write_text(offering, encoding="utf-8")
    (tmp_path / "calling.py").write_text(calling, encoding="utf-8")
    server = start(tmp_path / "offering.py")
    app = start(tmp_path / "calling.py")
    app.expect("hola")
    assert app.wait() == 0, app.report()
    ends_well(server)


def test_a_stream_ends_where_its_reader_leaves(start: Start) -> None:
    """`token_stream`: words come one by one, and the endless generator is closed when the reader has its three sentences."""
    model = start("token_stream/model.py")
    chat = start("token_stream/chat.py", "1")
    assert chat.wait() == 0, chat.report()
    words = chat.lines[0].split()
    assert sum(word.endswith((".", "!")) for word in words) == 3
    assert re.search(r"first word after \d+ ms, from model-", chat.lines[1])
    made = int(model.expect(r"closed after (\d+) words for chat")[1])
    assert made >= len(words)
    ends_well(model)


def test_the_newsroom_runs_end_to_end(world: World) -> None:
    """`newsroom`: seven agents are met, both shelves are searched, summaries are shared out, lines come one by one, nobody stays."""
    done = world.run(sys.executable, str(NEWSROOM), "--topic", "compress data", timeout=100)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "8 processes ended; not with exit code 0: none" in done.stdout
    met = pids_of(done.stdout)
    assert len(met) == 7, done.stdout
    assert len(set(re.findall(r" search +(search-\S+) answered", done.stdout))) == 2
    assert set(re.findall(r" summarize +([a-z]+)-\S+ answered", done.stdout)) == {"summary"}
    lines = [float(at) for at in re.findall(r"^ *([\d.]+) s +line ", done.stdout, re.MULTILINE)]
    assert len(lines) >= 5
    assert lines[-1] - lines[0] > 0.2, "the lines came all at once"
    assert "compress" in done.stdout
    assert not any(psutil.pid_exists(pid) for pid in met)


def test_ctrl_c_ends_the_newsroom(start: Start) -> None:
    """An interrupted newsroom takes all of its processes with it."""
    newsroom = start(NEWSROOM)
    newsroom.expect("started")
    children = psutil.Process(newsroom.pid).children(recursive=True)
    assert len(children) == 8
    newsroom.signal(signal.SIGINT)
    assert newsroom.wait() == 130, newsroom.report()
    eventually(lambda: not any(child.is_running() for child in children))


def test_a_part_that_cannot_start_ends_the_newsroom(start: Start) -> None:
    """An agent that ends by itself is named, and the others are ended too."""
    newsroom = start(NEWSROOM, "--lan", "--mesh", f"examples-{os.getpid()}", "press", REACHMESH_BIND="nonsense")
    assert newsroom.wait(60) == 1, newsroom.report()
    assert "press.py ended with exit code 1" in newsroom.stderr


def test_the_newsroom_names_its_parts(start: Start) -> None:
    """A part that does not exist is a usage error that starts nothing."""
    newsroom = start(NEWSROOM, "printer")
    assert newsroom.wait() == 2
    assert "no such part: printer" in newsroom.stderr


def test_the_router_takes_the_fitting_model_or_the_other(world: World, start: Start) -> None:
    """`model_router`: prompts go to the model of their size while it is there, else to the other one; no model is an error with a code."""
    large, router = start("model_router/model.py", "large"), start("model_router/router.py")
    node = world.node()
    node.wait_for("chat", timeout=20)
    node.wait_for("complete", timeout=20)
    chat = node.reach("chat", idle_timeout=20)
    who, *words = chat.stream(prompt="no small one yet")
    assert (who.startswith("model-large-"), words) == (True, ["yet", "one", "small", "no"])
    small = start("model_router/model.py", "small")
    node.wait_for("complete", count=2, timeout=20)
    assert eventually(lambda: next(iter(chat.stream(prompt="short"))).startswith("model-small-"))
    assert next(iter(chat.stream(prompt="a much longer prompt than that other one " * 2))).startswith("model-large-")
    with pytest.raises(SemanticError) as refused:
        list(chat.stream(prompt="short", model="huge"))
    assert refused.value.code == "no_model"
    for child in (large, small, router):
        ends_well(child)


def test_the_adapter_speaks_for_the_old_system(world: World, start: Start) -> None:
    """`legacy_adapter`: answers are values, refusals have codes, its silence too."""
    old = start("legacy_adapter/old_system.py", "0")
    port = old.expect(r"listening on (\d+)")[1]
    adapter = start("legacy_adapter/adapter.py", f"127.0.0.1:{port}")
    node = world.node()
    node.wait_for("stock", timeout=20)
    stock = node.reach("stock", timeout=20)
    assert [stock.call(article=each) for each in ("bolt", "washer")] == [1200, 0]

    def code_of(article: str) -> str:
        with pytest.raises(SemanticError) as refused:
            stock.call(article=article)
        return refused.value.code

    assert [code_of("gear"), code_of("bolt\r\nQTY")] == ["unknown_article", "bad_article"]
    old.kill()
    assert code_of("bolt") == "old_system_down"
    ends_well(adapter)
