"""How many slots a pool of containers has: warm ones, used ones made anew, old and useless ones given up."""

from typing import Any

import pytest
from msgspec.structs import replace

from standby.core import admit, places, size
from standby.core.admit import Plan, Room
from standby.core.model import Change, EventKind, Mode, OrderState, Pool, Slot, SlotState, Warmth
from tests.core.test_gate import opened, place, pool_of, room
from tests.rows import NOW, cause, host, pool, slot

S, K = SlotState, EventKind


def sized(at: Room, plan: Plan | None = None, **planned: Any) -> list[Change]:
    plan = replace(plan or admit.nobody(at), **planned)
    return list(size.size(cause, at, plan, "standby"))


def told(changes: list[Change]) -> list[tuple[EventKind, str]]:
    return [(change.kind, change.subject.removeprefix("standby-pool-")) for change in changes]


def begun(changes: list[Change]) -> list[str]:
    return [name for kind, name in told(changes) if kind is K.SLOT_CREATING]


def gone(changes: list[Change]) -> dict[str, str]:
    """Slots that are given up, with the reason told."""
    return {
        change.subject.removeprefix("standby-pool-"): change.note["why"]
        for change in changes
        if change.kind is K.SLOT_REMOVING
    }


def idle(of: Pool, count: int, **columns: Any) -> list[Slot]:
    return [place(number, of, **{"state_since": NOW, **columns}) for number in range(1, count + 1)]


def test_idle_slots_are_made_until_enough_are_warm() -> None:
    warm = pool_of(slots_warm=3)
    assert begun(sized(room(warm))) == ["default-001", "default-002", "default-003"]
    assert begun(sized(room(warm, slots=idle(warm, 2)))) == ["default-003"]
    assert begun(sized(room(warm, slots=idle(warm, 3)))) == []
    new = sized(room(warm))[0].slot
    assert new is not None and new.template == room(warm).made_of["default"] != ""


def test_what_is_coming_counts_unless_orders_wait_for_it() -> None:
    warm = pool_of(slots_warm=1, slots_max=9)
    coming = room(warm, slots=[place(1, warm, S.CREATING)])
    assert begun(sized(coming)) == []
    assert begun(sized(coming, spoken={"default": 1})) == ["default-002"]
    assert begun(sized(coming, spoken={"default": 2}, wanted={"default": 1})) == ["default-002", "default-003"]
    cleaning = room(warm, slots=[place(1, warm, S.CLEANING)])
    assert told(sized(cleaning)) == [(K.SLOT_CREATING, "default-001")]


def test_a_held_slot_and_one_of_another_template_are_not_warm() -> None:
    warm = pool_of(slots_warm=2)
    held = opened(1, OrderState.RUNNING)
    assert begun(sized(room(warm, slots=idle(warm, 2), opened=[held]))) == ["default-003"]
    assert begun(sized(room(warm, slots=[place(1, warm, template="other", state_since=NOW)]))) == [
        "default-002",
        "default-003",
    ]


def test_a_pool_that_does_not_serve_or_is_broken_is_not_refilled() -> None:
    warm = pool_of(slots_warm=2)
    for shut in (replace(warm, mode=Mode.PAUSED), replace(warm, broken_at=NOW)):
        assert sized(room(shut)) == []
    assert sized(room(warm, on=host(mode=Mode.PAUSED))) == []


def test_without_a_limit_no_more_than_four_are_made_ahead_at_once() -> None:
    warm = pool_of(slots_warm=9, slots_max=20)
    assert len(begun(sized(room(warm)))) == 4
    assert len(begun(sized(room(warm, slots=[place(1, warm, S.CREATING)])))) == 3
    busy = [place(n, warm, S.CREATING) for n in range(1, 7)]
    assert begun(sized(room(warm, slots=busy))) == []


@pytest.mark.parametrize(
    ("most", "flying", "begins"), [(4, 0, 3), (4, 2, 1), (4, 3, 0), (2, 0, 1), (1, 0, 1), (1, 1, 0)]
)
def test_refill_leaves_one_permit_free_where_there_are_several(most: int, flying: int, begins: int) -> None:
    warm = pool_of(slots_warm=9, slots_max=20)
    far = pool_of("far")
    making = [place(n, far, S.CREATING) for n in range(flying)]
    assert len(begun(sized(room(warm, far, slots=making, on=host(starts_max=most))))) == begins


def test_permits_are_shared_by_all_that_nobody_waits_for_and_demand_has_its_own() -> None:
    warm, other = pool_of(slots_warm=5, slots_max=9), pool_of("other", slots_warm=5, slots_max=9)
    at = room(warm, other, slots=[place(7, other, S.CLEANING)], on=host(starts_max=4))
    assert begun(sized(at)) == ["default-001", "default-002", "default-003"]
    full = Plan(wanted={"other": 2}, spoken={"other": 2}, permits=0, starting=4)
    assert begun(sized(at, full)) == ["other-007", "other-001"]


def test_a_gap_lets_one_begin_that_nobody_waits_for() -> None:
    warm = pool_of(slots_warm=5, slots_max=9)
    assert begun(sized(room(warm, on=host(starts_max=2, start_gap_ms=5)))) == ["default-001"]
    assert begun(sized(room(warm, on=host(start_gap_ms=5)))) == ["default-001"]


def test_demand_takes_used_slots_before_new_ones() -> None:
    pool_ = pool_of(slots_max=3)
    slots = [place(1, pool_), place(2, pool_, S.CLEANING)]
    assert begun(sized(room(pool_, slots=slots), wanted={"default": 2}, permits=0)) == ["default-002", "default-003"]
    again = sized(room(pool_, slots=slots), wanted={"default": 1}, permits=0)[0]
    assert again.slot is not None and again.slot.generation == slots[1].generation + 1


def test_live_slots_are_made_ahead_only_where_memory_is_left() -> None:
    live = pool_of("live", Warmth.RUNNING, slots_warm=4)
    assert len(begun(sized(room(live, on=host(memory_mb=299))))) == 2
    assert len(begun(sized(room(live, on=host(memory_mb=400))))) == 4
    assert begun(sized(room(live, on=host(memory_mb=400)), blocked=True)) == []
    assert begun(sized(room(live, on=host(memory_mb=299)), wanted={"live": 1}, spoken={"live": 1})) == [
        "live-001",
        "live-002",
    ]
    used = [place(1, live, S.CLEANING)]
    assert begun(sized(room(live, slots=used, on=host(memory_mb=100)), blocked=True)) == ["live-001"]
    fresh = [place(1, live, S.ERROR, incarnation=None, retry_at=NOW, failures=1)]
    assert begun(sized(room(live, slots=fresh, on=host(memory_mb=99)))) == []
    created = pool_of(slots_warm=2)
    assert len(begun(sized(room(created, on=host(memory_mb=10))))) == 2


def test_nothing_is_made_of_an_image_that_is_not_there() -> None:
    imaged = pool_of(slots_warm=2, image="a:1")
    assert sized(room(imaged, slots=[place(1, imaged, S.CLEANING)], missing={"a:1"})) == []
    assert len(begun(sized(room(imaged, missing={"b:1"})))) == 2


def test_who_wants_an_image_without_any_order() -> None:
    plain, warm = pool_of(), pool_of(slots_warm=1)
    assert not size.refills(room(plain), plain) and size.refills(room(warm), warm)
    for state in SlotState:
        used = room(plain, slots=[place(1, plain, state)])
        assert size.refills(used, plain) == (state in (S.CLEANING, S.ERROR))
        assert not size.refills(replace(used, pools={"default": plain, "far": pool_of("far")}), pool_of("far"))
    for shut in (
        replace(warm, mode=Mode.PAUSED),
        replace(warm, broken_at=NOW),
        pool_of(warmth=Warmth.COLD, slots_warm=1),
    ):
        assert not size.refills(room(shut), shut)


def test_slots_that_nobody_used_for_long_go_but_for_the_warm_ones() -> None:
    cooling = pool_of(slots_warm=1, idle_ttl_ms=1_000)
    slots = [
        place(1, cooling, state_since=NOW - 5_000, last_used_at=NOW - 3_000),
        place(2, cooling, state_since=NOW - 4_000),
        place(3, cooling, state_since=NOW - 1_000),
        place(4, cooling, state_since=NOW - 9_000, last_used_at=NOW - 999),
    ]
    long = "it was idle for long"
    assert gone(sized(room(cooling, slots=slots))) == {"default-003": long, "default-002": long, "default-001": long}
    three = pool_of(slots_warm=3, idle_ttl_ms=1_000)
    assert gone(sized(room(three, slots=slots))) == {"default-002": long}
    for ever in (pool_of(idle_ttl_ms=None), pool_of(idle_ttl_ms=9_000)):
        assert sized(room(ever, slots=slots)) == []
    broken = place(3, cooling, S.ERROR, state_since=NOW - 1_000, retry_at=NOW + 1, failures=1)
    assert gone(sized(room(cooling, slots=[slots[1], broken]))) == {"default-003": long}
    held = opened(2, OrderState.RUNNING)
    assert gone(sized(room(cooling, slots=slots[1:3], opened=[held]))) == {}
    cold = pool_of(warmth=Warmth.COLD, idle_ttl_ms=1)
    assert sized(room(cold, slots=[place(1, cold, state_since=0)])) == []


@pytest.mark.parametrize("state", [S.CREATING, S.IDLE, S.CLEANING, S.ERROR])
def test_a_slot_of_another_template_is_given_up_in_any_state(state: SlotState) -> None:
    plain = pool_of()
    old = place(1, plain, state, template="other", retry_at=NOW)
    assert gone(sized(room(plain, slots=[old]))) == {"default-001": "its pool has another template"}
    held = opened(1, OrderState.RUNNING)
    assert sized(room(plain, slots=[old], opened=[held])) == []
    assert sized(room(plain, slots=[replace(old, state=S.REMOVING)])) == []


@pytest.mark.parametrize(("state", "goes"), [(S.CREATING, False), (S.IDLE, True), (S.CLEANING, True), (S.ERROR, True)])
def test_a_drained_pool_keeps_only_what_is_held_or_being_made(state: SlotState, goes: bool) -> None:
    draining = pool_of(mode=Mode.DRAINING)
    slots = [place(1, draining, state, state_since=NOW, retry_at=NOW + 1)]
    assert gone(sized(room(draining, slots=slots))) == ({"default-001": "its pool is draining"} if goes else {})
    seat = slot(1, state, state_since=NOW, retry_at=NOW + 1)
    seats = replace(room(pool(mode=Mode.DRAINING), slots=[seat]), seats=True)
    assert bool(gone(sized(seats))) == (state in (S.IDLE, S.ERROR))


def test_a_slot_is_given_up_after_its_uses_also_before_it_is_made_anew() -> None:
    worn = pool_of(max_uses=2)
    slots = [place(1, worn, uses=2), place(2, worn, S.CLEANING, uses=2), place(3, worn, uses=1)]
    why = "it was used 2 times"
    assert gone(sized(room(worn, slots=[replace(each, state_since=NOW) for each in slots]))) == {
        "default-002": why,
        "default-001": why,
    }


def test_slots_grow_old_one_at_a_time() -> None:
    aging = pool_of(max_age_ms=1_000)
    old = idle(aging, 2, created_at=NOW - 1_000)
    assert gone(sized(room(aging, slots=old))) == {"default-002": "it is old"}
    young = idle(aging, 2, created_at=NOW - 999)
    assert sized(room(aging, slots=young)) == []
    for state in (S.CREATING, S.REMOVING):
        assert sized(room(aging, slots=[old[0], place(2, aging, state, state_since=NOW)])) == []
    held = opened(2, OrderState.RUNNING)
    assert gone(sized(room(aging, slots=old, opened=[held]))) == {"default-001": "it is old"}
    assert gone(sized(room(aging, slots=old[:1]), wanted={"default": 1}, permits=0)) == {}


def test_a_broken_pool_takes_its_used_slots_away_and_tries_nothing_again() -> None:
    broken = pool_of(slots_warm=2, broken_at=NOW)
    slots = [place(1, broken, S.CLEANING), place(2, broken, S.ERROR, retry_at=NOW, failures=1), place(3, broken)]
    assert gone(sized(room(broken, slots=slots))) == {"default-001": "its pool makes no slots: too many failed"}
    assert begun(sized(room(broken, slots=slots))) == []


def test_a_slot_that_failed_three_times_is_given_up_and_one_above_the_maximum_too() -> None:
    plain = pool_of(slots_max=2)
    slots = [place(1, plain, S.ERROR, retry_at=NOW, failures=3), place(2, plain, state_since=NOW)]
    assert gone(sized(room(plain, slots=slots))) == {"default-001": "it failed 3 times"}
    three = idle(plain, 3)
    assert gone(sized(room(plain, slots=three))) == {"default-003": "there are more than slots_max"}
    assert sized(room(plain, slots=[*three[:2], place(3, plain, S.REMOVING)])) == []


def test_slots_whose_memory_is_needed_go() -> None:
    live = pool_of("live", Warmth.RUNNING, slots_warm=2)
    slots = idle(live, 2)
    found = sized(room(live, slots=slots, on=host(memory_mb=250)), evictions=[slots[0]], blocked=True)
    assert gone(found) == {"live-001": "its memory is needed by another pool"} and begun(found) == []


def test_a_slot_that_is_not_ready_in_time_fails() -> None:
    slow = pool_of(start_timeout_ms=2_500)
    late, soon = (place(1, slow, S.CREATING, state_since=NOW - ms) for ms in (2_501, 2_500))
    (failed,) = sized(room(slow, slots=[late]))
    assert failed.slot is not None
    assert (failed.kind, failed.slot.error) == (K.SLOT_ERROR, "it was not ready after 2.5 s")
    assert sized(room(slow, slots=[soon])) == []
    assert sized(room(slow, slots=[late], asked_since=NOW - 2_500)) == []
    assert len(sized(room(slow, slots=[late], asked_since=NOW - 2_501))) == 1
    other = place(1, slow, S.CLEANING, state_since=0)
    assert begun(sized(room(slow, slots=[other]))) == ["default-001"]


def test_a_slot_whose_end_is_being_saved_is_left_alone() -> None:
    plain = pool_of(slots_max=1)
    used = place(1, plain, S.CLEANING, template="other")
    assert sized(room(plain, slots=[used], ending=[opened(1, OrderState.RUNNING)])) == []


def test_seats_with_nothing_to_do_are_left_alone_and_worn_ones_given_up() -> None:
    seats = replace(room(pool(slots_max=2), slots=[slot(1)]), seats=True)
    assert sized(seats) == []
    worn = pool(slots_max=2)
    for settings in ({"max_uses": 1}, {"max_age_ms": 10}):
        other = replace(worn, settings=replace(worn.settings, **settings))
        at = replace(seats, pools={"default": other}, slots=[slot(1, uses=1)])
        assert len(gone(sized(at))) == 1


def test_an_open_breaker_lets_one_slot_be_tried_without_any_order() -> None:
    of = pool_of(slots_warm=3, broken_at=NOW)
    later = NOW + places.TRIES_AFTER_MS
    assert begun(sized(room(of, now=later - 1))) == []
    assert len(begun(sized(room(of, now=later)))) == 1
    due = place(1, of, S.ERROR, retry_at=NOW, failures=1)
    assert len(begun(sized(room(of, slots=[due], now=later)))) == 1
    assert begun(sized(room(of, slots=[place(1, of, S.CREATING, state_since=later)], now=later))) == []
