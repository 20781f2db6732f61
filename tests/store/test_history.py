"""Events: in commit order, none missed, and enough to make every row again."""

import asyncio
from random import Random

import pytest

from sim.fold import fold
from standby.core.model import EventKind
from standby.store.contract import Answer, Store
from tests import make
from tests.conftest import Database
from tests.store.history import found_a_house, next_changes, rows_of

pytestmark = pytest.mark.anyio


@pytest.mark.parametrize("seed", [1, 2])
async def test_the_events_fold_back_to_the_rows(store: Store, seed: int) -> None:
    chance = Random(seed)
    await found_a_house(store, chance)
    answers = set()
    for _ in range(40):
        answers |= {verdict.answer for verdict in await store.save(await next_changes(store, chance))}

    assert fold(await store.events(0, 100_000)) == await rows_of(store)
    assert {Answer.SAVED, Answer.CONFLICT, Answer.DUPLICATE} <= answers
    assert len(await store.events(0, 100_000)) == await store.last_seq() > 100


async def test_both_engines_tell_the_same_history(database: Database) -> None:
    from standby.store.sqlite import SqliteStore

    one, other = await database.open(), SqliteStore.in_memory()
    chances = [Random(7), Random(7)]
    for store, chance in zip((one, other), chances, strict=True):
        await found_a_house(store, chance)
        for _ in range(15):
            await store.save(await next_changes(store, chance))

    assert list(await one.events(0, 10_000)) == list(await other.events(0, 10_000))
    await other.close()


async def test_a_reader_with_a_cursor_never_misses_an_event(database: Database) -> None:
    writers = [await database.open(hints=False) for _ in range(3)]
    reader = await database.open(hints=False)
    done = asyncio.Event()
    seen: list[int] = []

    async def read() -> None:
        while True:
            finished = done.is_set()
            page = await reader.events(seen[-1] if seen else 0, 50)
            seen.extend(event.seq for event in page)
            if finished and not page:
                return

    async def write(store: Store) -> None:
        for _ in range(30):
            await store.save([make.submit() for _ in range(3)])

    reading = asyncio.create_task(read())
    await asyncio.gather(*map(write, writers))
    done.set()
    await reading

    assert seen == list(range(1, 271))


async def test_events_of_one_subject_are_told_by_its_name(store: Store) -> None:
    made, place = make.submit(), make.slot()
    assert made.order is not None
    await store.save([make.submit(), made, make.add_slot(place)])
    await store.save([make.claim(made.order, place)])

    told = await store.events(0, 10, made.order.id)

    assert [event.kind for event in told] == [EventKind.ORDER_SUBMITTED, EventKind.ORDER_CLAIMED]
    assert [(event.from_state, event.to_state) for event in told] == [(None, "pending"), ("pending", "preparing")]
    assert told[1].data["order"]["slot"] == "s-1"
    assert told[1].data["order"]["rank"] is None
    assert await store.events(told[0].seq, 10, made.order.id) == told[1:]


async def test_an_event_never_holds_an_environment(store: Store) -> None:
    await store.save([make.submit(env=b"very secret")])

    assert "secret" not in str(await store.events(0, 10))
