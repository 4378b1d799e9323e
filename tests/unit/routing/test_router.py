"""Promises of the router: who takes a call, and what is said when nobody does."""

from __future__ import annotations

import random
import time
from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from reachmesh.errors import BreakerOpen, ConfigError, NoProvider, VersionMismatch
from reachmesh.resilience.breaker import BreakerConfig
from reachmesh.routing import NoPick, Outcome, Provider, Router, RouteRequest, RoutingConfig, check_version
from reachmesh.routing.explain import explain_nobody


def boot(n: int) -> bytes:
    """Boot id of instance n."""
    return n.to_bytes(8, "big")


def provider(n: int, capability: str = "job", **fields: Any) -> Provider:
    """Instance n, on the router's own host unless said otherwise."""
    return Provider(boot=boot(n), instance_id=f"i{n}", capability=capability, **{"name": "worker", "host": "here", **fields})


def router(*providers: Provider, zone: str | None = None, seed: int = 1, now: float = 0.0, **settings: Any) -> Router:
    """A router that has known `providers` from its start."""
    made = Router(RoutingConfig(**settings), random.Random(seed), zone=zone, host="here", now=now)
    for each in providers:
        made.put(each.boot, [each], now)
    return made


def ask(made: Router, now: float = 1.0, exclude: tuple[bytes, ...] = (), **options: Any) -> str:
    """Instance id picked, or the kind of the refusal."""
    picked = made.pick(RouteRequest(**{"capability": "job", **options}), now, exclude)
    return picked.kind if isinstance(picked, NoPick) else picked.instance_id


def spread(made: Router, calls: int, now: float = 1.0, **options: Any) -> Counter[str]:
    """How often each instance is picked when every call ends at once."""
    return Counter(ask(made, now, **options) for _ in range(calls))


def run(made: Router, n: int, outcome: Outcome, now: float, latency: float = 0.01, level: int = 0) -> None:
    """One attempt at instance n that ends at `now`."""
    made.started(boot(n), "job", now - latency)
    made.finished(boot(n), "job", outcome, latency, level, now)


def test_nobody_offers_it_names_near_spellings_and_the_command() -> None:
    """A capability that nobody offers is refused at once, with near spellings and the command that diagnoses it."""
    made = router(provider(1, "translate"))
    refusal = made.pick(RouteRequest(capability="tranlsate"), 1.0)
    assert isinstance(refusal, NoPick)
    assert (refusal.kind, refusal.near) == ("none", ("translate",))
    error = refusal.error()
    assert isinstance(error, NoProvider)
    assert "translate" in str(error)
    assert "reachmesh-inspect caps" in error.hint
    assert error.retryable is False
    assert made.fallback_count == 1


def test_tags_choose_and_zone_is_a_tag() -> None:
    """Only instances whose tags match are picked; a sequence of values matches any; the zone is a tag too."""
    made = router(provider(1, tags={"size": "7b"}), provider(2, tags={"size": "70b"}), provider(3, zone="z3"))
    assert set(spread(made, 20, tags={"size": "70b"})) == {"i2"}
    assert set(spread(made, 60, tags={"size": ["7b", "70b"]})) == {"i1", "i2"}
    assert set(spread(made, 20, tags={"zone": "z3"})) == {"i3"}
    assert ask(made, tags={"size": "1b"}) == "no_match"


def test_target_takes_node_name_instance_id_or_boot() -> None:
    """`target` is a node name, an instance id, or the boot that a caller has chosen itself."""
    made = router(provider(1, name="first"), provider(2, name="second"))
    assert set(spread(made, 10, target="second")) == {"i2"}
    assert set(spread(made, 10, target="i1")) == {"i1"}
    assert set(spread(made, 10, target=boot(2))) == {"i2"}
    assert ask(made, target="third") == "no_match"


def test_a_version_outside_is_refused_with_both_ranges() -> None:
    """Versions between compatible_from and version are answered, others refused as VersionMismatch with what is offered."""
    made = router(provider(1, version="3", compatible_from="2"))
    assert ask(made, version="2") == "i1"
    assert ask(made, version="2.5") == "i1"
    refusal = made.pick(RouteRequest(capability="job", version="4"), 1.0)
    assert isinstance(refusal, NoPick)
    assert isinstance(refusal.error(), VersionMismatch)
    assert "version 4 asked, 2 to 3 offered" in refusal.message


@pytest.mark.parametrize("state", ["STARTING", "DRAINING", "LOST", "LEFT", "SOMETHING"])
def test_only_working_states_are_asked(state: str) -> None:
    """An instance that starts, drains or is gone takes no call, not even as the only one."""
    made = router(provider(1, state=state), provider(2))
    assert set(spread(made, 20)) == {"i2"}
    made.remove(boot(2), 1.0)
    assert ask(made) == "suspended"


def test_a_suspected_instance_is_the_last_resort() -> None:
    """A suspected instance gets no call while another is there, and gets them when nobody else is left."""
    made = router(provider(1, suspected=True), provider(2))
    assert set(spread(made, 20)) == {"i2"}
    made.remove(boot(2), 1.0)
    assert ask(made) == "i1"
    assert made.fallback_count == 1


def test_ready_are_those_who_take_calls_whatever_the_call() -> None:
    """Who drains, is suspected or ejected is not ready; who has weight 0 or takes shadow calls only is, for a call may ask for it."""
    made = router(
        provider(1),
        provider(2, state="DRAINING"),
        provider(3, suspected=True),
        provider(4),
        provider(5, weight=0.0),
        provider(6, tags={"shadow": "true"}),
    )
    for n in range(5):
        run(made, 4, Outcome.FAILED, 1.0 + n)
    assert [each.instance_id for each in made.ready("job", 6.0)] == ["i1", "i5", "i6"]
    assert [each.instance_id for each in made.ready("job", 60.0)] == ["i1", "i4", "i5", "i6"]
    assert made.ready("nothing", 6.0) == []
    assert made.fallback_count == 0


def test_excluded_instances_are_not_asked_again() -> None:
    """`exclude` leads the next attempt elsewhere, and says so when nobody else is there."""
    made = router(provider(1), provider(2))
    assert {ask(made, exclude=(boot(1),)) for _ in range(20)} == {"i2"}
    assert ask(made, exclude=(boot(1), boot(2))) == "excluded"


def test_a_record_that_comes_again_keeps_what_was_measured() -> None:
    """A changed record of the same boot keeps outstanding calls and breaker; a removed instance is forgotten."""
    made = router(provider(1, max_concurrent=1), provider(2))
    made.started(boot(1), "job", 1.0)
    made.put(boot(1), [provider(1, max_concurrent=1, state="BUSY")], 1.0)
    assert set(spread(made, 20)) == {"i2"}
    made.put(boot(1), [provider(1, "other")], 1.0)
    assert [each.instance_id for each in made.providers("job")] == ["i2"]
    assert made.capabilities() == ["job", "other"]
    made.finished(boot(1), "job", Outcome.OK, 0.1, 0, 2.0)


def test_a_full_window_is_skipped_while_another_has_room() -> None:
    """An instance at 90 % of its concurrency is skipped, and used again when all are full."""
    made = router(provider(1, max_concurrent=10), provider(2, max_concurrent=10))
    for _ in range(9):
        made.started(boot(1), "job", 1.0)
    assert set(spread(made, 30)) == {"i2"}
    first, second = made.explain(RouteRequest(capability="job"), 1.0)
    assert (first.usable, second.usable) == (False, True)
    assert "window full" in first.reason
    for _ in range(9):
        made.started(boot(2), "job", 1.0)
    assert set(spread(made, 60)) == {"i1", "i2"}


def test_weight_zero_takes_calls_only_alone() -> None:
    """Weight 0 (or nonsense such as NaN) takes no call while another weight is above it, and all of them when alone."""
    made = router(provider(1, weight=0.0), provider(2, weight=float("nan")), provider(3))
    assert set(spread(made, 30)) == {"i3"}
    made.remove(boot(3), 1.0)
    assert set(spread(made, 60)) == {"i1", "i2"}


@pytest.mark.parametrize("strategy", ["p2c", "weighted_random", "round_robin", "least_outstanding"])
def test_a_new_instance_ramps_and_a_founding_one_does_not(strategy: str) -> None:
    """A newcomer begins at a tenth of its share and ends at the full one, under every strategy; the first ones never ramp."""
    made = router(provider(1), provider(2))
    assert 250 < spread(made, 600, now=1.0, strategy=strategy)["i1"] < 350
    made.put(boot(2), [], 100.0)
    made.put(boot(2), [provider(2, since=100.0)], 100.0)
    early = spread(made, 600, now=100.0, strategy=strategy)["i2"]
    middle = spread(made, 600, now=130.0, strategy=strategy)["i2"]
    late = spread(made, 600, now=161.0, strategy=strategy)["i2"]
    assert 0 < early < 80
    assert early < middle < late
    assert 250 < late < 350


def test_the_only_instance_does_not_ramp() -> None:
    """A new instance that is alone takes every call."""
    made = router()
    made.put(boot(1), [provider(1, since=50.0)], 50.0)
    assert spread(made, 20, now=50.0) == {"i1": 20}


def test_canary_shares_and_what_they_leave() -> None:
    """A share of 0.3 for version 2 gives it about that, the rest goes elsewhere; shares over 1 are taken in proportion."""
    made = router(provider(1, node_version="1"), provider(2, node_version="2"))
    assert 240 < spread(made, 1000, version={"2": 0.3})["i2"] < 360
    assert 40 < spread(made, 1000, version={"1": 0.9, "2": 0.1})["i2"] < 160
    assert 400 < spread(made, 1000, version={"1": 5, "2": 5})["i2"] < 600
    assert spread(made, 50, version={"2": 0}) == {"i1": 50}


def test_a_canary_is_switched_off_by_a_share_of_zero() -> None:
    """With 0 for version 2 everything goes elsewhere, and to version 2 only when nobody else is there."""
    made = router(provider(1, version="1"), provider(2, version="2"))
    assert set(spread(made, 50, version={"2": 0})) == {"i1"}
    assert set(spread(router(provider(2, version="2")), 20, version={"2": 0.0})) == {"i2"}
    with pytest.raises(ConfigError):
        check_version({})


def test_a_canary_without_usable_instance_is_no_outage() -> None:
    """When the drawn version has nobody usable the call goes to whoever is there; with nobody elsewhere shares are relative."""
    made = router(provider(1, node_version="1"), provider(2, node_version="2", state="LOST"))
    assert spread(made, 50, version={"2": 0.5}) == {"i1": 50}
    alone = router(provider(2, node_version="2"))
    assert spread(alone, 50, version={"2": 0.1}) == {"i2": 50}


def test_a_session_keeps_its_version_share() -> None:
    """A session draws its canary once, not with every call."""
    made = router(provider(1, node_version="1"), provider(2, node_version="2"))
    homes = [spread(made, 10, version={"2": 0.5}, session=f"s{n}") for n in range(40)]
    assert all(len(each) == 1 for each in homes)
    assert {next(iter(each)) for each in homes} == {"i1", "i2"}


def test_shadow_instances_take_shadow_calls_only() -> None:
    """An instance tagged shadow gets no normal call; a shadow call prefers it and does without when there is none."""
    made = router(provider(1), provider(2, tags={"shadow": "true"}))
    assert spread(made, 20) == {"i1": 20}
    assert spread(made, 20, shadow=True) == {"i2": 20}
    assert ask(made, target="i2") == "i2"
    made.remove(boot(2), 1.0)
    assert ask(made, shadow=True) == "i1"


def test_zone_first_then_host_and_spill_over() -> None:
    """Calls stay in the own zone and on the own host while that has room, and leave when it is full, loaded or gone."""
    here, zone, away = provider(1, zone="z1"), provider(2, zone="z1", host="there"), provider(3, zone="z2")
    made = router(here, zone, away, zone="z1", spill_outstanding=4)
    assert spread(made, 30) == {"i1": 30}
    for _ in range(4):
        made.started(boot(1), "job", 1.0)
    assert set(spread(made, 60)) <= {"i1", "i2"}
    assert "i2" in spread(made, 60)
    made.put(boot(1), [provider(1, zone="z1", state="DRAINING")], 1.0)
    assert spread(made, 30) == {"i2": 30}
    made.remove(boot(2), 1.0)
    assert spread(made, 30) == {"i3": 30}


def test_pick_all_is_everybody_who_can_answer() -> None:
    """`pick_all` gives each usable match once, whatever weight, zone and window, without drained and shadow ones."""
    made = router(
        provider(1, weight=0.0), provider(2, zone="far"), provider(3, state="DRAINING"), provider(4, tags={"shadow": True}), zone="z1"
    )
    assert [each.instance_id for each in made.pick_all(RouteRequest(capability="job"), 1.0)] == ["i1", "i2"]
    assert made.pick_all(RouteRequest(capability="nothing"), 1.0) == []


def test_five_failures_in_a_row_eject_one_instance_of_one_capability() -> None:
    """A breaker takes out one instance for one capability, with an event, and nothing else."""
    made = router(*(provider(n) for n in (1, 2, 3)))
    made.put(boot(1), [provider(1), provider(1, "other")], 1.0)
    for n in range(5):
        assert "i1" in spread(made, 90, now=1.0, strategy="round_robin")
        run(made, 1, Outcome.FAILED, 1.0 + n * 0.01)
    assert set(spread(made, 60, now=1.1)) == {"i2", "i3"}
    assert ask(made, now=1.1, target="i1") == "breaker"
    assert ask(made, now=1.1, capability="other") == "i1"
    (event,) = made.take_events()
    assert (event.kind, event.instance_id, event.capability) == ("breaker_opened", "i1", "job")
    verdict = made.explain(RouteRequest(capability="job"), 1.1)[0]
    assert not verdict.usable
    assert "open for another" in verdict.reason


def test_a_half_open_instance_gets_one_probe_and_three_good_ones_close_it() -> None:
    """After its opening one call at a time probes the instance; the third good answer closes it, with an event."""
    made = router(provider(1), provider(2), provider(3))
    for _ in range(5):
        run(made, 1, Outcome.FAILED, 1.0)
    made.take_events()
    assert "i1" not in spread(made, 50, now=5.9)
    for n in range(3):
        now = 6.1 + n
        assert ask(made, now=now) == "i1"
        made.started(boot(1), "job", now)
        assert "i1" not in spread(made, 50, now=now)
        made.finished(boot(1), "job", Outcome.OK, 0.0, 0, now)
    assert [each.kind for each in made.take_events()] == ["breaker_closed"]
    assert "i1" in spread(made, 50, now=9.0, strategy="round_robin")


def test_a_cancelled_probe_frees_its_place() -> None:
    """A probe that ends without telling anything lets the next one go."""
    made = router(provider(1), provider(2))
    for _ in range(5):
        run(made, 1, Outcome.FAILED, 1.0)
    assert ask(made, now=7.0) == "i1"
    made.started(boot(1), "job", 7.0)
    assert ask(made, now=7.0) == "i2"
    made.finished(boot(1), "job", Outcome.IGNORED, 0.0, 0, 7.1)
    assert ask(made, now=7.2) == "i1"


def test_never_more_than_half_are_ejected() -> None:
    """With everybody failing, half of the instances stay in; the only one always stays in."""
    made = router(*(provider(n) for n in range(5)))
    for n in range(5):
        for _ in range(30):
            run(made, n, Outcome.FAILED, 1.0)
    assert len(spread(made, 300, now=1.1)) == 3
    assert [each.kind for each in made.take_events()] == ["breaker_opened"] * 2
    alone = router(provider(1))
    for _ in range(30):
        run(alone, 1, Outcome.FAILED, 1.0)
    assert ask(alone) == "i1"
    assert alone.take_events() == []


def test_ejections_shrink_with_the_group() -> None:
    """When healthy instances leave, ejections over half are released."""
    made = router(*(provider(n) for n in range(4)))
    for n in range(2):
        for _ in range(5):
            run(made, n, Outcome.FAILED, 1.0)
    assert set(spread(made, 60, now=1.1)) == {"i2", "i3"}
    made.remove(boot(2), 1.2)
    assert len(spread(made, 100, now=1.2, strategy="round_robin")) == 2
    made.remove(boot(3), 1.2)
    assert "i1" in spread(made, 100, now=1.2, strategy="round_robin")


def test_a_caller_with_a_fallback_obeys_even_the_last_breaker() -> None:
    """The lone instance is never ejected, but a call with a fallback is told that its breaker is open instead of waiting."""
    made = router(provider(1))
    for _ in range(5):
        run(made, 1, Outcome.FAILED, 1.0)
    assert ask(made, now=1.1) == "i1"
    refusal = made.pick(RouteRequest(capability="job", fail_fast=True), 1.1)
    assert isinstance(refusal, NoPick)
    assert isinstance(refusal.error(), BreakerOpen)
    assert 4.0 < refusal.retry_after <= 5.0
    assert ask(made, now=6.5, fail_fast=True) == "i1"
    made.started(boot(1), "job", 6.5)
    assert ask(made, now=6.6, fail_fast=True) == "breaker"


def test_panic_ignores_breakers_of_a_filtered_few() -> None:
    """When under half of those who match are left, open breakers are ignored rather than every call refused."""
    made = router(provider(1, tags={"gpu": "a"}), provider(2), provider(3))
    for _ in range(5):
        run(made, 1, Outcome.FAILED, 1.0)
    assert "i1" not in spread(made, 30, now=1.1)
    assert ask(made, now=1.1, tags={"gpu": "a"}) == "i1"
    assert made.fallback_count == 1


@pytest.mark.parametrize("outcome", [Outcome.IGNORED, Outcome.OK])
def test_cancels_and_bad_requests_never_open_a_breaker(outcome: Outcome) -> None:
    """Outcomes that say nothing about the instance leave its breaker alone."""
    made = router(provider(1), provider(2))
    for _ in range(100):
        run(made, 1, outcome, 1.0)
    assert made.take_events() == []
    assert "i1" in spread(made, 60)


def test_a_callers_one_millisecond_timeout_is_not_the_instances_fault() -> None:
    """A timeout shorter than the capability usually takes is not counted; one that waited long enough is."""
    made = router(provider(1), provider(2))
    for _ in range(10):
        run(made, 1, Outcome.OK, 1.0, latency=0.05)
    for _ in range(50):
        run(made, 1, Outcome.TIMEOUT, 1.1, latency=0.001)
    assert made.take_events() == []
    for _ in range(5):
        run(made, 1, Outcome.TIMEOUT, 1.2, latency=1.0)
    assert [each.kind for each in made.take_events()] == ["breaker_opened"]


def test_an_instance_that_refuses_fast_does_not_draw_calls() -> None:
    """Refusals for want of room open no breaker, but weigh on the share: the instance gets far less than its fifth, and recovers."""
    made = router(*(provider(n) for n in range(5)))
    counts: Counter[str] = Counter()
    for step in range(600):
        now = 1.0 + step / 100
        who = ask(made, now)
        counts[who] += 1
        refused = who == "i0"
        run(made, int(who[1:]), Outcome.REFUSED if refused else Outcome.OK, now, latency=0.0001 if refused else 0.005)
    assert counts["i0"] < 60
    assert made.take_events() == []
    for _ in range(60):
        run(made, 0, Outcome.OK, 40.0, latency=0.005)
    assert spread(made, 300, now=60.0)["i0"] > 40


def test_timeouts_under_the_usual_time_count_only_in_a_row() -> None:
    """Callers who wait 0.5 s for what takes 2 s open the breaker when nobody else is answered, and never while somebody is."""
    made = router(provider(1), provider(2))
    for _ in range(10):
        run(made, 1, Outcome.OK, 1.0, latency=2.0)
    for _ in range(50):
        for _ in range(4):
            run(made, 1, Outcome.TIMEOUT, 1.1, latency=0.5)
        run(made, 1, Outcome.OK, 1.1, latency=2.0)
    assert made.take_events() == []
    for _ in range(5):
        run(made, 1, Outcome.TIMEOUT, 1.2, latency=0.5)
    assert [each.kind for each in made.take_events()] == ["breaker_opened"]


STEPS = st.lists(
    st.tuples(
        st.sampled_from(["join", "join", "leave", "state", "call", "call", "call"]),
        st.integers(0, 5),
        st.sampled_from([*Outcome, Outcome.FAILED, Outcome.FAILED, Outcome.TIMEOUT]),
        st.integers(1, 25),
        st.sampled_from([0.0, 0.1, 1.0, 8.0]),
    ),
    min_size=30,
    max_size=80,
)


@given(STEPS)
def test_whatever_happens_half_stay_in_and_somebody_is_asked(steps: list[tuple[str, int, Outcome, int, float]]) -> None:
    """Over any interleaving of joins, leaves, states and outcomes: at most half of the live instances are ejected, and a call finds one."""
    made, now = router(panic_share=0.0), 0.0  # panic would hide what is ejected
    live: dict[int, bool] = {}
    for verb, n, outcome, times, pause in steps:
        now += pause
        if verb == "leave":
            made.remove(boot(n), now)
            live.pop(n, None)
        elif verb == "call" and n in live:
            for _ in range(times):
                run(made, n, outcome, now, latency=min(now, 0.5))
        elif verb != "call":
            live[n] = verb == "join" or times % 2 == 0
            made.put(boot(n), [provider(n, state="HEALTHY" if live[n] else "DRAINING")], now)
        verdicts = made.explain(RouteRequest(capability="job"), now)
        routable = [each for each in verdicts if live[int(each.instance_id[1:])]]
        out = [each for each in routable if not each.usable]
        assert len(out) <= len(routable) // 2, out
        if routable:
            assert ask(made, now) in {each.instance_id for each in routable}


def test_a_session_stays_and_moves_once_with_an_event() -> None:
    """A session keeps its instance through newcomers and moves, with one event, when that is not usable."""
    made = router(*(provider(n) for n in range(3)))
    homes = {f"s{n}": ask(made, session=f"s{n}") for n in range(60)}
    assert len(set(homes.values())) == 3
    made.put(boot(9), [provider(9, since=2.0)], 2.0)
    assert {session: ask(made, session=session) for session in homes} == homes
    assert made.take_events() == []
    made.put(boot(0), [provider(0, state="DRAINING")], 3.0)
    moved = {session: ask(made, now=3.0, session=session) for session in homes}
    assert {s for s in homes if homes[s] != moved[s]} == {s for s in homes if homes[s] == "i0"}
    events = made.take_events()
    assert {each.kind for each in events} == {"session_moved"}
    assert len(events) == sum(home == "i0" for home in homes.values())
    assert {session: ask(made, now=3.0, session=session) for session in homes} == moved


def test_two_callers_place_a_session_alike() -> None:
    """Routers that see the same instances send a session to the same one without talking."""
    one, other = (router(*(provider(n) for n in order), seed=seed) for order, seed in ((range(5), 1), (reversed(range(5)), 2)))
    assert [ask(one, session=f"s{n}") for n in range(50)] == [ask(other, session=f"s{n}") for n in range(50)]


def test_a_retry_elsewhere_does_not_move_the_session() -> None:
    """One attempt that had to avoid the session's instance leaves the session where it is."""
    made = router(provider(1), provider(2))
    home = ask(made, session="s")
    number = int(home[1:])
    assert ask(made, session="s", exclude=(boot(number),)) != home
    assert ask(made, session="s") == home
    assert made.take_events() == []


def test_session_memory_is_bounded() -> None:
    """More sessions than the memory holds cost no more memory, only the event."""
    made = router(provider(1), provider(2), session_memory=10)
    for n in range(1000):
        ask(made, session=f"s{n}")
    assert len(made._sessions) == 10


def test_low_priority_is_refused_here_when_everybody_asks_to_slow_down() -> None:
    """Under backpressure the window toward an instance closes: others are preferred, and low priority is refused at the caller."""
    made = router(provider(1), provider(2))
    for _ in range(40):
        made.started(boot(1), "job", 1.0)
    for n in range(10):
        made.finished(boot(1), "job", Outcome.OK, 0.1, 255, 1.0 + n)
    assert set(spread(made, 60, now=11.0)) == {"i2"}
    made.remove(boot(2), 11.0)
    assert ask(made, now=11.0) == "i1"
    assert ask(made, now=11.0, priority=10) == "i1"
    refusal = made.pick(RouteRequest(capability="job", priority=200), 11.0)
    assert isinstance(refusal, NoPick)
    assert refusal.kind == "backpressure"
    assert refusal.retry_after > 0


def test_a_users_own_objects_are_not_called_inside() -> None:
    """`candidates` shows what a strategy needs; picking the chosen boot as target leads exactly there."""
    made = router(provider(1, weight=2.0), provider(2, state="LOST"), provider(3, suspected=True), provider(4))
    request = RouteRequest(capability="job", strategy=object())
    seen = made.candidates(request, 1.0)
    assert [(each.instance_id, each.weight, each.outstanding) for each in seen] == [("i1", 2.0, 0), ("i4", 1.0, 0)]
    assert ask(made, target=seen[1].boot) == "i4"
    assert made.candidates(RouteRequest(capability="none"), 1.0) == []


def test_unknown_strategies_are_errors() -> None:
    """A misspelt strategy raises and changes nothing."""
    made = router(provider(1), provider(2))
    with pytest.raises(ConfigError, match="p2x"):
        made.pick(RouteRequest(capability="job", strategy="p2x"), 1.0)
    with pytest.raises(ConfigError):
        router(strategy="p2x")


def test_explain_names_everybody_with_factors_and_reason() -> None:
    """Each instance is listed with the factors of its weight and a reason one can read; nobody for an unknown capability."""
    made = router(provider(1, weight=2.0), provider(2, state="DEGRADED"), provider(3, state="DRAINING"), provider(4, tags={"a": 1}))
    seen = made.explain(RouteRequest(capability="job"), 1.0)
    assert [each.instance_id for each in seen] == ["i1", "i2", "i3", "i4"]
    assert all(each.reason and each.factors for each in seen)
    assert [each.usable for each in seen] == [True, True, False, True]
    assert (seen[0].factors["weight"], seen[1].factors["state"]) == (2.0, 0.2)
    assert "DRAINING" in seen[2].reason
    assert made.explain(RouteRequest(capability="none"), 1.0) == []


def test_figures_change_at_run_time() -> None:
    """`reconfigure` applies to the next pick and refuses what is wrong without changing anything."""
    made = router(provider(1), provider(2))
    made.reconfigure(strategy="primary_backup")
    assert len(spread(made, 30)) == 1
    with pytest.raises(ConfigError):
        made.reconfigure(strategy="nothing")
    assert len(spread(made, 30)) == 1


def test_breaker_figures_come_from_the_configuration() -> None:
    """The breaker's figures are settings: with 1,000 as limits a hundred failures open nothing."""
    made = router(provider(1), provider(2), breaker=BreakerConfig(consecutive=1000, min_calls=1000))
    for _ in range(100):
        run(made, 1, Outcome.FAILED, 1.0)
    assert made.take_events() == []


@pytest.mark.parametrize("names", [["ab" * 120 + f"{i:05d}" for i in range(5000)], ["ab" * 29 + f"{i:05d}" for i in range(5000)]])
def test_a_mistyped_name_costs_little_whatever_peers_offer(names: list[str]) -> None:
    """Thousands of long and similar names do not hold up the engine while it looks for a near spelling; the message stays short."""
    began = time.process_time()
    told = explain_nobody(RouteRequest(capability="ab" * 29 + "xx"), names)
    assert time.process_time() - began < 0.3
    assert len(told.message) + len(told.hint) < 4000
    assert explain_nobody(RouteRequest(capability="translte"), ["translate", *names]).near == ("translate",)
