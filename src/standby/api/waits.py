"""How long waiting orders will probably wait, from the rows and what was measured lately."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from standby.core import outlook
from standby.core.estimate import Line, Wait
from standby.core.explain import OPENS_AS_RUNS_END, Gate, House
from standby.core.model import Lease, Order, Pool
from standby.core.outlook import Took
from standby.starts import Floor, read_floor
from standby.world import World

TOOK_KEPT_S: Final = 1.0
"""How long what runs took is remembered."""
LINE_KEPT_S: Final = 1.0
"""So old may the estimate be that an order is answered with when it is taken in."""

Expected = Wait | str | None
"""The wait; or why nobody can say how long it is; null for an order that does not wait for a place."""


def house_of(floor: Floor, pool: Pool, lease: Lease | None, now: int) -> House:
    """What is known of a pool, without any project."""
    return House(
        pool=pool,
        host=floor.host,
        lease=lease,
        slots=[slot for slot in floor.slots if slot.pool == pool.name],
        holders=floor.holders,
        project_open=0,
        project_max=None,
        now=now,
        pools=floor.pools,
        host_slots=floor.slots,
        measured_at=floor.measured_at,
        image=floor.images.get(pool.settings.template.image or ""),
        seats=floor.seats,
    )


async def expected(world: World, order: Order, gate: Gate | None, house: House | None) -> Expected:
    """How long an order will wait that is shown, from now on."""
    if gate is None or house is None or order.rank is None:
        return None
    if gate.stuck or gate.name not in OPENS_AS_RUNS_END:
        return gate.text
    took = await _took(world)
    line, of_project = outlook.line(house, order.memory_mb, took), outlook.of_project(house, took)
    position = await world.store.position(order) or 1
    return _later(line, await world.store.ahead(order), of_project, position)


async def expected_at_submit(world: World, order: Order, pool: Pool, position: int, mine: int) -> Expected:
    """The same for an order that is being taken in behind `mine` others of its request: what orders of one moment have
    in common is read once."""
    shared = world.shared

    async def read_line() -> Line | str:
        return await _line(world, pool, order.memory_mb)

    async def read_ahead() -> int:
        return await world.store.ahead(order)

    async def read_project() -> Line | str | None:
        return await _line_of_project(world, pool, order.project, limits[order.project])

    line = await shared.ask(("line", pool.name, order.memory_mb), read_line, keep_s=LINE_KEPT_S)
    if isinstance(line, str):
        return line
    # whoever comes with the same priority goes behind the same ones
    alike = ("ahead", pool.name, (order.rank or 0) - order.submitted_at)
    ahead = await shared.ask(alike, read_ahead, keep_s=LINE_KEPT_S)
    limits = await shared.ask(("limits",), lambda: _limits(world), keep_s=LINE_KEPT_S)
    of_project = None
    if order.project in limits:
        of_project = await shared.ask(("project", pool.name, order.project), read_project, keep_s=LINE_KEPT_S)
    return _later(line, max(ahead + mine, position - 1), of_project, position)


def _later(line: Line | str, ahead: int, of_project: Line | str | None, position: int) -> Wait | str:
    """Of one that waits for a place of its pool, and for one of its project."""
    if isinstance(line, str):
        return line
    if of_project is None:
        return line.wait(ahead)
    return of_project if isinstance(of_project, str) else line.wait(ahead).and_then(of_project.wait(position - 1))


async def _took(world: World) -> Mapping[str, Took]:
    return await world.shared.ask(("took",), lambda: world.estimates.took(world.store), keep_s=TOOK_KEPT_S)


async def _line(world: World, pool: Pool, memory_mb: int) -> Line | str:
    host = await world.store.host(pool.host)
    if host is None:
        return f"there is no host {pool.host}"
    lease = next((each for each in await world.store.leases() if each.host == host.name), None)
    house = house_of(await read_floor(world, host), pool, lease, world.clock.now())
    return outlook.line(house, memory_mb, await _took(world))


async def _limits(world: World) -> Mapping[str, int]:
    """How many open runs the limited projects may have."""
    return {each.name: each.running_max for each in await world.store.projects() if each.running_max is not None}


async def _line_of_project(world: World, pool: Pool, project: str, most: int) -> Line | str | None:
    host = await world.store.host(pool.host)
    if host is None:
        return None
    holders = [each for each in (await world.store.holders()).values() if each.project == project]
    house = house_of(await read_floor(world, host), pool, None, world.clock.now())
    return outlook.of_project(replace(house, project_max=most, project_holders=holders), await _took(world))
