"""Which waiting orders get which slots now, and which slots are to be made for others. Pure: rows in, a plan out."""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from enum import Enum
from typing import Final

from msgspec import Struct

from standby.core import pressure, processors
from standby.core.lanes import Line
from standby.core.model import Host, Mode, Order, Pool, Slot, SlotState
from standby.core.room import FAILURES_MAX as FAILURES_MAX
from standby.core.room import Room as Room
from standby.core.room import rate_opens_at
from standby.core.warm import hands_over, is_seat

OVERTAKEN_MAX: Final = 8
"""So many orders of other lanes overtake one that only waits for memory; then what comes free is kept for it."""


class Admission(Struct, gc=False, frozen=True):
    order: Order
    slot: Slot
    nth: int | None = None
    """It is the nth platform start in flight on a host that limits them."""


class Plan(Struct, gc=False, frozen=True, kw_only=True):
    admissions: Sequence[Admission] = ()
    wanted: Mapping[str, int] = {}
    """Pool -> how many slots to begin making now, for orders that pass every other gate."""
    spoken: Mapping[str, int] = {}
    """Pool -> how many orders wait for slots that are being made, these included."""
    held: Sequence[Order] = ()
    """Orders that wait for nothing but a start, the next one first."""
    pulls: AbstractSet[str] = frozenset()
    """Images that orders wait for."""
    evictions: Sequence[Slot] = ()
    """Idle live slots of other pools whose memory an order needs."""
    blocked: bool = False
    """Somebody waits for memory."""
    starting: int = 0
    """Platform starts in flight, those that begin now included."""
    permits: int | None = None
    """Platform starts that are left over; null is no limit."""
    overtaken: Mapping[str, int] = {}
    """Orders that wait for memory, and how many were served before them in all."""
    opens_at: int | None = None
    """When the start rate of a pool lets the next one through that waits for it."""


def serves(host: Host, pool: Pool) -> bool:
    """Whether the operator lets this pool take new work."""
    return host.mode is Mode.OPEN and pool.mode is Mode.OPEN


def admit(room: Room, waiting: Iterable[Order]) -> Plan:
    """Give free slots to waiting orders as their lanes have their turns. Nobody of its own lane overtakes an order that
    only waits for memory, and no more than `OVERTAKEN_MAX` of others do."""
    return _shared_out(_Share(room), waiting).plan()


def _shared_out(share: "_Share", waiting: Iterable[Order]) -> "_Share":
    line = Line(waiting, share.room.turns, share.room.weights)
    free, admissions = share.open, share.admissions
    while (order := line.next()) is not None:
        if order.concurrency_key is None and (slots := free.get(order.pool)):
            # the short way, for as many as there are slots: nothing else is counted there
            admissions += [Admission(each, slots.pop()) for each in line.run(len(slots))]
            continue
        turn = share.serve(order)
        if turn is _SERVED:
            line.served()
        elif turn is _PASSED:
            line.passed()
        elif turn is _CLOSED:
            line.close()
        else:
            break
    return share


def nobody(room: Room) -> Plan:
    """The plan when nobody waits."""
    permits = room.permits
    return Plan(starting=0 if permits is None else room.starting, permits=permits)


def only_wait_for_a_start(room: Room, waiting: Iterable[Order]) -> AbstractSet[str]:
    """Those that would have a slot, or one in the making, if nothing limited starts and every image were there."""
    share = _shared_out(_Share(room, ungated=True), waiting)
    return share.promised.union(admission.order.id for admission in share.admissions)


def takes(room: Room, pool: Pool) -> int:
    """How many orders at the most this pool could take now, with the slots it has and those it may make."""
    if not serves(room.host, pool) or not pressure.takes_work(room.host):
        return 0
    places = len(room.free[pool.name]) + room.coming.get(pool.name, 0) + room.makeable[pool.name]
    return min(places, room.running_left.get(pool.name, places))


class _Turn(Enum):
    """What an order's turn comes to."""

    SERVED = 1
    PASSED = 2
    """It is not served, those behind it may be."""
    CLOSED = 3
    """Nor is anybody of its lane."""
    LAST = 4
    """Nor is anybody else."""


_SERVED, _PASSED, _CLOSED, _LAST = _Turn


class _Share:
    """What is left to give, while orders are served one after the other."""

    def __init__(self, room: Room, *, ungated: bool = False) -> None:
        self.room = room
        open_pools = room.pools.items() if pressure.takes_work(room.host) else ()
        self.serving = {name for name, pool in open_pools if serves(room.host, pool)}
        self.free = {name: list(room.free[name]) for name in self.serving}
        self.coming = defaultdict(int, room.coming)
        self.makeable = defaultdict(int, room.makeable)
        self.tries = dict(room.tries)
        self.counted = defaultdict(
            int, {name: sum(slot.incarnation is not None for slot in slots) for name, slots in room.remakeable.items()}
        )
        """Slots to be made anew whose place counts in the memory already."""
        self.missing = frozenset[str]() if ungated else room.missing
        self.permits = None if ungated else room.permits
        self.starting = 0 if self.permits is None else room.starting
        self.used = room.used_mb
        limited = () if room.host.cpus is None else (*room.opened, *room.ending)
        self.cpus = processors.left(room.host, room.pools, limited, room.seats)
        self.opened = defaultdict(int, room.project_open)
        self.running_left = dict(room.running_left)
        self.keys: set[tuple[str, str]] = set()
        self.rated = {name for name, pool in room.pools.items() if pool.settings.starts_per_minute is not None}
        self.begun: set[str] = set()
        """Pools with a start rate in which a run begins now."""
        self.opens_at: int | None = None
        self.overtaken: dict[str, int] = {}
        self.admissions: list[Admission] = []
        self.wanted: dict[str, int] = defaultdict(int)
        self.spoken: dict[str, int] = defaultdict(int)
        self.held: list[Order] = []
        self.promised: set[str] = set()
        """Orders that wait for slots that are being made."""
        self.pulls: set[str] = set()
        self.evictions: list[Slot] = []
        self.blocked = False
        self.open = self._open()
        """Free slots of pools in which one is all that an order without a concurrency key needs."""

    def _open(self) -> Mapping[str, list[Slot]]:
        host, room = self.room.host, self.room
        limited = any(limit is not None for limit in room.project_max.values())
        if limited or host.memory_mb is not None or host.cpus is not None or self.permits is not None:
            return {}
        closed = {*self.rated, *self.running_left, *self.tries}
        images = {name: room.pools[name].settings.template.image for name in self.serving - closed}
        return {name: self.free[name] for name, image in images.items() if image not in self.missing}

    def plan(self) -> Plan:
        return Plan(
            admissions=self.admissions,
            wanted=dict(self.wanted),
            spoken=dict(self.spoken),
            held=self.held,
            pulls=self.pulls,
            evictions=self.evictions,
            blocked=self.blocked,
            starting=self.starting,
            permits=self.permits,
            overtaken=self.overtaken,
            opens_at=self.opens_at,
        )

    def serve(self, order: Order) -> _Turn:
        """Give it what it needs, if that is there."""
        name = order.pool
        if name not in self.serving or self._limited(order):
            return _CLOSED
        key = None if order.concurrency_key is None else (order.project, order.concurrency_key)
        if key is not None and (key in self.keys or key in self.room.keys_held):
            return _PASSED
        pool = self.room.pools[name]
        slots, soon = self.free[name], self.coming[name] > 0
        if not slots and not soon and self.makeable[name] <= 0:
            return _CLOSED
        if self.overtaken and not slots and not is_seat(pool, self.room.seats):
            return _CLOSED  # a place that is made now would only be taken away again for who waits for memory
        begins = self._begins(pool, claim=bool(slots), soon=soon)
        if begins and self.tries.get(name) == 0:
            return _CLOSED
        need = self._need(pool, order, new=not slots and not soon and self.counted[name] <= 0)
        memory = self.room.host.memory_mb
        if memory is not None and self.used + need > memory:
            if max(need, order.memory_mb) > memory:
                return _PASSED  # it can never fit this host: it must not hold up the others for ever
            return self._wait_for_memory(order, self.used + need - memory)
        cpus = 0.0 if self.cpus is None else processors.needed(pool, order.cpus, self.room.seats)
        if self.cpus is not None and cpus > max(0.0, self.cpus):
            # as with memory
            return _PASSED if cpus > (self.room.host.cpus or 0.0) else self._wait_for_room(order)
        if self._lacks_image(pool, claim=bool(slots), soon=soon):
            return _CLOSED
        self.used += need
        self.cpus = None if self.cpus is None else round(self.cpus - cpus, 3)
        self.opened[order.project] += 1
        if name in self.running_left:
            self.running_left[name] -= 1
        if key is not None:
            self.keys.add(key)
        return self._give(order, soon=soon, begins=begins)

    def _limited(self, order: Order) -> bool:
        """Whether its project or its pool may not begin any more runs now."""
        name, limit = order.pool, self.room.project_max.get(order.project)
        if limit is not None and self.opened[order.project] >= limit:
            return True
        if self.running_left.get(name) == 0:
            return True
        return name in self.rated and not self._keeps_rate(self.room.pools[name])

    def _keeps_rate(self, pool: Pool) -> bool:
        """Whether the pool's start rate lets a run begin now: one at a time."""
        opens_at = rate_opens_at(pool, self.room.pool_started.get(pool.name))
        if opens_at is None or pool.name in self.begun:
            return False
        if opens_at > self.room.now:
            self.opens_at = opens_at if self.opens_at is None else min(self.opens_at, opens_at)
            return False
        return True

    def _wait_for_memory(self, order: Order, lacking: int) -> _Turn:
        """Others may go before it, but not for ever."""
        if not self.blocked:
            self._make_room(order.pool, lacking)
        return self._wait_for_room(order)

    def _wait_for_room(self, order: Order) -> _Turn:
        before = self.room.overtaken.get(order.id, 0)
        self.overtaken[order.id] = before
        return _LAST if before >= OVERTAKEN_MAX else _CLOSED

    def _begins(self, pool: Pool, *, claim: bool, soon: bool) -> bool:
        """Whether serving it starts something on the platform now."""
        if claim:
            return not hands_over(pool, self.room.seats)
        return not soon and not is_seat(pool, self.room.seats)

    def _need(self, pool: Pool, order: Order, *, new: bool) -> int:
        """The memory it adds to what is counted already."""
        if not hands_over(pool, self.room.seats):
            return order.memory_mb
        own = pool.settings.memory_mb
        return max(own, order.memory_mb) if new else max(0, order.memory_mb - own)

    def _lacks_image(self, pool: Pool, *, claim: bool, soon: bool) -> bool:
        image = pool.settings.template.image
        if image is None or image not in self.missing:
            return False
        made_already = (claim or soon) and not is_seat(pool, self.room.seats)
        if not made_already:
            self.pulls.add(image)
        return not made_already

    def _give(self, order: Order, *, soon: bool, begins: bool) -> _Turn:
        slots = self.free[order.pool]
        slot = slots.pop() if slots else None
        if slot is None:
            (self.coming if soon else self.makeable)[order.pool] -= 1
            self.counted[order.pool] -= not soon
        if begins and self.permits == 0:
            self.held.append(order)
            return _SERVED
        if begins and order.pool in self.tries:
            self.tries[order.pool] -= 1
        nth = None
        if begins and self.permits is not None:
            self.permits -= 1
            nth = self.starting = self.starting + 1
        if slot is not None:
            self.admissions.append(Admission(order, slot, nth))
            return self._count(order) if self.rated or self.overtaken else _SERVED
        self.promised.add(order.id)
        self.spoken[order.pool] += 1
        if not soon:
            self.wanted[order.pool] += 1
        return _SERVED

    def _count(self, order: Order) -> _Turn:
        """Note what its run counts in, beside slots and memory."""
        if order.pool in self.rated:
            self.begun.add(order.pool)
        if not self.overtaken:
            return _SERVED
        self.overtaken = {waiting: count + 1 for waiting, count in self.overtaken.items()}
        return _LAST if max(self.overtaken.values()) >= OVERTAKEN_MAX else _SERVED

    def _make_room(self, name: str, lacking: int) -> None:
        """Idle live slots that it would not use go for an order that only waits for memory, those kept warm last; none
        if all of them would not be enough."""
        self.blocked = True
        room = self.room
        alive = {other: pool for other, pool in room.pools.items() if room.hands_over(other)}
        lacking -= sum(
            alive[slot.pool].settings.memory_mb
            for slot in room.slots
            if slot.state is SlotState.REMOVING and slot.pool in alive
        )
        spare: list[Slot] = []
        warm: list[Slot] = []
        for other, pool in alive.items():
            idle = self.free.get(other, room.free[other])
            if other == name:
                idle = idle[:-1]  # the one that it would use
            extra = max(0, len(idle) - pool.settings.slots_warm)
            spare += idle[:extra]
            warm += idle[extra:]
        chosen: list[Slot] = []
        for slot in [*sorted(spare, key=_last_used), *sorted(warm, key=_last_used)]:
            if lacking <= 0:
                break
            chosen.append(slot)
            lacking -= alive[slot.pool].settings.memory_mb
        if lacking <= 0:
            self.evictions = chosen
            gone = {slot.name for slot in chosen}
            self.free = {name: [slot for slot in idle if slot.name not in gone] for name, idle in self.free.items()}


def _last_used(slot: Slot) -> tuple[int, str]:
    return slot.last_used_at or 0, slot.name
