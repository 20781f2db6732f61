"""What is left of a host for slots that nobody waits for, once those for waiting orders are begun."""

from typing import Any

from standby.core import admit, places
from standby.core.model import OrderState, Slot, SlotState, Warmth
from tests.core.test_gate import opened, place, pool_of, room, waiting
from tests.core.test_warm_sizes import begun, sized
from tests.rows import NOW, host

S = SlotState
LIVE = pool_of("live", Warmth.RUNNING, slots_warm=4)
LATER = NOW + places.TRIES_AFTER_MS


def fresh(number: int, of: Any) -> Slot:
    """A slot to be made anew whose place does not count."""
    return place(number, of, S.ERROR, incarnation=None, retry_at=NOW, failures=1)


def test_a_live_place_that_is_made_for_an_order_takes_memory_once() -> None:
    one: dict[str, Any] = {"wanted": {"live": 1}, "spoken": {"live": 1}}
    assert begun(sized(room(LIVE, slots=[fresh(1, LIVE)], on=host(memory_mb=299)), **one)) == ["live-001", "live-002"]
    used = [place(1, LIVE, S.CLEANING)]
    assert begun(sized(room(LIVE, slots=used, on=host(memory_mb=199)), **one)) == ["live-001"]
    assert begun(sized(room(LIVE, slots=used, on=host(memory_mb=200)), **one)) == ["live-001", "live-002"]


def test_a_place_that_does_not_live_takes_none() -> None:
    made = pool_of()
    one: dict[str, Any] = {"wanted": {"default": 1}, "spoken": {"default": 1}}
    for slots in ([], [fresh(1, made)]):
        found = sized(room(made, LIVE, slots=slots, on=host(memory_mb=100)), **one)
        assert begun(found) == ["default-001", "live-001"]


def test_idle_live_places_and_whoever_waits_for_memory_leave_less() -> None:
    idle = [place(1, LIVE, state_since=NOW)]
    assert begun(sized(room(LIVE, slots=idle, on=host(memory_mb=299)))) == ["live-002"]
    small = pool_of("live", Warmth.RUNNING, slots_warm=1, memory_mb=1)
    assert begun(sized(room(small, on=host(memory_mb=400)), blocked=True)) == []


def test_a_try_of_an_open_breaker_that_an_order_takes_leaves_none() -> None:
    of, other = pool_of(slots_warm=3, broken_at=NOW), pool_of("other")
    claimed = room(of, other, slots=[place(1, of, state_since=NOW)], now=LATER)
    assert begun(sized(claimed, admit.admit(claimed, [waiting(1)]))) == []
    wanted = room(of, other, now=LATER)
    assert begun(sized(wanted, admit.admit(wanted, [waiting(1)]))) == ["default-001"]
    elsewhere = room(of, other, slots=[place(1, other, state_since=NOW)], now=LATER)
    assert begun(sized(elsewhere, admit.admit(elsewhere, [waiting(1, pool="other")]))) == ["default-001"]


def test_demand_begins_as_many_as_are_wanted_used_ones_and_new_ones_together() -> None:
    of = pool_of(slots_max=4)
    used = [place(number, of, S.CLEANING, state_since=NOW - 9 + number) for number in (1, 2)]
    for wanted, names in ((2, ["default-001", "default-002"]), (3, ["default-001", "default-002", "default-003"])):
        assert begun(sized(room(of, slots=used), wanted={"default": wanted}, permits=0)) == names


def test_what_is_begun_for_orders_counts_in_the_maximum_whatever_number_a_slot_has() -> None:
    of = pool_of(slots_max=2, slots_warm=2)
    high = [place(7, of, state_since=NOW)]
    one: dict[str, Any] = {"wanted": {"default": 1}, "spoken": {"default": 1}}
    assert begun(sized(room(of, slots=high), **one)) == ["default-001"]


def test_a_slot_whose_end_is_being_saved_is_thought_to_be_made_anew_beside_what_orders_want() -> None:
    of = pool_of(slots_warm=1)
    ending = [opened(1, OrderState.RUNNING)]
    one: dict[str, Any] = {"wanted": {"default": 1}, "spoken": {"default": 1}}
    assert begun(sized(room(of, slots=[place(1, of, S.CLEANING)], ending=ending), **one)) == ["default-002"]


def test_where_starts_are_limited_only_permits_limit_what_is_made_ahead() -> None:
    of = pool_of(slots_warm=9, slots_max=20)
    assert len(begun(sized(room(of, on=host(starts_max=9))))) == 8
