"""What waits in a host's pools, read ahead: a page of each lane is used up before the next one is read."""

from collections.abc import Iterable, Sequence

from standby.core.model import Order
from standby.store.contract import Store, Work

PAGE = 500
"""About how many orders of a pool are read at once."""


class Page:
    """What was read of one pool."""

    def __init__(self) -> None:
        self.lanes: dict[str, list[Work]] = {}
        self.ends: dict[str, tuple[int, str]] = {}
        """Of each lane that may have more: (rank, id) of the last one that was read."""

    def take_in(self, found: Sequence[Work], per_lane: int) -> None:
        """Add what was read; a lane that filled its page may have more."""
        by_lane: dict[str, list[Work]] = {}
        for work in found:
            by_lane.setdefault(work.order.project, []).append(work)
        for project, works in by_lane.items():
            self.lanes.setdefault(project, []).extend(works)
            if len(works) >= per_lane:
                self.ends[project] = _place(works[-1].order)


class Ahead:
    """The heads of the lanes as they were read; thrown away by whatever may have put somebody before them."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._pages: dict[str, Page] = {}

    def forget(self) -> None:
        """Read everything anew; a reading under way is not kept either."""
        self._pages = {}

    async def heads(self, pool: str, most: int, memory_max: int | None) -> Sequence[Work]:
        """The next orders of the pool: the first `most` of each lane, if there are so many."""
        page = self._pages.get(pool)
        if page is None:
            page = self._pages[pool] = Page()
            page.take_in(await self._store.candidates(pool, most, memory_max), most)
        short = {project: end for project, end in page.ends.items() if len(page.lanes[project]) < most}
        if short:
            per_lane = max(most, PAGE // len(page.ends))
            for project in short:
                del page.ends[project]
            page.take_in(await self._store.candidates(pool, per_lane, memory_max, short), per_lane)
        return [work for lane in page.lanes.values() for work in lane[:most]]

    def drop(self, orders: Iterable[Order]) -> None:
        """These do not wait any more."""
        gone: dict[tuple[str, str], set[str]] = {}
        for order in orders:
            gone.setdefault((order.pool, order.project), set()).add(order.id)
        for (pool, project), ids in gone.items():
            page = self._pages.get(pool)
            if page is not None and project in page.lanes:
                page.lanes[project] = [work for work in page.lanes[project] if work.order.id not in ids]


def _place(order: Order) -> tuple[int, str]:
    assert order.rank is not None
    return order.rank, order.id
