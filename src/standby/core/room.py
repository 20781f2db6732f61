"""What a host's leader knows when it admits and sizes: rows, and what follows from them."""

from collections import Counter
from collections.abc import Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cached_property
from typing import Final

from msgspec import Struct

from standby.core import pressure
from standby.core.lanes import Turns
from standby.core.model import Host, Order, Pool, Slot, SlotState
from standby.core.places import may_try
from standby.core.warm import hands_over, is_seat, made_of

FAILURES_MAX: Final = 3
"""A slot that failed so often is given up."""
MINUTE_MS: Final = 60_000
_BEGIN: Final = Turns()


def rate_opens_at(pool: Pool, last_start: int | None) -> int | None:
    """When the pool's start rate allows the next run; null for never, or where it has none."""
    most = pool.settings.starts_per_minute
    return (last_start or 0) - (-MINUTE_MS // most) if most else None


class Stock(tuple[Slot, ...]):
    """All slots of a host, with what follows from them alone: it is known as long as none of them changes."""

    @cached_property
    def idle(self) -> Mapping[str, Sequence[Slot]]:
        """By pool, never used ones first, then the least recently used."""
        idle: dict[str, list[Slot]] = {}
        for slot in self:
            if slot.state is SlotState.IDLE:
                idle.setdefault(slot.pool, []).append(slot)
        for slots in idle.values():
            slots.sort(key=lambda slot: (slot.last_used_at or 0, slot.name))
        return idle

    @cached_property
    def others(self) -> Sequence[Slot]:
        """Those that are not idle: most have something to be done about them."""
        return [slot for slot in self if slot.state is not SlotState.IDLE]

    @cached_property
    def making(self) -> Sequence[Slot]:
        return [slot for slot in self.others if slot.state is SlotState.CREATING]

    @cached_property
    def there(self) -> Mapping[str, int]:
        """How many, by pool."""
        return Counter([slot.pool for slot in self])


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
    project_open: Mapping[str, int] = {}
    project_max: Mapping[str, int | None] = {}
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
    weights: Mapping[str, int] = {}
    """Of projects; 1 where nothing is said."""
    turns: Turns = _BEGIN
    """Which lanes had their turn, as far as the leader remembers."""
    overtaken: Mapping[str, int] = {}
    """Orders that wait for memory, and how many were served before them meanwhile."""
    pool_started: Mapping[str, int] = {}
    """When a run last began in a pool that limits how many may in a minute."""

    @cached_property
    def made_of(self) -> Mapping[str, str]:
        """What the slots of each pool must be made of."""
        return {name: made_of(pool, self.seats) for name, pool in self.pools.items()}

    @cached_property
    def stock(self) -> Stock:
        return self.slots if isinstance(self.slots, Stock) else Stock(self.slots)

    @cached_property
    def free(self) -> Mapping[str, Sequence[Slot]]:
        """Idle, unheld and serviceable slots by pool, the best last: never used first, then least recently used; with
        those that are held no more than the pool may have."""
        held = {order.slot for order in self.opened}
        free: dict[str, Sequence[Slot]] = {}
        for name, pool in self.pools.items():
            idle = self.stock.idle.get(name, ())
            if not self.made_of[name] and pool.settings.max_uses is None:
                # a plain seat needs no closer look: this is on the hot path
                slots = [slot for slot in idle if slot.name not in held and not slot.template]
            else:
                slots = [slot for slot in idle if slot.name not in held and self.serves(slot)]
            if pool.settings.pick != "mru":
                slots.reverse()
            if len(slots) + len(self.opened) > pool.settings.slots_max:
                del slots[: max(0, len(slots) + self.busy[name] - pool.settings.slots_max)]
            free[name] = slots
        return free

    @cached_property
    def busy(self) -> Counter[str]:
        """How many open runs each pool has."""
        return Counter([order.pool for order in self.opened])

    def serves(self, slot: Slot) -> bool:
        """Whether it is what its pool wants now, and not used up."""
        uses_max = self.pools[slot.pool].settings.max_uses
        return slot.template == self.made_of[slot.pool] and (uses_max is None or slot.uses < uses_max)

    @cached_property
    def coming(self) -> Mapping[str, int]:
        """How many slots of each pool are being made."""
        return Counter(
            slot.pool
            for slot in self.stock.others
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
        for slot in self.stock.others:
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
        there = self.stock.there
        new = {name: max(0, pool.settings.slots_max - there.get(name, 0)) for name, pool in self.pools.items()}
        all_ = {name: len(self.remakeable.get(name, ())) + new[name] for name in self.pools}
        return {name: min(count, self.tries.get(name, count)) for name, count in all_.items()}

    @cached_property
    def tries(self) -> Mapping[str, int]:
        """Pools whose breaker is open, and how many starts it lets through now: after a while one, if none is under way
        there."""
        broken = [pool for pool in self.pools.values() if pool.broken_at is not None]
        return {pool.name: int(may_try(pool, self.now) and not self._tried(pool.name)) for pool in broken}

    def _tried(self, pool: str) -> bool:
        making = any(slot.pool == pool for slot in self.stock.making)
        orders = (*self.opened, *self.ending)
        begun = any(order.pool == pool and order.ready_at is None for order in orders)
        return making or (begun and not self.hands_over(pool))

    def is_seat(self, pool: str) -> bool:
        return is_seat(self.pools[pool], self.seats)

    @cached_property
    def alive(self) -> AbstractSet[str]:
        """Pools whose idle slots are alive."""
        return {name for name, pool in self.pools.items() if hands_over(pool, self.seats)}

    def hands_over(self, pool: str) -> bool:
        """Whether its idle slots are alive."""
        return pool in self.alive

    @cached_property
    def starting(self) -> int:
        """Platform starts in flight: runs commanded and not ready, slots being made."""
        alive, unsaved = self.alive, self.unsaved
        runs = [order for order in (*self.opened, *self.ending) if order.ready_at is None or order.id in unsaved]
        making = [slot for slot in self.stock.making if slot.pool in self.pools]
        begun = sum([order.pool not in alive for order in runs]) if alive else len(runs)
        return begun + sum(not self.is_seat(slot.pool) for slot in making)

    @cached_property
    def gap_ends_at(self) -> int:
        """When the next start may be sent, as far as the last one matters."""
        gap_ms = pressure.start_gap_ms(self.host)
        if not gap_ms:
            return 0
        runs = [order.commanded_at or 0 for order in self.opened if not self.hands_over(order.pool)]
        making = [slot for slot in self.stock.making if slot.pool in self.pools]
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
    def running_left(self) -> Mapping[str, int]:
        """How many more runs may begin in pools that limit them."""
        most = {name: pool.settings.running_max for name, pool in self.pools.items()}
        limits = {name: limit for name, limit in most.items() if limit is not None}
        if not limits:
            return limits
        busy = Counter(order.pool for order in (*self.opened, *self.ending))
        return {name: max(0, limit - busy[name]) for name, limit in limits.items()}

    @cached_property
    def keys_held(self) -> AbstractSet[tuple[str, str]]:
        """Project and concurrency key of every open run on the host."""
        orders = (*self.opened, *self.ending)
        return {(order.project, order.concurrency_key) for order in orders if order.concurrency_key is not None}

    @cached_property
    def used_mb(self) -> int:
        """Memory that counts: of open runs, and of live places that nobody uses; each place once."""
        orders = (*self.opened, *self.ending)
        alive = {name: self.pools[name].settings.memory_mb for name in self.alive}
        if not alive:
            return sum([order.memory_mb for order in orders])
        held = {order.slot for order in orders}
        return sum(max(order.memory_mb, alive.get(order.pool, 0)) for order in orders) + sum(
            alive[slot.pool]
            for slot in self.slots
            if slot.pool in alive
            and slot.name not in held
            and (slot.state is SlotState.CREATING or slot.incarnation is not None)
        )
