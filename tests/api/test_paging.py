"""Reading while others write: pages, streams and tags neither lose nor double what was there all the time."""

import asyncio
import json
import random
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from standby.core.model import OrderState
from standby.store.contract import Store
from tests.api.house import House, house
from tests.api.test_events import read_stream

LISTS = ["", "&label=team=a", "&state=cancelled&state=pending", "&pool=default", "&project=default&label=team=a"]
Act = tuple[str, int]
_acts = st.lists(
    st.tuples(st.sampled_from(["submit", "cancel", "purge", "purge the last one read"]), st.integers(0, 30)), max_size=4
)


class Writer:
    """Somebody who submits, cancels and purges, and knows what was never touched."""

    def __init__(self, home: House) -> None:
        self._home = home
        self.there: list[str] = []
        self.purged: set[str] = set()
        self.moved = asyncio.Event()

    async def submit(self) -> None:
        self.there.append((await self._home.submit(labels={"team": "a"}))["id"])

    async def act(self, act: Act, read: list[str]) -> None:
        """Do something with the order at a place, or with the one that was read last."""
        await self._act(act, read)
        self.moved.set()
        await asyncio.sleep(0)  # in this house a request may be answered without a turn of the loop: others want theirs

    async def _act(self, act: Act, read: list[str]) -> None:
        what, place = act
        if what == "submit" or not self.there:
            await self.submit()
            return
        order = read[-1] if what == "purge the last one read" and read else self.there[place % len(self.there)]
        await self._home.post(f"/work-orders/{order}/cancel")
        if what != "cancel":
            await self._home.post("/work-orders/purge", {"filter": {"ids": [order]}})
            self.purged.add(order)


@given(
    first=st.integers(1, 12), limit=st.integers(1, 4), query=st.sampled_from(LISTS), acts=st.lists(_acts, max_size=8)
)
@settings(max_examples=60)
def test_pages_show_each_order_that_was_there_all_the_time_exactly_once(
    first: int, limit: int, query: str, acts: list[list[Act]]
) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with house(Path(directory)) as home:
                writer = Writer(home)
                read: list[str] = []
                cursor: str | None = ""
                for _ in range(first):
                    await writer.submit()
                at_first, turns = set(writer.there), iter(acts)
                while cursor is not None:
                    page = (await home.get(f"/work-orders?limit={limit}{query}{cursor and f'&cursor={cursor}'}")).json()
                    read += [order["id"] for order in page["orders"]]
                    cursor = page["next"]
                    for act in next(turns, []):
                        await writer.act(act, read)
                assert len(read) == len(set(read))
                assert at_first - writer.purged <= set(read) <= at_first | set(writer.there)

    asyncio.run(play())


@given(acts=_acts, path=st.sampled_from(["/work-orders", "/pools", "/pools/default", "/slots", "/hosts"]))
@settings(max_examples=60)
def test_a_tag_is_good_for_as_long_as_the_answer_is_the_same(acts: list[Act], path: str) -> None:
    async def play() -> None:
        with tempfile.TemporaryDirectory() as directory:
            async with house(Path(directory)) as home:
                writer = Writer(home)
                await writer.submit()
                old = await home.get(path)
                for act in acts:
                    await writer.act(act, [])
                known = await home.get(path, headers={"If-None-Match": old.headers["etag"]})
                new = await home.get(path)
                assert known.status_code == (304 if new.content == old.content else 200)
                assert known.content == (b"" if known.status_code == 304 else new.content)
                assert known.headers["etag"] == new.headers["etag"]

    asyncio.run(play())


@pytest.mark.anyio
async def test_many_readers_see_every_lasting_order_once_while_writers_write(tmp_path: Path, store: Store) -> None:
    async with house(tmp_path, store=store) as home:
        writer, chance = Writer(home), random.Random(4)
        for _ in range(60):
            await writer.submit()
        at_first = set(writer.there)
        reading = True

        async def write() -> None:
            while reading:
                await writer.act((chance.choice(["submit", "cancel", "purge"]), chance.randrange(60)), [])

        async def walk(limit: int) -> list[str]:
            read: list[str] = []
            cursor: str | None = ""
            while cursor is not None:
                page = (await home.get(f"/work-orders?limit={limit}{cursor and f'&cursor={cursor}'}")).json()
                read += [order["id"] for order in page["orders"]]
                cursor = page["next"]
                writer.moved.clear()
                await writer.moved.wait()
            return read

        writing = [asyncio.create_task(write()) for _ in range(3)]
        walks = await asyncio.gather(*[walk(limit) for limit in (1, 2, 3, 5, 8, 13)])
        reading = False
        await asyncio.gather(*writing)
        assert writer.purged & at_first, "somebody purged meanwhile"
        for read in walks:
            assert max(Counter(read).values()) == 1
            assert at_first - writer.purged <= set(read)


@pytest.mark.anyio
async def test_a_stream_taken_up_again_and_again_tells_every_event_once_and_in_order(home: House) -> None:
    writer, chance = Writer(home), random.Random(5)
    await writer.submit()
    seen: list[int] = []
    stopped = False

    async def write() -> None:
        while not stopped:
            await writer.act((chance.choice(["submit", "cancel", "purge"]), chance.randrange(60)), [])

    writing = asyncio.create_task(write())
    place = "0"
    while len(seen) < 300:
        found = await read_stream(home, "/events/stream", chance.randrange(2, 40), last_event_id=place)
        seen += [json.loads(each["data"])["seq"] for each in found if each["event"] != "hello"]
        place = found[-1]["id"]
    stopped = True
    await writing
    assert seen == sorted(set(seen))
    lasting = [event["seq"] for event in (await home.get("/events?limit=1000")).json()["events"]]
    assert {seq for seq in lasting if seq <= seen[-1]} <= set(seen)


@pytest.mark.anyio
async def test_a_purged_order_takes_no_place_of_a_reader_with_it(home: House) -> None:
    orders = [(await home.submit())["id"] for _ in range(5)]
    page = (await home.get("/work-orders?limit=2")).json()
    for gone in (orders[3], orders[2]):  # the last one that was read, and the next one
        await home.walk(gone, OrderState.CANCELLED)
        await home.post("/work-orders/purge", {"filter": {"ids": [gone]}})
    rest = (await home.get(f"/work-orders?limit=9&cursor={page['next']}")).json()
    assert [order["id"] for order in rest["orders"]] == [orders[1], orders[0]]
