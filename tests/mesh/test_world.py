"""The world of processes that the other tests here stand on."""

from __future__ import annotations

from tests.support import World, eventually


def test_nodes_of_a_world_meet_and_end(world: World) -> None:
    """A served function is found and called from the test's own node; SIGTERM ends the child with exit code 0."""
    child = world.serve("greeter", caps='{"greet": greet}', body="def greet(name):\n    return f'hello {name}'")
    node = world.node()
    node.wait_for("greet", timeout=10)
    assert node.reach("greet").call("world") == "hello world"
    child.terminate()
    child.expect("STOPPED")
    assert child.wait() == 0
    eventually(lambda: not node.providers("greet"))


def test_worlds_do_not_meet(world: World) -> None:
    """Two worlds at the same time on one machine see nothing of each other."""
    with World() as other:
        other.serve("greeter", caps='{"greet": len}')
        mine, theirs = world.node(), other.node()
        theirs.wait_for("greet", timeout=10)
        assert mine.providers("greet") == []
