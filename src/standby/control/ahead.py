"""What waits in a host's pools, read ahead; where orders go fast, the next page while the last one is used up."""

import asyncio
from bisect import bisect_left
from collections.abc import Awaitable, Callable, Iterable, Sequence

from standby.core.lanes import Pass
from standby.core.model import Host, Order
from standby.store.contract import Store, Work

PAGE = 1_000
"""About so many orders of a pool are known at the most."""
READ_ON = 125
"""About how many are read at once later, where no more are lacking."""
EARLY = 4
"""Where a page was read on, the next one is begun when fewer are known than could be taken so many times."""


Ends = dict[str, tuple[int, str]]
Start = Callable[[str], Pass]
"""The pass at which the lane of a project is served next."""


class Page:
    """What was read of one pool."""

    def __init__(self, host: Host) -> None:
        self.memory_max, self.cpus_max = host.memory_mb, host.cpus
        self.lanes: dict[str, list[Work]] = {}
        self.ends: Ends = {}
        """Of each lane that may have more: (rank, id) of the last one that was read."""
        self.read_on = False
        """More was needed than was read at first."""
        self.reading: asyncio.Task[None] | None = None
        """The next page, before anybody needs it."""
        self._late: list[Work] | None = None
        """Who came while more is being read, behind what was known then."""

    def fits(self, order: Order) -> bool:
        """Whether the host could ever have it."""
        if self.memory_max is not None and order.memory_mb > self.memory_max:
            return False
        return self.cpus_max is None or order.cpus is None or order.cpus <= self.cpus_max

    def deep(self, most: int) -> int:
        """How many of each lane are to be known when `most` could be taken in all: few of each where lanes are many."""
        return max(1, min(most, PAGE // max(1, len(self.lanes))))

    def short(self, most: int, start: Start | None) -> Ends:
        """Lanes of which the next orders are to be read, and from where on: all that are nearly used up; but where
        enough of others are known, only those that have their turn before these."""
        deep = self.deep(most)
        found = {project: end for project, end in self.ends.items() if len(self.lanes[project]) < deep}
        if not found or start is None or sum(min(len(lane), deep) for lane in self.lanes.values()) < most:
            return found
        starts = sorted(start(project) for project, lane in self.lanes.items() if lane)
        last = starts[min(most, len(starts)) - 1]
        return {project: end for project, end in found.items() if start(project) <= last}

    def take_in(self, found: Sequence[Work], per_lane: int) -> None:
        """Add what was read; a lane that filled its page may have more, and is known up to its end."""
        by_lane: dict[str, list[Work]] = {}
        for work in found:
            by_lane.setdefault(work.order.project, []).append(work)
        for project, works in by_lane.items():
            known = self.lanes.get(project, [])
            lane = {work.order.id: work for work in (*known, *works)}
            merged, again = list(lane.values()), len(lane) < len(known) + len(works)
            if again or (known and _place(known[-1].order) > _place(works[0].order)):  # as a rule they follow
                merged.sort(key=lambda work: _place(work.order))
            if len(works) >= per_lane:
                end = self.ends[project] = _place(works[-1].order)
                while _place(merged[-1].order) > end:
                    merged.pop()
            self.lanes[project] = merged

    def add(self, work: Work) -> None:
        """It takes its place if its part of the lane was read."""
        order = work.order
        end, place = self.ends.get(order.project), _place(order)
        if end is None or place <= end:
            lane = self.lanes.setdefault(order.project, [])
            at = bisect_left(lane, place, key=lambda each: _place(each.order))
            there = at < len(lane) and lane[at].order.id == order.id  # read between its commit and its hint
            lane[at : at + there] = [work]
        elif self._late is not None:
            self._late.append(work)

    async def extend(self, lanes: Ends, per_lane: int, found: Awaitable[Sequence[Work]]) -> None:
        """Add the next ones of some lanes when they are there, and whoever came meanwhile."""
        self._late = late = list[Work]()
        works = await found
        self._late, self.read_on = None, True
        for project in lanes:
            del self.ends[project]
        self.take_in(works, per_lane)
        for work in late:
            self.add(work)


class Ahead:
    """The heads of the lanes as they were read; thrown away by whatever may have put somebody before them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pages: dict[str, Page] = {}
        self._lanes: dict[str, int] = {}
        """How many lanes each pool had when it was last read."""

    def forget(self) -> None:
        """Read everything anew; a reading under way is not kept either."""
        self._pages = {}

    @property
    def unread(self) -> bool:
        """Whether nothing is known of anybody."""
        return not self._pages

    @property
    def anybody(self) -> bool:
        """Whether somebody is known to wait, or may."""
        return not all(map(self.nobody, self._pages))

    def nobody(self, pool: str) -> bool:
        """Whether it is known that nobody waits in the pool."""
        page = self._pages.get(pool)
        return page is not None and not page.ends and not any(page.lanes.values())

    def reads(self, pool: str, most: int, start: Start) -> bool:
        """Whether the store has to be asked for the next orders of the pool."""
        page = self._pages.get(pool)
        return page is None or bool(page.short(most, start))

    async def heads(self, pool: str, most: int, host: Host, start: Start | None = None) -> Sequence[Work]:
        """The next orders of the pool that its host could ever have, so many of each lane that there are `most` in all,
        if so many wait."""
        page = self._pages.get(pool)
        if page is None:
            # known before it is read: who comes meanwhile is added to it
            page = self._pages[pool] = Page(host)
            per_lane = max(1, min(most, PAGE // self._lanes.get(pool, PAGE)))
            page.take_in(await self._read(pool, per_lane, page), per_lane)
            self._lanes[pool] = max(1, len(page.lanes))
        elif page.reading is not None and (page.reading.done() or page.short(most, start)):
            reading, page.reading = page.reading, None
            await reading
        short = page.short(most, start)
        if short:
            await self._extend(pool, page, short, most)
        if page.read_on and page.reading is None:
            early = min(EARLY * most, PAGE)
            soon = page.short(early, start)
            if soon:
                # as many as are lacking: a reading that took longer than a step would be lacking for ever
                lacking = early - sum(map(len, page.lanes.values()))
                page.reading = asyncio.create_task(self._extend(pool, page, soon, max(most, lacking)))
                page.reading.add_done_callback(_heard)
        deep = page.deep(most)
        return [work for lane in page.lanes.values() for work in lane[:deep]]

    def close(self) -> None:
        """Nobody needs what is being read."""
        for page in self._pages.values():
            if page.reading is not None:
                page.reading.cancel()

    async def _extend(self, pool: str, page: Page, lanes: Ends, most: int) -> None:
        per_lane = max(page.deep(most), READ_ON // len(lanes))
        await page.extend(lanes, per_lane, self._read(pool, per_lane, page, lanes))

    async def _read(self, pool: str, per_lane: int, page: Page, after: Ends | None = None) -> Sequence[Work]:
        try:
            return await self._store.candidates(pool, per_lane, page.memory_max, after, page.cpus_max)
        except BaseException:
            self.forget()  # a page that was not read does not say that nobody waits
            raise

    def add(self, work: Work) -> None:
        """This one waits from now on."""
        order, page = work.order, self._pages.get(work.order.pool)
        if order.concurrency_key is not None:
            self._pages.pop(order.pool, None)  # only the store knows whether its key is free
            return
        if page is not None and order.rank is not None and page.fits(order):
            page.add(work)

    def drop(self, orders: Iterable[Order]) -> None:
        """These do not wait any more."""
        gone: dict[tuple[str, str], set[str]] = {}
        for order in orders:
            gone.setdefault((order.pool, order.project), set()).add(order.id)
        for (pool, project), ids in gone.items():
            page = self._pages.get(pool)
            lane = [] if page is None else page.lanes.get(project, [])
            if {work.order.id for work in lane[: len(ids)]} == ids:
                del lane[: len(ids)]  # as a rule those in front
            else:
                lane[:] = [work for work in lane if work.order.id not in ids]


def _heard(reading: asyncio.Task[None]) -> None:
    """What went wrong is told to whoever needs the page; if nobody does, to nobody."""
    if not reading.cancelled():
        reading.exception()


def _place(order: Order) -> tuple[int, str]:
    assert order.rank is not None
    return order.rank, order.id
