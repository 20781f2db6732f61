from typing import Any

from standby.core import size
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
    room = Room(**{**base, **parts})
    return [(change.kind, change.subject) for change in size.size(cause, room, {"default": wanted}, "standby")]


def test_slots_get_the_first_free_numbers() -> None:
    assert _size(2, slots=[slot(2)]) == [
        (EventKind.SLOT_CREATING, "standby-pool-default-001"),
        (EventKind.SLOT_CREATING, "standby-pool-default-003"),
    ]


def test_slots_that_are_coming_already_count() -> None:
    assert _size(1, slots=[slot(1, state=SlotState.CREATING)]) == []


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
