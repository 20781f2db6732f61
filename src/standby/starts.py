"""The deploy gate as people see it: which starts are in flight on a host, and who waits for one."""

from collections.abc import Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from standby.core import admit, explain, pressure
from standby.core.model import Host, Lease, Level, Order, OrderState, Pool, Slot
from standby.core.room import Room
from standby.core.sighting import ImageState
from standby.world import World

HEADS: Final = 500
"""So many orders of each lane are looked through for those that wait for a start."""


class Floor(Struct, frozen=True, kw_only=True):
    """A host with everything on it, read in one go."""

    host: Host
    pools: Mapping[str, Pool]
    slots: Sequence[Slot]
    holders: Mapping[str, Order]
    images: Mapping[str, ImageState]
    measured_at: int | None
    """When it was last measured, where it is pressed."""
    seats: bool
    """Its slots are mere seats."""


async def read_floor(world: World, host: Host) -> Floor:
    store = world.store
    reading = None if host.pressure is Level.NONE else await store.reading(host.name)
    return Floor(
        host=host,
        pools={pool.name: pool for pool in await store.pools() if pool.host == host.name},
        slots=await store.slots(host=host.name),
        holders=await store.holders(host=host.name),
        images={state.image: state for state in await store.images(host.name)},
        measured_at=None if reading is None else reading[0],
        seats=has_seats(world, host),
    )


def house_of(floor: Floor, pool: Pool, lease: Lease | None, now: int) -> explain.House:
    """What is known of a pool, without any project."""
    return explain.House(
        pool=pool,
        host=floor.host,
        lease=lease,
        slots=[slot for slot in floor.slots if slot.pool == pool.name],
        holders=floor.holders,
        now=now,
        pools=floor.pools,
        host_slots=floor.slots,
        measured_at=floor.measured_at,
        image=floor.images.get(pool.settings.template.image or ""),
        seats=floor.seats,
    )


def room_of(floor: Floor, now: int) -> Room:
    """The host as its leader sees it, without any project."""
    return Room(
        host=floor.host,
        pools=floor.pools,
        slots=floor.slots,
        opened=list(floor.holders.values()),
        seats=floor.seats,
        now=now,
        missing=frozenset(name for name, state in floor.images.items() if not state.present),
    )


async def read_waiters(world: World, floor: Floor) -> Sequence[Order]:
    """The orders that wait for nothing but a start, the next one first: what the leader's own decision says."""
    if pressure.starts_max(floor.host) is None and not pressure.start_gap_ms(floor.host):
        return []
    store = world.store
    projects = {project.name: project for project in await store.projects()}
    room = replace(
        room_of(floor, world.clock.now()),
        project_open=await store.open_by_project(),
        project_max={name: project.running_max for name, project in projects.items()},
        weights={name: project.weight for name, project in projects.items()},
    )
    waiting: list[Order] = []
    for pool in floor.pools.values():
        most = min(admit.takes(room, pool), HEADS)
        host = floor.host
        heads = await store.candidates(pool.name, most, host.memory_mb, cpus_max=host.cpus) if most > 0 else ()
        waiting += [work.order for work in heads if work.order.state is OrderState.PENDING]
    return admit.admit(room, waiting).held


def has_seats(world: World, host: Host) -> bool:
    """Whether the slots of a host are mere seats, as far as this server knows it."""
    known = world.config.hosts.get(host.name)
    return host.driver == "process" or (host.driver == "scripted" and (known is None or known.seats))


def in_flight(floor: Floor, now: int) -> Sequence[explain.Start]:
    """The starts in flight, the oldest first."""
    return explain.starts(room_of(floor, now))
