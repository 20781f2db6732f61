"""How long waiting orders will probably wait, from the rows and what was measured lately."""

from collections.abc import Mapping
from functools import partial
from typing import Final

import structlog
from msgspec import Struct
from msgspec.structs import replace

from standby.core import crowd, outlook
from standby.core.crowd import Keyed, Queue, Standing
from standby.core.estimate import EXACT, Line, Wait
from standby.core.explain import FORESEEN, Gate, House
from standby.core.limits import concurrency_key
from standby.core.model import Host, Order, Pool, Project
from standby.core.outlook import Took
from standby.core.rank import is_urgent
from standby.core.telling import Known
from standby.starts import house_of, read_floor
from standby.store.contract import Queued, StoreDown
from standby.world import World

log = structlog.get_logger()

TOOK_KEPT_S: Final = 1.0
"""How long what runs took is remembered."""
LINE_KEPT_S: Final = 1.0
"""So old may the estimate be that an order is answered with when it is taken in."""
OUTLOOK_KEPT_S: Final = 0.1
"""So much longer all of it serves at once, for orders that differ in nothing that counts."""

CONTENDERS_MOST: Final = 100
"""So many orders with one concurrency key are looked through for who is before another."""
BEFORE_ALL: Final = (-(2**63), "")
"""Before every rank and id."""
FAULT: Final = "a wait could not be estimated"
UNKNOWN: Final = "it could not be estimated: the server's log says why"

Queues = Mapping[str, Queue]
Expected = Wait | str | None
"""The wait; or why nobody can say how long it is; null for an order that does not wait for a place."""


async def expected(world: World, order: Order, gate: Gate | None, house: House | None) -> Expected:
    """How long an order will wait that is shown, from now on."""
    if gate is None or house is None or order.rank is None:
        return None
    if gate.stuck or gate.name not in FORESEEN:
        return gate.text
    took = await read_took(world)
    known = await _known(world, house.pool)
    line, of_project = outlook.line(house, order.memory_mb, took, order.cpus, known), outlook.of_project(house, took)
    projects, position = await _projects(world), await world.store.position(order) or 1
    queues = await _queues(world, order.pool, projects, order)
    wait = _later(line, queues, _standing(order, position, projects), of_project)
    first = house.first
    if first is None or first.id == order.id:
        return wait
    return _behind(wait, outlook.line(house, first.memory_mb, took, first.cpus, known))


class Outlook(Struct, frozen=True):
    """What orders of one project in one pool that need the same have in common when they are taken in."""

    line: Line | str
    projects: Mapping[str, Project] = {}
    queues: Queues = {}
    of_project: Line | str | None = None
    first: Line | str | None = None
    """Of the first of the lane, where its host has budgets."""


async def expected_at_submit(
    world: World, order: Order, pool: Pool, position: int, mine: Mapping[str, int]
) -> Expected:
    """The same for an order that is being taken in with `mine` others of its request, by project: what orders of one
    moment have in common is read once. No fault in an estimate keeps an order from being taken in, or hides that it
    was."""
    try:
        if order.concurrency_key is not None and (held := await _held(world, order, order.concurrency_key)) is not None:
            return held
        read, key = partial(_outlook, world, order, pool), outlook_key(order)
        outlook = await world.shared.ask(key, read, keep_s=OUTLOOK_KEPT_S)
    except StoreDown:
        raise
    except Exception:
        log.exception(FAULT, pool=order.pool, order=order.id)
        return UNKNOWN
    return foreseen(outlook, order, position, mine)


def outlook_key(order: Order) -> tuple[str, str, str, int, float | None]:
    """Where the outlook of such orders is shared."""
    return "outlook", order.pool, order.project, order.memory_mb, order.cpus


def foreseen(outlook: Outlook, order: Order, position: int, mine: Mapping[str, int]) -> Wait | str:
    """How long an order without a concurrency key will wait that is taken in with this outlook."""
    if isinstance(outlook.line, str):
        return outlook.line
    try:
        others = {name: count for name, count in mine.items() if name != order.project}
        queues, standing = _with(outlook.queues, others, outlook.projects), _standing(order, position, outlook.projects)
        wait = _later(outlook.line, queues, standing, outlook.of_project)
        return wait if position == 1 else _behind(wait, outlook.first)
    except Exception:
        log.exception(FAULT, pool=order.pool, order=order.id)
        return UNKNOWN


async def _held(world: World, order: Order, key: str) -> str | None:
    contenders = await world.store.contenders(order.project, key, CONTENDERS_MOST)
    held = concurrency_key(order, [each.order for each in contenders])
    return None if held is None else held.text


async def _outlook(world: World, order: Order, pool: Pool) -> Outlook:
    shared = world.shared

    async def read_line() -> Line | str:
        return await _line(world, pool, order.memory_mb, order.cpus)

    line = await shared.ask(("line", pool.name, order.memory_mb, order.cpus), read_line, keep_s=LINE_KEPT_S)
    if isinstance(line, str):
        return Outlook(line)
    projects = await shared.ask(("projects",), lambda: _projects(world), keep_s=LINE_KEPT_S)
    queues = await shared.ask(("queues", pool.name), lambda: _queues(world, pool.name, projects), keep_s=LINE_KEPT_S)
    most = projects[order.project].running_max if order.project in projects else None
    of_project = None
    if most is not None:
        read_project = partial(_line_of_project, world, pool, order.project, most)
        of_project = await shared.ask(("project", pool.name, order.project), read_project, keep_s=LINE_KEPT_S)
    read_first = partial(_line_of_first, world, pool, order.project)
    first = await shared.ask(("first", pool.name, order.project), read_first, keep_s=LINE_KEPT_S)
    return Outlook(line, projects, queues, of_project, first)


def _later(line: Line | str, queues: Queues, standing: Standing, of_project: Line | str | None) -> Wait | str:
    """Of one that waits for a place of its pool, and for one of its project."""
    if isinstance(line, str):
        return line
    if isinstance(of_project, str):
        return of_project
    wait = crowd.wait(line, queues, standing)
    return wait if of_project is None else wait.and_then(of_project.wait(standing.position - 1))


def _behind(wait: Wait | str, first: Line | str | None) -> Wait | str:
    """Of one that is behind the first of its lane, which nobody of that goes before while it waits for a budget."""
    return wait.and_then(first.wait(0)) if isinstance(wait, Wait) and isinstance(first, Line) else wait


async def first_of_lane(world: World, pool: str, project: str, host: Host) -> Order | None:
    """The first order of a lane that its host could ever have, where that has budgets."""
    if host.memory_mb is None and host.cpus is None:
        return None
    found = await world.store.candidates(pool, 1, host.memory_mb, {project: BEFORE_ALL}, host.cpus)
    return found[0].order if found else None


def _standing(order: Order, position: int, projects: Mapping[str, Project]) -> Standing:
    return Standing(order.project, position, _weight(projects, order.project), is_urgent(order))


async def _projects(world: World) -> Mapping[str, Project]:
    return {each.name: each for each in await world.store.projects()}


async def _queues(world: World, pool: str, projects: Mapping[str, Project], before: Order | None = None) -> Queues:
    """Who waits in a pool (of the order's own lane: who waits before it for a key) and who sends orders there, but for
    those that may have no runs now."""
    found, now = await world.store.queues(pool), world.clock.now()
    keys = await world.store.wanted_keys(pool, before)
    rates = crowd.rates((await read_took(world)).get(pool, outlook.NOTHING).ends, now)
    none = Queued(0, 0)
    return {
        name: Queue(
            ready=found.get(name, none).ready,
            urgent=found.get(name, none).urgent,
            weight=_weight(projects, name),
            rate=rates.get(name, 0.0),
            keyed=[_keyed(*key, now) for key in keys.get(name, ())],
        )
        for name in {**found, **rates}
        if name not in projects or projects[name].running_max != 0
    }


def _keyed(ready: int, held_since: int | None, now: int) -> Keyed:
    """The first one waits for nobody where no run has the key."""
    return Keyed(ready - 1) if held_since is None else Keyed(ready, max(0, now - held_since))


def _with(queues: Queues, more: Mapping[str, int], projects: Mapping[str, Project]) -> Queues:
    """The same with at least so many of each project: while they are being saved nobody can say who is counted."""
    if not more:
        return queues
    known = {name: queues.get(name) or Queue(0, weight=_weight(projects, name)) for name in more}
    return {**queues, **{name: replace(queue, ready=max(queue.ready, more[name])) for name, queue in known.items()}}


def _weight(projects: Mapping[str, Project], name: str) -> int:
    return projects[name].weight if name in projects else 1


async def read_took(world: World) -> Mapping[str, Took]:
    """What things took lately, by pool; as old as a second."""
    return await world.shared.ask(("took",), lambda: world.estimates.took(world.store), keep_s=TOOK_KEPT_S)


async def _line(world: World, pool: Pool, memory_mb: int, cpus: float | None) -> Line | str:
    host = await world.store.host(pool.host)
    if host is None:
        return f"there is no host {pool.host}"
    lease = next((each for each in await world.store.leases() if each.host == host.name), None)
    house = house_of(await read_floor(world, host), pool, lease, world.clock.now())
    house = replace(house, last_start=await last_start(world, pool))
    return outlook.line(house, memory_mb, await read_took(world), cpus, await _known(world, pool))


async def _line_of_first(world: World, pool: Pool, project: str) -> Line | str | None:
    host = await world.store.host(pool.host)
    first = None if host is None else await first_of_lane(world, pool.name, project, host)
    return None if first is None else await _line(world, pool, first.memory_mb, first.cpus)


async def _known(world: World, pool: Pool) -> Known:
    """The labels of those who are at work and of the next in line, where one tells how long runs of the pool take."""
    if (await read_took(world)).get(pool.name, outlook.NOTHING).by_label is None:
        return outlook.NOBODY

    async def read() -> Known:
        store = world.store
        weights = {name: project.weight for name, project in (await _projects(world)).items()}
        opened = {work.order.id: work.spec.labels for work in await store.open_orders(pool.host, brief=True)}
        lanes = await store.lanes(pool.name, EXACT)
        found = await store.candidates(pool.name, max(1, EXACT // max(1, len(lanes))), None, brief=True)
        labels = {work.order.id: work.spec.labels for work in found}
        served = crowd.in_turn([work.order for work in found], weights)
        return Known(opened, [labels[order.id] for order in served[:EXACT]])

    return await world.shared.ask(("known", pool.name), read, keep_s=LINE_KEPT_S)


async def last_start(world: World, pool: Pool) -> int | None:
    """When a run last began in a pool that limits how many may in a minute."""
    return None if pool.settings.starts_per_minute is None else await world.store.last_start(pool.name)


async def _line_of_project(world: World, pool: Pool, project: str, most: int) -> Line | str | None:
    host = await world.store.host(pool.host)
    if host is None:
        return None
    holders = [each for each in (await world.store.holders()).values() if each.project == project]
    house = house_of(await read_floor(world, host), pool, None, world.clock.now())
    return outlook.of_project(replace(house, project_max=most, project_holders=holders), await read_took(world))
