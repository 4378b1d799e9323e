"""How a node derives its own state."""

from __future__ import annotations

import pytest

from reachmesh.errors import ConfigError
from reachmesh.membership.config import MembershipConfig, preset
from reachmesh.membership.states import Load, OwnState, State


def own(**settings: float) -> OwnState:
    state = OwnState(preset("lan", **settings))
    state.started(0.0)
    return state


def after(state: OwnState, load: Load, now: float) -> State:
    """The state once the load has lasted."""
    state.set_load(load, now)
    state.tick(now + 1)
    return state.state


TABLE = [
    (Load(), State.HEALTHY, "room"),
    (Load(outstanding=8, limit=10), State.HEALTHY, "room"),
    (Load(outstanding=9, limit=10), State.BUSY, "9 of 10"),
    (Load(outstanding=500, limit=0), State.HEALTHY, "room"),
    (Load(full="hold"), State.BUSY, "hold"),
    (Load(failure_rate=0.5), State.DEGRADED, "failure rate"),
    (Load(queue=1000), State.DEGRADED, "queue"),
    (Load(loop_lag_ms=1500), State.DEGRADED, "loop lag"),
    (Load(outstanding=10, limit=10, queue=1000), State.DEGRADED, "queue"),
    (Load(p95_ms=1e9), State.HEALTHY, "room"),
]


@pytest.mark.parametrize(("load", "state", "reason"), TABLE)
def test_the_rules_one_can_read(load: Load, state: State, reason: str) -> None:
    """Each row of the rules gives its state, with a reason."""
    machine = own()
    assert after(machine, load, 2.0) is state
    assert reason in machine.reason if state is not State.HEALTHY else not machine.tick(9.0)


def test_states_do_not_flutter() -> None:
    """BUSY ends below 75 % only, and a burst shorter than the hold changes nothing."""
    machine = own()
    assert after(machine, Load(outstanding=9, limit=10), 1.0) is State.BUSY
    assert after(machine, Load(outstanding=8, limit=10), 3.0) is State.BUSY
    assert after(machine, Load(outstanding=7, limit=10), 5.0) is State.HEALTHY
    machine.set_load(Load(outstanding=9, limit=10), 7.0)
    assert machine.due() == 7.25
    machine.set_load(Load(), 7.1)
    assert not machine.tick(8.0)
    assert machine.due() == float("inf")


def test_draining_and_left_are_final() -> None:
    """No load brings a node back from DRAINING, and nothing from LEFT."""
    machine = own()
    machine.drain()
    assert after(machine, Load(), 1.0) is State.DRAINING
    machine.leave()
    machine.drain()
    assert after(machine, Load(outstanding=9, limit=9), 2.0) is State.LEFT


@pytest.mark.parametrize(
    ("settings", "word"),
    [
        ({"heartbeat_period": 0}, "heartbeat_period"),
        ({"heartbeat_period": True}, "heartbeat_period"),
        ({"probe_after": 3.5}, "probe_after"),
        ({"busy_clear": 0.95}, "busy_clear"),
        ({"nonsense": 1}, "nonsense"),
    ],
)
def test_settings_out_of_range_are_named(settings: dict[str, float], word: str) -> None:
    """A wrong figure is a ConfigError that names it."""
    with pytest.raises(ConfigError, match=word):
        preset("lan", **settings)


def test_presets_have_the_promised_figures() -> None:
    """Lan 5 s x 3, calm 15 s with 60 s to suspicion and 90 to loss, fast 1 s x 4."""

    def promised(config: MembershipConfig) -> tuple[float, float, float]:
        period = config.heartbeat_period
        return period, config.suspect_after * period, (config.suspect_after + config.suspicion_wait) * period

    assert promised(preset("lan"))[:2] == (5, 15)
    assert promised(preset("calm")) == (15, 60, 90)
    assert promised(preset("fast"))[:2] == (1, 4)
    with pytest.raises(ConfigError, match="lan, calm, fast"):
        preset("slow")
