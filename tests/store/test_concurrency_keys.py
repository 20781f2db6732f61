"""Of the orders of a project with one concurrency key one has an open run, whoever claims, on both engines."""

import pytest
from msgspec.structs import replace

from standby.core.model import EventKind, Order, OrderState, Override, Pool, Project
from standby.store.contract import Answer, Store
from tests import make

pytestmark = pytest.mark.anyio


async def _orders(store: Store, *keys: str | None, project: str = "a", pool: str = "p") -> list[Order]:
    submitted = [make.submit(make.order(project=project, pool=pool, concurrency_key=key)) for key in keys]
    assert all(verdict.saved for verdict in await store.save(submitted))
    return [make.saved_order(change) for change in submitted]


async def _answers(store: Store, orders: list[Order]) -> list[Answer]:
    places = [make.slot(f"s-{order.id}") for order in orders]
    await store.save([make.add_slot(place) for place in places])
    claims = [make.claim(one, place, project_limit=True) for one, place in zip(orders, places, strict=True)]
    return [verdict.answer for verdict in await store.save(claims)]


async def test_the_second_claim_of_a_key_is_full_also_in_one_batch(store: Store) -> None:
    orders = await _orders(store, "k", "k", "l", None, None)
    other = await _orders(store, "k", project="b")
    saved, full = Answer.SAVED, Answer.FULL
    assert await _answers(store, [*orders, *other]) == [saved, full, saved, saved, saved, saved]
    late = await _orders(store, "k", pool="another")
    assert await _answers(store, late) == [full]


async def test_a_key_is_free_again_when_its_run_has_ended(store: Store) -> None:
    first, second = await _orders(store, "k", "k")
    place = make.slot("s-1")
    await store.save([make.add_slot(place)])
    claimed = make.claim(first, place, project_limit=True)
    await store.save([claimed])
    (verdict,) = await store.save([make.settle(make.saved_order(claimed), place)])
    assert verdict.saved
    assert await _answers(store, [second]) == [Answer.SAVED]


async def test_the_schema_itself_refuses_a_second_open_run_of_a_key(store: Store) -> None:
    first, second = await _orders(store, "k", "k")
    places = [make.slot("s-1"), make.slot("s-2")]
    await store.save([make.add_slot(place) for place in places])
    unguarded = [make.claim(one, place) for one, place in zip((first, second), places, strict=True)]
    verdicts = await store.save(unguarded)
    assert sorted(verdict.answer for verdict in verdicts) == [Answer.CONFLICT, Answer.SAVED]


async def test_whoever_waits_for_a_key_is_no_candidate(store: Store) -> None:
    first, second, other, plain = await _orders(store, "k", "k", "l", None)
    elsewhere = await _orders(store, "k", pool="q")
    found = [work.order.id for work in await store.candidates("p", 9, None)]
    assert found == [first.id, other.id, plain.id]
    assert [work.order.id for work in await store.candidates("q", 9, None)] == [elsewhere[0].id]
    assert await _answers(store, [first]) == [Answer.SAVED]
    found = [work.order.id for work in await store.candidates("p", 9, None)]
    assert found == [other.id, plain.id] and second.id not in found
    assert await store.candidates("q", 9, None) == []
    assert second.rank is not None
    after = {"a": (second.rank - 1, "")}
    assert [work.order.id for work in await store.candidates("p", 9, None, after)] == [other.id, plain.id]


@pytest.mark.parametrize("key", ["k", "", "a\x1fb", "\x1e"])
async def test_an_order_keeps_its_key(store: Store, key: str) -> None:
    (order,) = await _orders(store, key)
    found = await store.order(order.id)
    assert found is not None and found.order == replace(order, state=OrderState.PENDING)


async def test_the_contenders_of_a_key_are_its_unfinished_orders_in_the_order_of_their_submits(store: Store) -> None:
    first, second, other = await _orders(store, "k", "k", "l")
    elsewhere = await _orders(store, "k", project="b")
    gone = (await _orders(store, "k"))[0]
    await store.save([make.cancel(gone)])
    found = await store.contenders("a", "k", 9)
    assert [each.order.id for each in found] == [first.id, second.id]
    assert found[0].seq < found[1].seq
    assert [each.order.id for each in await store.contenders("a", "k", 1)] == [first.id]
    assert not {other.id, elsewhere[0].id} & {each.order.id for each in found}


async def test_a_queue_is_counted_by_pool_and_by_project_and_no_further_than_asked(store: Store) -> None:
    pools = [Pool(name=name, host="h", mode_since=1) for name in "pq"]
    await store.save([make.put_pool(None, pool) for pool in pools])
    await _orders(store, None, None, None)
    await _orders(store, None, None, pool="q")
    await _orders(store, None, project="b", pool="q")
    assert [await store.depth(name, None, 9) for name in ("p", "q", "none")] == [3, 3, 0]
    assert [await store.depth(None, name, 9) for name in ("a", "b", "none")] == [5, 1, 0]
    assert (await store.depth("p", None, 2), await store.depth(None, "a", 4)) == (2, 4)
    assert list(await store.lanes("q", 9)) == ["a", "b"] and list(await store.lanes("q", 1)) == ["a"]
    assert list(await store.lanes("none", 9)) == []


async def test_the_last_start_of_a_pool_is_found_in_its_events(store: Store) -> None:
    assert await store.last_start("p") is None
    orders = await _orders(store, None)
    await _answers(store, orders)
    assert (await store.last_start("p"), await store.last_start("q")) == (make.NOW, None)


async def test_limits_and_what_was_set_by_hand_of_a_project_are_kept(store: Store) -> None:
    row = Project(
        name="a", running_max=0, weight=7, queue_max=3, overrides={"weight": Override(value=7, actor="ada", at=5)}
    )
    await store.save([make.change(EventKind.PROJECT_OVERRIDDEN, project=row)])
    assert list(await store.projects()) == [row]
    changed = replace(row, version=2, weight=1, overrides={})
    (verdict,) = await store.save([make.change(EventKind.PROJECT_OVERRIDDEN, project_was=row, project=changed)])
    assert verdict.saved and list(await store.projects()) == [changed]
