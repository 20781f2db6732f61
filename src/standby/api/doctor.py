"""What only the server knows about its own health, each with what to do about it."""

import shutil
import time as wall
from collections.abc import Sequence
from typing import Final
from urllib.parse import urlsplit

from fastapi import APIRouter, Response
from msgspec import Struct

from standby.api.needs import WorldNeed
from standby.api.views import answer, shown_time, time
from standby.config.values import is_loopback
from standby.core import work
from standby.core.model import Host, Lease, Level, Mode, OrderState, Pool, Project, Schedule, Slot, SlotState
from standby.world import World

SLOW_MS: Final = 500
OFFSET_MS: Final = 1_000
"""A store whose clock is further away than this makes deadlines hard to read."""
WAITING_MOST: Final = 10_000
"""Waiting orders of a project are counted no further than this."""

router = APIRouter(tags=["system"])


class CheckView(Struct, frozen=True):
    """One finding; `ok` is null where it cannot be said."""

    name: str
    ok: bool | None
    says: str
    do: str | None = None


class DoctorView(Struct, frozen=True):
    """All findings."""

    checks: Sequence[CheckView]


@router.get("/doctor")
async def examine(world: WorldNeed) -> Response:
    """Look at the store, the hosts, the pools, the clock, the disk and the history."""
    store = world.store
    checks = [*await _store(world), await _schema(world)]
    leases = {lease.host: lease for lease in await store.leases()}
    slots = await store.slots()
    hosts, counts = {host.name: host for host in await store.hosts()}, await store.counts()
    for host in hosts.values():
        checks += [
            _lease(host, leases.get(host.name), world.clock.now()),
            _reach(host),
            _pressure(host),
            _slots(host, slots),
        ]
    for pool in await store.pools():
        checks.append(_pool(pool, hosts.get(pool.host), counts.get((pool.name, OrderState.PENDING), 0)))
    checks += [*await _projects(world), *await _schedules(world)]
    return answer(DoctorView(checks=[*checks, *far_workers(world), _disk(world), await _history(world)]))


async def _store(world: World) -> list[CheckView]:
    """How fast the store answers, and how far its clock is away."""
    begun = wall.perf_counter()
    there = await world.store.now()
    await world.store.last_seq()
    took_ms = (wall.perf_counter() - begun) * 1000
    slow = "look at the database's load, its disk and the network to it" if took_ms > SLOW_MS else None
    answers = CheckView("store", slow is None, f"{world.config.database_shown} answers in {took_ms:.1f} ms", slow)
    away_ms = abs(there - world.clock.now())
    wrong_ms = there - wall.time_ns() // 1_000_000
    says = f"this server follows the store's clock within {away_ms} ms; its own clock differs by {wrong_ms} ms"
    if not world.clock.steady:
        jumped = f"{says}; it jumped, and no deadline is judged until it was measured again"
        return [answers, CheckView("clock", False, jumped, "wait a few seconds; let NTP set this machine's clock")]
    good = away_ms <= OFFSET_MS
    return [answers, CheckView("clock", good, says, None if good else "let NTP set the clocks of both machines")]


async def _schema(world: World) -> CheckView:
    refusal = await world.store.schema_refusal()
    do = "upgrade this server, or run `standby db migrate`" if refusal else None
    return CheckView("migrations", refusal is None, refusal or "the database schema is current", do)


def _lease(host: Host, lease: Lease | None, now: int) -> CheckView:
    name = f"host {host.name}: lease"
    do = "start a server that has this host in its configuration and can reach it"
    if lease is None:
        return CheckView(name, False, "nobody ever led it", do)
    if lease.until <= now:
        return CheckView(name, False, f"nobody leads it since {time(lease.until)}; {lease.owner} was the last", do)
    return CheckView(name, True, f"{lease.owner} leads it in epoch {lease.epoch} until {time(lease.until)}")


def _reach(host: Host) -> CheckView:
    name = f"host {host.name}: platform"
    if host.identity is None and host.unreachable_since is None:
        return CheckView(name, None, "it was not asked yet", "wait until a server leads it")
    if host.unreachable_since is None:
        return CheckView(name, True, f"its {host.driver} platform answers")
    says = f"it cannot be asked since {shown_time(host.unreachable_since)}: {host.error}"
    return CheckView(name, False, says, "look at the platform; `standby hosts declare-dead` if it never comes back")


def _pressure(host: Host) -> CheckView:
    name = f"host {host.name}: pressure"
    if host.pressure is Level.NONE:
        return CheckView(name, True, "it is not pressed")
    says = f"{host.pressure} since {shown_time(host.pressure_since)}: {host.pressure_cause}"
    do = "let less run there at once: lower slots_max, or the host's memory_mb; see what else fills the machine"
    return CheckView(name, None if host.pressure is Level.WARNING else False, says, do)


def _slots(host: Host, slots: Sequence[Slot]) -> CheckView:
    name = f"host {host.name}: slots"
    mine = [slot for slot in slots if slot.host == host.name]
    broken = [slot for slot in mine if slot.state is SlotState.ERROR]
    if not broken:
        return CheckView(name, True, f"none of {len(mine)} is in error")
    says = f"{len(broken)} of {len(mine)} are in error, {broken[0].name}: {broken[0].error}"
    return CheckView(name, False, says, "correct what the platform complains about; they are tried again by themselves")


def _pool(pool: Pool, host: Host | None, waiting: int) -> CheckView:
    """Whether orders wait for somebody to open it."""
    name, wait = f"pool {pool.name}", _wait(waiting)
    if waiting and host is not None and host.mode is not Mode.OPEN:
        says = f"{wait}, and its host {host.name} is {_shut(host)}"
        return CheckView(name, None, says, f"standby hosts resume {host.name}")
    if waiting and pool.mode is not Mode.OPEN:
        return CheckView(name, None, f"{wait}, and it is {_shut(pool)}", f"standby pools resume {pool.name}")
    if waiting and pool.settings.slots_max == 0:
        do = f"standby pools set {pool.name} slots_max=N"
        return CheckView(name, False, f"{wait}, and slots_max is 0: nothing starts", do)
    return CheckView(name, True, wait)


async def _projects(world: World) -> list[CheckView]:
    """Those that may have no runs while their orders wait."""
    found = []
    for project in await world.store.projects():
        waiting = await world.store.depth(None, project.name, WAITING_MOST) if project.running_max == 0 else 0
        name, wait = f"project {project.name}", _wait(waiting)
        if waiting and project.mode is not Mode.OPEN:
            says, do = f"{wait}, and it is {_shut(project)}", f"standby projects resume {project.name}"
            found.append(CheckView(name, None, says, do))
        elif waiting:
            do = f"standby projects set {project.name} running_max=N"
            found.append(CheckView(name, False, f"{wait}, and running_max is 0: nothing starts", do))
    return found


async def _schedules(world: World) -> list[CheckView]:
    """Those that are paused."""
    paused = [each for each in await world.store.schedules() if each.mode is not Mode.OPEN]
    return [
        CheckView(
            f"schedule {each.name}",
            None,
            f"it makes no orders: it is {_shut(each)}",
            f"standby schedules resume {each.name}",
        )
        for each in paused
    ]


def _wait(waiting: int) -> str:
    return f"{waiting} order{' waits' if waiting == 1 else 's wait'}"


def far_workers(world: World) -> list[CheckView]:
    """Whether workers on other machines are told an address that only this one can reach."""
    far = [name for name, host in world.config.hosts.items() if host.driver == "coolify"]
    url = world.reach.get(work.URL, "")
    if not far or not is_loopback(urlsplit(url).hostname or ""):
        return []
    says = f"workers on {', '.join(far)} are told to reach {url}, which is an address of this machine alone"
    return [CheckView("workers", None, says, "set worker_url to an address that they can reach")]


def _shut(place: Pool | Host | Project | Schedule) -> str:
    because = f" ({place.mode_reason})" if place.mode_reason else ""
    return f"{place.mode} by {place.mode_actor} since {time(place.mode_since)}{because}"


def _disk(world: World) -> CheckView:
    directory, reserve = world.config.state_dir, world.config.disk_reserve_mb
    try:
        free_mb = shutil.disk_usage(directory).free >> 20
    except OSError as error:
        return CheckView("disk", None, f"{directory} cannot be asked: {error.strerror}", "look at the state directory")
    good = free_mb >= reserve
    says = f"{free_mb} MB are free where {directory} is; {reserve} MB are kept in reserve"
    return CheckView(
        "disk", good, says, None if good else "make room, or lower history_days, log_cap_mb, disk_reserve_mb"
    )


async def _history(world: World) -> CheckView:
    history = await world.store.history()
    days = world.config.history_days
    kept = "for ever" if days is None else f"for {days:g} days"
    since = "there are none yet" if history.oldest_at is None else f"the oldest is from {time(history.oldest_at)}"
    pruned = f"{history.orders_pruned} orders and {history.events_pruned} events were pruned"
    says = f"events are kept {kept}, {since}; {pruned}"
    do = "set history_days, or watch the disk" if days is None else None
    return CheckView("history", None if days is None else True, says, do)
