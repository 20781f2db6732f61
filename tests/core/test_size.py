from typing import Any

from msgspec.structs import replace

from standby.core import admit, size
from standby.core.admit import Room
from standby.core.model import EventKind, Mode, OrderState, SlotState
from tests.rows import NOW, cause, host, order, pool, slot


def _size(wanted: int = 0, **parts: Any) -> list[tuple[EventKind, str]]:
    base: dict[str, Any] = {
        "host": host(),
        "pools": {"default": pool(slots_max=3)},
        "slots": [],
        "opened": [],
        "project_open": {},
        "project_max": {},
    }
    room = Room(**{"now": NOW, **base, **parts})
    plan = replace(admit.nobody(room), wanted={"default": wanted})
    return [(change.kind, change.subject) for change in size.size(cause, room, plan, "standby")]


def test_slots_get_the_first_free_numbers() -> None:
    assert _size(2, slots=[slot(2)]) == [
        (EventKind.SLOT_CREATING, "standby-pool-default-001"),
        (EventKind.SLOT_CREATING, "standby-pool-default-003"),
    ]


def test_the_maximum_counts_every_slot_also_broken_ones() -> None:
    slots = [slot(1), slot(2, state=SlotState.ERROR, retry_at=NOW + 1), slot(3, state=SlotState.REMOVING)]
    assert _size(5, slots=slots) == []


def test_a_drained_pool_gives_up_its_free_slots_and_keeps_the_held_one() -> None:
    held = order(OrderState.RUNNING, slot=slot(1).name)
    draining = {"default": pool(slots_max=3, mode=Mode.DRAINING)}
    assert _size(slots=[slot(1), slot(2)], opened=[held], pools=draining) == [
        (EventKind.SLOT_REMOVING, "standby-pool-default-002")
    ]


def test_a_smaller_maximum_takes_free_slots_away_from_the_end() -> None:
    assert _size(slots=[slot(1), slot(2)], pools={"default": pool(slots_max=1)}) == [
        (EventKind.SLOT_REMOVING, "standby-pool-default-002")
    ]


def test_a_broken_slot_is_tried_again_when_its_time_comes_and_given_up_after_three_failures() -> None:
    early = slot(1, state=SlotState.ERROR, failures=1, retry_at=NOW + 1)
    due = slot(2, state=SlotState.ERROR, failures=2, retry_at=NOW)
    over = slot(3, state=SlotState.ERROR, failures=3, retry_at=NOW + 1)
    assert _size(slots=[early, due, over]) == [
        (EventKind.SLOT_REMOVING, "standby-pool-default-003"),
        (EventKind.SLOT_CREATING, "standby-pool-default-002"),
    ]


def test_slots_that_are_being_removed_are_not_taken_away_twice() -> None:
    slots = [slot(1), slot(2, state=SlotState.REMOVING)]
    assert _size(slots=slots, pools={"default": pool(slots_max=1)}) == []


def test_no_more_slots_are_taken_away_than_are_spare() -> None:
    idle, broken = [slot(n) for n in (1, 2, 3, 4)], [slot(n, state=SlotState.ERROR, failures=1) for n in (1, 2, 3, 4)]
    for slots in (idle, broken):
        assert _size(slots=slots, pools={"default": pool(slots_max=2)}) == [
            (EventKind.SLOT_REMOVING, "standby-pool-default-004"),
            (EventKind.SLOT_REMOVING, "standby-pool-default-003"),
        ]
        assert len(_size(slots=slots, pools={"default": pool(slots_max=3)})) == 1


def test_a_drained_host_gives_up_its_broken_slots_too() -> None:
    slots = [slot(1, state=SlotState.ERROR, failures=1, retry_at=NOW)]
    assert _size(slots=slots, host=host(mode=Mode.DRAINING)) == [(EventKind.SLOT_REMOVING, "standby-pool-default-001")]


def test_each_pool_is_sized_by_itself() -> None:
    pools = {"default": pool(slots_max=3), "idle": pool("idle"), "other": pool("other", mode=Mode.DRAINING)}
    far = slot(name="standby-pool-other-001", pool="other")
    assert _size(1, pools=pools, slots=[far]) == [
        (EventKind.SLOT_CREATING, "standby-pool-default-001"),
        (EventKind.SLOT_REMOVING, "standby-pool-other-001"),
    ]


def test_no_number_beyond_the_maximum_is_given() -> None:
    assert [name for _, name in _size(9)] == [f"standby-pool-default-00{number}" for number in (1, 2, 3)]
    high = slot(7)
    assert [name for _, name in _size(9, slots=[high])] == [f"standby-pool-default-00{number}" for number in (1, 2)]
