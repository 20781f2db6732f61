"""Which waiting orders get which slots now, and how many slots are wanted. Pure: rows in, a plan out."""

from collections.abc import Mapping, Sequence

from msgspec import Struct

from standby.core.model import Host, Mode, Order, Pool, Slot, SlotState


class Room(Struct, frozen=True, kw_only=True):
    """What a host's leader knows when it admits."""

    host: Host
    pools: Mapping[str, Pool]
    slots: Sequence[Slot]
    """All slots of the host."""
    opened: Sequence[Order]
    """Orders with an open run on the host."""
    project_open: Mapping[str, int]
    project_max: Mapping[str, int | None]


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
    free = _free_by_pool(room)
    places = {name: _places_left(room, pool) for name, pool in room.pools.items()}
    memory = room.host.memory_mb
    used = sum(order.memory_mb for order in room.opened)
    opened = dict(room.project_open)
    admissions: list[Admission] = []
    wanted: dict[str, int] = {}
    for order in sorted(waiting, key=lambda order: (order.rank or 0, order.id)):
        limit = room.project_max.get(order.project)
        if limit is not None and opened.get(order.project, 0) >= limit:
            continue
        if memory is not None and used + order.memory_mb > memory:
            if order.memory_mb > memory:
                continue  # it can never fit this host: it must not hold up the others for ever
            break
        slots = free.get(order.pool)
        if slots:
            admissions.append(Admission(order, slots.pop()))
        elif places.get(order.pool, 0) > wanted.get(order.pool, 0):
            wanted[order.pool] = wanted.get(order.pool, 0) + 1
        else:
            continue
        used += order.memory_mb
        opened[order.project] = opened.get(order.project, 0) + 1
    return Plan(admissions, wanted)


def _free_by_pool(room: Room) -> dict[str, list[Slot]]:
    """Idle and unheld slots of the pools that serve, the best last: never used first, then least recently used."""
    held = {order.slot for order in room.opened}
    free: dict[str, list[Slot]] = {}
    for slot in sorted(room.slots, key=lambda slot: (slot.last_used_at or 0, slot.name), reverse=True):
        pool = room.pools.get(slot.pool)
        if pool is not None and serves(room.host, pool) and slot.state is SlotState.IDLE and slot.name not in held:
            free.setdefault(slot.pool, []).append(slot)
    return free


def takes(room: Room, pool: Pool) -> int:
    """How many orders at the most this pool could take now, with the slots it has and those it may make."""
    if not serves(room.host, pool):
        return 0
    held = {order.slot for order in room.opened}
    idle = sum(slot.pool == pool.name and slot.state is SlotState.IDLE and slot.name not in held for slot in room.slots)
    return idle + _places_left(room, pool)


def _places_left(room: Room, pool: Pool) -> int:
    """How many more orders the pool could take with slots that are being made or may still be made."""
    if not serves(room.host, pool):
        return 0
    mine = [slot for slot in room.slots if slot.pool == pool.name]
    coming = sum(slot.state in (SlotState.CREATING, SlotState.CLEANING) for slot in mine)
    return coming + max(0, pool.settings.slots_max - len(mine))
