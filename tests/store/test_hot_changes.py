"""Hot changes share a commit, on both engines: one that is not as it was gets its verdict, and harms no other."""

from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.json import decode, encode
from msgspec.structs import replace

from sim.fold import fold
from standby.core import lifecycle as life
from standby.core.model import Change, EventKind, Order, Reason, Retry, Slot, SlotState, Trigger
from standby.core.sighting import Exit
from standby.store.contract import Answer, Store
from standby.store.entry import entry
from standby.store.hot import Hot
from standby.store.rows import told
from standby.store.sqlite import SqliteStore
from standby.store.sweep import Sweeps
from tests import make, rows
from tests.store.history import rows_of
from tests.store.test_handover import House

pytestmark = pytest.mark.anyio

Spoil = Callable[[House, Order, Slot], Awaitable[object]]


async def _order_changed(house: House, order: Order, slot: Slot) -> None:
    held = life.hold(house.cause(Trigger.ADMIT), order, {"starts": {"n": 1, "max": 1}})
    assert (await house.store.save([held]))[0].saved


async def _slot_changed(house: House, order: Order, slot: Slot) -> None:
    await house.store.save([make.change(EventKind.SLOT_IDLE, slot_was=slot, slot=replace(slot, error="e"))])


async def _slot_not_idle(house: House, order: Order, slot: Slot) -> None:
    """As it is claimed it has the right version, but is no place to run."""
    cleaning = replace(slot, state=SlotState.CLEANING)
    await house.store.save([make.slot_gone(slot)])
    await house.store.save([make.add_slot(cleaning)])


async def _slot_held(house: House, order: Order, slot: Slot) -> None:
    other = make.order(project="default", pool="default")
    await house.store.save([make.submit(other)])
    await house.store.save([house.claim(other, slot)])


async def _another_leads(house: House, order: Order, slot: Slot) -> None:
    await house.store.resign_leases("a", [house.host.name])
    assert await house.store.take_lease(house.host.name, "b", 600_000) is not None


async def _pool_changed(house: House, order: Order, slot: Slot) -> None:
    await house.store.save([make.put_pool(house.pool, replace(house.pool, failures=1))])


async def _host_changed(house: House, order: Order, slot: Slot) -> None:
    await house.store.save([make.put_host(house.host, replace(house.host, error="e"))])


async def _project_full(house: House, order: Order, slot: Slot) -> None:
    await house.store.save([make.limit_project(order.project, 0)])


async def _key_held(house: House, order: Order, slot: Slot) -> None:
    other = make.order(project="default", pool="default", concurrency_key=order.concurrency_key)
    free = rows.slot(99)
    await house.store.save([make.submit(other), make.add_slot(free)])
    assert (await house.store.save([house.claim(other, free)]))[0].saved


def _hot(change: Change) -> Hot | None:
    return entry(change).hot


@pytest.mark.parametrize(
    ("spoil", "answer"),
    [
        (_order_changed, Answer.CONFLICT),
        (_slot_changed, Answer.CONFLICT),
        (_slot_not_idle, Answer.CONFLICT),
        (_slot_held, Answer.CONFLICT),
        (_another_leads, Answer.DEPOSED),
        (_pool_changed, Answer.CONFLICT),
        (_host_changed, Answer.CONFLICT),
        (_project_full, Answer.FULL),
        (_key_held, Answer.FULL),
    ],
)
async def test_a_claim_that_is_not_as_it_was_gets_its_verdict_and_writes_nothing(
    store: Store, spoil: Spoil, answer: Answer
) -> None:
    house = House(store)
    (slot,), (order,) = await house.open(1, 1, "k")
    claim, innocent = house.claim(order, slot), make.submit()
    assert (_hot(claim), _hot(innocent)) == (Hot.CLAIM, Hot.SUBMIT)
    await spoil(house, order, slot)
    before, seq = await store.order(order.id), await store.last_seq()

    verdicts = await store.save([claim, innocent])

    assert [(verdict.answer, verdict.seq) for verdict in verdicts] == [(answer, None), (Answer.SAVED, seq + 1)]
    assert await store.order(order.id) == before
    assert await store.last_seq() == seq + 1


async def test_an_order_that_changed_in_a_full_project_is_a_conflict(store: Store) -> None:
    house = House(store)
    (slot,), (order,) = await house.open(1, 1)
    await _order_changed(house, order, slot)
    await _project_full(house, order, slot)

    assert [verdict.answer for verdict in await store.save([house.claim(order, slot)])] == [Answer.CONFLICT]


@pytest.mark.parametrize("spoiled", ["order", "slot", "run"])
async def test_an_end_that_is_not_as_it_was_gets_its_verdict_and_writes_nothing(store: Store, spoiled: str) -> None:
    house = House(store)
    slots, orders = await house.open(2, 2)
    claims = [house.claim(order, slot) for order, slot in zip(orders, slots, strict=True)]
    await store.save(claims)
    stale, innocent = [house.end(claim, slot) for claim, slot in zip(claims, slots, strict=True)]
    assert _hot(stale) is _hot(innocent) is Hot.END
    assert stale.order_was is not None and stale.run is not None
    if spoiled == "order":
        await store.save([life.stop(rows.cause(), stale.order_was, rows.spec(), Reason.CANCELLED)])
    elif spoiled == "slot":
        await _slot_changed(house, orders[0], slots[0])
    else:
        await store.save([make.change(EventKind.SLOT_IDLE, slot=make.slot("elsewhere"), run=stale.run)])
    before, seq = await store.order(orders[0].id), await store.last_seq()

    verdicts = await store.save([stale, innocent])

    assert [verdict.answer for verdict in verdicts] == [Answer.CONFLICT, Answer.SAVED]
    assert (await store.order(orders[0].id), await store.last_seq()) == (before, seq + 1)
    assert (await store.slots())[0].uses == 0 or spoiled == "slot"


async def test_a_run_that_becomes_ready_is_saved_beside_ends_claims_and_submits(store: Store) -> None:
    house = House(store)
    slots, orders = await house.open(3, 3)
    first, second = [house.claim(order, slot) for order, slot in zip(orders[:2], slots[:2], strict=True)]
    await store.save([first, second])
    assert second.order is not None
    ready = life.ready(house.cause(Trigger.LOOK), second.order, rows.spec(order_id=orders[1].id), "h-2")
    batch = [house.claim(orders[2], slots[2]), ready, make.submit(env=b"sealed", key="k"), house.end(first, slots[0])]
    assert {_hot(change) for change in batch} == set(Hot)
    house.commits = 0

    verdicts = await store.save(batch)

    assert ({verdict.answer for verdict in verdicts}, house.commits) == ({Answer.SAVED}, 1)
    seqs = [verdict.seq or 0 for verdict in verdicts]
    events = await store.events(0, 1_000)
    assert [event.change for seq in seqs for event in events if event.seq == seq] == [change.id for change in batch]
    assert fold(events) == await rows_of(store)


async def test_claims_share_the_places_that_a_project_has_left_and_no_more(store: Store) -> None:
    house = House(store)
    slots, orders = await house.open(3, 4)
    await store.save([make.limit_project("default", 2)])
    claims = [house.claim(order, slot) for order, slot in zip(orders, slots, strict=False)]
    assert [verdict.answer for verdict in await store.save(claims)] == [Answer.SAVED, Answer.SAVED, Answer.FULL]
    end = house.end(claims[0], slots[0])
    assert end.slot is not None
    again = [house.claim(orders[2], slots[2]), house.claim(orders[3], end.slot)]

    assert [verdict.answer for verdict in await store.save([end, again[0]])] == [Answer.SAVED] * 2
    assert [verdict.answer for verdict in await store.save([again[1]])] == [Answer.FULL]


@pytest.mark.parametrize("text", ["", '\n\t"\\', "\x7f\u2028", "ü€😀", "null", "[1]"])
async def test_texts_of_an_order_arrive_as_they_are(store: Store, text: str) -> None:
    order = make.order(dedupe_live=f"d{text}", concurrency_key=f"k{text}")
    change = make.submit(order, key=f"i{text}")

    assert [verdict.answer for verdict in await store.save([change])] == [Answer.SAVED]

    work = await store.order(order.id)
    assert work is not None and work.order == order
    assert [verdict.order_id for verdict in await store.save([make.submit(key=f"i{text}")])] == [order.id]


async def test_a_batch_is_numbered_behind_what_was_written_otherwise_since_the_last_one(store: Store) -> None:
    old = make.submit()
    cancel = make.cancel(make.saved_order(old))
    seqs = [await store.save([old]), await store.save([cancel]), await store.save([make.submit()])]
    seqs += [await store.purge([life.purge(rows.cause(), make.saved_order(cancel), None)])]
    seqs += [await store.save([make.submit(), make.submit()]), await store.save([make.submit()])]

    assert [verdict.seq for verdicts in seqs for verdict in verdicts] == [1, 2, 3, 4, 5, 6, 7]
    assert [event.seq for event in await store.events(0, 10)] == [3, 4, 5, 6, 7]


async def test_sqlite_writes_a_batch_of_hot_changes_by_one_statement(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "standby.db")
    house = House(store)
    slots, orders = await house.open(10, 20)
    first = [house.claim(order, slot) for order, slot in zip(orders, slots, strict=False)]
    await store.save(first)
    ends = [house.end(claim, slot) for claim, slot in zip(first, slots, strict=True)]
    said: list[str] = []

    def heard(cursor: apsw.Cursor, sql: str, bindings: object) -> bool:
        said.append(sql.split()[0])
        return True

    writer: apsw.Connection = store._main.writer
    writer.exec_trace = heard
    await store.save([*ends, *map(make.submit, [make.order() for _ in range(5)])])
    writer.exec_trace = None

    assert said == ["insert"]
    await store.close()


async def _stored(store: Store, subject: str) -> list[dict[str, Any]]:
    """What an order's events hold of its columns as they lie in the database."""
    assert isinstance(store, Sweeps)
    found = await store.fetch("select data from events where subject = $1 order by seq", subject)
    return [decode(data)["order"] for (data,) in found]


@pytest.mark.parametrize("code", [0, 3])
async def test_what_follows_from_a_move_itself_is_not_stored_and_told_all_the_same(store: Store, code: int) -> None:
    house = House(store)
    (slot,), (order,) = await house.open(1, 1)
    claim = house.claim(order, slot)
    assert claim.order is not None
    ready = life.ready(house.cause(Trigger.LOOK), claim.order, rows.spec(order_id=order.id), "h")
    assert ready.order is not None
    retry = Retry(retries=1, retry_on=(Reason.EXIT,))
    spec, over = rows.spec(order_id=order.id, retry=retry), Exit(code=code)
    cause = house.cause(Trigger.LOOK)
    end = life.finish(cause, ready.order, spec, slot, over, handle="h", seats=True, chance=0.5)
    moves = [claim, ready, end]
    assert [_hot(move) for move in moves] == [Hot.CLAIM, Hot.READY, Hot.END]

    for move in moves:
        assert [verdict.answer for verdict in await store.save([move])] == [Answer.SAVED]

    _, *kept = await _stored(store, order.id)
    assert [{"state", "state_since", "rank", "commanded_at", "ready_at", "slot"} & each.keys() for each in kept] == [
        {"slot"},
        set(),
        set(),
    ]
    _, *events = await store.events(0, 10, order.id)
    for move, event in zip(moves, events, strict=True):
        assert move.order_was is not None and move.order is not None
        written = decode(encode(told(move.order_was, move.order)))
        assert {name: event.data["order"][name] for name in written} == written
    assert ("ended_at" in events[-1].data["order"]) is (code == 0)
    assert fold(await store.events(0, 100)) == await rows_of(store)


async def test_moves_that_were_stored_whole_are_told_as_they_are(store: Store) -> None:
    house = House(store)
    (slot,), (order,) = await house.open(1, 1)
    claim = house.claim(order, slot)
    columns = {"version": 2, "state": "preparing", "attempt": 7}
    await store.save([claim])
    assert isinstance(store, Sweeps)
    event = (await store.events(0, 10, order.id))[-1]
    text = "update events set data = $1 where seq = $2 returning seq"
    await store.transact((text, encode({"order": columns}).decode(), event.seq))

    assert (await store.events(0, 10, order.id))[-1].data == {"order": columns}
