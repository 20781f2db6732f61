"""Where orders will stand when they are taken in: their places in their lanes, and how long they will probably wait."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct

from standby.api.waits import Expected, expected_at_submit, foreseen, outlook_key
from standby.core.estimate import Confidence, Wait
from standby.core.model import Change, Order, Pool
from standby.store.reads import COUNT_MOST
from standby.world import World

PLACE_KEPT_S: Final = 0.1
"""So long a count of those before an order serves; what this server takes in meanwhile is added to it."""


class Standing(Struct, frozen=True):
    """Where an order stands when it is taken in."""

    position: int | None
    wait: Expected


AT_ONCE: Final = Standing(1, Wait(0, 0, 0, Confidence.GOOD))
UNKNOWN: Final = Standing(None, None)


class Place:
    """How many of a lane went before an order of some priority when they were counted, and those that came since."""

    def __init__(self, counted: int) -> None:
        self._taken = counted - 1

    def next(self) -> int:
        """The place of one more."""
        self._taken = min(self._taken + 1, COUNT_MOST)
        return self._taken


def at_hand(world: World, order: Order) -> Standing | None:
    """Where one that comes alone will stand, if all that tells was read a moment ago."""
    if order.rank is None or order.concurrency_key is not None:
        return None
    place, outlook = world.shared.at_hand(_place_key(order, order.rank)), world.shared.at_hand(outlook_key(order))
    if place is None or outlook is None:
        return None
    position = place.next()
    return Standing(position, foreseen(outlook, order, position, {}))


async def standings(world: World, changes: Sequence[Change], pools: Mapping[str, Pool]) -> Sequence[Standing]:
    """Where each order of a request will stand."""
    mine = {name: Counter[str]() for name in pools}
    orders = [change.order for change in changes if change.order is not None]
    return [await _standing(world, order, pools[order.pool], mine[order.pool]) for order in orders]


async def _standing(world: World, order: Order, pool: Pool, mine: Counter[str]) -> Standing:
    """Its place, and how long it will probably wait there; `mine` are those before it in its request, by project."""
    if order.rank is None:
        return UNKNOWN
    lane = (order.pool, order.project, order.rank, order.id)

    async def count() -> Place:
        return Place(await world.store.position_at(*lane))

    position = (await world.shared.ask(_place_key(order, order.rank), count, keep_s=PLACE_KEPT_S)).next()
    wait = await expected_at_submit(world, order, pool, position, mine)
    mine[order.project] += 1
    return Standing(position, wait)


def _place_key(order: Order, rank: int) -> tuple[str, str, str, int]:
    """Where the place of such orders is shared: those of one priority."""
    return "place", order.pool, order.project, rank - order.submitted_at
