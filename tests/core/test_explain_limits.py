"""The reasons that limits, keys, rates and turns give: they are true, and change when the gate opens."""

from collections import Counter
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from standby.core import admit
from standby.core.explain import Gate, GateName, House, Turn, gate, what_follows
from standby.core.model import Lease, Order, OrderState, Override, PoolSettings
from standby.core.room import Room
from tests.rows import NOW, host, order, pool, slot

LEASE = Lease(host="local", owner="a", epoch=1, until=NOW + 1, renewed_at=NOW)
RUNS = order(OrderState.RUNNING, id="other", project="a", concurrency_key="k", memory_mb=0)
RUNS_HERE = order(OrderState.RUNNING, id="here", memory_mb=60, cpus=1.0)


def _house(**parts: Any) -> House:
    settings = PoolSettings(slots_max=4, **parts.pop("settings", {}))
    base: dict[str, Any] = {
        "pool": pool(settings=settings, overrides=parts.pop("overrides", {})),
        "host": host(),
        "lease": LEASE,
        "slots": [slot(1), slot(2)],
        "holders": {},
        "project_open": 0,
        "project_max": None,
        "now": NOW,
    }
    return House(**{**base, **parts})


def _gate(row: Order, house: House) -> Gate:
    found = gate(row, house)
    assert found is not None
    return found


def test_a_pool_at_its_running_limit_says_so_until_a_run_has_ended() -> None:
    held = {"slot-1": RUNS, "elsewhere": order(OrderState.RUNNING, pool="another")}
    shut = _house(settings={"running_max": 1}, holders=held)
    found = _gate(order(), shut)
    assert (found.name, found.text) == (GateName.POOL_LIMIT, "pool default has 1 open run and may have 1")
    assert list(found.holders) == [RUNS.id]
    assert _gate(order(), replace(shut, holders={})).name is GateName.TURN


def test_a_limit_of_zero_says_who_set_it_and_how_to_raise_it() -> None:
    by_ada = {name: Override(value=0, actor="ada", at=NOW) for name in ("running_max", "starts_per_minute")}
    none = _gate(order(), _house(settings={"running_max": 0}, overrides=by_ada))
    assert none.text == "pool default has 0 open runs and may have 0 (set by ada)"
    told = "nothing happens by itself; raise it: standby pools set default running_max=N"
    assert what_follows(order(), none) == told
    never = _gate(order(), _house(settings={"starts_per_minute": 0}, overrides=by_ada))
    assert (never.name, never.text) == (GateName.START_RATE, "pool default may begin 0 runs a minute (set by ada)")
    assert (never.opens_at, never.follows) == (None, "raise it: standby pools set default starts_per_minute=N")
    project = _gate(order(), _house(project_max=0))
    assert project.text == "project default may have no open runs"
    assert project.follows == "raise it: standby projects set default running_max=N"


def test_a_start_rate_says_when_the_next_run_may_begin() -> None:
    house = _house(settings={"starts_per_minute": 60}, last_start=NOW - 400)
    shut = _gate(order(), house)
    assert (shut.name, shut.opens_at) == (GateName.START_RATE, NOW + 600)
    assert shut.text == "pool default may begin 60 runs a minute"
    assert _gate(order(), replace(house, last_start=NOW - 1_000)).name is GateName.TURN
    assert _gate(order(), replace(house, last_start=None)).name is GateName.TURN


def test_a_concurrency_key_names_who_has_it() -> None:
    mine = order(id="mine", project="a", concurrency_key="k", rank=NOW)
    before = replace(mine, id="before", rank=NOW - 1)
    elsewhere = replace(before, id="elsewhere", pool="another")
    later = replace(mine, id="later", rank=None, due_at=NOW + 1)
    runs = _gate(mine, _house(contenders={"k": [before, RUNS, mine]}))
    assert (runs.name, runs.text) == (GateName.CONCURRENCY_KEY, "order other runs with the same concurrency key, k")
    waits = _gate(mine, _house(contenders={"k": [elsewhere, before, later, mine]}))
    text = "order before is before it with the same concurrency key, k"
    assert waits == Gate(GateName.CONCURRENCY_KEY, text, needed=1, free=0, holders=["before"])
    assert _gate(mine, _house(contenders={"k": [elsewhere, later, mine]})).name is GateName.TURN
    assert _gate(order(), _house(contenders={"k": [RUNS]})).name is GateName.TURN


def test_a_turn_says_the_place_in_the_lane_and_who_takes_turns() -> None:
    text = _gate(order(project="a"), _house(turn=Turn(3, ["b", "c"]))).text
    assert text == "it is number 3 of project a, which takes turns by weight with b, c"
    many = _gate(order(), _house(turn=Turn(1, ["b", "c", "d", "e", "f"]))).text
    assert many.endswith("with b, c, d, e and others")
    assert _gate(order(), _house(turn=Turn(1, ["b", "c", "d", "e"]))).text.endswith("with b, c, d, e")
    assert _gate(order(), _house(turn=Turn(1, []))).text == "it is served as soon as its turn comes"


def test_who_is_behind_the_first_of_its_lane_that_waits_for_room_is_told_for_what_that_waits() -> None:
    tight = {"host": host(memory_mb=100, cpus=2.0), "holders": {"slot-1": RUNS_HERE}}
    for needs, name, text in (
        ({"memory_mb": 50}, GateName.MEMORY, "needs 50 MB; 40 of 100 MB on host local are free"),
        ({"memory_mb": 0, "cpus": 1.5}, GateName.CPUS, "needs 1.5 processors; 1 of 2 on host local are free"),
    ):
        found = _gate(order(memory_mb=0, cpus=0.5), _house(**tight, first=order(id="first", **needs)))
        assert (found.name, found.text) == (name, f"order first, the first of its lane, {text}")
        assert what_follows(order(), found) == "it starts when that has started, and those before it are served"


@pytest.mark.parametrize("first", [order(id="first", memory_mb=0), order(id="first", memory_mb=101)])
def test_nobody_waits_behind_one_that_starts_next_or_never_does(first: Order) -> None:
    tight = {"host": host(memory_mb=100), "holders": {"slot-1": RUNS_HERE}}
    assert _gate(order(memory_mb=0), _house(**tight, first=first)).name is GateName.TURN


def test_who_is_behind_another_and_waits_for_something_else_is_told_what_is_true_of_both() -> None:
    first = order(id="first", memory_mb=50)
    tight = {"host": host(memory_mb=100), "holders": {"slot-1": RUNS_HERE}, "first": first}
    making = _house(**tight, slots=[slot(1)])
    assert _gate(order(memory_mb=0), replace(making, first=None)).name is GateName.SLOTS, "it would be made for it"
    assert _gate(order(memory_mb=0), making).name is GateName.MEMORY
    assert _gate(order(memory_mb=41), making).text == "needs 41 MB; 40 of 100 MB on host local are free"
    assert _gate(first, making).text == "needs 50 MB; 40 of 100 MB on host local are free"
    never = _gate(order(memory_mb=101), making)
    assert (never.name, never.stuck) == (GateName.MEMORY, True)


LIMITED = {GateName.PROJECT_LIMIT, GateName.POOL_LIMIT, GateName.START_RATE, GateName.CONCURRENCY_KEY}


@pytest.mark.parametrize("key", [None, "k", "l"])
@given(
    project_max=st.none() | st.integers(0, 2),
    running_max=st.none() | st.integers(0, 2),
    rate=st.none() | st.integers(0, 60),
    last_start=st.integers(NOW - 70_000, NOW),
    open_runs=st.integers(0, 1),
)
def test_the_reason_is_the_gate_that_admission_finds_shut(
    key: str | None, project_max: int | None, running_max: int | None, rate: int | None, last_start: int, open_runs: int
) -> None:
    settings = PoolSettings(slots_max=4, running_max=running_max, starts_per_minute=rate)
    place, row = pool(settings=settings), order(id="mine", project="a", concurrency_key=key, memory_mb=0)
    opened = [replace(RUNS, slot=slot(1).name)][:open_runs]
    slots = [slot(1), slot(2)]
    room = Room(
        host=host(),
        pools={"default": place},
        slots=slots,
        opened=opened,
        project_open=Counter(each.project for each in opened),
        project_max={"a": project_max},
        now=NOW,
        pool_started={"default": last_start},
    )
    house = House(
        pool=place,
        host=host(),
        lease=LEASE,
        slots=slots,
        holders={each.slot or "": each for each in opened},
        project_open=len(opened),
        project_max=project_max,
        now=NOW,
        contenders={"k": opened},
        last_start=last_start,
    )
    shut = _gate(row, house)
    assert bool(admit.admit(room, [row]).admissions) is (shut.name is GateName.TURN)
    assert shut.name in LIMITED | {GateName.TURN}
