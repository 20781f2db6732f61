"""What was read of a pool, as more is read."""

import asyncio
from collections.abc import Sequence
from typing import Any, cast

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from standby.control.ahead import Ahead, Page
from standby.store.contract import Store, StoreDown, Work
from tests.control.stage import Stage
from tests.rows import host, order, spec

_places = st.sets(st.integers(0, 7), min_size=1).map(sorted)


def _works(project: str, ranks: dict[str, int]) -> list[Work]:
    return [Work(order(id=order_id, rank=rank, project=project), spec()) for order_id, rank in ranks.items()]


@given(known=_places, moved=st.integers(0, 4), found=_places, per_lane=st.integers(1, 9))
@example(known=[3, 4], moved=3, found=[5, 6, 7], per_lane=9)
def test_a_lane_has_everybody_who_was_read_or_added_once_in_order_up_to_the_end_of_its_page(
    known: list[int], moved: int, found: list[int], per_lane: int
) -> None:
    before = {f"{place + moved:02}": place for place in known}
    now = {f"{place:02}": place for place in found}
    page = Page(host())
    page.lanes = {"a": _works("a", before), "b": _works("b", before)}
    page.take_in([*_works("a", now), *_works("c", now)], per_lane)
    end = (found[-1], f"{found[-1]:02}") if len(found) >= per_lane else None
    both = sorted((rank, order_id) for order_id, rank in {**before, **now}.items())
    lanes = {project: [(work.order.rank, work.order.id) for work in lane] for project, lane in page.lanes.items()}
    assert lanes["a"] == [place for place in both if end is None or place <= end]
    assert (page.lanes["b"], page.lanes["c"]) == (_works("b", before), _works("c", now))
    assert page.ends == ({} if end is None else {"a": end, "c": end})


@pytest.mark.anyio
async def test_the_last_one_of_a_page_that_is_noted_anew_is_in_its_place_once() -> None:
    stage = Stage()
    await stage.leader()
    ids = [await stage.submit() for _ in range(3)]
    row = await stage.store.host("local")
    assert row is not None
    ahead = Ahead(stage.store)
    (first,) = await ahead.heads("default", 1, row)
    ahead.drop([first.order])  # as with one that begins to wait for a start
    ahead.add(first)
    assert [work.order.id for work in await ahead.heads("default", 3, row)] == ids
    ahead.add(first)  # a hint that comes late
    ahead.drop([first.order])
    assert [work.order.id for work in await ahead.heads("default", 3, row)] == ids[1:]


class Slow:
    """A store whose answers wait until they may go, or fail."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.open = asyncio.Event()
        self.open.set()
        self.waited_for = asyncio.Event()
        self.failed = asyncio.Event()
        self.error: Exception | None = None
        self.asked: list[int] = []
        """How many of each lane."""

    async def candidates(self, *args: Any) -> Sequence[Work]:
        self.asked.append(args[1])
        found = await self._store.candidates(*args)
        if not self.open.is_set():
            self.waited_for.set()
        await self.open.wait()
        if self.error is not None:
            self.failed.set()
            raise self.error
        return found


class Drained:
    """A queue of which one order after the other is taken."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        for size in ("PAGE", "READ_ON"):
            monkeypatch.setattr(f"standby.control.ahead.{size}", 4)
        self.stage = Stage()
        self.store = Slow(self.stage.store)
        self.ahead = Ahead(cast(Store, self.store))

    async def fill(self, orders: int) -> list[str]:
        await self.stage.leader()
        return [await self.stage.submit() for _ in range(orders)]

    async def take(self, most: int = 1) -> list[str]:
        row = await self.stage.store.host("local")
        assert row is not None
        works = await asyncio.wait_for(self.ahead.heads("default", most, row), 10)
        self.ahead.drop([work.order for work in works])
        return [work.order.id for work in works]


@pytest.mark.anyio
async def test_the_next_page_is_read_while_what_is_known_is_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Drained(monkeypatch)
    ids = await queue.fill(12)
    taken = [*await queue.take(), *await queue.take()]
    queue.store.open.clear()
    taken += await queue.take()
    await asyncio.wait_for(queue.store.waited_for.wait(), 10)
    taken += [*await queue.take(), *await queue.take()]  # the answer is still on its way
    assert not queue.ahead.nobody("default"), "there is more, though nothing of it is known"
    queue.store.open.set()
    while len(taken) < 12:
        taken += await queue.take()
    assert taken == ids


@pytest.mark.anyio
async def test_what_is_lacking_after_a_slow_answer_is_read_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    queue = Drained(monkeypatch)
    for size, value in (("PAGE", 8), ("READ_ON", 1)):
        monkeypatch.setattr(f"standby.control.ahead.{size}", value)
    ids = await queue.fill(12)
    taken = [order_id for _ in range(3) for order_id in await queue.take()]
    assert queue.store.asked[:3] == [1, 1, 3], "the third reading is to make four of them known, with the one that is"
    while len(taken) < 12:
        taken += await queue.take()
    assert taken == ids


@pytest.mark.anyio
async def test_whoever_comes_while_a_page_is_read_is_in_it_or_behind_it_and_never_before_its_turn(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Drained(monkeypatch)
    ids = await queue.fill(7)
    taken = [*await queue.take(), *await queue.take()]
    queue.store.open.clear()
    taken += await queue.take()
    await asyncio.wait_for(queue.store.waited_for.wait(), 10)
    late = await queue.stage.submit()  # not in the answer that waits, and behind all that is known
    work = await queue.stage.store.order(late)
    assert work is not None
    queue.ahead.add(work)
    taken += await queue.take()
    queue.store.open.set()
    while len(taken) < 8:
        taken += await queue.take()
    assert taken == [*ids, late]
    assert queue.ahead.nobody("default")


@pytest.mark.anyio
async def test_a_page_that_could_not_be_read_in_advance_is_read_again_or_tells_why(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    queue = Drained(monkeypatch)
    ids = await queue.fill(12)
    taken = [*await queue.take(), *await queue.take()]
    queue.store.error = StoreDown("away")
    taken += await queue.take()
    await asyncio.wait_for(queue.store.failed.wait(), 10)
    with pytest.raises(StoreDown):
        await queue.take()
    queue.store.error = None
    assert await queue.take() == [ids[0]], "nothing is known any more: it begins with the rows"
    assert taken == ids[:3]
