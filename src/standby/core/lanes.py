"""Whose turn it is: lanes take turns by stride, each as often as its project's weight says. Within a lane rank decides.

Each lane has a *pass*, which grows with every order that is taken from it, the slower the heavier its project. The lane
with the smallest pass is next. One that slept, or could not be served, goes on at the pass of the lane that was served
last: nobody saves turns up. So no pass is further ahead than one stride, and a leader that begins without any knowledge
gives nobody more than one turn too many.

There are two of them: one among all lanes of the host, for what its pools share, and one among those of the pool, which
decides where the first is equal: a faster pool makes the lanes of a slower one equal again and again.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapify, heappop, heapreplace
from itertools import groupby
from operator import attrgetter
from typing import Final

from standby.core.model import Order
from standby.core.rank import is_urgent

Lane = tuple[str, str]
"""Pool and project."""
Pass = tuple[int, int]
"""Among all lanes of the host, and among those of the pool."""
_FIRST: Final[Pass] = (0, 0)
STRIDE: Final = 720_720
"""By so much one order moves a lane of weight 1 on. Weights up to 16 divide it."""
KEPT: Final = 4_096
"""So much is remembered before what means nothing any more is dropped."""


class Turns:
    """What a leader remembers of its host's lanes."""

    def __init__(self) -> None:
        self.at = 0
        """The pass of the lane that was served last."""
        self._pool_at: dict[str, int] = {}
        self._passes: dict[Lane, Pass] = {}
        self._most = KEPT

    def start(self, lane: Lane) -> Pass:
        """The pass at which the lane is served next."""
        host, pool = self._passes.get(lane, _FIRST)
        return max(self.at, host), max(self._pool_at.get(lane[0], 0), pool)

    def take(self, orders: Iterable[Order], weights: Mapping[str, int]) -> None:
        """These were taken from their lanes, one after the other; urgent ones go before all lanes and cost no turn."""
        turns = [order for order in orders if not is_urgent(order)]
        for lane, taken in groupby(turns, _LANE):
            self._take(lane, len(list(taken)), weights)

    def _take(self, lane: Lane, count: int, weights: Mapping[str, int]) -> None:
        at, pool_at = self.start(lane)
        stride = STRIDE // weights.get(lane[1], 1)
        before = (count - 1) * stride
        self.at, self._pool_at[lane[0]] = at + before, pool_at + before
        self._passes[lane] = at + before + stride, pool_at + before + stride
        if len(self._passes) > self._most:
            self._passes = {each: value for each, value in self._passes.items() if self._counts(each, value)}
            self._most = max(KEPT, 2 * len(self._passes))  # where so many count, the next look is far off

    def _counts(self, lane: Lane, value: Pass) -> bool:
        """Whether this pass is ahead of anything."""
        return value[0] > self.at or value[1] > self._pool_at[lane[0]]


class Line:
    """Waiting orders, one after the other as their lanes have their turns."""

    def __init__(self, waiting: Iterable[Order], turns: Turns, weights: Mapping[str, int]) -> None:
        lanes: dict[Lane, list[Order]] = {}
        self._weights = weights
        pool = project = None
        orders: list[Order] = []
        for order in waiting:
            if order.project != project or order.pool != pool:  # as a rule they come lane by lane
                pool, project = order.pool, order.project
                orders = lanes.setdefault((pool, project), [])
            orders.append(order)
        for orders in lanes.values():
            orders.sort(key=_PLACE, reverse=True)
        self._heap = [_entry(lane, turns.start(lane), orders) for lane, orders in lanes.items()]
        heapify(self._heap)

    def next(self) -> Order | None:
        """The order whose turn it is."""
        return self._heap[0][-1][-1] if self._heap else None

    def served(self) -> None:
        """It got its turn: go on with the next lane."""
        urgent, host, pool, _, _, lane, _ = self._heap[0]
        stride = 0 if urgent == _URGENT else STRIDE // self._weights.get(lane[1], 1)
        self._go_on((host + stride, pool + stride))

    def run(self, most: int) -> Sequence[Order]:
        """The order whose turn it is, which gets it; and of a lane that is the only one also those behind it, up to so
        many, as long as none has a concurrency key: whose turn it is needs no saying, and this is on the hot path."""
        orders = self._heap[0][-1]
        if len(self._heap) > 1:
            order = orders[-1]
            self.served()
            return [order]
        taken = [orders.pop()]
        while orders and len(taken) < most and orders[-1].concurrency_key is None:
            taken.append(orders.pop())
        if not orders:
            self._heap.clear()
        return taken

    def passed(self) -> None:
        """It cannot be served now, which says nothing of those behind it."""
        self._go_on(self._heap[0][1:3])

    def close(self) -> None:
        """Nobody of its lane can be served now."""
        heappop(self._heap)

    def _go_on(self, start: Pass) -> None:
        lane, orders = self._heap[0][-2:]
        orders.pop()
        if orders:
            heapreplace(self._heap, _entry(lane, start, orders))
        else:
            heappop(self._heap)


_PLACE: Final = attrgetter("rank", "id")
_LANE: Final = attrgetter("pool", "project")
_Entry = tuple[int, int, int, int, str, Lane, list[Order]]
_URGENT: Final = 0


def _entry(lane: Lane, start: Pass, orders: list[Order]) -> _Entry:
    """A lane's place among the others, and its orders, the next one last."""
    head = orders[-1]
    return (_URGENT if is_urgent(head) else 1, *start, head.rank or 0, head.id, lane, orders)
