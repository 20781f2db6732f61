"""Each gate tells the truth: what is needed and free, who holds it, what happens next; and it changes as it opens."""

from typing import Any

import pytest
from msgspec import Struct

from standby.core import explain
from standby.core.explain import Gate, GateName, House
from standby.core.model import (
    Lease,
    Level,
    Mode,
    Order,
    OrderState,
    Pool,
    PoolSettings,
    Project,
    SlotState,
    Template,
    Warmth,
)
from standby.core.places import TRIES_AFTER_MS
from standby.core.sighting import ImageState
from tests.core.test_gate import place, pool_of
from tests.rows import NOW, host, order, pool, slot

LEASE = Lease(host="local", owner="a", epoch=1, until=NOW + 60_000, renewed_at=NOW)
OF, LIVE = pool_of(slots_max=2, image="a:1"), pool_of(slots_max=1, warmth=Warmth.RUNNING)
IMAGE = ImageState(host="local", image="a:1", at=NOW, present=False)


def run(number: int, **columns: Any) -> Order:
    row = {"id": f"run-{number}", "slot": slot(number).name, "commanded_at": NOW - number, "memory_mb": 200}
    return order(OrderState.RUNNING, **{**row, **columns})


def held(*runs: Order) -> dict[str, Order]:
    return {each.slot: each for each in runs if each.slot is not None}


SEATS: dict[str, Any] = {
    "pool": pool(slots_max=2),
    "host": host(memory_mb=600),
    "lease": LEASE,
    "slots": [slot(1), slot(2)],
    "holders": {},
    "project_open": 0,
    "project_max": None,
    "now": NOW,
}
PLACES: dict[str, Any] = {
    **SEATS,
    "seats": False,
    "pool": OF,
    "pools": {"default": OF},
    "slots": [place(1, OF), place(2, OF)],
    "host_slots": [place(1, OF), place(2, OF)],
}
FLYING = held(run(2, ready_at=None))


CORES = pool(settings=PoolSettings(slots_max=2, template=Template(cpus=1.5)))


def limited(**settings: Any) -> Pool:
    return pool(settings=PoolSettings(slots_max=2, **settings))


class Case(Struct, frozen=True):
    """A gate, shut and open, and what is told of it while it is shut."""

    name: GateName
    shut: dict[str, Any]
    opens: dict[str, Any]
    told: dict[str, Any] = {}
    next: str = ""
    row: Order | None = None
    among: dict[str, Any] | None = None
    then: GateName | None = GateName.TURN


CASES = {
    "no leader": Case(
        GateName.HOST_NOT_LED,
        {"lease": None},
        {"lease": LEASE},
        {"stuck": True},
        "nothing happens by itself; "
        "it goes on as soon as a server leads the host; its queue time stands still meanwhile",
    ),
    "unreachable": Case(
        GateName.HOST_UNREACHABLE,
        {"host": host(unreachable_since=NOW, error="gone")},
        {"host": host()},
        {},
        "it goes on as soon as the host answers; its queue time stands still meanwhile",
    ),
    "host paused": Case(
        GateName.HOST_MODE,
        {"host": host(mode=Mode.PAUSED)},
        {"host": host()},
        {"stuck": True},
        "nothing happens by itself; it goes on when somebody resumes the host; its queue time stands still meanwhile",
    ),
    "pool draining": Case(
        GateName.POOL_MODE,
        {"pool": pool(mode=Mode.DRAINING)},
        {"pool": pool()},
        {"stuck": True},
        "nothing happens by itself; it goes on when somebody resumes the pool; its queue time stands still meanwhile",
    ),
    "project at its limit": Case(
        GateName.PROJECT_LIMIT,
        {"project_open": 2, "project_max": 2, "project_holders": [run(1), run(2)]},
        {"project_open": 1, "project_holders": [run(2)]},
        {"needed": 1, "free": 0, "holders": ["run-2", "run-1"]},
        "it starts when a run of its project has ended and those before it are served",
    ),
    "project at zero": Case(
        GateName.PROJECT_LIMIT,
        {"project_max": 0},
        {"project_max": 1},
        {"needed": 1, "free": 0, "stuck": True},
        "nothing happens by itself; raise it: standby projects set default running_max=N",
    ),
    "host critical": Case(
        GateName.PRESSURE,
        {"host": host(pressure=Level.CRITICAL, pressure_since=NOW, pressure_cause="full"), "measured_at": NOW},
        {"host": host()},
        {},
        "it starts when the host is calm again and those before it are served",
    ),
    "project paused": Case(
        GateName.PROJECT_MODE,
        {"project": Project(name="default", mode=Mode.PAUSED)},
        {"project": Project(name="default")},
        {"stuck": True},
        "nothing happens by itself; it goes on when somebody resumes the project; it does not expire meanwhile",
    ),
    "pool at its limit": Case(
        GateName.POOL_LIMIT,
        {"pool": limited(running_max=1), "holders": held(run(1))},
        {"holders": held()},
        {"needed": 1, "free": 0, "holders": ["run-1"]},
        "it starts when a run of the pool has ended and those before it are served",
    ),
    "start rate": Case(
        GateName.START_RATE,
        {"pool": limited(starts_per_minute=60), "last_start": NOW - 400},
        {"last_start": NOW - 1_000},
        {"opens_at": NOW + 600},
        "it starts when the rate allows it and those before it are served",
    ),
    "concurrency key": Case(
        GateName.CONCURRENCY_KEY,
        {"contenders": {"k": [run(1, concurrency_key="k")]}},
        {"contenders": {"k": []}},
        {"needed": 1, "free": 0, "holders": ["run-1"]},
        "it starts when that has ended, and those before it are served",
        row=order(concurrency_key="k"),
    ),
    "processors": Case(
        GateName.CPUS,
        {"host": host(cpus=2.0), "pool": CORES, "pools": {"default": CORES}, "holders": held(run(2))},
        {"holders": held()},
        {"holders": ["run-2"]},
        "it starts when runs on the host have ended and enough processors are free",
    ),
    "processors that the host does not have": Case(
        GateName.CPUS,
        {"host": host(cpus=2.0)},
        {"host": host(cpus=4.0)},
        {"stuck": True},
        "nothing happens by itself; cancel it and ask for less, or raise the host's cpus",
        row=order(cpus=4.0),
    ),
    "all slots taken": Case(
        GateName.SLOTS,
        {"holders": held(run(1), run(2))},
        {"holders": held(run(1))},
        {"needed": 1, "free": 0, "holders": ["run-2", "run-1"]},
        "it starts when a slot comes free and those before it are served",
    ),
    "more busy than allowed": Case(
        GateName.SLOTS,
        {"pool": pool(slots_max=1), "holders": held(run(1), run(2))},
        {"holders": held()},
        {"needed": 1, "free": 0, "holders": ["run-2", "run-1"]},
        "it starts when fewer than 1 are busy and those before it are served",
    ),
    "pool at zero": Case(
        GateName.SLOTS,
        {"pool": pool(slots_max=0)},
        {"pool": pool(slots_max=1)},
        {"needed": 1, "free": 0, "stuck": True},
        "nothing happens by itself; raise it: standby pools set default slots_max=N",
    ),
    "slot being made": Case(
        GateName.SLOTS,
        {"slots": []},
        {"slots": [slot(1)]},
        {},
        "it starts when one is made and those before it are served",
    ),
    "memory": Case(
        GateName.MEMORY,
        {"holders": held(run(1, memory_mb=500))},
        {"holders": {}},
        {"needed": 256, "free": 100, "holders": ["run-1"]},
        "it starts when runs on the host have ended and enough memory is free",
    ),
    "memory for ever": Case(
        GateName.MEMORY,
        {"host": host(memory_mb=255)},
        {"host": host(memory_mb=256)},
        {"needed": 256, "free": 255, "stuck": True},
        "nothing happens by itself; cancel it and ask for less, or raise the host's memory_mb",
    ),
    "breaker": Case(
        GateName.BREAKER,
        {"pool": pool_of(slots_max=2, image="a:1", failures=5, broken_at=NOW - 9)},
        {"pool": OF},
        {"opens_at": NOW - 9 + TRIES_AFTER_MS},
        "one is tried every 5 minutes; sooner: standby pools reset-breaker default",
        among=PLACES,
    ),
    "image": Case(
        GateName.IMAGE,
        {"image": IMAGE, "slots": [], "host_slots": []},
        {"image": None},
        {},
        "it goes on when the image is there",
        among=PLACES,
        then=GateName.SLOTS,
    ),
    "starts": Case(
        GateName.STARTS,
        {"host": host(starts_max=1), "holders": FLYING},
        {"holders": {}},
        {"needed": 1, "free": 0, "holders": ["run-2"]},
        "it starts when a start in flight has come through and those before it are served",
        among=PLACES,
    ),
    "no starts at all": Case(
        GateName.STARTS,
        {"host": host(starts_max=0)},
        {"host": host(starts_max=1)},
        {"needed": 1, "free": 0, "stuck": True},
        "nothing happens by itself; raise it in the configuration",
        among=PLACES,
    ),
    "gap between starts": Case(
        GateName.STARTS,
        {"host": host(start_gap_ms=5_000), "holders": held(run(2, commanded_at=NOW - 2_000))},
        {"now": NOW + 3_000},
        {"opens_at": NOW + 3_000},
        "it starts when the gap is over and those before it are served",
        among=PLACES,
    ),
    "its own time": Case(
        GateName.NOT_BEFORE,
        {},
        {},
        {"opens_at": NOW + 9_000},
        "it is queued when the time it asked for has come",
        row=order(rank=None, due_at=NOW + 9_000),
        then=None,
    ),
    "a retry": Case(
        GateName.RETRY_WAIT,
        {},
        {},
        {"opens_at": NOW + 5_000},
        "it is queued again when its retry time has come",
        row=order(OrderState.WAITING_RETRY),
        then=None,
    ),
}
NOTHING: dict[str, Any] = {"needed": None, "free": None, "holders": [], "opens_at": None, "stuck": False}


def found(case: Case, row: Order, **parts: Any) -> Gate:
    gate = explain.gate(row, House(**{**(case.among or SEATS), **parts}))
    assert gate is not None
    return gate


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_gate_tells_the_truth_while_it_is_shut_and_another_one_when_it_opens(case: Case) -> None:
    row = case.row or order()
    gate = found(case, row, **case.shut)
    told = {name: getattr(gate, name) for name in NOTHING} | {"holders": list(gate.holders)}
    assert (gate.name, told) == (case.name, {**NOTHING, **case.told})
    assert explain.what_follows(row, gate) == case.next
    opened = found(case, row if case.then is None else order(), **{**case.shut, **case.opens})
    assert opened.name is (case.then or case.name)
    assert case.then is None or not opened.stuck


def test_every_gate_but_the_turn_is_tried_here() -> None:
    assert {case.name for case in CASES.values()} == set(GateName) - {GateName.TURN}


def test_a_host_that_lost_its_leader_a_moment_ago_may_get_another_one_by_itself() -> None:
    lease = Lease(host="local", owner="a", epoch=1, until=NOW, renewed_at=NOW - 10_000)
    for passed_ms, stuck in ((0, False), (10_000, False), (10_001, True)):
        gate = explain.gate(order(), House(**{**SEATS, "lease": lease, "now": NOW + passed_ms}))
        assert gate is not None and (gate.name, gate.stuck) == (GateName.HOST_NOT_LED, stuck)


def test_a_gap_matters_only_to_those_who_start_something() -> None:
    handed = {
        **PLACES,
        "pool": LIVE,
        "pools": {"default": LIVE},
        "slots": [place(1, LIVE)],
        "host_slots": [place(1, LIVE)],
    }
    making = place(2, LIVE, SlotState.CREATING, state_since=NOW - 1_000)
    gap = {"host": host(start_gap_ms=5_000), "host_slots": [place(1, LIVE), making]}
    gate = explain.gate(order(), House(**{**handed, **gap}))
    assert gate is not None and gate.name is GateName.TURN


def test_the_gap_says_when_the_last_start_was() -> None:
    parts = {"host": host(start_gap_ms=5_000), "holders": held(run(2, commanded_at=NOW - 2_000))}
    gate = explain.gate(order(), House(**{**PLACES, **parts}))
    assert gate is not None
    assert gate.text == "the last start on host local was 2 s ago, and two are 5 s apart"


def test_no_more_than_twenty_holders_are_named_and_the_oldest_first() -> None:
    runs = [run(number) for number in range(1, 31)]
    full = {"pool": pool(slots_max=30), "slots": [slot(number) for number in range(1, 31)], "host": host()}
    gate = explain.gate(order(), House(**{**SEATS, **full, "holders": held(*runs)}))
    assert gate is not None and list(gate.holders) == [f"run-{number}" for number in range(30, 10, -1)]
