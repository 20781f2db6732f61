"""Schedules: which ticks are made, which are given up, and what each change writes."""

from datetime import UTC, datetime
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from standby.core import cron, ticks
from standby.core.model import EventKind, Guards, Missed, Mode, OrderState, Schedule, Spec, Tick, Trigger
from tests.core.columns import changed
from tests.rows import cause, pool

MINUTE = 60_000
START = int(datetime(2026, 11, 15, 12, tzinfo=UTC).timestamp() * 1000)


def schedule(**columns: Any) -> Schedule:
    base: dict[str, Any] = {
        "name": "nightly",
        "project": "a",
        "pool": "default",
        "cron": "* * * * *",
        "memory_mb": 64,
        "spec": Spec(order_id="", command=("true",)),
        "mode_since": START,
        "mode_actor": "ada",
        "next_at": START,
    }
    return Schedule(**{**base, **columns})


def due(missed: Missed, late_ms: int, **columns: Any) -> tuple[int | None, int, int | None]:
    """The tick, what is given up and the next tick, in minutes since the one that was to come."""
    found = ticks.due(schedule(missed=missed, **columns), UTC, START + late_ms)
    far = [None if at is None else (at - START) // MINUTE for at in (found.tick, found.next_at)]
    return far[0], found.missed, far[1]


@pytest.mark.parametrize("missed", Missed)
def test_a_tick_in_time_is_made_whatever_the_policy(missed: Missed) -> None:
    assert due(missed, 1_500) == (0, 0, 1)
    assert due(missed, 0) == (0, 0, 1)


def test_skip_gives_up_what_is_late_and_makes_what_is_in_time() -> None:
    assert due(Missed.SKIP, 60_000, cron="0 * * * *") == (0, 0, 60)
    assert due(Missed.SKIP, 60_001, cron="0 * * * *") == (None, 1, 60)
    assert due(Missed.SKIP, 10 * MINUTE + 5_000) == (10, 10, 11)
    assert due(Missed.SKIP, 10 * MINUTE) == (10, 10, 11), "of two in time the last one"


def test_once_makes_the_last_one_for_all_that_were_missed() -> None:
    assert due(Missed.ONCE, 10 * MINUTE + 5_000) == (10, 10, 11)
    assert due(Missed.ONCE, 10 * 60 * MINUTE + 90_000, cron="0 * * * *") == (600, 10, 660)


def test_all_makes_one_after_the_other_and_the_next_one_may_have_passed_already() -> None:
    assert due(Missed.ALL, 10 * MINUTE + 5_000) == (0, 0, 1)
    assert due(Missed.ALL, MINUTE) == (0, 0, 1)


def test_all_is_bounded_to_the_last_hundred() -> None:
    assert due(Missed.ALL, 99 * MINUTE) == (0, 0, 1)
    assert due(Missed.ALL, 100 * MINUTE) == (1, 1, 2)
    assert due(Missed.ALL, 999 * MINUTE) == (900, 900, 901)
    month = 30 * 24 * 60
    assert due(Missed.ALL, month * MINUTE) == (month - 99, 900, month - 98)


def test_after_a_long_time_the_last_tick_is_found_and_the_count_ends() -> None:
    month = 30 * 24 * 60
    assert due(Missed.ONCE, month * MINUTE + 1) == (month, 999, month + 1)
    assert due(Missed.SKIP, month * MINUTE + 1) == (month, 999, month + 1)


def test_ticks_that_were_missed_are_counted_by_the_clocks_of_the_schedules_zone() -> None:
    first = START + (24 * 60 - 345) * MINUTE  # noon in Nepal
    nepali = schedule(cron="0 12 * * *", missed=Missed.ONCE, next_at=first)
    found = ticks.due(nepali, ZoneInfo("Asia/Kathmandu"), first + 3 * 24 * 60 * MINUTE + 1)
    assert (found.tick, found.missed) == (first + 3 * 24 * 60 * MINUTE, 3)


def test_ticks_come_by_the_clocks_of_the_schedules_zone() -> None:
    noon = schedule(cron="0 12 * * *", next_at=START - 345 * MINUTE)
    expected, nepal = START + (24 * 60 - 345) * MINUTE, ZoneInfo("Asia/Kathmandu")
    assert ticks.due(noon, nepal, START).next_at == expected


def test_a_schedule_whose_last_tick_this_was_has_no_next_one() -> None:
    assert ticks.due(schedule(cron="0 0 30 2 *"), UTC, START + 5) == ticks.Due(tick=START, missed=0, next_at=None)


@settings(max_examples=50)
@given(some.sampled_from(["* * * * *", "*/7 * * * *", "5 */3 * * *"]), some.integers(0, 95 * 60_000))
def test_with_all_every_tick_is_made_once_in_its_order(text: str, late_ms: int) -> None:
    first = cron.tick_after(cron.parse(text), UTC, START - 1)
    assert first is not None
    now, row, made = first + late_ms, schedule(cron=text, missed=Missed.ALL, next_at=first), []
    while row.next_at is not None and row.next_at <= now:
        found = ticks.due(row, UTC, now)
        assert found.tick is not None and found.missed == 0
        made.append(found.tick)
        after = ticks.tick(cause(), row, found.tick, "order", found.next_at).schedule
        assert after is not None
        row = after
    expected = [first, *(tick for tick in cron.preview(cron.parse(text), UTC, first, 96) if tick <= now)]
    assert made == expected


ADA = cause(Trigger.REQUEST, id="change-7", actor="ada", lease=("*schedules", 9))


def test_a_tick_names_its_order_and_moves_the_schedule_on() -> None:
    made = ticks.tick(ADA, schedule(), START, "order-1", START + MINUTE, missed=4)
    assert made.kind is EventKind.SCHEDULE_TICKED
    assert changed(made.schedule_was, made.schedule) == {
        "last_at": START,
        "last_order": "order-1",
        "next_at": START + MINUTE,
    }
    assert made.tick == Tick(schedule="nightly", at=START, order_id="order-1")
    assert made.note == {"tick_at": START, "order": "order-1", "pool": "default", "missed": 4}
    assert made.guards == Guards(lease=("*schedules", 9))
    assert (made.noun, made.subject, made.states) == ("schedule", "nightly", ("open", "open"))


def test_a_tick_in_time_with_a_known_order_says_so() -> None:
    made = ticks.tick(ADA, schedule(), START, "order-1", None, new=False)
    assert made.note == {"tick_at": START, "order": "order-1", "pool": "default", "deduplicated": True}


def test_the_order_of_a_tick_names_its_schedule_and_tick() -> None:
    row = schedule(spec=Spec(order_id="", command=("true",), dedupe_key="one"))
    made = ticks.order(ADA, row, pool(), START, "order-1", b"sealed")
    assert made.kind is EventKind.ORDER_SUBMITTED and made.order is not None and made.spec is not None
    assert (made.spec.order_id, made.spec.schedule, made.spec.tick_at) == ("order-1", "nightly", START)
    assert (made.order.project, made.order.pool, made.order.memory_mb) == ("a", "default", 64)
    assert (made.order.state, made.order.dedupe_live, made.sealed_env) == (OrderState.PENDING, "a:one", b"sealed")
    assert made.order.rank is not None
    assert (made.order.id, made.order.submitted_at) == ("order-1", ADA.at)


def test_missed_ticks_only_move_the_schedule_on() -> None:
    made = ticks.miss(ADA, schedule(), 3, START + MINUTE)
    assert made.kind is EventKind.SCHEDULE_MISSED and made.note == {"missed": 3, "pool": "default"}
    assert changed(made.schedule_was, made.schedule) == {"next_at": START + MINUTE}


def test_a_mode_comes_with_who_when_and_why() -> None:
    row = schedule(mode_since=1, mode_actor="bob")
    made = ticks.set_mode(ADA, row, Mode.PAUSED, "repairs", None)
    assert made is not None and made.kind is EventKind.SCHEDULE_MODE
    by_whom = {"mode_since": ADA.at, "mode_reason": "repairs", "mode_actor": "ada"}
    assert changed(made.schedule_was, made.schedule) == {"mode": Mode.PAUSED, **by_whom, "next_at": None}
    assert made.states == ("open", "paused")
    assert ticks.set_mode(ADA, schedule(), Mode.OPEN, None, START) is None
    again = ticks.set_mode(ADA, schedule(mode=Mode.PAUSED, next_at=None), Mode.OPEN, None, START + MINUTE)
    assert again is not None and again.schedule is not None and again.schedule.next_at == START + MINUTE


def test_a_schedule_is_added_altered_and_removed() -> None:
    added = ticks.add(ADA, schedule(), b"sealed")
    assert (added.kind, added.schedule, added.sealed_env) == (EventKind.SCHEDULE_ADDED, schedule(), b"sealed")
    altered = ticks.alter(ADA, schedule(), schedule(cron="@daily"), None)
    assert altered is not None and altered.kind is EventKind.SCHEDULE_CHANGED
    assert changed(altered.schedule_was, altered.schedule) == {"cron": "@daily"}
    assert ticks.alter(ADA, schedule(), schedule(), None) is None
    emptied = ticks.alter(ADA, schedule(), schedule(), b"")
    assert emptied is not None and (emptied.schedule, emptied.sealed_env) == (schedule(), b"")
    removed = ticks.remove(ADA, schedule())
    assert (removed.kind, removed.schedule, removed.schedule_was) == (EventKind.SCHEDULE_REMOVED, None, schedule())
