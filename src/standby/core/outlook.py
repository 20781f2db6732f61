"""When the places of a pool come free, out of rows and what was measured: the estimate of a wait begins here."""

from collections.abc import Mapping, Sequence
from math import ceil
from typing import Final

from msgspec import Struct

from standby.core import explain, processors
from standby.core.crowd import End
from standby.core.estimate import NOW, PATHS, Lengths, Line, Starts, measured
from standby.core.explain import House
from standby.core.model import Order, SlotState
from standby.core.room import MINUTE_MS, rate_opens_at
from standby.core.telling import ByLabel, Known
from standby.core.warm import hands_over, needed_mb, stays


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
    by_label: ByLabel | None = None
    """The runs by a label, where one tells how long they take."""

    @property
    def usual_ms(self) -> int:
        """As many runs took longer as took less."""
        return _median(self.runs)


NOTHING = Took()
NOBODY = Known()
ROUNDED: Final = 1e-9
"""Less than this is nothing."""
Column = Sequence[int]


def line(
    house: House, memory_mb: int, took: Mapping[str, Took], cpus: float | None = None, known: Known = NOBODY
) -> Line | str:
    """The line before the places of a pool, for orders that need so much; or why nobody can say how long it is. `took`
    is by pool; `known` are the labels of those who are open and ahead, where one tells how long they take."""
    shut = explain.shut(house, memory_mb, cpus)
    if shut is not None:
        return shut.text
    own = took.get(house.pool.name, NOTHING)
    opened = [order for order in house.holders.values() if order.pool == house.pool.name]
    lengths = measured(own.runs, [_taken(order, house.now) for order in opened])
    if lengths is None:
        return f"nothing is measured yet: no run of pool {house.pool.name} has ended lately"
    make_ms = _median(own.makes)
    turn_ms = 0 if stays(house.pool, house.seats) else make_ms
    kinds = own.by_label or ByLabel("", {})
    busy = _busy(opened, house.now, [kinds.of(known.open.get(each.id, {}), lengths) for each in opened], turn_ms)
    all_ = [*busy, *_unused(house, len(busy), make_ms)]
    if not all_:
        return f"all slots of pool {house.pool.name} are in error: standby slots shows why"
    free, places = _allowed(house, len(busy), all_)
    ahead = [kinds.of(labels, lengths) for labels in known.ahead]
    budget = _tightest(house, memory_mb, cpus, opened)
    room = None if budget is None else _in_budget(house, budget, took, lengths, busy, places)
    beside = None if room is None else Line(*room, lengths, turn_ms, ahead=ahead)
    return Line(free, places, lengths, turn_ms, _starts(house, own), ahead, beside)


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


def _busy(opened: Sequence[Order], now: int, lengths: Sequence[Lengths], turn_ms: int) -> list[Column]:
    """When the places of open runs come free, by what such runs take."""
    columns = [
        each.left(_taken(order, now), nth) for nth, (order, each) in enumerate(zip(opened, lengths, strict=True))
    ]
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


class _Budget(Struct, frozen=True):
    """One of the host's budgets, for an order that needs something of it."""

    total: float
    others: float
    """What runs of other pools take."""
    mine: Sequence[float]
    """What each open run of the pool takes."""
    needs: float

    @property
    def left(self) -> float:
        return self.total - self.others

    @property
    def now(self) -> float:
        """What nobody takes."""
        return self.left - sum(self.mine)


def _tightest(house: House, memory_mb: int, cpus: float | None, opened: Sequence[Order]) -> _Budget | None:
    """The budget that allows the fewest at once; null where there is none."""
    host, others, pool, seats = house.host, _others(house), house.pool, house.seats
    found = []
    needs_mb = needed_mb(pool, memory_mb, seats)
    if host.memory_mb is not None and needs_mb:
        taken = sum(_taken_mb(house, order) for order in others)
        found.append(_Budget(host.memory_mb, taken, [_taken_mb(house, order) for order in opened], needs_mb))
    needs = processors.needed(pool, cpus, seats)
    if host.cpus is not None and needs:
        mine = [processors.needed(pool, order.cpus, seats) for order in opened]
        found.append(_Budget(host.cpus, processors.used(house.room.pools, others, seats), mine, needs))
    return min(found, key=lambda each: (each.now / each.needs, each.left / each.needs), default=None)


def _taken_mb(house: House, order: Order) -> int:
    pool = house.room.pools.get(order.pool)
    return order.memory_mb if pool is None else needed_mb(pool, order.memory_mb, house.seats)


def _others(house: House) -> Sequence[Order]:
    return [order for order in house.holders.values() if order.pool != house.pool.name]


def _allowed(house: House, busy: int, places: list[Column]) -> tuple[Sequence[Column], int]:
    """Those of the pool's places, busy ones first, that its limits allow, and how many may be used at once."""
    settings = house.pool.settings
    if settings.running_max is not None:
        places = places[: max(busy, settings.running_max)]
    most = settings.slots_max if settings.running_max is None else min(settings.slots_max, settings.running_max)
    return places, min(most, len(places))


def _in_budget(
    house: House, budget: _Budget, took: Mapping[str, Took], lengths: Lengths, busy: Sequence[Column], most: int
) -> tuple[Sequence[Column], int] | None:
    """When the host's budget has room for one more like this, and for how many at once; null where it has for as many
    as there are places. A run holds as much room as it takes, be that for several of them or for a part of one."""
    needs, mine = budget.needs, budget.mine
    # small ones may be followed by one like this while the large ones are still there
    full = sorted([*(max(takes, needs) for takes in mine), *[needs] * most])[-most:]
    if sum(full) <= budget.left + ROUNDED:
        return None
    fits, now = _times(budget.left, needs), _times(budget.now, needs)
    if fits > 0:
        held = [ceil(takes / needs - ROUNDED) for takes in mine]
        # more than twice as many as there are places need not be counted
        fits, now = min(fits, 2 * most), min(now, 2 * most)
        ends = [column for column, count in zip(busy, held, strict=True) for _ in range(min(count, fits))]
        free = [*[NOW] * now, *sorted(ends, key=sum, reverse=True)[: fits - now]]
        return free, len(free)
    # others hold too much: so many of them have to end before there is room
    others = _others(house)
    theirs = _busy_elsewhere(others, house.now, took, lengths)
    usual = max(ROUNDED, budget.others / len(others))
    needed = min(len(theirs), ceil((needs - budget.left) / usual - ROUNDED))
    return theirs, len(theirs) - max(1, needed) + 1


def _times(room: float, needs: float) -> int:
    return int(max(0.0, room) / needs + ROUNDED)


def _starts(house: House, own: Took) -> Starts | None:
    """The permits for platform starts, where the pool needs one for each run, and the pool's own rate."""
    host, now = house.host, house.now
    rate = house.pool.settings.starts_per_minute
    gap_ms = ceil(MINUTE_MS / rate) if rate else 0
    opens_at = rate_opens_at(house.pool, house.last_start)
    first_ms = max(0, opens_at - now) if opens_at is not None else 0
    if (host.starts_max is None and not host.start_gap_ms) or hands_over(house.pool, house.seats):
        return Starts((), 0, gap_ms, first_ms) if rate else None
    takes_ms = _median(own.starts)
    most = host.starts_max or 0
    flying = [max(0, takes_ms - (now - each.since)) for each in explain.starts(house.room)]
    free_in = sorted([*flying, *[0] * most])[-most:] if most else []
    return Starts(free_in, takes_ms, max(gap_ms, host.start_gap_ms), first_ms)


def _median(lengths: Sequence[int]) -> int:
    return sorted(lengths)[len(lengths) // 2] if lengths else 0
