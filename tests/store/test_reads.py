"""The reads of the contract: order, bounds and places, flat in the number of waiting orders."""

from typing import Any

import pytest
from msgspec.structs import replace

from standby.core.model import Change, Order, OrderState, Reason
from standby.store import reads
from standby.store.contract import OrderFilter, Page, Peaks, Queued, Store
from tests import make

pytestmark = pytest.mark.anyio


def orders_of(*made: Change) -> list[Order]:
    return [one.order for one in made if one.order is not None]


def ids(found: object) -> list[str]:
    found = found.orders if isinstance(found, Page) else found
    assert isinstance(found, list | tuple)
    return [one.id if isinstance(one, Order) else one.order.id for one in found]


async def test_candidates_are_the_heads_of_each_lane_merged_by_rank(store: Store) -> None:
    made = [make.submit(id=f"{lane}{rank}", project=lane, rank=rank) for lane in "abc" for rank in (30, 10, 20)]
    made += [make.submit(id="b1x", project="b", rank=10), make.submit(id="d1", project="d", rank=1, pool="other")]
    made += [make.submit(id="e-later", project="e", due_at=make.NOW)]
    await store.save(made)

    assert ids(await store.candidates("p", 2, None)) == ["a10", "b10", "b1x", "c10", "a20", "c20"]
    assert ids(await store.candidates("p", 1, None)) == ["a10", "b10", "c10"]
    assert ids(await store.candidates("other", 9, None)) == ["d1"]
    assert ids(await store.candidates("nobody", 9, None)) == []


async def test_orders_that_need_more_than_a_host_has_do_not_hide_those_behind_them(store: Store) -> None:
    big = [make.submit(id=f"big{rank}", rank=rank, memory_mb=900) for rank in range(3)]
    await store.save([*big, make.submit(id="small", rank=9, memory_mb=10)])
    assert ids(await store.candidates("p", 1, 899)) == ["small"]
    assert ids(await store.candidates("p", 1, 900)) == ["big0"]


async def test_expired_orders_come_oldest_first_and_no_more_than_asked(store: Store) -> None:
    made = [make.submit(id=f"q{due}", queue_due=due) for due in (50, 10, 30, 99)]
    await store.save([*made, make.submit(queue_due=None), make.submit(pool="other", queue_due=1)])

    assert ids(await store.expired("p", 50, 10)) == ["q10", "q30", "q50"]
    assert ids(await store.expired("p", 50, 2)) == ["q10", "q30"]
    assert ids(await store.expired("p", 9, 2)) == []


async def test_due_orders_come_with_their_specs(store: Store) -> None:
    made = [make.submit(id=f"d{due}", due_at=due) for due in (50, 10, 30)]
    await store.save([*made, make.submit()])

    due = await store.due("p", 30, 10)

    assert ids(due) == ["d10", "d30"]
    assert [work.spec.order_id for work in due] == ["d10", "d30"]


async def test_waiting_says_whether_any_order_is_ready_or_will_be(store: Store) -> None:
    later, ready = make.submit(pool="later", due_at=5), make.submit(pool="ready")
    await store.save([later, ready])

    assert await store.waiting(["nobody", "later"])
    assert await store.waiting(["ready"])
    assert not await store.waiting(["nobody"])
    assert not await store.waiting([])


async def test_a_position_is_the_place_in_the_own_lane(store: Store) -> None:
    lane = orders_of(*[make.submit(id=f"x{n}", rank=100) for n in (1, 2, 3)])
    first = make.order(id="y", rank=5)
    others = [make.submit(project="b", rank=1), make.submit(pool="q", rank=1)]
    await store.save([*[make.submit(order) for order in [*lane, first]], *others])

    assert [await store.position(order) for order in [first, *lane]] == [1, 2, 3, 4]
    assert await store.position(make.order(due_at=9)) is None
    assert await store.position_at("p", "a", 5, "z") == 2
    assert await store.position_at("p", "a", 4, "z") == 1
    assert await store.position_at("p", "nobody", 4, "z") == 1


async def test_a_listing_goes_from_the_newest_back_without_gap_or_repetition(store: Store) -> None:
    made = orders_of(*[make.submit(project="ab"[n % 2], pool="pq"[n % 3 == 0]) for n in range(20)])
    for order in made:
        await store.save([make.submit(order)])

    seen: list[str] = []
    page = await store.orders(OrderFilter(), None, 7)
    seen += ids(page)
    while page.next is not None:
        page = await store.orders(OrderFilter(), page.next, 7)
        seen += ids(page)
    assert seen == [order.id for order in reversed(made)]

    of_b = await store.orders(OrderFilter(project="b"), None, 100)
    assert ids(of_b) == [order.id for order in reversed(made) if order.project == "b"]
    of_q = await store.orders(OrderFilter(pool="q", project="a"), None, 100)
    assert ids(of_q) == [order.id for order in reversed(made) if (order.pool, order.project) == ("q", "a")]


async def test_a_listing_of_one_state_holds_that_state_only(store: Store) -> None:
    made = orders_of(*[make.submit() for _ in range(6)], make.submit(due_at=7))
    place = make.slot()
    await store.save([*[make.submit(order) for order in made], make.add_slot(place)])
    await store.save([make.cancel(made[0]), make.claim(made[1], place)])

    by_state = {
        state: ids(await store.orders(OrderFilter(states=frozenset([state])), None, 10)) for state in OrderState
    }

    assert by_state[OrderState.CANCELLED] == [made[0].id]
    assert by_state[OrderState.PREPARING] == [made[1].id]
    assert sorted(by_state[OrderState.PENDING]) == sorted(order.id for order in made[2:])
    assert by_state[OrderState.COMPLETED] == []
    assert ids(await store.orders(OrderFilter(states=frozenset([OrderState.PENDING]), project="b"), None, 10)) == []


async def test_a_listing_by_labels_ids_and_states_holds_what_matches_in_all(store: Store) -> None:
    made = [make.submit(id=f"0abcdef{n}", labels={"team": "ab"[n % 2], "n": str(n)}) for n in range(6)]
    await store.save(made)
    orders = orders_of(*made)
    await store.save([make.cancel(orders[0]), make.cancel(orders[1])])

    async def found(most: int = 10, **only: Any) -> list[str]:
        return [each[-1] for each in ids(await store.orders(OrderFilter(**only), None, most))]

    assert await found(labels={"team": "a"}) == ["4", "2", "0"]
    assert await found(labels={"team": "a", "n": "2"}) == ["2"]
    assert await found(labels={"team": "a", "n": "3"}) == []
    assert await found(labels={"team": "a"}, states={OrderState.CANCELLED}) == ["0"]
    assert await found(labels={"odd": '100% "!_'}) == []
    assert await found(labels={"team": "_"}) == []
    assert await found(states={OrderState.CANCELLED, OrderState.PENDING}, most=2) == ["5", "4"]
    assert await found(id_prefix="0abcdef3") == ["3"]
    assert await found(id_prefix="0abcdef", states={OrderState.CANCELLED}) == ["1", "0"]
    assert await found(id_prefix="0a", labels={"team": "b"}) == ["5", "3", "1"]
    assert await found(ids=["0abcdef1", "0abcdef4", "nobody"]) == ["4", "1"]
    assert await found(ids=["0abcdef1", "0abcdef4"], pool="other") == []


@pytest.mark.parametrize("value", ['100% "!_\\', "é\n\u2028", "", "A", "a"])
async def test_any_text_can_be_a_label(store: Store, value: str) -> None:
    await store.save([make.submit(id="mine", labels={"l%": value}), make.submit(labels={"l%": "aA" + value})])
    assert ids(await store.orders(OrderFilter(labels={"l%": value}), None, 5)) == ["mine"]


async def test_a_rare_match_in_a_long_history_is_found_page_after_page(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("standby.store.reads.WINDOW", 3)
    monkeypatch.setattr("standby.store.reads.WALK_MOST", 6)
    made = [make.submit(id=f"z{n:02}", labels={"rare": "yes"} if n % 9 == 0 else {}) for n in range(20)]
    await store.save(made)
    seen: list[str] = []
    before, pages = None, 0
    while pages == 0 or before is not None:
        page = await store.orders(OrderFilter(labels={"rare": "yes"}), before, 10)
        seen, before, pages = [*seen, *ids(page)], page.next, pages + 1
    assert seen == ["z18", "z09", "z00"]
    assert pages > 2


async def test_the_mark_of_an_event_is_the_beginning_of_its_changes_id(store: Store) -> None:
    made = make.submit()
    (verdict,) = await store.save([made])
    assert verdict.seq is not None
    assert await store.mark(verdict.seq) == made.id[:8]
    assert await store.mark(verdict.seq + 1) is None
    history = await store.history()
    assert (history.pruned_to, history.oldest_at, history.last_seq) == (0, make.NOW, verdict.seq)


async def test_open_orders_and_holders_are_those_of_the_host(store: Store) -> None:
    places = [make.slot("s-1", "h", "p"), make.slot("s-2", "h", "q"), make.slot("s-3", "other", "p")]
    made = [make.submit(pool=place.pool) for place in places]
    await store.save([*made, *map(make.add_slot, places), make.submit()])
    claims = [make.claim(order, place) for order, place in zip(orders_of(*made), places, strict=True)]
    await store.save(claims)
    held = [make.saved_order(one) for one in claims]

    assert [work.order for work in await store.open_orders("h")] == held[:2]
    assert await store.holders(host="h") == {"s-1": held[0], "s-2": held[1]}
    assert await store.holders(pool="p") == {"s-1": held[0], "s-3": held[2]}
    assert await store.holders(host="h", pool="p") == {"s-1": held[0]}
    assert [slot.name for slot in await store.slots(host="h")] == ["s-1", "s-2"]
    assert [slot.name for slot in await store.slots(pool="p")] == ["s-1", "s-3"]
    assert await store.open_by_project() == {"a": 3}


async def test_counts_tell_unfinished_orders_by_pool_and_state(store: Store) -> None:
    ready, later, done, held = orders_of(make.submit(), make.submit(due_at=5), make.submit(), make.submit(pool="q"))
    place = make.slot(pool="q")
    await store.save([*map(make.submit, (ready, later, done, held)), make.add_slot(place)])
    await store.save([make.cancel(done), make.claim(held, place)])

    assert await store.counts() == {("p", OrderState.PENDING): 2, ("q", OrderState.PREPARING): 1}


async def test_orders_of_spared_projects_do_not_stand_in_the_way_of_those_that_expire(store: Store) -> None:
    rows = [make.order(project=project, queue_due=make.NOW) for project in ("a", "b", "ab", "b")]
    await store.save([make.submit(row) for row in rows])
    found = await store.expired("p", make.NOW, 2, ["b", "c"])
    assert {order.project for order in found} == {"a", "ab"}
    assert len(await store.expired("p", make.NOW, 10)) == 4


async def test_peaks_tell_by_pool_how_many_runs_took_more_than_they_declared(store: Store) -> None:
    taken = {"a": ("p", 256 * 1024), "b": ("p", 256 * 1024 + 1), "c": ("p", None), "d": ("other", 7)}
    for name, (pool, peak_kb) in taken.items():
        submit, place = make.submit(id=name, pool=pool), make.slot(name, pool=pool)
        claim = make.claim(make.saved_order(submit), place)
        end = make.settle(make.saved_order(claim))
        assert end.run is not None
        for change in (submit, make.add_slot(place), claim, replace(end, run=replace(end.run, peak_memory_kb=peak_kb))):
            (verdict,) = await store.save([change])
            assert verdict.saved
    assert await store.peaks() == {"p": Peaks(2, 1, 256 * 1024 + 1), "other": Peaks(1, 0, 7)}


async def test_queues_tell_how_many_wait_in_each_lane_and_how_many_of_them_are_urgent(store: Store) -> None:
    made = [make.submit(project="a", rank=rank) for rank in (-5, 0, 10)] + [make.submit(project="b", rank=-1)]
    await store.save([*made, make.submit(project="c", pool="q", rank=1), make.submit(project="d", due_at=make.NOW)])
    assert await store.queues("p") == {"a": Queued(3, 1), "b": Queued(1, 1)}
    assert await store.queues("q") == {"c": Queued(1, 0)}
    assert await store.queues("empty") == {}


async def test_wanted_keys_are_those_that_somebody_has_to_wait_for(store: Store) -> None:
    def keyed(key: str, rank: int | None, *, project: str = "a", pool: str = "p") -> Change:
        return make.submit(project=project, pool=pool, rank=rank, concurrency_key=key)

    holder = keyed("held", 0)
    await store.save([holder, make.add_slot(make.slot("s"))])
    await store.save([make.claim(make.saved_order(holder), make.slot("s"))])
    alone, other, elsewhere = keyed("alone", 1), keyed("two", 2, project="b"), keyed("two", 3, pool="q")
    mine = [keyed("held", 10), keyed("two", 20), keyed("two", 30), keyed("two", 40)]
    await store.save([alone, other, elsewhere, make.submit(project="a", rank=0), *mine])
    found = await store.wanted_keys("p")
    assert {project: sorted(keys) for project, keys in found.items()} == {"a": [(1, make.NOW), (3, None)]}
    before = await store.wanted_keys("p", make.saved_order(mine[-1]))
    assert sorted(ready for ready, _ in before["a"]) == [1, 2]
    assert await store.wanted_keys("p", make.saved_order(mine[0])) == {}
    assert await store.wanted_keys("q") == {}


async def test_of_many_waiting_orders_no_more_are_counted_than_are_needed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "COUNT_MOST", 8)
    monkeypatch.setattr(reads, "LANES_MOST", 3)
    await store.save([make.submit(project=lane, rank=rank) for lane in "abcde" for rank in range(9)])
    found = await store.queues("p")
    assert list(found) == ["a", "b", "c"]
    assert all(queued.ready < 9 for queued in found.values())


@pytest.mark.parametrize(
    "rare",
    [
        {},
        {"dedupe_live": 'a:"once"'},
        {"reason": Reason.LOST, "exit_code": 0},
        {"deploy_since": make.NOW},
        {"concurrency_key": "k"},
        {"cpus": 0.1 + 0.2},
    ],
)
async def test_a_candidate_is_the_whole_order(store: Store, rare: dict[str, Any]) -> None:
    await store.save([make.submit(id="x", queue_due=make.NOW, attempt=2, **rare)])
    assert await store.candidates("p", 1, None) == [await store.order("x")]


async def test_orders_that_ask_for_more_processors_than_a_host_has_do_not_hide_those_behind_them(store: Store) -> None:
    big = [make.submit(id=f"big{rank}", rank=rank, cpus=2.5) for rank in range(3)]
    await store.save([*big, make.submit(id="small", rank=8, cpus=0.5), make.submit(id="plain", rank=9)])
    assert ids(await store.candidates("p", 2, None, cpus_max=2.0)) == ["small", "plain"]
    assert ids(await store.candidates("p", 1, None, {"a": (8, "small")}, 2.0)) == ["plain"]
    (found,) = await store.candidates("p", 1, None, cpus_max=2.5)
    assert (found.order.id, found.order.cpus) == ("big0", 2.5)
