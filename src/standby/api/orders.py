"""Work orders: list, show, explain, cancel; their runs and events."""

from collections.abc import Iterable
from typing import Annotated, Final

from fastapi import APIRouter, Query, Request, Response
from msgspec.structs import replace

from standby.api.feed import EventLimit, Kinds, read_events
from standby.api.needs import KNOWN_PARAMETERS, ActorNeed, WorldNeed, cursor, place_of, resume
from standby.api.problems import Problem, invalid, not_found
from standby.api.run_views import RunsView, open_run_view, run_view
from standby.api.views import (
    EventsView,
    OrdersView,
    OrderView,
    WhyView,
    answer,
    event_view,
    gate_view,
    order_view,
    tagged,
    time,
    wait_views,
)
from standby.api.waits import CONTENDERS_MOST, expected, first_of_lane, last_start
from standby.api.wire import ReasonBody, parse
from standby.config.values import length_text
from standby.core import explain, lifecycle
from standby.core.model import Order, OrderState, Trigger, run_id
from standby.starts import Floor, house_of, read_floor, read_waiters
from standby.store.contract import OrderFilter, Work
from standby.world import World

CANCEL_TRIES: Final = 20
LANES_MOST: Final = 6
_WAITING: Final = frozenset({OrderState.PENDING, OrderState.WAITING_RETRY})

router = APIRouter(tags=["work orders"])
Limit = Annotated[int, Query(ge=1, le=200)]
States = Annotated[list[OrderState], Query(default_factory=list, description="Only these; may be repeated.")]
Labels = Annotated[
    list[str], Query(default_factory=list, max_length=64, description="name=value; may be repeated, all must match.")
]


@router.get("/work-orders", dependencies=KNOWN_PARAMETERS)
async def list_orders(
    request: Request,
    world: WorldNeed,
    state: States,
    label: Labels,
    pool: str | None = None,
    project: str | None = None,
    id_prefix: Annotated[str | None, Query(max_length=64)] = None,
    limit: Limit = 50,
    before: Annotated[str | None, Query(alias="cursor")] = None,
) -> Response:
    """Newest first. `next` is the cursor of the following page, null on the last one; where few of many orders match, a
    page may be short although more follow. Positions are not counted."""
    start = None if before is None else place_of(world.store, before)[0]
    only = OrderFilter(
        states=frozenset(state), pool=pool, project=project, labels=_labels(label), id_prefix=id_prefix or None
    )
    page = await world.store.orders(only, start, limit)
    houses = await read_houses(world, (listed.order for listed in page.orders))
    views = [order_view(each.order, each.spec, gate=_gate(each.order, houses)) for each in page.orders]
    more = None if page.next is None else cursor(world.store, page.next)
    return tagged(request, OrdersView(orders=views, next=more))


def _labels(texts: list[str]) -> dict[str, str]:
    """name=value, each name once."""
    labels: dict[str, str] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals or labels.setdefault(name, value) != value:
            raise invalid("a label cannot be read or is asked for twice", "write label=name=value", "label")
    return labels


@router.get("/work-orders/{order_id}")
async def show_order(request: Request, world: WorldNeed, order_id: str) -> Response:
    """One order, with its place in the queue, the gate that holds it and how long that will probably take."""
    return tagged(request, await full_view(world, await find(world, order_id)))


@router.get("/work-orders/{order_id}/why")
async def explain_order(world: WorldNeed, order_id: str) -> Response:
    """Why it waits, where it stands, and what happens next."""
    work = await find(world, order_id)
    order = work.order
    house, gate = await _explained(world, order)
    wait_ms, estimate = wait_views(await expected(world, order, gate, house))
    view = WhyView(
        id=order.id,
        state=order.state,
        waiting_since=time(order.state_since) if order.state in _WAITING else None,
        gate=None if gate is None else gate_view(gate),
        position=await world.store.position(order),
        estimated_wait_ms=wait_ms,
        estimate=estimate,
        gives_up_in_ms=None if house is None else explain.gives_up_in_ms(order, house),
        next=explain.what_follows(order, gate, length_text(work.spec.queue_timeout_ms)),
    )
    return answer(view)


@router.get("/work-orders/{order_id}/runs")
async def list_runs(world: WorldNeed, order_id: str) -> Response:
    """Its ended runs, oldest first, then the open one."""
    work = await find(world, order_id)
    views = [run_view(run) for run in await world.store.runs(order_id)]
    # Read after the order, history may already hold the run that was open there.
    opened = open_run_view(work.order)
    if opened is not None and all(view.number != opened.number for view in views):
        views.append(opened)
    return answer(RunsView(runs=views))


@router.get("/work-orders/{order_id}/events", dependencies=KNOWN_PARAMETERS)
async def list_order_events(
    world: WorldNeed, order_id: str, kind: Kinds, after: str = "0", limit: EventLimit = 200
) -> Response:
    """What happened to it, oldest first; `next` is null after the last one."""
    await find(world, order_id)
    start = await resume(world.store, after)
    events, place = await read_events(world.store, start, limit, frozenset(kind), order_id)
    more = place if len(events) == limit else None
    return answer(EventsView(events=[event_view(event) for event in events], next=more))


@router.post("/work-orders/{order_id}/cancel")
async def cancel_order(request: Request, world: WorldNeed, actor: ActorNeed, order_id: str) -> Response:
    """Ask for its end. Safe to repeat; an order that has ended stays as it is."""
    body, _ = await parse(request, ReasonBody, world.config.request_max_kb, empty=b"{}")
    for _ in range(CANCEL_TRIES):
        work = await find(world, order_id)
        change = lifecycle.cancel(world.cause(Trigger.REQUEST, actor), work.order, work.spec)
        if change is None:
            return answer(await full_view(world, work))
        if body.reason:
            change = replace(change, note={**change.note, "said": body.reason})
        (verdict,) = await world.store.save([change])
        if verdict.saved:
            return answer(await full_view(world, await find(world, order_id)))
    raise Problem(409, "conflict", f"order {order_id} keeps changing", "send the cancel again")


async def find(world: World, order_id: str) -> Work:
    """The order, or 404."""
    work = await world.store.order(order_id)
    if work is None:
        raise not_found("work-order", order_id)
    return work


async def full_view(world: World, work: Work) -> OrderView:
    """An order with its position, its gate and the wait that is to be expected."""
    order = work.order
    house, gate = await _explained(world, order)
    run = run_id(order)
    reports = await world.store.reports([run]) if order.attempt else {}
    return order_view(
        order,
        work.spec,
        position=await world.store.position(order),
        gate=gate,
        wait=await expected(world, order, gate, house),
        gives_up_in_ms=None if house is None else explain.gives_up_in_ms(order, house),
        report=reports.get(run),
    )


async def _line(world: World, house: explain.House, order: Order) -> explain.Line | None:
    """The order's place among those who wait for a start."""
    waiters = await read_waiters(world, await read_floor(world, house.host))
    places = {each.id: place for place, each in enumerate(waiters, 1)}
    return explain.Line(places[order.id], len(waiters)) if order.id in places else None


async def _turn(world: World, order: Order) -> explain.Turn:
    """The order's place in its lane, and whom that takes turns with."""
    lanes = await world.store.lanes(order.pool, LANES_MOST)
    return explain.Turn(await world.store.position(order) or 1, [name for name in lanes if name != order.project])


async def _explained(world: World, order: Order) -> tuple[explain.House | None, explain.Gate | None]:
    """The gate that holds the order, and what it was found from."""
    house = (await read_houses(world, [order])).get((order.pool, order.project))
    gate = None if house is None else explain.gate(order, house)
    if house is not None and gate is not None and gate.name is explain.GateName.STARTS:
        gate = explain.gate(order, replace(house, line=await _line(world, house, order)))
    elif house is not None and gate is not None and gate.name is explain.GateName.TURN:
        gate = explain.gate(order, replace(house, turn=await _turn(world, order)))
    return house, gate


def _gate(order: Order, houses: dict[tuple[str, str], explain.House]) -> explain.Gate | None:
    """The gate that holds an order of a listing, without naming who holds that."""
    house = houses.get((order.pool, order.project))
    gate = None if house is None else explain.gate(order, house)
    return None if gate is None else replace(gate, holders=())


async def read_houses(world: World, orders: Iterable[Order]) -> dict[tuple[str, str], explain.House]:
    """What the gates of the waiting ones among these orders are explained from, by pool and project."""
    store = world.store
    waiting = [order for order in orders if order.state in _WAITING]
    wanted = {(order.pool, order.project) for order in waiting}
    contenders = await _contenders(world, waiting)
    if not wanted:
        return {}
    pools = {pool.name: pool for pool in await store.pools()}
    hosts = {host.name: host for host in await store.hosts()}
    leases = {lease.host: lease for lease in await store.leases()}
    projects = {each.name: each for each in await store.projects()}
    opened = await store.open_by_project()
    limited = any(project in projects and projects[project].running_max is not None for _, project in wanted)
    holders = list((await store.holders()).values()) if limited else []
    houses = {}
    floors: dict[str, Floor] = {}
    for pool_name, project in sorted(wanted):
        pool = pools.get(pool_name)
        if pool is None or pool.host not in hosts:
            continue
        if pool.host not in floors:
            floors[pool.host] = await read_floor(world, hosts[pool.host])
        floor = floors[pool.host]
        houses[pool_name, project] = replace(
            house_of(floor, pool, leases.get(pool.host), world.clock.now()),
            project_open=opened.get(project, 0),
            project_max=projects[project].running_max if project in projects else None,
            project=projects.get(project),
            project_holders=[each for each in holders if each.project == project],
            contenders=contenders.get(project, {}),
            last_start=await last_start(world, pool),
            first=await first_of_lane(world, pool.name, project, floor.host),
        )
    return houses


async def _contenders(world: World, waiting: Iterable[Order]) -> dict[str, dict[str, list[Order]]]:
    """Project and concurrency key -> the unfinished orders that have it."""
    keys = {(order.project, order.concurrency_key) for order in waiting if order.concurrency_key is not None}
    found: dict[str, dict[str, list[Order]]] = {}
    for project, key in sorted(keys):
        listed = await world.store.contenders(project, key, CONTENDERS_MOST)
        found.setdefault(project, {})[key] = [each.order for each in listed]
    return found
