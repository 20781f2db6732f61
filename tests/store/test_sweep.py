"""History that is given up: purged by somebody, or pruned because of its age; keys and readings beside it."""

from typing import Any

import pytest
from msgspec.structs import replace

from standby.core.lifecycle import purge
from standby.core.model import Change, Order
from standby.core.work import Report
from standby.store.contract import Answer, Heard, Key, LogChunk, OrderFilter, Store
from tests import make, rows

pytestmark = pytest.mark.anyio


def at(moment: int, made: Change) -> Change:
    return replace(made, at=moment)


async def ended(store: Store, order_id: str, ended_at: int, **parts: Any) -> Order:
    """An order that ran and ended at a time."""
    place = make.slot(f"s-{order_id}")
    made = make.submit(id=order_id, submitted_at=ended_at - 5, **parts)
    assert made.order is not None
    await store.save([at(ended_at - 5, made), at(ended_at - 5, make.add_slot(place))])
    claimed = make.claim(made.order, place)
    await store.save([at(ended_at - 4, claimed)])
    settled = make.settle(make.saved_order(claimed))
    assert settled.order is not None and settled.run is not None
    settled = replace(settled, order=replace(settled.order, ended_at=ended_at))
    await store.save([at(ended_at, settled)])
    chunk = LogChunk(run_id=f"{order_id}-1", first=0, count=0, body="[]", cursor="1", closed=True, bytes=0)
    await store.append_logs([chunk], 1_000)
    await store.put_report(Report(run_id=f"{order_id}-1", heartbeat_at=ended_at), news=False)
    return make.saved_order(settled)


async def left(store: Store) -> list[str]:
    return [each.order.id for each in (await store.orders(OrderFilter(), None, 100)).orders]


async def test_a_purge_removes_everything_of_an_order_and_is_the_next_event(store: Store) -> None:
    gone = await ended(store, "gone", 1_000, env=b"sealed", key="k")
    kept = await ended(store, "kept", 1_000, env=b"sealed")
    last = await store.last_seq()
    first, again = (
        await store.purge([purge(rows.cause(at=2_000), gone, "why")]),
        await store.purge([purge(rows.cause(at=2_000), gone, None)]),
    )
    assert [(each.answer, each.seq) for each in [*first, *again]] == [
        (Answer.SAVED, last + 1),
        (Answer.CONFLICT, None),
    ]
    assert await left(store) == ["kept"]
    assert set(await store.sealed_env(["gone", "kept"])) == {"kept"}
    specs = await store.fetch("select order_id from specs")  # type: ignore[attr-defined]
    assert [row[0] for row in specs] == ["kept"]
    assert await store.runs("gone") == [] != await store.runs(kept.id)
    assert set(await store.log_tails(["gone-1", "kept-1"])) == {"kept-1"}
    assert set(await store.reports(["gone-1", "kept-1"])) == {"kept-1"}
    assert await store.idempotency("a", "k") is None
    (event,) = await store.events(0, 100, "gone")
    assert (event.kind, event.from_state, event.to_state, event.data) == (
        "order.purged",
        "completed",
        None,
        {"order": None, "note": {"said": "why"}},
    )
    (verdict,) = await store.save([make.submit()])
    assert verdict.seq == last + 2


async def test_a_purge_wakes_those_who_listen(store: Store) -> None:
    order = await ended(store, "gone", 1_000)
    heard: list[Heard] = []
    end = store.listen(heard.append)
    await store.purge([purge(rows.cause(), order, None)])
    end()
    assert heard


async def test_many_orders_are_purged_at_once(store: Store) -> None:
    orders = [make.order(id=f"o{n:03}") for n in range(250)]
    await store.save([make.submit(order) for order in orders])
    await store.save([make.cancel(order) for order in orders])
    rows_of = [each.order for each in (await store.orders(OrderFilter(), None, 300)).orders]
    verdicts = await store.purge([replace(purge(rows.cause(), row, None), id=f"c-{row.id}") for row in rows_of])
    assert all(verdict.saved for verdict in verdicts)
    assert len({verdict.seq for verdict in verdicts}) == 250
    assert await left(store) == []


async def test_orders_that_ended_long_ago_are_removed_in_steps(store: Store) -> None:
    for number in range(5):
        await ended(store, f"old{number}", 1_000 + number)
    waiting = make.submit(id="waiting", submitted_at=900)
    await store.save([waiting])
    await ended(store, "new", 9_000)
    assert await store.prune_orders(1_003, 0, 2) == (2, (await place(store, "old1")))
    removed, after = await store.prune_orders(1_003, await place(store, "old1"), 3)
    assert removed == 1 and after is not None
    assert await store.prune_orders(1_003, after, 3) == (0, None)
    assert await left(store) == ["new", "waiting", "old4", "old3"]
    assert set(await store.log_tails([f"old{n}-1" for n in range(5)])) == {"old3-1", "old4-1"}
    assert (await store.history()).orders_pruned == 3


async def place(store: Store, order_id: str) -> int:
    events = await store.events(0, 1, order_id)
    return events[0].seq


async def test_the_newest_orders_are_not_walked_for_old_ones(store: Store) -> None:
    await store.save([make.submit(submitted_at=5_000) for _ in range(4)])
    assert await store.prune_orders(1_000, 0, 2) == (0, None)


async def test_old_events_are_removed_but_never_the_last_one(store: Store) -> None:
    for moment in (10, 20, 30, 40):
        await store.save([at(moment, make.submit())])
    assert await store.prune_events(25, 1) == 1
    assert await store.prune_events(25, 10) == 1
    assert await store.prune_events(25, 10) == 0
    history = await store.history()
    assert (history.pruned_to, history.events_pruned, history.oldest_at, history.last_seq) == (2, 2, 30, 4)
    assert await store.prune_events(1_000, 10) == 1
    assert [event.seq for event in await store.events(0, 10)] == [4]
    (verdict,) = await store.save([make.submit()])
    assert verdict.seq == 5


async def test_the_last_key_cannot_be_removed_and_no_name_is_taken_twice(store: Store) -> None:
    assert await store.add_key(Key(name="a", hash="1", created_at=5, last4="wxyz"))
    assert not await store.add_key(Key(name="a", hash="2", created_at=6))
    assert not await store.remove_key("a")
    assert await store.add_key(Key(name="b", hash="3", created_at=7))
    assert await store.remove_key("a")
    assert not await store.remove_key("a")
    assert await store.keys() == [Key(name="b", hash="3", created_at=7)]


async def test_the_last_reading_of_a_host_is_kept(store: Store) -> None:
    assert await store.reading("h") is None
    await store.put_reading("h", 5, "{}")
    await store.put_reading("h", 6, '{"a":1}')
    assert await store.reading("h") == (6, '{"a":1}')
