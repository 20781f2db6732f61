from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace

from standby.core import admit
from standby.core.admit import Room
from standby.core.explain import GateName, House, gate
from standby.core.model import Lease, Mode, Order, OrderState, PoolSettings, Slot, SlotState, Template
from tests.rows import NOW, host, order, pool, slot


def _room(**parts: Any) -> Room:
    base: dict[str, Any] = {
        "host": host(memory_mb=1_024),
        "pools": {"default": pool(slots_max=4)},
        "slots": [slot(1), slot(2)],
        "opened": [],
        "project_open": {},
        "project_max": {},
    }
    return Room(**{**base, **parts})


def _waiting(number: int, **columns: Any) -> Order:
    return order(**{"id": f"order-{number:02}", "rank": NOW + number, **columns})


def _ids(plan: admit.Plan) -> list[str]:
    return [admission.order.id for admission in plan.admissions]


def test_orders_are_served_by_rank_then_id() -> None:
    waiting = [_waiting(3, rank=NOW), _waiting(2, rank=NOW), _waiting(1, rank=NOW + 1)]
    assert _ids(admit.admit(_room(), waiting)) == ["order-02", "order-03"]


def test_a_slot_that_was_never_used_comes_first_then_the_least_recently_used() -> None:
    slots = [slot(1, last_used_at=NOW - 1), slot(2, last_used_at=NOW - 9), slot(3)]
    plan = admit.admit(_room(slots=slots), [_waiting(n) for n in (1, 2, 3)])
    assert [admission.slot.name[-1] for admission in plan.admissions] == ["3", "2", "1"]


def test_demand_beyond_the_free_slots_is_wanted_up_to_the_maximum() -> None:
    plan = admit.admit(_room(host=host()), [_waiting(n) for n in range(9)])
    assert len(plan.admissions) == 2 and plan.wanted == {"default": 2}


def test_the_last_place_of_a_pool_is_wanted_once() -> None:
    room = _room(slots=[], pools={"default": pool(slots_max=1)})
    assert admit.admit(room, [_waiting(1), _waiting(2)]).wanted == {"default": 1}


def test_a_held_slot_is_not_given_twice() -> None:
    held = order(OrderState.RUNNING, id="held", slot=slot(1).name)
    plan = admit.admit(_room(opened=[held]), [_waiting(1), _waiting(2)])
    assert [admission.slot.name for admission in plan.admissions] == [slot(2).name]


def test_only_idle_slots_are_given() -> None:
    slots = [slot(n, state=state) for n, state in enumerate(SlotState) if state is not SlotState.IDLE]
    assert admit.admit(_room(slots=slots), [_waiting(1)]).admissions == []


def test_nobody_overtakes_an_order_that_waits_for_memory() -> None:
    big, small = _waiting(1, memory_mb=1_000), _waiting(2, memory_mb=10)
    running = order(OrderState.RUNNING, id="held", slot="other", memory_mb=100)
    assert _ids(admit.admit(_room(opened=[running]), [big, small])) == []


def test_an_order_that_can_never_fit_holds_up_nobody() -> None:
    assert _ids(admit.admit(_room(), [_waiting(1, memory_mb=2_000), _waiting(2)])) == ["order-02"]


def test_an_order_that_waits_for_a_slot_too_holds_up_no_other_pool() -> None:
    pools = {"default": pool(slots_max=1), "other": pool("other", slots_max=1)}
    slots = [slot(1), slot(2, pool="other")]
    waiting = [_waiting(1), _waiting(2, memory_mb=1_000), _waiting(3, pool="other")]
    assert _ids(admit.admit(_room(pools=pools, slots=slots), waiting)) == ["order-01", "order-03"]


def test_memory_may_be_used_up_to_the_last_megabyte_and_no_further() -> None:
    exact = [_waiting(1, memory_mb=1_000), _waiting(2, memory_mb=24)]
    over = [
        _waiting(1, memory_mb=400),
        _waiting(2, memory_mb=400),
        _waiting(3, memory_mb=400),
        _waiting(4, memory_mb=1),
    ]
    room = _room(slots=[slot(n) for n in (1, 2, 3, 4)])
    assert _ids(admit.admit(room, exact)) == ["order-01", "order-02"]
    assert _ids(admit.admit(room, [_waiting(1, memory_mb=1_024)])) == ["order-01"]
    assert _ids(admit.admit(room, over)) == ["order-01", "order-02"]


def test_an_order_whose_end_is_not_saved_yet_holds_its_memory() -> None:
    ending = order(OrderState.RUNNING, id="held", slot=slot(1).name, memory_mb=1_000)
    assert _ids(admit.admit(_room(ending=[ending]), [_waiting(1, memory_mb=25)])) == []
    assert _ids(admit.admit(_room(ending=[ending]), [_waiting(1, memory_mb=24)])) == ["order-01"]


def test_an_order_as_large_as_the_host_is_waited_for() -> None:
    running = order(OrderState.RUNNING, id="held", slot="other", memory_mb=100)
    assert _ids(admit.admit(_room(opened=[running]), [_waiting(1, memory_mb=1_024), _waiting(2)])) == []


def test_slots_that_are_wanted_reserve_memory_and_places_of_the_project() -> None:
    slots = [slot(1, state=SlotState.CREATING), slot(2, state=SlotState.CREATING)]
    large = [_waiting(1, memory_mb=600), _waiting(2, memory_mb=600)]
    limited = [_waiting(n, project="a") for n in (1, 2, 3)]
    assert admit.admit(_room(slots=slots), large).spoken == {"default": 1}
    assert admit.admit(_room(slots=slots, project_max={"a": 2}), limited).spoken == {"default": 2}


def test_a_project_is_counted_up_to_its_limit() -> None:
    waiting = [_waiting(n, project="ab"[n % 2]) for n in range(8)]
    room = _room(host=host(), slots=[slot(n) for n in range(8)], project_open={"a": 1}, project_max={"a": 3, "b": 1})
    assert _ids(admit.admit(room, waiting)) == ["order-00", "order-01", "order-02"]


def test_a_full_pool_holds_up_no_other_pool_and_one_that_is_not_here_takes_nothing() -> None:
    pools = {"default": pool(slots_max=0), "other": pool("other", slots_max=1)}
    waiting = [_waiting(1), _waiting(2, pool="elsewhere"), _waiting(3, pool="other")]
    plan = admit.admit(_room(pools=pools, slots=[slot(1, pool="other")]), waiting)
    assert (_ids(plan), plan.wanted) == (["order-03"], {})


def test_a_pool_with_more_slots_than_it_may_have_makes_no_more() -> None:
    slots = [slot(n, state=SlotState.REMOVING) for n in (1, 2)]
    room = _room(slots=slots, pools={"default": pool(slots_max=1)})
    assert admit.admit(room, [_waiting(1)]).wanted == {} and admit.takes(room, room.pools["default"]) == 0


@pytest.mark.parametrize(("slots_max", "taken"), [(0, 0), (1, 0), (2, 1), (3, 2)])
def test_a_pool_that_was_made_smaller_gives_no_slot_above_its_maximum(slots_max: int, taken: int) -> None:
    busy = order(OrderState.RUNNING, id="busy", slot=slot(1).name)
    slots = [slot(n) for n in (1, 2, 3)]
    room = _room(slots=slots, opened=[busy], pools={"default": pool(slots_max=slots_max)})
    plan = admit.admit(room, [_waiting(n) for n in range(4)])
    assert len(plan.admissions) == admit.takes(room, room.pools["default"]) == taken
    assert plan.wanted == {}


def test_a_project_at_its_limit_is_passed_over_and_makes_no_slots() -> None:
    room = _room(project_open={"a": 1}, project_max={"a": 1}, slots=[])
    plan = admit.admit(room, [_waiting(1, project="a"), _waiting(2, project="b")])
    assert plan.wanted == {"default": 1}


def test_a_limit_of_zero_means_none_may_run() -> None:
    assert _ids(admit.admit(_room(project_max={"a": 0}), [_waiting(1, project="a")])) == []


def test_a_paused_pool_or_host_takes_nothing_and_makes_nothing() -> None:
    for room in (
        _room(pools={"default": pool(slots_max=4, mode=Mode.PAUSED)}),
        _room(host=host(mode=Mode.DRAINING)),
    ):
        plan = admit.admit(room, [_waiting(1)])
        assert (list(plan.admissions), dict(plan.wanted)) == ([], {})
        assert admit.takes(room, room.pools["default"]) == 0


def test_what_a_pool_takes_counts_free_coming_and_possible_slots() -> None:
    slots = [slot(1), slot(2, state=SlotState.CREATING), slot(3, state=SlotState.ERROR)]
    assert admit.takes(_room(slots=slots), pool(slots_max=4)) == 3


_orders = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 700), st.integers(0, 50)), max_size=30).map(
    lambda rows: [
        _waiting(n, project=project, memory_mb=memory, rank=NOW + rank)
        for n, (project, memory, rank) in enumerate(rows)
    ]
)
_slots = st.lists(st.sampled_from([*SlotState, *[SlotState.IDLE] * 9]), max_size=6).map(
    lambda states: [slot(n, state=state) for n, state in enumerate(states, 1)]
)


@given(_orders, _slots, st.integers(0, 2_000), st.dictionaries(st.sampled_from("abc"), st.integers(0, 3)))
def test_no_limit_is_ever_exceeded(
    waiting: list[Order], slots: list[Slot], memory_mb: int, limits: dict[str, int | None]
) -> None:
    room = _room(host=host(memory_mb=memory_mb), slots=slots, project_max=limits, pools={"default": pool(slots_max=6)})
    plan = admit.admit(room, waiting)
    taken = [admission.slot.name for admission in plan.admissions]
    admitted = [admission.order for admission in plan.admissions]
    assert len(set(taken)) == len(taken)
    assert sum(row.memory_mb for row in admitted) <= memory_mb
    assert (
        len(slots) + max(0, plan.wanted.get("default", 0) - sum(s.state in ("creating", "cleaning") for s in slots))
        <= 6
    )
    for project, limit in limits.items():
        assert limit is None or sum(row.project == project for row in admitted) <= limit


@given(
    waiting=_orders,
    slots=_slots,
    keyed=st.sets(st.integers(0, 29)),
    place=st.sampled_from([{}, {"memory_mb": 900}, {"cpus": 1.0}, {"starts_max": 2}, {"start_gap_ms": 5}]),
    settings=st.sampled_from([{}, {"running_max": 1}, {"starts_per_minute": 60}, {"template": Template(image="i")}]),
    limits=st.dictionaries(st.sampled_from("abc"), st.none() | st.integers(0, 3)),
)
def test_the_short_way_through_the_gates_gives_the_same_as_the_long_one(
    waiting: list[Order],
    slots: list[Slot],
    keyed: set[int],
    place: dict[str, Any],
    settings: dict[str, Any],
    limits: dict[str, int | None],
) -> None:
    orders = [replace(row, concurrency_key=f"k{n % 3}") if n in keyed else row for n, row in enumerate(waiting)]
    home = pool(settings=PoolSettings(slots_max=6, **settings))
    room = _room(
        host=host(**{"memory_mb": None, **place}),
        pools={"default": home},
        slots=slots,
        project_max=limits,
        missing=frozenset({"i"}),
        now=NOW,
    )
    short, begins = admit.admit(room, orders), admit.only_wait_for_a_start(room, orders)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(admit._Share, "_open", lambda _: {})
        assert (admit.admit(room, orders), admit.only_wait_for_a_start(room, orders)) == (short, begins)


@given(
    slots=_slots,
    held=st.integers(0, 6),
    memory_mb=st.none() | st.integers(0, 2_000),
    open_runs=st.integers(0, 2),
    modes=st.tuples(st.sampled_from([Mode.OPEN, Mode.OPEN, Mode.PAUSED]), st.sampled_from([Mode.OPEN, Mode.DRAINING])),
)
def test_an_order_alone_is_admitted_exactly_when_nothing_but_its_turn_holds_it(
    slots: list[Slot], held: int, memory_mb: int | None, open_runs: int, modes: tuple[Mode, Mode]
) -> None:
    place, home = host(memory_mb=memory_mb, mode=modes[0]), pool(slots_max=6, mode=modes[1])
    idle = [row for row in slots if row.state is SlotState.IDLE]
    holders = {row.name: order(OrderState.RUNNING, id=row.name, slot=row.name) for row in idle[:held]}
    room = Room(
        host=place,
        pools={"default": home},
        slots=slots,
        opened=list(holders.values()),
        project_open={"default": open_runs},
        project_max={"default": 2},
    )
    house = House(
        pool=home,
        host=place,
        lease=Lease(host="local", owner="a", epoch=1, until=NOW + 1, renewed_at=NOW),
        slots=slots,
        holders=holders,
        project_open=open_runs,
        project_max=2,
        now=NOW,
    )
    shut = gate(_waiting(1), house)
    assert shut is not None
    assert bool(admit.admit(room, [_waiting(1)]).admissions) is (shut.name is GateName.TURN)
