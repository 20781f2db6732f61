"""A slot changes hands in one commit, on both engines: the end that lets it go and the claim that takes it."""

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apsw
import pytest
from msgspec.structs import replace

from sim.fold import fold
from standby.core import lifecycle as life
from standby.core.model import Change, Order, OrderState, Reason, Slot, Trigger
from standby.core.sighting import Exit
from standby.store.commit import MANY, MOST_CHANGES
from standby.store.contract import Answer, Store, StoreDown, Verdict
from standby.store.entry import entry
from standby.store.hot import Hot
from standby.store.sqlite import SqliteStore
from tests import make, rows

pytestmark = pytest.mark.anyio


class House:
    """A led host with one pool, some idle slots and some waiting orders; counts the commits."""

    def __init__(self, store: Store) -> None:
        self.store, self.commits, self.now = store, 0, rows.NOW
        self._made = 0
        self._commit: Any = store.commit  # type: ignore[attr-defined]
        store.commit = self._counted  # type: ignore[attr-defined]

    async def _counted(self, batch: Sequence[Any], **keys: Any) -> Any:
        self.commits += 1
        return await self._commit(batch, **keys)

    async def open(self, slots: int, orders: int, keys: str = "") -> tuple[list[Slot], list[Order]]:
        self.host, self.pool = rows.host(), rows.pool()
        await self.store.save([make.put_host(None, self.host), make.put_pool(None, self.pool)])
        taken = await self.store.take_lease(self.host.name, "a", 600_000)
        assert taken is not None
        self.lease = (self.host.name, taken[0].epoch)
        places = [rows.slot(number) for number in range(1, slots + 1)]
        named = [*keys, *[None] * (orders - len(keys))]
        waiting = [make.order(project="default", pool="default", concurrency_key=key) for key in named]
        await self.store.save([*map(make.add_slot, places), *map(make.submit, waiting)])
        self.commits = 0
        return places, waiting

    def cause(self, trigger: Trigger) -> life.Cause:
        self._made += 1
        return rows.cause(trigger, id=f"change-{self._made}", at=self.now, lease=self.lease)

    def claim(self, order: Order, slot: Slot) -> Change:
        spec = rows.spec(order_id=order.id)
        return life.claim(self.cause(Trigger.ADMIT), order, spec, slot, self.pool, self.host, 2_000)

    def end(self, claim: Change, slot: Slot, *, counts: bool = True) -> Change:
        assert claim.order is not None
        spec, over = rows.spec(order_id=claim.order.id), Exit(code=0)
        cause = self.cause(Trigger.LOOK)
        return life.finish(cause, claim.order, spec, slot, over, handle="h", seats=True, chance=0.5, counts=counts)


def _slot(change: Change) -> Slot:
    assert change.slot is not None
    return change.slot


def _answers(verdicts: Sequence[Verdict]) -> list[Answer]:
    return [verdict.answer for verdict in verdicts]


async def test_slots_are_let_go_and_claimed_by_one_commit(store: Store) -> None:
    house = House(store)
    slots, orders = await house.open(3, 6)
    first = [house.claim(order, slot) for order, slot in zip(orders, slots, strict=False)]
    assert _answers(await store.save(first)) == [Answer.SAVED] * 3
    ends = [house.end(claim, slot) for claim, slot in zip(first, slots, strict=True)]
    claims = [house.claim(order, _slot(end)) for order, end in zip(orders[3:], ends, strict=True)]

    house.commits = 0
    verdicts = await store.save([*ends, *claims])

    assert (_answers(verdicts), house.commits) == ([Answer.SAVED] * 6, 1)
    seqs = [verdict.seq or 0 for verdict in verdicts]
    assert max(seqs[:3]) < min(seqs[3:])
    folded = fold(await store.events(0, 1_000))
    works = [await store.order(order.id) for order in orders]
    assert folded.orders == {work.order.id: work.order for work in works if work is not None}
    assert folded.slots == {slot.name: slot for slot in await store.slots()}
    assert {slot.name: slot.uses for slot in await store.slots()} == {slot.name: 1 for slot in slots}


async def test_a_slot_whose_end_is_refused_is_not_claimed(store: Store) -> None:
    house = House(store)
    (slot,), orders = await house.open(1, 2)
    claimed = house.claim(orders[0], slot)
    await store.save([claimed])
    assert claimed.order is not None
    await store.save([life.stop(rows.cause(), claimed.order, rows.spec(), Reason.CANCELLED)])

    end = house.end(claimed, slot)
    verdicts = await store.save([end, house.claim(orders[1], _slot(end))])

    assert _answers(verdicts) == [Answer.CONFLICT] * 2
    assert [order.state for order in (await store.holders()).values()] == [OrderState.STOPPING]


async def test_a_seat_whose_use_is_not_written_changes_hands_by_one_commit(store: Store) -> None:
    house = House(store)
    (slot,), orders = await house.open(1, 3)
    claim = house.claim(orders[0], slot)
    await store.save([claim])
    noted = house.end(claim, slot, counts=False)
    used = _slot(noted)
    second = house.claim(orders[1], used)
    await store.save([noted, second])
    end = house.end(second, used, counts=False)
    assert (end.slot, entry(end).hot) == (None, Hot.END)

    house.commits = 0
    verdicts = await store.save([end, house.claim(orders[2], used)])

    assert (_answers(verdicts), house.commits) == ([Answer.SAVED] * 2, 1)
    assert [order.id for order in (await store.holders()).values()] == [orders[2].id]
    assert await store.slots() == [used]
    folded = fold(await store.events(0, 1_000))
    works = [await store.order(order.id) for order in orders]
    assert folded.orders == {work.order.id: work.order for work in works if work is not None}
    assert [run.slot for run in await store.runs(orders[1].id)] == [slot.name]


async def test_a_seat_whose_end_is_refused_without_being_written_is_not_claimed(store: Store) -> None:
    house = House(store)
    (slot,), orders = await house.open(1, 3)
    first = house.claim(orders[0], slot)
    end = house.end(first, slot)
    used = _slot(end)
    second = house.claim(orders[1], used)
    await store.save([first])
    await store.save([end, second])
    assert second.order is not None
    await store.save([life.stop(rows.cause(), second.order, rows.spec(), Reason.CANCELLED)])

    stale = house.end(second, used, counts=False)
    verdicts = await store.save([stale, house.claim(orders[2], used)])

    assert (stale.slot, _answers(verdicts)) == (None, [Answer.CONFLICT] * 2)
    assert [order.state for order in (await store.holders()).values()] == [OrderState.STOPPING]


async def test_who_comes_before_the_claim_of_a_slot_is_served_before_it(store: Store) -> None:
    house = House(store)
    (slot,), orders = await house.open(1, 3)
    claimed = house.claim(orders[0], slot)
    await store.save([claimed])
    end = house.end(claimed, slot)
    rivals = [house.claim(order, _slot(end)) for order in orders[1:]]

    verdicts = await store.save([end, *rivals])

    assert _answers(verdicts) == [Answer.SAVED, Answer.SAVED, Answer.CONFLICT]


async def test_a_column_that_no_narrow_statement_knows_is_written_too(store: Store) -> None:
    house = House(store)
    (slot,), (order,) = await house.open(1, 1)
    claim = house.claim(order, slot)
    assert claim.order is not None and claim.told is not None
    odd = replace(claim, order=replace(claim.order, exit_code=7), told={**claim.told, "exit_code": 7})

    assert _answers(await store.save([odd])) == [Answer.SAVED]

    work = await store.order(order.id)
    assert work is not None and (work.order.exit_code, work.order.slot) == (7, slot.name)
    assert fold(await store.events(0, 1_000)).orders[order.id] == work.order


async def test_a_handover_that_is_larger_than_a_batch_is_saved_whole(store: Store) -> None:
    house = House(store)
    size = MOST_CHANGES // 2 + 10
    slots, orders = await house.open(size, 2 * size)
    first = [house.claim(order, slot) for order, slot in zip(orders, slots, strict=False)]
    assert {verdict.answer for verdict in await store.save(first)} == {Answer.SAVED}
    ends = [house.end(claim, slot) for claim, slot in zip(first, slots, strict=True)]
    claims = [house.claim(order, _slot(end)) for order, end in zip(orders[size:], ends, strict=True)]

    verdicts = await store.save([*ends, *claims])

    assert {verdict.answer for verdict in verdicts} == {Answer.SAVED}
    assert len({verdict.seq for verdict in verdicts}) == 2 * size


@pytest.mark.parametrize("boot", [None, "nonce-one"])
async def test_an_order_is_taken_in_and_claimed_by_one_commit(store: Store, boot: str | None) -> None:
    house = House(store)
    slots, _ = await house.open(2, 0)
    orders = [make.order(project="default", pool="default") for _ in slots]
    submits = [make.submit(order) for order in orders]
    claims = [house.claim(order, replace(slot, boot=boot)) for order, slot in zip(orders, slots, strict=True)]

    verdicts = await store.save([submits[0], claims[0], submits[1], claims[1]])

    assert (_answers(verdicts), house.commits) == ([Answer.SAVED] * 4, 1)
    seqs = [verdict.seq or 0 for verdict in verdicts]
    assert seqs[0] < seqs[1] and seqs[2] < seqs[3]
    works = [await store.order(order.id) for order in orders]
    assert [work.order.slot for work in works if work is not None] == [slot.name for slot in slots]
    assert fold(await store.events(0, 1_000)).orders == {
        work.order.id: work.order for work in works if work is not None
    }


async def test_an_order_that_is_not_taken_in_is_not_claimed(store: Store) -> None:
    house = House(store)
    (slot,), _ = await house.open(1, 0)
    first = make.order(project="default", pool="default", dedupe_live="default\nk")
    await store.save([make.submit(first)])
    second = make.order(project="default", pool="default", dedupe_live="default\nk")

    verdicts = await store.save([make.submit(second), house.claim(second, slot)])

    assert _answers(verdicts) == [Answer.DUPLICATE, Answer.CONFLICT]
    assert await store.holders() == {}


async def test_a_claim_that_is_refused_leaves_its_order_waiting(store: Store) -> None:
    house = House(store)
    (slot,), (other,) = await house.open(1, 1)
    await store.save([house.claim(other, slot)])
    order = make.order(project="default", pool="default")

    verdicts = await store.save([make.submit(order), house.claim(order, slot)])

    assert _answers(verdicts) == [Answer.SAVED, Answer.CONFLICT]
    work = await store.order(order.id)
    assert work is not None and work.order.state is OrderState.PENDING


async def test_who_starts_and_who_waits_are_taken_in_by_one_commit(store: Store) -> None:
    house = House(store)
    slots, _ = await house.open(2, 0)
    starts, waits, late = orders = [make.order(project="default", pool="default") for _ in range(3)]
    claims = [house.claim(starts, slots[0]), house.claim(late, replace(slots[1], version=7))]

    verdicts = await store.save([make.submit(starts), claims[0], make.submit(waits), make.submit(late), claims[1]])

    assert _answers(verdicts) == [*[Answer.SAVED] * 4, Answer.CONFLICT]
    events = await store.events(0, 1_000)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert {verdict.seq for verdict in verdicts[:4]} == {event.seq for event in events[-4:]}
    found = {order.id: await store.order(order.id) for order in orders}
    assert fold(events).orders == {key: work.order for key, work in found.items() if work is not None}
    assert [work.order.state for work in found.values() if work is not None] == ["preparing", "pending", "pending"]


async def test_the_limit_of_a_project_holds_for_orders_that_are_claimed_as_they_come(store: Store) -> None:
    house = House(store)
    slots, _ = await house.open(2, 0)
    await store.save([make.limit_project("default", 1)])
    orders = [make.order(project="default", pool="default") for _ in slots]
    submits = [make.submit(order) for order in orders]
    claims = [house.claim(order, slot) for order, slot in zip(orders, slots, strict=True)]

    verdicts = await store.save([submits[0], claims[0], submits[1], claims[1]])

    assert _answers(verdicts) == [Answer.SAVED, Answer.SAVED, Answer.SAVED, Answer.FULL]
    assert list(await store.holders()) == [slots[0].name]


async def test_a_slot_that_an_end_lets_go_is_taken_by_an_order_that_comes(store: Store) -> None:
    house = House(store)
    (slot,), (first,) = await house.open(1, 1)
    claim = house.claim(first, slot)
    await store.save([claim])
    end, order = house.end(claim, slot), make.order(project="default", pool="default")

    verdicts = await store.save([end, make.submit(order), house.claim(order, _slot(end))])

    assert _answers(verdicts) == [Answer.SAVED] * 3
    assert [held.id for held in (await store.holders()).values()] == [order.id]


async def test_claims_with_keys_share_the_commit_of_the_ends_before_them(store: Store) -> None:
    house = House(store)
    slots, orders = await house.open(3, 6, "abcdef")
    first = [house.claim(order, slot) for order, slot in zip(orders, slots, strict=False)]
    assert _answers(await store.save(first)) == [Answer.SAVED] * 3
    ends = [house.end(claim, slot) for claim, slot in zip(first, slots, strict=True)]
    claims = [house.claim(order, _slot(end)) for order, end in zip(orders[3:], ends, strict=True)]

    house.commits = 0
    verdicts = await store.save([*ends, *claims])

    assert (_answers(verdicts), house.commits) == ([Answer.SAVED] * 6, 1)
    works = [await store.order(order.id) for order in orders]
    folded = fold(await store.events(0, 1_000))
    assert folded.orders == {work.order.id: work.order for work in works if work is not None}


async def test_of_two_claims_of_one_key_the_second_is_full_and_harms_nobody(store: Store) -> None:
    house = House(store)
    slots, orders = await house.open(3, 3, "kkl")
    claims = [house.claim(order, slot) for order, slot in zip(orders, slots, strict=True)]

    assert _answers(await store.save(claims)) == [Answer.SAVED, Answer.FULL, Answer.SAVED]
    again = house.claim(orders[1], slots[1])
    assert _answers(await store.save([again])) == [Answer.FULL]
    assert {order.id for order in (await store.holders()).values()} == {orders[0].id, orders[2].id}


async def test_a_key_may_change_hands_in_one_commit(store: Store) -> None:
    house = House(store)
    slots, orders = await house.open(2, 2, "kk")
    claimed = house.claim(orders[0], slots[0])
    await store.save([claimed])

    house.commits = 0
    verdicts = await store.save([house.end(claimed, slots[0]), house.claim(orders[1], slots[1])])

    assert (_answers(verdicts), house.commits) == ([Answer.SAVED] * 2, 1)


async def test_a_key_that_is_held_by_somebody_whose_end_is_refused_is_not_claimed(store: Store) -> None:
    house = House(store)
    slots, orders = await house.open(2, 2, "kk")
    claimed = house.claim(orders[0], slots[0])
    await store.save([claimed])
    assert claimed.order is not None
    await store.save([life.stop(rows.cause(), claimed.order, rows.spec(), Reason.CANCELLED)])

    verdicts = await store.save([house.end(claimed, slots[0]), house.claim(orders[1], slots[1])])

    assert _answers(verdicts) == [Answer.CONFLICT, Answer.FULL]


def _later(claim: Change) -> Change:
    """The claim as if its order had changed since."""
    assert claim.order is not None
    return replace(claim, order=replace(claim.order, version=claim.order.version + 3))


def _made_ready(store: Store) -> asyncio.Queue[int]:
    """How many changes each batch has that is made ready from now on."""
    made = asyncio.Queue[int]()
    prepare: Any = store.prepare  # type: ignore[attr-defined]

    def noted(batch: Sequence[Any]) -> Any:
        made.put_nowait(len(batch))
        return prepare(batch)

    store.prepare = noted  # type: ignore[attr-defined]
    return made


async def test_a_batch_that_was_made_ready_before_its_turn_gets_its_exact_verdicts(store: Store) -> None:
    house = House(store)
    slots, orders = await house.open(slots=MANY, orders=MANY)
    claims = [house.claim(order, slot) for order, slot in zip(orders, slots, strict=True)]
    ends = [house.end(claim, slot) for claim, slot in zip(claims, slots, strict=True)]
    ends[7] = house.end(_later(claims[7]), slots[7])
    made = _made_ready(store)
    first = asyncio.create_task(store.save(claims))
    assert await asyncio.wait_for(made.get(), 10) == MANY
    second = asyncio.create_task(store.save(ends))
    assert await asyncio.wait_for(made.get(), 10) == MANY
    assert all(verdict.saved for verdict in await first)
    found = [verdict.answer for verdict in await second]
    assert [answer for answer in found if answer is not Answer.SAVED] == [found[7]] == [Answer.CONFLICT]
    assert await store.counts() == {("default", OrderState.PREPARING): 1}
    assert house.commits == 2


async def test_claims_behind_ends_that_are_being_saved_get_their_exact_verdicts(store: Store) -> None:
    house = House(store)
    slots, orders = await house.open(slots=MANY, orders=2 * MANY)
    claims = [house.claim(order, slot) for order, slot in zip(orders, slots, strict=False)]
    await store.save(claims)
    ends = [house.end(claim, slot) for claim, slot in zip(claims, slots, strict=True)]
    ends[7] = house.end(_later(claims[7]), slots[7])
    nexts = [house.claim(order, _slot(end)) for order, end in zip(orders[MANY:], ends, strict=True)]
    made = _made_ready(store)
    first = asyncio.create_task(store.save(ends))
    assert await asyncio.wait_for(made.get(), 10) == MANY
    second = asyncio.create_task(store.save(nexts))
    for saving in (first, second):
        refused = [place for place, verdict in enumerate(await saving) if not verdict.saved]
        assert refused == [7], "what builds on an end that was refused is refused, and nothing else"
    assert await store.counts() == {("default", OrderState.PREPARING): MANY, ("default", OrderState.PENDING): 1}
    folded = fold(await store.events(0, 10_000))
    assert folded.slots == {slot.name: slot for slot in await store.slots()}


async def test_a_disk_that_fills_up_while_batches_wait_for_each_other_makes_no_verdict_untrue(tmp_path: Path) -> None:
    store = SqliteStore.open(tmp_path / "standby.db")
    house = House(store)
    slots, orders = await house.open(slots=6 * MANY, orders=6 * MANY)
    writer: apsw.Connection = store._main.writer
    writer.pragma("max_page_count", writer.pragma("page_count") + 14)
    waves = [
        [house.claim(order, slot) for order, slot in zip(orders[at : at + MANY], slots[at : at + MANY], strict=True)]
        for at in range(0, len(orders), MANY)
    ]
    saves = []
    for wave in waves:
        saves.append(asyncio.create_task(store.save(wave)))
        await asyncio.sleep(0)
    answers = await asyncio.gather(*saves, return_exceptions=True)
    writer.pragma("max_page_count", 1_000_000)

    told: list[bool | None] = []
    for wave, answer in zip(waves, answers, strict=True):
        assert not isinstance(answer, BaseException) or isinstance(answer, StoreDown), answer
        told += [None] * len(wave) if isinstance(answer, BaseException) else [each.saved for each in answer]
    held = {order.id for order in (await store.holders()).values()}
    true = [order.id in held for order in orders]
    assert [said for said in told if said is not None] == [
        is_true for said, is_true in zip(told, true, strict=True) if said is not None
    ]
    assert {True, False} == set(true), "some came before the disk was full, and some did not"
    again = [claim for wave in waves for claim in wave if claim.subject not in held]
    assert all(verdict.saved for verdict in await store.save(again)), "there is room again"
    seqs = [event.seq for event in await store.events(0, 10_000)]
    assert seqs == list(range(1, len(seqs) + 1))
    await store.close()
