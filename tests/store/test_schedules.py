"""Schedules and their ticks, on both engines: an order for each tick, never two, and nothing by halves."""

import asyncio
from typing import Any

import pytest
from msgspec.structs import replace

from sim.fold import fold
from standby.core import ticks
from standby.core.lifecycle import Cause
from standby.core.model import Change, Missed, Mode, Pool, Schedule, Spec, Tick, Trigger
from standby.store.contract import Answer, OrderFilter, Store
from tests import make
from tests.conftest import Database
from tests.store.history import rows_of

pytestmark = pytest.mark.anyio
NOW = make.NOW
POOL = Pool(name="p", host="h", mode_since=1)
_count = iter(range(1_000_000))


def cause(lease: tuple[str, int] | None = None) -> Cause:
    return Cause(id=f"change-{next(_count)}", at=NOW, trigger=Trigger.DUE, actor="t", lease=lease)


def schedule(name: str = "nightly", **columns: Any) -> Schedule:
    base: dict[str, Any] = {
        "project": "a",
        "pool": "p",
        "cron": "0 2 * * *",
        "zone": "Europe/Berlin",
        "missed": Missed.ALL,
        "memory_mb": 64,
        "spec": Spec(order_id="", command=("true",), labels={"a": "ö"}, payload='{"n": 1}'),
        "mode_since": NOW,
        "mode_actor": "ada",
        "next_at": NOW,
    }
    return Schedule(name=name, **{**base, **columns})


def both(row: Schedule, at: int, order_id: str, lease: tuple[str, int] | None = None) -> list[Change]:
    """A tick and its order."""
    return [
        ticks.tick(cause(lease), row, at, order_id, at + 60_000),
        ticks.order(cause(lease), row, POOL, at, order_id, None),
    ]


async def save(store: Store, *changes: Change) -> list[Answer]:
    return [verdict.answer for verdict in await store.save(changes, together=True)]


async def added(store: Store, row: Schedule, env: bytes | None = None) -> Schedule:
    assert await save(store, ticks.add(cause(), row, env)) == [Answer.SAVED]
    return row


async def test_a_schedule_is_read_back_as_it_was_written(store: Store) -> None:
    row = await added(store, schedule(), b"sealed")
    other = await added(store, schedule("weekly", mode=Mode.PAUSED, next_at=None, mode_reason="rest"))
    assert await store.schedule("nightly") == row
    assert list(await store.schedules()) == [row, other]
    assert await store.schedule("nobody") is None
    assert (await store.schedule_env("nightly"), await store.schedule_env("weekly")) == (b"sealed", None)
    assert await store.schedule_env("nobody") is None


async def test_a_name_is_taken_once(store: Store) -> None:
    await added(store, schedule())
    assert await save(store, ticks.add(cause(), schedule(cron="@daily"), None)) == [Answer.CONFLICT]
    assert [each.cron for each in await store.schedules()] == ["0 2 * * *"]


async def test_those_that_are_due_are_found_the_longest_overdue_first(store: Store) -> None:
    await added(store, schedule("late", next_at=NOW - 5))
    await added(store, schedule("now", next_at=NOW))
    await added(store, schedule("soon", next_at=NOW + 1))
    await added(store, schedule("paused", mode=Mode.PAUSED, next_at=None))
    assert [each.name for each in await store.due_schedules(NOW, 10)] == ["late", "now"]
    assert [each.name for each in await store.due_schedules(NOW, 1)] == ["late"]


async def test_a_tick_its_order_and_the_next_time_are_one_transaction(store: Store) -> None:
    row = await added(store, schedule())
    assert await save(store, *both(row, NOW, "order-1")) == [Answer.SAVED, Answer.SAVED]
    after = await store.schedule("nightly")
    assert after is not None
    assert (after.version, after.next_at, after.last_at, after.last_order) == (2, NOW + 60_000, NOW, "order-1")
    assert list(await store.ticks("nightly", 10)) == [Tick(schedule="nightly", at=NOW, order_id="order-1")]
    work = await store.order("order-1")
    assert work is not None and (work.spec.schedule, work.spec.tick_at) == ("nightly", NOW)


async def test_a_tick_on_an_old_version_makes_no_order(store: Store) -> None:
    row = await added(store, schedule())
    await save(store, *both(row, NOW, "order-1"))
    assert Answer.CONFLICT in await save(store, *both(row, NOW + 60_000, "order-2"))
    assert await store.order("order-2") is None
    assert len(await store.ticks("nightly", 10)) == 1


async def test_the_same_tick_twice_makes_one_order(store: Store) -> None:
    row = await added(store, schedule())
    await save(store, *both(row, NOW, "order-1"))
    again = replace(row, version=2)
    assert await save(store, *both(again, NOW, "order-2")) == [Answer.CONFLICT, Answer.CONFLICT]
    assert await store.order("order-2") is None


async def test_of_two_rivals_one_makes_the_tick(database: Database) -> None:
    stores = [await database.open(hints=False) for _ in range(2 if database.kind == "postgres" else 1)] * 2
    row = await added(stores[0], schedule())
    found = await asyncio.gather(*(save(store, *both(row, NOW, f"order-{n}")) for n, store in enumerate(stores[:2])))
    assert sorted(answers.count(Answer.SAVED) for answers in found) == [0, 2]
    assert len((await stores[0].orders(OrderFilter(), None, 10)).orders) == 1


async def test_a_deposed_keeper_makes_no_tick(store: Store) -> None:
    row = await added(store, schedule())
    taken = await store.take_lease("*schedules", "one", 10_000)
    assert taken is not None
    key = (taken[0].host, taken[0].epoch)
    assert await save(store, *both(row, NOW, "order-1", (key[0], key[1] - 1))) == [Answer.DEPOSED, Answer.DEPOSED]
    assert await store.order("order-1") is None
    assert await save(store, *both(row, NOW, "order-1", key)) == [Answer.SAVED, Answer.SAVED]


async def test_an_order_whose_dedupe_key_is_taken_holds_its_tick_back(store: Store) -> None:
    row = await added(store, schedule(spec=Spec(order_id="", command=("true",), dedupe_key="k")))
    await save(store, *both(row, NOW, "order-1"))
    after = await store.schedule("nightly")
    assert after is not None
    verdicts = await store.save(both(after, NOW + 60_000, "order-2"), together=True)
    assert [verdict.answer for verdict in verdicts] == [Answer.HELD_BACK, Answer.DUPLICATE]
    assert verdicts[1].order_id == "order-1"
    assert await store.schedule("nightly") == after


async def test_env_values_stay_until_they_are_given_anew(store: Store) -> None:
    row = await added(store, schedule(), b"first")
    await save(store, *both(row, NOW, "order-1"))
    after = await store.schedule("nightly")
    assert after is not None and await store.schedule_env("nightly") == b"first"
    for sealed, expected in ((b"second", b"second"), (None, b"second"), (b"", None)):
        change = ticks.alter(cause(), after, replace(after, memory_mb=after.memory_mb + 1), sealed)
        assert change is not None and await save(store, change) == [Answer.SAVED]
        after = await store.schedule("nightly")
        assert after is not None and await store.schedule_env("nightly") == expected


async def test_a_removed_schedule_is_gone_with_its_ticks_and_its_orders_stay(store: Store) -> None:
    row = await added(store, schedule())
    await save(store, *both(row, NOW, "order-1"))
    after = await store.schedule("nightly")
    assert after is not None
    assert await save(store, ticks.remove(cause(), row)) == [Answer.CONFLICT]
    assert await save(store, ticks.remove(cause(), after)) == [Answer.SAVED]
    assert (list(await store.schedules()), list(await store.ticks("nightly", 10))) == ([], [])
    assert await store.order("order-1") is not None


async def test_old_ticks_are_forgotten(store: Store) -> None:
    row = await added(store, schedule(name="often"))
    for n in range(1_003):
        (verdict,) = await store.save([ticks.tick(cause(), row, NOW + n, "x", NOW + n + 1)], together=True)
        assert verdict.saved
        row = replace(row, version=row.version + 1)
    kept = await store.ticks("often", 5_000)
    assert (len(kept), kept[0].at, kept[-1].at) == (1_000, NOW + 1_002, NOW + 3)


async def test_the_events_of_schedules_fold_back_to_the_rows_and_hold_no_env(store: Store) -> None:
    row = await added(store, schedule(), b"sealed")
    await save(store, *both(row, NOW, "order-1"))
    after = await store.schedule("nightly")
    assert after is not None
    await save(store, ticks.miss(cause(), after, 3, NOW + 9))
    await added(store, schedule("gone"))
    await save(store, ticks.remove(cause(), schedule("gone")))
    events = await store.events(0, 100)
    assert fold(events) == await rows_of(store)
    assert "sealed" not in str([event.data for event in events])


async def test_a_schedule_is_never_saved_beside_others(store: Store) -> None:
    with pytest.raises(ValueError, match="together"):
        await store.save([ticks.add(cause(), schedule(), None)])
