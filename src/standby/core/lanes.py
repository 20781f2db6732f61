"""Whose turn it is: lanes take turns by stride, each as often as its project's weight says. Within a lane rank decides.

Each lane has a *pass*, which grows with every order that is taken from it, the slower the heavier its project. The lane
with the smallest pass is next. One that slept, or could not be served, goes on at the pass of the lane that was served
last: nobody saves turns up. So no pass is further ahead than one stride, and a leader that begins without any knowledge
gives nobody more than one turn too many.
"""

from collections.abc import Iterable, Mapping
from heapq import heapify, heappop, heapreplace
from typing import Final

from standby.core.model import Order
from standby.core.rank import is_urgent

Lane = tuple[str, str]
"""Pool and project."""
STRIDE: Final = 720_720
"""By so much one order moves a lane of weight 1 on. Weights up to 16 divide it."""
KEPT: Final = 4_096
"""So many passes are remembered before those that mean nothing any more are dropped."""


class Turns:
    """What a leader remembers of its host's lanes."""

    def __init__(self) -> None:
        self.at = 0
        """The pass of the lane that was served last."""
        self._passes: dict[Lane, int] = {}

    def start(self, lane: Lane) -> int:
        """The pass at which the lane is served next."""
        return max(self.at, self._passes.get(lane, 0))

    def take(self, order: Order, weights: Mapping[str, int]) -> None:
        """An order was taken from its lane; an urgent one goes before all lanes and costs no turn."""
        if is_urgent(order):
            return
        lane = (order.pool, order.project)
        self.at = self.start(lane)
        self._passes[lane] = self.at + STRIDE // weights.get(order.project, 1)
        if len(self._passes) > KEPT:
            self._passes = {each: value for each, value in self._passes.items() if value > self.at}


class Line:
    """Waiting orders, one after the other as their lanes have their turns."""

    def __init__(self, waiting: Iterable[Order], turns: Turns, weights: Mapping[str, int]) -> None:
        self._lanes: dict[Lane, list[Order]] = {}
        self._weights = weights
        for order in waiting:
            self._lanes.setdefault((order.pool, order.project), []).append(order)
        for orders in self._lanes.values():
            orders.sort(key=_place, reverse=True)
        self._heap = [_entry(lane, turns.start(lane), orders[-1]) for lane, orders in self._lanes.items()]
        heapify(self._heap)

    def next(self) -> Order | None:
        """The order whose turn it is."""
        return self._lanes[self._heap[0][-1]][-1] if self._heap else None

    def served(self) -> None:
        """It got its turn: go on with the next lane."""
        urgent, start, _, _, lane = self._heap[0]
        self._go_on(start if urgent == _URGENT else start + STRIDE // self._weights.get(lane[1], 1))

    def passed(self) -> None:
        """It cannot be served now, which says nothing of those behind it."""
        self._go_on(self._heap[0][1])

    def close(self) -> None:
        """Nobody of its lane can be served now."""
        heappop(self._heap)

    def _go_on(self, start: int) -> None:
        lane = self._heap[0][-1]
        orders = self._lanes[lane]
        orders.pop()
        if orders and len(self._heap) == 1:
            return  # whose turn it is needs no saying: this is on the hot path
        if orders:
            heapreplace(self._heap, _entry(lane, start, orders[-1]))
        else:
            heappop(self._heap)


_Entry = tuple[int, int, int, str, Lane]
_URGENT: Final = 0


def _entry(lane: Lane, start: int, head: Order) -> _Entry:
    return (_URGENT, start, *_place(head), lane) if is_urgent(head) else (1, start, *_place(head), lane)


def _place(order: Order) -> tuple[int, str]:
    return order.rank or 0, order.id
