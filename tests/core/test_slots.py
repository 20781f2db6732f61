"""Every change of a slot writes exactly the columns that it is about, under the guards that it needs."""

from collections.abc import Callable
from typing import Any

import pytest

from standby.core import slots
from standby.core.model import Change, EventKind, Guards, Slot, SlotState, Trigger
from tests.core.columns import changed
from tests.rows import NOW, cause, pool, slot

LEADER = cause(Trigger.SIZE, id="change-7", actor="server-1", lease=("local", 9))
BROKEN = slot(state=SlotState.ERROR, error="no room", failures=2, retry_at=NOW, version=4)

CHANGES: dict[str, tuple[Callable[[], Change], dict[str, Any]]] = {
    "tried again": (
        lambda: slots.recreate(LEADER, BROKEN),
        {"state": SlotState.CREATING, "state_since": NOW, "retry_at": None, "generation": 2},
    ),
    "made": (
        lambda: slots.made(LEADER, slot(state=SlotState.CREATING, error="no room", failures=2, retry_at=NOW), "i-2"),
        {
            "state": SlotState.IDLE,
            "state_since": NOW,
            "incarnation": "i-2",
            "error": None,
            "retry_at": None,
        },
    ),
    "failed": (
        lambda: slots.failed(LEADER, slot(state=SlotState.CLEANING, failures=2), "no room"),
        {
            "state": SlotState.ERROR,
            "state_since": NOW,
            "error": "no room",
            "failures": 3,
            "retry_at": NOW + 20_000,
        },
    ),
    "removed": (
        lambda: slots.remove(LEADER, BROKEN),
        {"state": SlotState.REMOVING, "state_since": NOW, "retry_at": None},
    ),
    "cannot be taken away": (
        lambda: slots.stuck(LEADER, slot(state=SlotState.REMOVING, state_since=NOW - 9), "it is busy"),
        {"error": "it is busy"},
    ),
}


@pytest.mark.parametrize(("make", "columns"), CHANGES.values(), ids=CHANGES)
def test_a_change_writes_its_columns_and_carries_its_cause(make: Callable[[], Change], columns: dict[str, Any]) -> None:
    change = make()
    assert changed(change.slot_was, change.slot) == columns
    assert (change.id, change.at, change.trigger, change.actor) == ("change-7", NOW, Trigger.SIZE, "server-1")
    assert change.guards == Guards(lease=("local", 9))


def test_a_new_slot_belongs_to_its_pool_and_is_decided_on_the_pool_as_it_is() -> None:
    change = slots.create(LEADER, "standby-pool-big-001", pool("big", host="far", version=5), "of this")
    assert (change.kind, change.slot_was) == (EventKind.SLOT_CREATING, None)
    assert change.slot == Slot(
        name="standby-pool-big-001",
        host="far",
        pool="big",
        state=SlotState.CREATING,
        state_since=NOW,
        created_at=NOW,
        generation=NOW,
        template="of this",
    )
    assert change.guards == Guards(lease=("local", 9), pool_version=5)
    seat = slots.create(LEADER, "standby-pool-big-001", pool("big")).slot
    assert seat is not None and seat.template == "", "a seat is made of nothing"


def test_an_idle_slot_is_removed_only_while_nobody_holds_it() -> None:
    change = slots.remove(LEADER, slot(version=4))
    assert change.guards == Guards(lease=("local", 9), slot_free=slot().name, slot_version=4)


def test_a_slot_that_is_gone_leaves_no_row() -> None:
    change = slots.gone(LEADER, slot(state=SlotState.REMOVING))
    assert change.slot_was == slot(state=SlotState.REMOVING) and change.slot is None
    assert (change.subject, change.guards) == (slot().name, Guards(lease=("local", 9)))


def test_the_next_generation_of_a_used_slot_has_no_worker_yet_and_knows_what_to_take_away() -> None:
    used = slot(state=SlotState.CLEANING, generation=7, boot="nonce")
    after = slots.recreate(LEADER, used).slot
    assert after is not None
    assert (after.generation, after.boot, after.incarnation) == (8, None, "i-1")


def test_a_slot_whose_place_is_gone_is_cleaned_only_while_nobody_holds_it() -> None:
    change = slots.clean(LEADER, slot(version=4), "its place is gone")
    assert change.guards == Guards(lease=("local", 9), slot_free=slot().name, slot_version=4)
    assert changed(change.slot_was, change.slot) == {"state": SlotState.CLEANING, "state_since": NOW}
    assert change.note == {"why": "its place is gone"}


def test_why_a_slot_is_removed_is_told() -> None:
    assert slots.remove(LEADER, slot(), "it is old").note == {"why": "it is old"}
    assert slots.remove(LEADER, slot()).note == {}
