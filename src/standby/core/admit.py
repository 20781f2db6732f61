"""Which waiting orders get which slots now, and how many slots are wanted. Pure: rows in, a plan out."""

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cached_property

from msgspec import Struct

from standby.core.model import Host, Mode, Order, Pool, Slot, SlotState


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

    @cached_property
    def free(self) -> Mapping[str, Sequence[Slot]]:
        """Idle and unheld slots by pool, the best last: never used first, then least recently used; with those that
        are held no more than the pool may have."""
        held = {order.slot for order in self.opened}
        busy = Counter(order.pool for order in self.opened)
        free: dict[str, list[Slot]] = {name: [] for name in self.pools}
        for slot in self.slots:
            if slot.state is SlotState.IDLE and slot.name not in held and slot.pool in free:
                free[slot.pool].append(slot)
        for name, slots in free.items():
            slots.sort(key=lambda slot: (slot.last_used_at or 0, slot.name), reverse=True)
            del slots[: max(0, len(slots) + busy[name] - self.pools[name].settings.slots_max)]
        return free

    @cached_property
    def places(self) -> Mapping[str, int]:
        """How many more orders a pool could take with slots that are being made or may still be made."""
        there = Counter(slot.pool for slot in self.slots)
        coming = Counter(slot.pool for slot in self.slots if slot.state in (SlotState.CREATING, SlotState.CLEANING))
        return {name: coming[name] + max(0, pool.settings.slots_max - there[name]) for name, pool in self.pools.items()}


class Admission(Struct, frozen=True):
    order: Order
    slot: Slot


class Plan(Struct, frozen=True):
    admissions: Sequence[Admission]
    wanted: Mapping[str, int]
    """Pool -> how many more slots the orders that pass every other gate would take."""


def serves(host: Host, pool: Pool) -> bool:
    """Whether the operator lets this pool take new work."""
    return host.mode is Mode.OPEN and pool.mode is Mode.OPEN


def admit(room: Room, waiting: Sequence[Order]) -> Plan:
    """Give free slots to waiting orders by (rank, id); nobody overtakes one that only waits for memory."""
    serving = {name for name, pool in room.pools.items() if serves(room.host, pool)}
    free = {name: list(room.free[name]) for name in serving}
    places = {name: room.places[name] for name in serving}
    memory = room.host.memory_mb
    used = sum(order.memory_mb for order in room.opened) + sum(order.memory_mb for order in room.ending)
    opened = dict(room.project_open)
    admissions: list[Admission] = []
    wanted: dict[str, int] = {}
    for order in sorted(waiting, key=lambda order: (order.rank or 0, order.id)):
        limit = room.project_max.get(order.project)
        if limit is not None and opened.get(order.project, 0) >= limit:
            continue
        slots = free.get(order.pool)
        if not slots and places.get(order.pool, 0) <= wanted.get(order.pool, 0):
            continue
        if memory is not None and used + order.memory_mb > memory:
            if order.memory_mb > memory:
                continue  # it can never fit this host: it must not hold up the others for ever
            break
        if slots:
            admissions.append(Admission(order, slots.pop()))
        else:
            wanted[order.pool] = wanted.get(order.pool, 0) + 1
        used += order.memory_mb
        opened[order.project] = opened.get(order.project, 0) + 1
    return Plan(admissions, wanted)


def takes(room: Room, pool: Pool) -> int:
    """How many orders at the most this pool could take now, with the slots it has and those it may make."""
    return len(room.free[pool.name]) + room.places[pool.name] if serves(room.host, pool) else 0
