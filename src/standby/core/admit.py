"""Which waiting orders get which slots now, and which slots are to be made for others. Pure: rows in, a plan out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Final

from msgspec import Struct

from standby.core import pressure, processors
from standby.core.model import Host, Mode, Order, Pool, Slot, SlotState
from standby.core.places import may_try
from standby.core.warm import hands_over, is_seat, made_of

FAILURES_MAX: Final = 3
"""A slot that failed so often is given up."""


class Room(Struct, frozen=True, kw_only=True, dict=True):
    """What a host's leader knows when it admits."""

    host: Host
    pools: Mapping[str, Pool]
    slots: Sequence[Slot]
    """All slots of the host."""
    opened: Sequence[Order]
    """Orders with an open run on the host."""
    ending: Sequence[Order] = ()
    """Orders whose end is not saved yet: they hold no slot, but their memory."""
    project_open: Mapping[str, int]
    project_max: Mapping[str, int | None]
    seats: bool = True
    """The driver's slots are mere seats."""
    now: int = 0
    unsaved: AbstractSet[str] = frozenset()
    """Orders with a change under way: one that is being noted as ready still holds its permit."""
    missing: AbstractSet[str] = frozenset()
    """Images that are not known to be there."""
    started_at: int = 0
    """When the leader last allowed a start, as far as it remembers."""
    asked_since: int = 0
    """Since when this leader could ask the platform without a break."""

    @cached_property
    def made_of(self) -> Mapping[str, str]:
        """What the slots of each pool must be made of."""
        return {name: made_of(pool, self.seats) for name, pool in self.pools.items()}

    @cached_property
    def free(self) -> Mapping[str, Sequence[Slot]]:
        """Idle, unheld and serviceable slots by pool, the best last: never used first, then least recently used; with
        those that are held no more than the pool may have."""
        held = {order.slot for order in self.opened}
        busy = Counter(order.pool for order in self.opened)
        free: dict[str, list[Slot]] = {name: [] for name in self.pools}
        plain = {name for name, of in self.made_of.items() if not of and self.pools[name].settings.max_uses is None}
        for slot in self.slots:
            if slot.state is not SlotState.IDLE or slot.name in held or slot.pool not in free:
                continue
            # a plain seat needs no closer look: this is on the hot path
            if (slot.pool in plain and not slot.template) or self.serves(slot):
                free[slot.pool].append(slot)
        for name, slots in free.items():
            settings = self.pools[name].settings
            if settings.pick == "mru":
                slots.sort(key=lambda slot: (slot.last_used_at or 0, slot.name))
            else:
                slots.sort(key=lambda slot: (slot.last_used_at or 0, slot.name), reverse=True)
            del slots[: max(0, len(slots) + busy[name] - settings.slots_max)]
        return free

    def serves(self, slot: Slot) -> bool:
        """Whether it is what its pool wants now, and not used up."""
        uses_max = self.pools[slot.pool].settings.max_uses
        return slot.template == self.made_of[slot.pool] and (uses_max is None or slot.uses < uses_max)

    @cached_property
    def coming(self) -> Mapping[str, int]:
        """How many slots of each pool are being made."""
        return Counter(
            slot.pool
            for slot in self.slots
            if (slot.state is SlotState.CREATING or slot.state is SlotState.CLEANING)
            and slot.pool in self.pools
            and slot.template == self.made_of[slot.pool]
            and (slot.state is SlotState.CREATING or self.is_seat(slot.pool))
        )

    @cached_property
    def remakeable(self) -> Mapping[str, Sequence[Slot]]:
        """Slots of each pool that could be made anew now: used ones, and broken ones whose time has come; those whose
        place still counts first, then the oldest."""
        ending = {order.slot for order in self.ending}
        found: dict[str, list[Slot]] = {}
        for slot in self.slots:
            if slot.state is SlotState.CLEANING or slot.state is SlotState.ERROR:
                pool = self.pools.get(slot.pool)
                lets = pool is not None and self.tries.get(slot.pool) != 0
                if lets and slot.name not in ending and self._can_again(slot):
                    found.setdefault(slot.pool, []).append(slot)
        for slots in found.values():
            slots.sort(key=lambda slot: (slot.incarnation is None, slot.state_since, slot.name))
        return found

    def _can_again(self, slot: Slot) -> bool:
        if slot.state is SlotState.CLEANING:
            return not self.is_seat(slot.pool) and self.serves(slot)
        due = slot.retry_at is not None and slot.retry_at <= self.now
        return due and slot.failures < FAILURES_MAX and self.serves(slot)

    @cached_property
    def makeable(self) -> Mapping[str, int]:
        """How many slots of each pool could be made now: made anew, and new ones below the maximum."""
        there = Counter(slot.pool for slot in self.slots)
        new = {name: max(0, pool.settings.slots_max - there[name]) for name, pool in self.pools.items()}
        all_ = {name: len(self.remakeable.get(name, ())) + new[name] for name in self.pools}
        return {name: min(count, self.tries.get(name, count)) for name, count in all_.items()}

    @cached_property
    def tries(self) -> Mapping[str, int]:
        """Pools whose breaker is open, and how many starts it lets through now: after a while one, if none is under way
        there."""
        broken = [pool for pool in self.pools.values() if pool.broken_at is not None]
        return {pool.name: int(may_try(pool, self.now) and not self._tried(pool.name)) for pool in broken}

    def _tried(self, pool: str) -> bool:
        making = any(slot.pool == pool and slot.state is SlotState.CREATING for slot in self.slots)
        orders = (*self.opened, *self.ending)
        begun = any(order.pool == pool and order.ready_at is None for order in orders)
        return making or (begun and not self.hands_over(pool))

    def is_seat(self, pool: str) -> bool:
        return is_seat(self.pools[pool], self.seats)

    def hands_over(self, pool: str) -> bool:
        """Whether its idle slots are alive."""
        return pool in self.pools and hands_over(self.pools[pool], self.seats)

    @cached_property
    def starting(self) -> int:
        """Platform starts in flight: runs commanded and not ready, slots being made."""
        runs = [order for order in (*self.opened, *self.ending) if order.ready_at is None or order.id in self.unsaved]
        making = [slot for slot in self.slots if slot.state is SlotState.CREATING and slot.pool in self.pools]
        return sum(not self.hands_over(order.pool) for order in runs) + sum(
            not self.is_seat(slot.pool) for slot in making
        )

    @cached_property
    def gap_ends_at(self) -> int:
        """When the next start may be sent, as far as the last one matters."""
        gap_ms = pressure.start_gap_ms(self.host)
        if not gap_ms:
            return 0
        runs = [order.commanded_at or 0 for order in self.opened if not self.hands_over(order.pool)]
        making = [slot for slot in self.slots if slot.state is SlotState.CREATING and slot.pool in self.pools]
        made = [slot.state_since for slot in making if not self.is_seat(slot.pool)]
        return max(self.started_at, *runs, *made, 0) + gap_ms

    @property
    def permits(self) -> int | None:
        """How many platform starts may begin now; null is no limit."""
        most = pressure.starts_max(self.host)
        left = None if most is None else max(0, most - self.starting)
        if not pressure.start_gap_ms(self.host):
            return left
        return 0 if self.now < self.gap_ends_at else 1 if left is None else min(1, left)

    @cached_property
    def used_mb(self) -> int:
        """Memory that counts: of open runs, and of live places that nobody uses; each place once."""
        alive = {name: pool.settings.memory_mb for name, pool in self.pools.items() if self.hands_over(name)}
        runs = sum(max(order.memory_mb, alive.get(order.pool, 0)) for order in (*self.opened, *self.ending))
        if not alive:
            return runs
        held = {order.slot for order in (*self.opened, *self.ending)}
        return runs + sum(
            alive[slot.pool]
            for slot in self.slots
            if slot.pool in alive
            and slot.name not in held
            and (slot.state is SlotState.CREATING or slot.incarnation is not None)
        )


class Admission(Struct, frozen=True):
    order: Order
    slot: Slot
    nth: int | None = None
    """It is the nth platform start in flight on a host that limits them."""


class Plan(Struct, frozen=True, kw_only=True):
    admissions: Sequence[Admission] = ()
    wanted: Mapping[str, int] = {}
    """Pool -> how many slots to begin making now, for orders that pass every other gate."""
    spoken: Mapping[str, int] = {}
    """Pool -> how many orders wait for slots that are being made, these included."""
    held: Sequence[Order] = ()
    """Orders that wait for nothing but a start, by rank."""
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


def serves(host: Host, pool: Pool) -> bool:
    """Whether the operator lets this pool take new work."""
    return host.mode is Mode.OPEN and pool.mode is Mode.OPEN


def admit(room: Room, waiting: Sequence[Order]) -> Plan:
    """Give free slots to waiting orders by (rank, id); nobody overtakes one that only waits for memory."""
    share = _Share(room)
    for order in sorted(waiting, key=lambda order: (order.rank or 0, order.id)):
        if not share.serve(order):
            break
    return share.plan()


def nobody(room: Room) -> Plan:
    """The plan when nobody waits."""
    permits = room.permits
    return Plan(starting=0 if permits is None else room.starting, permits=permits)


def only_wait_for_a_start(room: Room, waiting: Sequence[Order]) -> AbstractSet[str]:
    """Those that would have a slot, or one in the making, if nothing limited starts and every image were there."""
    share = _Share(room, ungated=True)
    for order in sorted(waiting, key=lambda order: (order.rank or 0, order.id)):
        if not share.serve(order):
            break
    return share.served


def takes(room: Room, pool: Pool) -> int:
    """How many orders at the most this pool could take now, with the slots it has and those it may make."""
    if not serves(room.host, pool) or not pressure.takes_work(room.host):
        return 0
    return len(room.free[pool.name]) + room.coming.get(pool.name, 0) + room.makeable[pool.name]


class _Share:
    """What is left to give, while orders are served one after the other."""

    def __init__(self, room: Room, *, ungated: bool = False) -> None:
        self.room = room
        open_pools = room.pools.items() if pressure.takes_work(room.host) else ()
        self.serving = {name for name, pool in open_pools if serves(room.host, pool)}
        self.free = {name: list(room.free[name]) for name in self.serving}
        self.coming = Counter(room.coming)
        self.makeable = Counter(room.makeable)
        self.tries = dict(room.tries)
        self.counted = Counter(
            {name: sum(slot.incarnation is not None for slot in slots) for name, slots in room.remakeable.items()}
        )
        """Slots to be made anew whose place counts in the memory already."""
        self.missing = frozenset[str]() if ungated else room.missing
        self.permits = None if ungated else room.permits
        self.starting = 0 if self.permits is None else room.starting
        self.used = room.used_mb
        limited = () if room.host.cpus is None else (*room.opened, *room.ending)
        self.cpus = processors.left(room.host, room.pools, limited)
        self.opened = Counter(room.project_open)
        self.admissions: list[Admission] = []
        self.wanted, self.spoken = Counter[str](), Counter[str]()
        self.held: list[Order] = []
        self.served: set[str] = set()
        self.pulls: set[str] = set()
        self.evictions: list[Slot] = []
        self.blocked = False

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
        )

    def serve(self, order: Order) -> bool:
        """Give it what it needs, if that is there; false when nobody may come after it."""
        name, limit = order.pool, self.room.project_max.get(order.project)
        if name not in self.serving or (limit is not None and self.opened[order.project] >= limit):
            return True
        pool = self.room.pools[name]
        slots, soon = self.free[name], self.coming[name] > 0
        if not slots and not soon and self.makeable[name] <= 0:
            return True
        begins = self._begins(pool, claim=bool(slots), soon=soon)
        if begins and self.tries.get(name) == 0:
            return True
        need = self._need(pool, order, new=not slots and not soon and self.counted[name] <= 0)
        memory = self.room.host.memory_mb
        if memory is not None and self.used + need > memory:
            if max(need, order.memory_mb) > memory:
                return True  # it can never fit this host: it must not hold up the others for ever
            self._make_room(name, self.used + need - memory)
            return False
        cpus = 0.0 if self.cpus is None else processors.needed(pool)
        if self.cpus is not None and cpus > max(0.0, self.cpus):
            return cpus > (self.room.host.cpus or 0.0)  # as with memory
        if self._lacks_image(pool, claim=bool(slots), soon=soon):
            return True
        self.used += need
        self.cpus = None if self.cpus is None else round(self.cpus - cpus, 3)
        self.opened[order.project] += 1
        self._give(order, soon=soon, begins=begins)
        return True

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

    def _give(self, order: Order, *, soon: bool, begins: bool) -> None:
        slots = self.free[order.pool]
        slot = slots.pop() if slots else None
        if slot is None:
            (self.coming if soon else self.makeable)[order.pool] -= 1
            self.counted[order.pool] -= not soon
        if begins and self.permits == 0:
            self.held.append(order)
            return
        self.served.add(order.id)
        if begins and order.pool in self.tries:
            self.tries[order.pool] -= 1
        nth = None
        if begins and self.permits is not None:
            self.permits -= 1
            nth = self.starting = self.starting + 1
        if slot is not None:
            self.admissions.append(Admission(order, slot, nth))
            return
        self.spoken[order.pool] += 1
        if not soon:
            self.wanted[order.pool] += 1

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


def _last_used(slot: Slot) -> tuple[int, str]:
    return slot.last_used_at or 0, slot.name
