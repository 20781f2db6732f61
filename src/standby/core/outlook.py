"""When the places of a pool come free, out of rows and what was measured: the estimate of a wait begins here."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from standby.core import explain
from standby.core.crowd import End
from standby.core.estimate import NOW, PATHS, Lengths, Line, Starts, measured
from standby.core.explain import House
from standby.core.model import Order, SlotState
from standby.core.warm import hands_over, stays


class Took(Struct, frozen=True):
    """How long things took in a pool lately, in milliseconds."""

    runs: Sequence[int] = ()
    """From their command to their end."""
    starts: Sequence[int] = ()
    """From a run's command until it was seen at work."""
    makes: Sequence[int] = ()
    """Until a slot was made, or made anew."""
    ends: Sequence[End] = ()
    """When the runs ended, and whose they were."""


NOTHING = Took()
Column = Sequence[int]


def line(house: House, memory_mb: int, took: Mapping[str, Took]) -> Line | str:
    """The line before the places of a pool, for orders that need so much memory; or why nobody can say how long it is.
    `took` is by pool."""
    shut = explain.shut(house, memory_mb)
    if shut is not None:
        return shut.text
    own = took.get(house.pool.name, NOTHING)
    opened = [order for order in house.holders.values() if order.pool == house.pool.name]
    lengths = measured(own.runs, [_taken(order, house.now) for order in opened])
    if lengths is None:
        return f"nothing is measured yet: no run of pool {house.pool.name} has ended lately"
    make_ms = _median(own.makes)
    turn_ms = 0 if stays(house.pool, house.seats) else make_ms
    busy = _busy(opened, house.now, lengths, turn_ms)
    all_ = [*busy, *_unused(house, len(busy), make_ms)]
    if not all_:
        return f"all slots of pool {house.pool.name} are in error: standby slots shows why"
    free, places = _in_budget(house, memory_mb, took, lengths, all_)
    return Line(free, places, lengths, turn_ms, _starts(house, own))


def of_project(house: House, took: Mapping[str, Took]) -> Line | str | None:
    """The line before the places that a project may have; null where it is not limited."""
    most = house.project_max
    if most is None:
        return None
    if most == 0:
        return "its project may have no open runs"
    lengths = measured(took.get(house.pool.name, NOTHING).runs)
    if lengths is None:
        return f"nothing is measured yet: no run of pool {house.pool.name} has ended lately"
    busy = _busy_elsewhere(house.project_holders, house.now, took, lengths)
    return Line([*busy, *[NOW] * (most - len(busy))], most, lengths)


def _taken(order: Order, now: int) -> int:
    return max(0, now - (order.commanded_at or now))


def _busy(opened: Sequence[Order], now: int, lengths: Lengths, turn_ms: int) -> list[Column]:
    """When the places of open runs come free."""
    columns = [lengths.left(_taken(order, now), nth) for nth, order in enumerate(opened)]
    return [[left + turn_ms for left in column] for column in columns] if turn_ms else columns


def _busy_elsewhere(orders: Sequence[Order], now: int, took: Mapping[str, Took], unknown: Lengths) -> list[Column]:
    """When these runs end, each as those of its own pool do."""
    known: dict[str, Lengths] = {}
    columns = []
    for nth, order in enumerate(orders):
        if order.pool not in known:
            known[order.pool] = measured(took.get(order.pool, NOTHING).runs) or unknown
        columns.append(known[order.pool].left(_taken(order, now), nth))
    return columns


def _unused(house: House, busy: int, make_ms: int) -> list[Column]:
    """When the places that nobody holds can be had: idle ones now, others when they are made."""
    free = len(house.room.free[house.pool.name])
    making = [
        max(0, make_ms - (house.now - slot.state_since))
        for slot in house.slots
        if slot.state is SlotState.CREATING or slot.state is SlotState.CLEANING
    ]
    failed = sum(slot.state is SlotState.ERROR for slot in house.slots)
    new = max(0, house.pool.settings.slots_max - busy - free - len(making) - failed)
    later = [*making, *[make_ms] * new]
    return [NOW] * free + [[at] * PATHS if at else NOW for at in later]


def _in_budget(
    house: House, memory_mb: int, took: Mapping[str, Took], lengths: Lengths, places: list[Column]
) -> tuple[Sequence[Column], int]:
    """Those of the pool's places that the host's memory allows, busy ones first, and how many may be used at once."""
    most = min(house.pool.settings.slots_max, len(places))
    budget = house.host.memory_mb
    if budget is None or memory_mb == 0:
        return places, most
    others = [order for order in house.holders.values() if order.pool != house.pool.name]
    busy = len(house.holders) - len(others)
    left = budget - sum(order.memory_mb for order in others)
    fits = max(0, left) // memory_mb
    if fits >= most:
        return places, most
    if fits > 0:
        return places[: max(busy, fits)], min(fits, len(places))
    # others hold too much: so many of them have to end before there is room
    ends = _busy_elsewhere(others, house.now, took, lengths)
    usual = max(1, sum(order.memory_mb for order in others) // len(others))
    needed = min(len(ends), -(-(memory_mb - left) // usual))
    return ends, len(ends) - max(1, needed) + 1


def _starts(house: House, own: Took) -> Starts | None:
    """The permits for platform starts, where the pool needs one for each run."""
    host, now = house.host, house.now
    if (host.starts_max is None and not host.start_gap_ms) or hands_over(house.pool, house.seats):
        return None
    takes_ms = _median(own.starts)
    most = host.starts_max or 0
    flying = [max(0, takes_ms - (now - each.since)) for each in explain.starts(house)]
    free_in = sorted([*flying, *[0] * (most - len(flying))])[-most:] if most else []
    return Starts(free_in, takes_ms, host.start_gap_ms)


def _median(lengths: Sequence[int]) -> int:
    return sorted(lengths)[len(lengths) // 2] if lengths else 0
