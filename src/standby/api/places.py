"""Pools, slots and hosts: what there is, how full it is, and what an operator wants of it."""

from collections import Counter
from collections.abc import Sequence
from typing import Final

from fastapi import APIRouter, Request, Response
from msgspec.structs import asdict
from pydantic import BaseModel

from standby.api.needs import KNOWN_PARAMETERS, ActorNeed, WorldNeed
from standby.api.place_views import (
    FullHostView,
    HostsView,
    HostView,
    ImageView,
    SlotsView,
    StartsView,
    host_view,
    reading_view,
    slot_view,
    start_view,
    waiter_view,
)
from standby.api.pool_views import PoolsView, PoolView, pool_view
from standby.api.problems import Problem, invalid, not_found
from standby.api.views import answer, length, tagged, view_of
from standby.api.waits import read_took
from standby.api.wire import DeadBody, DrainBody, PatchPoolBody, ReasonBody, parse
from standby.core import places, pressure
from standby.core.model import Host, Json, Mode, OrderState, Override, Pool, PoolSettings, Trigger, slot_word
from standby.core.outlook import NOTHING
from standby.starts import Floor, in_flight, read_floor, read_waiters, room_of
from standby.world import World

TRIES: Final = 20
PEAKS_KEPT_S: Final = 10.0
"""How long what runs took of the memory is remembered."""

router = APIRouter(tags=["places"])


@router.get("/pools")
async def list_pools(request: Request, world: WorldNeed) -> Response:
    """All pools with their unfinished orders and slots counted."""
    return tagged(request, PoolsView(pools=await _pool_views(world)))


@router.get("/pools/{name}")
async def show_pool(request: Request, world: WorldNeed, name: str) -> Response:
    """One pool."""
    return tagged(request, await _pool_view(world, name))


@router.post("/pools/{name}/pause")
async def pause_pool(request: Request, world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """No more starts; running work goes on, and waiting orders do not expire."""
    return await _set_pool(request, world, actor, name, Mode.PAUSED)


@router.post("/pools/{name}/resume")
async def resume_pool(request: Request, world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """Starts are allowed again."""
    return await _set_pool(request, world, actor, name, Mode.OPEN)


@router.post("/pools/{name}/drain")
async def drain_pool(request: Request, world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """No more starts, and slots are taken away as they come free; with `now` what runs is stopped, and runs again once
    it is resumed if its policy allows."""
    return await _set_pool(request, world, actor, name, Mode.DRAINING)


@router.patch("/pools/{name}")
async def override_pool(request: Request, world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """Set some settings of a pool over its configuration, until they are unset; at once, and also after a restart."""
    body, _ = await parse(request, PatchPoolBody, world.config.request_max_kb)
    given = given_settings(body.set, body.unset)
    for _ in range(TRIES):
        pool = await _pool(world, name)
        configured = _configured(world, pool)
        cause = world.cause(Trigger.REQUEST, actor)
        wanted = {
            name: Override(value=value, actor=actor, at=cause.at, reason=body.reason) for name, value in given.items()
        }
        change = places.override_pool(cause, pool, configured, {**wanted, **dict.fromkeys(body.unset)})
        if change is not None and change.pool is not None:
            _check_together(change.pool)
        if change is None or (await world.store.save([change]))[0].saved:
            world.shared.forget(("pool", name))
            return answer(await _pool_view(world, name))
    raise busy("pool", name)


def given_settings(given: BaseModel, unset: Sequence[str]) -> dict[str, Json]:
    """What is to be set by hand, if that and what is to be unset can be meant."""
    found: dict[str, Json] = given.model_dump(mode="json", include=given.model_fields_set)
    if not found and not unset:
        raise invalid("there is nothing to set or unset", 'send "set" or "unset"', "set")
    if both := sorted(set(found) & set(unset)):
        raise invalid(f"{', '.join(both)} cannot be set and unset at once", "name it once", "unset")
    return found


def _configured(world: World, pool: Pool) -> PoolSettings:
    if pool.name not in world.config.pools:
        raise Problem(
            409,
            "not_configured_here",
            f"pool {pool.name} is not in this server's configuration, so nobody here knows what it would go back to",
            "ask a server that has the pool in its configuration",
        )
    return world.config.pool_settings(pool.name)


def _check_together(pool: Pool) -> None:
    if pool.settings.slots_warm > pool.settings.slots_max:
        raise invalid("slots_warm would be above slots_max", "set both in one request", "slots_warm")
    asked, most = pool.settings.queue_timeout_ms, pool.settings.queue_timeout_max_ms
    if most is not None and (asked is None or asked > most):
        text = "queue_timeout_s would be above queue_timeout_max_s"
        raise invalid(text, "set both in one request", "queue_timeout_s")


@router.post("/pools/{name}/reset-breaker")
async def reset_breaker(request: Request, world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """Let a pool make slots again, although too many of them failed."""
    await parse(request, ReasonBody, world.config.request_max_kb, empty=b"{}")
    for _ in range(TRIES):
        pool = await _pool(world, name)
        change = places.reset_breaker(world.cause(Trigger.REQUEST, actor), pool)
        if change is None or (await world.store.save([change]))[0].saved:
            world.shared.forget(("pool", name))
            return answer(await _pool_view(world, name))
    raise busy("pool", name)


@router.get("/slots", dependencies=KNOWN_PARAMETERS)
async def list_slots(request: Request, world: WorldNeed, pool: str | None = None, host: str | None = None) -> Response:
    """All slots, in the words people use."""
    slots = await world.store.slots(host=host, pool=pool)
    holders = await world.store.holders(host=host, pool=pool)
    return tagged(request, SlotsView(slots=[slot_view(slot, holders.get(slot.name)) for slot in slots]))


@router.get("/hosts")
async def list_hosts(request: Request, world: WorldNeed) -> Response:
    """All hosts, who leads them and how full they are."""
    floors = [await read_floor(world, host) for host in await world.store.hosts()]
    return tagged(request, HostsView(hosts=[await _host_view(world, floor) for floor in floors]))


@router.get("/hosts/{name}")
async def show_host(request: Request, world: WorldNeed, name: str) -> Response:
    """One host, with its last reading, its slots and how many orders wait for it."""
    return tagged(request, await _full_host_view(world, await _host(world, name)))


@router.get("/hosts/{name}/starts")
async def list_starts(world: WorldNeed, name: str) -> Response:
    """The platform starts in flight on this host (runs that were commanded and are not ready, slots that are being
    made), and the orders that wait for nothing but a start, the next one first."""
    floor, now = await read_floor(world, await _host(world, name)), world.clock.now()
    holders, waiters = in_flight(floor, now), await read_waiters(world, floor)
    view = StartsView(
        active=len(holders),
        queued=len(waiters),
        maximum=pressure.starts_max(floor.host),
        gap_s=length(pressure.start_gap_ms(floor.host)),
        holders=[start_view(each, floor) for each in holders],
        waiters=[waiter_view(place, each, floor, now) for place, each in enumerate(waiters, 1)],
    )
    return answer(view)


@router.post("/hosts/{name}/pause")
async def pause_host(request: Request, world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """No more starts on any of its pools."""
    return await _set_host(request, world, actor, name, Mode.PAUSED)


@router.post("/hosts/{name}/resume")
async def resume_host(request: Request, world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """Starts are allowed again."""
    return await _set_host(request, world, actor, name, Mode.OPEN)


@router.post("/hosts/{name}/drain")
async def drain_host(request: Request, world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """No more starts, and slots are taken away as they come free; with `now` what runs is stopped, and runs again once
    it is resumed if its policy allows."""
    return await _set_host(request, world, actor, name, Mode.DRAINING)


@router.post("/hosts/{name}/declare-dead")
async def declare_dead(request: Request, world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """An operator's word that nothing commanded on this host before now is alive."""
    body, _ = await parse(request, DeadBody, world.config.request_max_kb)
    if body.confirm != name:
        raise invalid("confirm must be the host's name", f'send "confirm": "{name}" if you mean this host', "confirm")
    for _ in range(TRIES):
        host = await _host(world, name)
        await _check_lost(world, host)
        change = places.declare_dead(world.cause(Trigger.REQUEST, actor), host, body.reason)
        (verdict,) = await world.store.save([change])
        if verdict.saved:
            return answer(await _full_host_view(world, await _host(world, name)))
    raise busy("host", name)


async def _check_lost(world: World, host: Host) -> None:
    """Nobody's word is needed about a host that answers."""
    led = any(lease.host == host.name and lease.until > world.clock.now() for lease in await world.store.leases())
    if led and host.unreachable_since is None:
        raise Problem(
            409,
            "host_answers",
            f"host {host.name} is led and answers, so what runs on it is known",
            f"to stop its work, cancel the orders; to take no more, POST /hosts/{host.name}/drain",
        )


async def _set_pool(request: Request, world: World, actor: str, name: str, mode: Mode) -> Response:
    reason, stop = await parse_mode(request, world, mode)
    for _ in range(TRIES):
        pool = await _pool(world, name)
        change = places.set_pool_mode(world.cause(Trigger.REQUEST, actor), pool, mode, reason, stop=stop)
        if change is None or (await world.store.save([change]))[0].saved:
            world.shared.forget(("pool", name))
            return answer(await _pool_view(world, name))
    raise busy("pool", name)


async def _set_host(request: Request, world: World, actor: str, name: str, mode: Mode) -> Response:
    reason, stop = await parse_mode(request, world, mode)
    for _ in range(TRIES):
        host = await _host(world, name)
        change = places.set_host_mode(world.cause(Trigger.REQUEST, actor), host, mode, reason, stop=stop)
        if change is None or (await world.store.save([change]))[0].saved:
            return answer(await _full_host_view(world, await _host(world, name)))
    raise busy("host", name)


async def parse_mode(request: Request, world: World, mode: Mode) -> tuple[str | None, bool]:
    """Why somebody sets a mode, and whether what runs is to be stopped."""
    kind = DrainBody if mode is Mode.DRAINING else ReasonBody
    body, _ = await parse(request, kind, world.config.request_max_kb, empty=b"{}")
    return body.reason, isinstance(body, DrainBody) and body.now


def busy(noun: str, name: str) -> Problem:
    return Problem(409, "conflict", f"{noun} {name} keeps changing", "send it again")


async def _pool(world: World, name: str) -> Pool:
    pool = await world.store.pool(name)
    if pool is None:
        raise not_found("pool", name, [each.name for each in await world.store.pools()])
    return pool


async def _host(world: World, name: str) -> Host:
    host = await world.store.host(name)
    if host is None:
        raise not_found("host", name, [each.name for each in await world.store.hosts()])
    return host


async def _pool_view(world: World, name: str) -> PoolView:
    await _pool(world, name)
    return next(view for view in await _pool_views(world) if view.name == name)


async def _pool_views(world: World) -> list[PoolView]:
    counts = await world.store.counts()
    holders = await world.store.holders()
    peaks = await world.shared.ask("peaks", world.store.peaks, keep_s=PEAKS_KEPT_S)
    took = await read_took(world)
    words: dict[str, Counter[str]] = {}
    for slot in await world.store.slots():
        words.setdefault(slot.pool, Counter())[slot_word(slot, holders.get(slot.name))] += 1
    return [
        pool_view(
            pool,
            {state: count for (name, state), count in counts.items() if name == pool.name},
            words.get(pool.name, {}),
            world.estimates.record(pool.name),
            peaks.get(pool.name),
            took.get(pool.name, NOTHING),
        )
        for pool in await world.store.pools()
    ]


async def _host_view(world: World, floor: Floor) -> HostView:
    leases = {lease.host: lease for lease in await world.store.leases()}
    name, reading = floor.host.name, await world.store.reading(floor.host.name)
    room = room_of(floor, world.clock.now())
    return host_view(room, leases.get(name), None if reading is None else reading[0])


async def _full_host_view(world: World, host: Host) -> FullHostView:
    floor = await read_floor(world, host)
    counts, reading = await world.store.counts(), await world.store.reading(host.name)
    return FullHostView(
        **asdict(await _host_view(world, floor)),
        reading=None if reading is None else reading_view(*reading),
        slots=Counter(slot_word(slot, floor.holders.get(slot.name)) for slot in floor.slots),
        slots_max=sum(pool.settings.slots_max for pool in floor.pools.values()),
        queue_depth=sum(counts.get((name, OrderState.PENDING), 0) for name in floor.pools),
        pools=list(floor.pools),
        starts_max=pressure.starts_max(host),
        start_gap_s=length(pressure.start_gap_ms(host)),
        starting=len(in_flight(floor, world.clock.now())),
        images=[view_of(ImageView, state) for state in floor.images.values()],
    )
