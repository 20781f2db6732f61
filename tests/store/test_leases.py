"""Who leads, who was deposed, and limits that span hosts."""

import asyncio

import pytest

from standby.core.model import Order, Slot
from standby.store.contract import Answer, Store
from tests import make
from tests.conftest import Database

pytestmark = pytest.mark.anyio

TTL = 10_000


async def test_a_host_without_a_leader_can_be_led(store: Store) -> None:
    taken = await store.take_lease("h", "one", TTL)

    assert taken is not None
    lease, before = taken
    assert (lease.host, lease.owner, lease.until - lease.renewed_at, before) == ("h", "one", TTL, None)
    assert await store.leases() == [lease]


async def test_a_led_host_is_not_given_to_another(database: Database) -> None:
    one, two = await database.open(), await database.open()
    await one.take_lease("h", "one", TTL)

    assert await two.take_lease("h", "two", TTL) is None
    assert await two.take_lease("other", "two", TTL) is not None


async def test_of_many_who_want_to_lead_one_does(database: Database) -> None:
    stores = [await database.open() for _ in range(3)]
    wanted = [store.take_lease("h", f"{n}-{k}", TTL) for n, store in enumerate(stores) for k in range(5)]

    assert len([taken for taken in await asyncio.gather(*wanted) if taken is not None]) == 1


async def test_an_expired_lease_goes_to_the_next_with_a_higher_epoch(database: Database) -> None:
    store = await database.open()
    first = await store.take_lease("h", "one", TTL)
    assert first is not None
    database.skew_ms = TTL + 1_000

    second = await store.take_lease("h", "two", TTL)

    assert second is not None and second[1] == first[0]
    assert second[0].epoch > first[0].epoch and second[0].epoch >= second[0].renewed_at
    assert await store.renew_leases("one", ["h"], TTL) == []


async def test_a_renewed_lease_lives_on(database: Database) -> None:
    store = await database.open()
    first = await store.take_lease("h", "one", TTL)
    assert first is not None
    database.skew_ms = TTL - 1_000

    (renewed,) = await store.renew_leases("one", ["h"], TTL)

    assert renewed.epoch == first[0].epoch and renewed.until > first[0].until
    database.skew_ms = TTL + 5_000
    assert await store.take_lease("h", "two", TTL) is None


async def test_a_lease_that_was_taken_but_never_renewed_still_tells_since_when_nobody_led(database: Database) -> None:
    store = await database.open()
    await store.take_lease("h", "one", TTL)
    (led,) = await store.renew_leases("one", ["h"], TTL)
    database.skew_ms = 100_000
    await store.take_lease("h", "two", TTL)
    assert await store.renew_leases("two", ["other"], TTL) == []
    await store.resign_leases("two", ["h"])

    third = await store.take_lease("h", "three", TTL)

    assert third is not None and third[1] is not None and third[1].owner == "two"
    assert third[1].renewed_at == led.renewed_at


async def test_a_resigned_lease_is_free_at_once(store: Store) -> None:
    first = await store.take_lease("h", "one", TTL)
    await store.resign_leases("one", ["h"])

    second = await store.take_lease("h", "two", TTL)

    assert first is not None and second is not None and second[0].epoch > first[0].epoch
    assert second[1] is not None and second[1].owner == "one"
    assert await store.renew_leases("one", ["h"], TTL) == []


async def test_an_epoch_never_goes_back_when_the_clock_does(database: Database) -> None:
    store = await database.open()
    database.skew_ms = 1_000_000
    ahead = await store.take_lease("h", "one", 1)
    await store.resign_leases("one", ["h"])
    database.skew_ms = 1_100_000
    await store.resign_leases("one", ["h"])
    first = await store.take_lease("h", "one", TTL)
    database.skew_ms = 0
    again = await store.take_lease("h", "one", TTL)

    assert ahead is not None and first is not None and again is not None
    assert ahead[0].epoch < first[0].epoch < again[0].epoch


async def test_a_deposed_leader_writes_nothing(database: Database) -> None:
    store, rival = await database.open(), await database.open()
    made, place = make.submit(), make.slot()
    assert made.order is not None
    await store.save([made, make.add_slot(place)])
    old = await store.take_lease("h", "one", TTL)
    database.skew_ms = TTL + 1
    new = await rival.take_lease("h", "two", TTL)
    assert old is not None and new is not None

    (verdict,) = await store.save([make.claim(made.order, place, lease=("h", old[0].epoch))])

    assert verdict.answer is Answer.DEPOSED
    work = await store.order(made.order.id)
    assert work is not None and work.order == made.order
    (verdict,) = await rival.save([make.claim(made.order, place, lease=("h", new[0].epoch))])
    assert verdict.saved


async def test_who_never_led_is_deposed(store: Store) -> None:
    made, place = make.submit(), make.slot()
    assert made.order is not None
    await store.save([made, make.add_slot(place)])

    (verdict,) = await store.save([make.claim(made.order, place, lease=("h", 1))])

    assert verdict.answer is Answer.DEPOSED


async def test_an_expired_lease_that_nobody_took_still_writes(database: Database) -> None:
    store = await database.open()
    made, place = make.submit(), make.slot()
    assert made.order is not None
    await store.save([made, make.add_slot(place)])
    lease = await store.take_lease("h", "one", TTL)
    database.skew_ms = TTL + 1
    assert lease is not None

    (verdict,) = await store.save([make.claim(made.order, place, lease=("h", lease[0].epoch))])

    assert verdict.saved


async def waiting_orders(store: Store, count: int, hosts: list[str]) -> list[tuple[Order, Slot]]:
    made = [make.submit() for _ in range(count)]
    places = [make.slot(f"{host}-{n}", host) for n in range(count // len(hosts)) for host in hosts]
    await store.save([*made, *(make.add_slot(place) for place in places)])
    return [(one.order, place) for one, place in zip(made, places, strict=True) if one.order is not None]


@pytest.mark.parametrize(("limit", "open_at_last"), [(7, 7), (0, 0), (None, 40)])
async def test_two_leaders_never_exceed_the_limit_of_a_project(
    database: Database, limit: int | None, open_at_last: int
) -> None:
    leaders = [await database.open(), await database.open()]
    pairs = await waiting_orders(leaders[0], 40, ["h0", "h1"])
    await leaders[0].save([make.limit_project("a", limit)])

    async def lead(number: int) -> list[Answer]:
        mine = [make.claim(order, place, project_limit=True) for order, place in pairs if place.host == f"h{number}"]
        verdicts = [await leaders[number].save(mine[at : at + 4]) for at in range(0, len(mine), 4)]
        return [verdict.answer for call in verdicts for verdict in call]

    answers = [answer for call in await asyncio.gather(lead(0), lead(1)) for answer in call]

    assert answers.count(Answer.SAVED) == open_at_last
    assert set(answers) <= {Answer.SAVED, Answer.FULL}
    assert (await leaders[0].open_by_project()).get("a", 0) == open_at_last


async def test_a_limit_counts_earlier_changes_of_the_same_batch(store: Store) -> None:
    pairs = await waiting_orders(store, 6, ["h"])
    await store.save([make.limit_project("a", 2)])

    verdicts = await store.save([make.claim(order, place, project_limit=True) for order, place in pairs])

    assert [verdict.answer for verdict in verdicts] == [Answer.SAVED] * 2 + [Answer.FULL] * 4


async def test_a_project_nobody_limited_has_no_limit(store: Store) -> None:
    pairs = await waiting_orders(store, 6, ["h"])

    verdicts = await store.save([make.claim(order, place, project_limit=True) for order, place in pairs])

    assert all(verdict.saved for verdict in verdicts)
