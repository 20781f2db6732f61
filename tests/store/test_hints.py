"""Hints shorten waiting and nothing else."""

import asyncio
import contextlib

import pytest
from msgspec.structs import replace

from standby.core.model import Trigger
from standby.store.contract import Heard
from tests import make
from tests.conftest import Database
from tests.store.test_handover import House

pytestmark = pytest.mark.anyio


class Ear:
    """Hears hints and lets a test wait for one."""

    def __init__(self) -> None:
        self.heard: list[Heard] = []
        self._some = asyncio.Event()

    def __call__(self, heard: Heard) -> None:
        self.heard.append(heard)
        self._some.set()

    async def wait(self) -> Heard:
        async with asyncio.timeout(60):
            await self._some.wait()
        return self.heard[-1]

    def forget(self) -> None:
        """Wait for the next one."""
        self._some.clear()

    async def within(self, seconds: float) -> bool:
        """Whether something is heard so soon."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self._some.wait()
        return bool(self.heard)


async def test_a_request_is_heard_in_the_same_process_with_its_pool(database: Database) -> None:
    store, ear = await database.open(), Ear()
    end = store.listen(ear)
    await store.save([make.submit(pool="p"), make.submit(pool="q"), make.add_slot(make.slot())])
    await store.save([make.add_slot(make.slot("s-2"))])
    end()
    await store.save([make.submit()])

    assert [sorted(work.order.pool for work in heard.added) for heard in ear.heard] == [["p", "q"], []]
    assert [heard.pools for heard in ear.heard] == [frozenset(), frozenset()]


async def test_a_leaders_own_moves_are_heard_as_a_commit_that_asks_for_nothing(database: Database) -> None:
    store, ear = await database.open(), Ear()
    house = House(store)
    slots, orders = await house.open(1, 1)
    end = store.listen(ear)
    claim = house.claim(orders[0], slots[0])
    for change in (claim, house.end(claim, slots[0])):
        assert (await store.save([change]))[0].saved
        assert await ear.wait() == Heard(frozenset())
        ear.forget()
    end()


async def test_an_order_that_nobody_asked_for_just_now_is_heard_too(database: Database) -> None:
    store, ear = await database.open(), Ear()
    store.listen(ear)
    await store.save([replace(make.submit(pool="p"), trigger=Trigger.DUE)])  # the tick of a schedule

    assert [work.order.pool for heard in ear.heard for work in heard.added] == ["p"]


async def test_a_refused_change_is_not_heard(database: Database) -> None:
    store, ear = await database.open(), Ear()
    store.listen(ear)
    await store.save([make.cancel(make.order())])

    assert ear.heard == []


async def test_hints_switched_off_are_silent_and_saves_still_work(database: Database) -> None:
    store, other, ear = await database.open(hints=False), await database.open(hints=False), Ear()
    store.listen(ear)
    other.listen(ear)

    assert [verdict.saved for verdict in await store.save([make.submit()])] == [True]
    assert ear.heard == []
    assert await other.last_seq() == 1


async def test_a_hearer_that_fails_harms_neither_the_writer_nor_other_hearers(database: Database) -> None:
    store, ear = await database.open(), Ear()

    def deaf(_: Heard) -> None:
        raise RuntimeError("deaf")

    store.listen(deaf)
    store.listen(ear)
    for _ in range(2):
        assert [verdict.saved for verdict in await store.save([make.submit()])] == [True]
    assert len(ear.heard) == 2
