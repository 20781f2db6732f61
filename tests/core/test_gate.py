"""The deploy gate, memory of live places, images and breakers, as admission decides about them."""

from typing import Any

import pytest
from msgspec.structs import replace

from standby.core import admit, places, warm
from standby.core.admit import Room
from standby.core.model import Host, Order, OrderState, Pool, PoolSettings, Reset, Slot, SlotState, Template, Warmth
from tests.rows import NOW, host, order, pool, slot

S = SlotState


def pool_of(name: str = "default", warmth: Warmth = Warmth.CREATED, *, image: str | None = None, **keys: Any) -> Pool:
    """A pool of containers."""
    own = {key: keys.pop(key) for key in list(keys) if key in PoolSettings.__struct_fields__}
    settings = PoolSettings(**{"memory_mb": 100, "slots_max": 4, **own}, template=Template(warmth=warmth, image=image))
    return replace(pool(name), settings=settings, **keys)


def place(number: int, of: Pool, state: SlotState = S.IDLE, **columns: Any) -> Slot:
    """A slot of a pool, made of what it wants."""
    named = {"name": f"standby-pool-{of.name}-{number:03}", "pool": of.name, "template": warm.made_of(of, False)}
    return slot(number, state, **{"incarnation": f"{of.name}#{number}", **named, **columns})


def room(*pools: Pool, slots: list[Slot] | None = None, on: Host | None = None, **parts: Any) -> Room:
    base: dict[str, Any] = {"opened": [], "project_open": {}, "project_max": {}, "seats": False, "now": NOW}
    named = {each.name: each for each in pools}
    return Room(host=on or host(), pools=named, slots=slots or [], **{**base, **parts})


def waiting(number: int, **columns: Any) -> Order:
    return order(**{"id": f"order-{number:02}", "rank": NOW + number, "memory_mb": 100, **columns})


def opened(number: int, state: OrderState = OrderState.PREPARING, **columns: Any) -> Order:
    return order(state, **{"id": f"open-{number}", "slot": f"standby-pool-default-{number:03}", **columns})


def served(plan: admit.Plan) -> list[str]:
    return [admission.order.id for admission in plan.admissions]


CREATED, RUNNING = pool_of(), pool_of("live", Warmth.RUNNING)


def test_only_so_many_starts_begin_as_are_allowed_and_the_rest_is_held_by_rank() -> None:
    found = admit.admit(
        room(CREATED, slots=[place(n, CREATED) for n in range(1, 5)], on=host(starts_max=2)),
        [waiting(3), waiting(1), waiting(2)],
    )
    assert [(each.order.id, each.nth) for each in found.admissions] == [("order-01", 1), ("order-02", 2)]
    assert [each.id for each in found.held] == ["order-03"]
    assert (found.permits, found.starting) == (0, 2)


@pytest.mark.parametrize(
    ("columns", "counts"),
    [
        ({"state": OrderState.PREPARING}, True),
        ({"state": OrderState.STOPPING, "ready_at": None}, True),
        ({"state": OrderState.RUNNING}, False),
        ({"state": OrderState.RUNNING, "unsaved": True}, True),
        ({"state": OrderState.PREPARING, "pool": "live"}, False),
    ],
)
def test_a_run_holds_a_permit_until_it_is_known_to_be_ready(columns: dict[str, Any], counts: bool) -> None:
    run = opened(1, **{name: value for name, value in columns.items() if name != "unsaved"})
    unsaved = "unsaved" in columns
    found = room(
        CREATED, RUNNING, slots=[place(2, CREATED)], opened=[run], unsaved={run.id} if unsaved else frozenset()
    )
    assert found.starting == counts
    assert replace(found, opened=[], ending=[run]).starting == counts


@pytest.mark.parametrize("state", list(SlotState))
def test_a_slot_holds_a_permit_while_it_is_being_made(state: SlotState) -> None:
    cold = pool_of("cold", Warmth.COLD)
    making = room(CREATED, RUNNING, cold, slots=[place(1, CREATED, state), place(1, RUNNING, state)])
    assert making.starting == (2 if state is S.CREATING else 0)
    assert replace(making, slots=[place(1, cold, state)]).starting == 0


def test_making_a_slot_for_an_order_takes_a_permit_and_one_that_is_coming_needs_none() -> None:
    found = admit.admit(
        room(CREATED, slots=[place(1, CREATED, S.CREATING)], on=host(starts_max=2)), [waiting(n) for n in (1, 2, 3)]
    )
    assert (found.wanted, found.spoken, [each.id for each in found.held]) == (
        {"default": 1},
        {"default": 2},
        ["order-03"],
    )
    assert (found.permits, found.starting) == (0, 2)


def test_live_slots_take_work_while_no_start_is_allowed() -> None:
    shut = host(starts_max=0)
    found = admit.admit(room(CREATED, RUNNING, slots=[place(1, RUNNING), place(1, CREATED)], on=shut), [
        waiting(1),
        waiting(2, pool="live"),
    ])  # fmt: skip
    assert (served(found), [each.id for each in found.held]) == (["order-02"], ["order-01"])
    assert found.admissions[0].nth is None


def test_starts_keep_their_distance() -> None:
    spaced = host(start_gap_ms=500)
    slots = [place(n, CREATED) for n in (1, 2, 3)]
    late, soon = opened(3, OrderState.RUNNING, commanded_at=NOW - 500), opened(3, commanded_at=NOW - 499)
    for last in (
        room(CREATED, slots=slots, on=spaced, opened=[soon]),
        room(CREATED, slots=slots, on=spaced, started_at=NOW),
    ):
        assert (last.permits, served(admit.admit(last, [waiting(1)]))) == (0, [])
    free = room(CREATED, slots=slots, on=spaced, opened=[late])
    assert (free.permits, free.gap_ends_at) == (1, NOW)
    assert served(admit.admit(free, [waiting(1), waiting(2)])) == ["order-01"]
    assert replace(free, host=host(start_gap_ms=500, starts_max=0)).permits == 0
    made = place(4, CREATED, S.CREATING, state_since=NOW - 100)
    assert room(CREATED, slots=[made], on=spaced).gap_ends_at == NOW + 400
    assert room(CREATED, slots=[made]).gap_ends_at == 0
    handed = opened(3, pool="live", commanded_at=NOW)
    assert room(CREATED, RUNNING, on=spaced, opened=[handed]).gap_ends_at == 500


def test_what_is_held_reserves_its_slot_its_memory_and_its_place_in_a_limit() -> None:
    live = place(1, RUNNING)
    tight = host(starts_max=0, memory_mb=200)
    found = admit.admit(
        room(CREATED, RUNNING, slots=[place(1, CREATED), live], on=tight),
        [waiting(1), waiting(2, pool="live", memory_mb=101)],
    )
    assert served(found) == [] and found.blocked
    limited = room(CREATED, RUNNING, slots=[place(1, CREATED), live], on=host(starts_max=0), project_max={"default": 1})
    assert served(admit.admit(limited, [waiting(1), waiting(2, pool="live")])) == []


def test_a_slot_of_another_template_or_used_up_is_not_given() -> None:
    worn = pool_of(max_uses=2)
    slots = [place(1, worn, template="other"), place(2, worn, uses=2), place(3, worn, uses=1)]
    found = admit.admit(room(worn, slots=slots), [waiting(n) for n in (1, 2)])
    assert [each.slot.name[-1] for each in found.admissions] == ["3"] and found.wanted == {"default": 1}


def test_the_most_recently_used_slot_is_given_first_where_that_is_wanted() -> None:
    recent = pool_of(pick="mru")
    slots = [place(1, recent), place(2, recent, last_used_at=5), place(3, recent, last_used_at=9)]
    found = admit.admit(room(recent, slots=slots), [waiting(n) for n in (1, 2, 3)])
    assert [each.slot.name[-1] for each in found.admissions] == ["3", "2", "1"]


def test_used_slots_and_broken_ones_whose_time_has_come_can_be_made_anew() -> None:
    slots = [
        place(1, CREATED, S.ERROR, retry_at=NOW + 1, failures=1),
        place(2, CREATED, S.ERROR, retry_at=NOW, failures=2, state_since=NOW - 9),
        place(3, CREATED, S.ERROR, retry_at=NOW, failures=3),
        place(4, CREATED, S.CLEANING, state_since=NOW - 5),
        place(5, CREATED, S.CLEANING, template="other"),
        place(6, CREATED, S.ERROR, retry_at=None, failures=1),
        place(7, CREATED, S.CLEANING),
        place(8, CREATED, S.ERROR, retry_at=NOW, failures=1, state_since=0, incarnation=None),
    ]
    ending = opened(7, OrderState.RUNNING)
    found = room(CREATED, slots=slots, ending=[ending])
    assert [each.name[-1] for each in found.remakeable["default"]] == ["2", "4", "8"]
    assert found.makeable == {"default": 3}
    broken = replace(found, pools={"default": replace(CREATED, broken_at=NOW)})
    assert broken.remakeable == {} and broken.makeable == {"default": 0}
    seat = slot(1, S.CLEANING)
    seats = Room(host=host(), pools={"default": pool()}, slots=[seat], opened=[], project_open={}, project_max={})
    assert (seats.remakeable, seats.coming) == ({}, {"default": 1})


def test_a_broken_pool_starts_nothing_but_hands_work_to_live_slots() -> None:
    broken = [replace(each, broken_at=NOW) for each in (CREATED, RUNNING)]
    slots = [place(1, broken[0]), place(1, broken[1])]
    found = admit.admit(room(*broken, slots=slots), [waiting(1), waiting(2, pool="live"), waiting(3, pool="live")])
    assert (served(found), found.wanted, found.held) == (["order-02"], {}, [])


def test_what_waits_for_an_image_holds_nothing_and_asks_for_it() -> None:
    one, live = pool_of(image="a:1"), pool_of("live", Warmth.RUNNING, image="b:1")
    cold = pool_of("cold", Warmth.COLD, image="c:1")
    slots = [place(1, live), place(1, cold, template="")]
    found = admit.admit(
        room(one, live, cold, slots=slots, missing={"a:1", "b:1", "c:1"}, project_max={"default": 1}),
        [waiting(1), waiting(2, pool="cold"), waiting(3, pool="live")],
    )
    assert (served(found), found.wanted, found.pulls) == (["order-03"], {}, {"a:1", "c:1"})
    coming = room(one, slots=[place(1, one, S.CREATING)], missing={"a:1"})
    assert admit.admit(coming, [waiting(1)]).spoken == {"default": 1}
    assert admit.admit(room(one), [waiting(1)]).wanted == {"default": 1}


def test_each_live_place_counts_once_whether_it_is_used_or_not() -> None:
    slots = [
        place(1, RUNNING),
        place(2, RUNNING),
        place(3, RUNNING, S.CREATING, incarnation=None),
        place(4, RUNNING, S.ERROR, incarnation=None),
        place(5, RUNNING, S.REMOVING),
        place(1, CREATED),
    ]
    runs = [
        opened(1, OrderState.RUNNING, pool="live", slot=slots[0].name, memory_mb=60),
        opened(2, OrderState.RUNNING, pool="default", memory_mb=30),
    ]
    found = room(CREATED, RUNNING, slots=slots, opened=runs)
    assert found.used_mb == 100 + 30 + 100 + 100 + 100
    large = replace(runs[0], memory_mb=250)
    assert replace(found, opened=[], ending=[large]).used_mb == 250 + 300


def test_a_live_slot_adds_only_what_its_order_needs_beyond_it() -> None:
    full = host(memory_mb=200)
    slots = [place(1, RUNNING), place(2, RUNNING)]
    assert served(admit.admit(room(RUNNING, slots=slots, on=full), [waiting(1, pool="live")])) == ["order-01"]
    used = [place(1, RUNNING, S.CLEANING)]
    again = admit.admit(room(RUNNING, slots=used, on=host(memory_mb=100)), [waiting(1, pool="live")])
    assert again.wanted == {"live": 1}
    new = admit.admit(room(RUNNING, on=host(memory_mb=199)), [waiting(n, pool="live") for n in (1, 2)])
    assert (new.wanted, new.blocked) == ({"live": 1}, True)
    never = admit.admit(room(RUNNING, CREATED, on=host(memory_mb=60)), [
        waiting(1, pool="live", memory_mb=10), waiting(2, memory_mb=60),
    ])  # fmt: skip
    assert (never.wanted, never.blocked) == ({"default": 1}, False)


def test_idle_live_slots_go_for_an_order_that_only_waits_for_memory_warm_ones_last() -> None:
    warmer = pool_of("warm", Warmth.RUNNING, slots_warm=1)
    slots = [
        place(1, warmer, last_used_at=1),
        place(2, warmer, last_used_at=2),
        place(1, RUNNING, last_used_at=9),
        place(1, CREATED),
    ]
    full = room(CREATED, RUNNING, warmer, slots=slots, on=host(memory_mb=300))

    def names(need: int, **changed: Any) -> list[str]:
        plan = admit.admit(replace(full, **changed), [waiting(1, memory_mb=need)])
        return [each.name.removeprefix("standby-pool-") for each in plan.evictions]

    assert names(1) == ["warm-002"]
    assert names(101) == ["warm-002", "live-001"]
    assert names(300) == ["warm-002", "live-001", "warm-001"]
    leaving = [*slots, place(3, warmer, S.REMOVING)]
    assert names(100, slots=leaving, host=host(memory_mb=400)) == []
    assert names(1, host=host(memory_mb=250)) == ["warm-002"]
    busy = opened(1, OrderState.RUNNING, pool="other", memory_mb=200)
    assert names(300, opened=[busy], host=host(memory_mb=500)) == ["warm-002", "live-001", "warm-001"]
    assert names(301, opened=[busy], host=host(memory_mb=500)) == [], "all of them would not be enough"


def test_an_order_that_needs_more_than_its_live_slot_makes_its_own_pool_smaller_but_for_that_slot() -> None:
    slots = [place(1, RUNNING), place(2, RUNNING, last_used_at=4)]
    plan = admit.admit(room(RUNNING, slots=slots, on=host(memory_mb=200)), [waiting(1, pool="live", memory_mb=200)])
    assert [each.name[-1] for each in plan.evictions] == ["2"]


def test_those_who_only_wait_for_a_start_are_known() -> None:
    imaged = pool_of("imaged", image="a:1")
    full = pool_of("full", slots_max=0)
    shut = room(CREATED, imaged, full, on=host(starts_max=0, start_gap_ms=9), started_at=NOW, missing={"a:1"})
    orders = [waiting(1), waiting(2, pool="imaged"), waiting(3, pool="full"), waiting(4, project="b")]
    limited = replace(shut, project_max={"b": 0})
    assert admit.only_wait_for_a_start(limited, orders) == {"order-01", "order-02"}
    memory = replace(shut, host=host(starts_max=0, memory_mb=100))
    assert admit.only_wait_for_a_start(memory, orders) == {"order-01"}


def test_with_nobody_waiting_all_permits_are_left() -> None:
    making = room(CREATED, slots=[place(1, CREATED, S.CREATING)], on=host(starts_max=3))
    assert admit.nobody(making) == admit.Plan(permits=2, starting=1)
    assert admit.nobody(replace(making, host=host())) == admit.Plan()
    for at in (making, replace(making, host=host())):
        plan, nobody = admit.admit(at, []), admit.nobody(at)
        assert (plan.permits, plan.starting) == (nobody.permits, nobody.starting)


def test_what_a_pool_takes_counts_free_coming_and_makeable_slots() -> None:
    slots = [place(1, CREATED), place(2, CREATED, S.CREATING), place(3, CREATED, S.CLEANING)]
    assert admit.takes(room(CREATED, slots=slots), CREATED) == 4


@pytest.mark.parametrize(
    ("warmth", "seats", "seat", "live"),
    [
        (Warmth.COLD, False, True, False),
        (Warmth.CREATED, False, False, False),
        (Warmth.RUNNING, False, False, True),
        (Warmth.RUNNING, True, True, False),
    ],
)
def test_what_a_pools_slots_are(warmth: Warmth, seats: bool, seat: bool, live: bool) -> None:
    each = pool_of(warmth=warmth)
    own = pool_of(warmth=warmth, reset=Reset.NONE, project="a")
    assert (warm.is_seat(each, seats), warm.hands_over(each, seats)) == (seat, live)
    assert warm.made_of(each, seats) == ("" if seat else places.fingerprint(each.settings))
    assert (warm.stays(each, seats), warm.stays(own, seats)) == (seat, seat or live)
    assert warm.stays(pool_of(warmth=warmth, reset=Reset.NONE), seats) == seat


def test_an_open_breaker_lets_one_start_through_after_a_while_and_no_second_beside_it() -> None:
    later = NOW + places.TRIES_AFTER_MS
    for of in (replace(CREATED, broken_at=NOW), replace(RUNNING, broken_at=NOW)):
        orders = [waiting(1, pool=of.name), waiting(2, pool=of.name)]
        assert admit.admit(room(of, now=later - 1), orders).wanted == {}
        assert admit.admit(room(of, now=later), orders).wanted == {of.name: 1}
        making = [place(1, of, S.CREATING)]
        assert admit.admit(room(of, slots=making, now=later), orders).wanted == {}
    of = replace(CREATED, broken_at=NOW)
    idle = [place(1, of), place(2, of)]
    assert served(admit.admit(room(of, slots=idle, now=later), [waiting(1), waiting(2)])) == ["order-01"]
    begun = room(of, slots=idle, now=later, opened=[opened(1)])
    assert served(admit.admit(begun, [waiting(2)])) == []
    elsewhere = room(of, RUNNING, slots=idle, now=later, opened=[opened(9, pool="live", slot="live-9")])
    assert served(admit.admit(elsewhere, [waiting(2)])) == ["order-02"], "what begins in other pools is no try"
    live = replace(RUNNING, broken_at=NOW)
    handed = room(live, now=later, opened=[opened(9, pool="live", slot="live-9")])
    assert admit.admit(handed, [waiting(2, pool="live")]).wanted == {"live": 1}, "nor is handing work over"
