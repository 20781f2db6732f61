"""Schedules: made, shown, changed, paused, run now and removed. Their orders are made by a step (see `control`)."""

from collections.abc import Callable, Mapping, Sequence
from datetime import tzinfo
from typing import Final

from fastapi import APIRouter, Request, Response
from msgspec import Raw, Struct
from msgspec.structs import asdict, replace

from standby import zones
from standby.api.intake import Intake, Wish
from standby.api.needs import ActorNeed, WorldNeed
from standby.api.problems import Problem, invalid, not_found
from standby.api.views import RetryView, Seconds, Time, answer, order_view, retry_view, tagged, time, view_of
from standby.api.wire import PatchScheduleBody, ReasonBody, ScheduleBody, SubmitBody, parse, scheduled_payload
from standby.core import cron, ticks
from standby.core.errors import Refused
from standby.core.model import Change, Missed, Mode, OnConflict, Schedule, Trigger
from standby.seal import SealBroken
from standby.store.contract import Answer
from standby.ticking import make_tick, sealed_for
from standby.world import World

TRIES: Final = 20
TICKS_SHOWN: Final = 20

router = APIRouter(tags=["schedules"])


class TemplateView(Struct, frozen=True):
    """The order of each tick. Env values are never shown, only their names."""

    command: Sequence[str] | None
    script: str | None
    env_names: Sequence[str]
    payload: Raw
    labels: Mapping[str, str]
    priority: int
    memory_mb: int
    cpus: float | None
    queue_timeout_s: Seconds | None
    start_timeout_s: Seconds
    run_timeout_s: Seconds | None
    stop_grace_s: Seconds
    retry: RetryView
    dedupe_key: str | None
    concurrency_key: str | None
    on_conflict: OnConflict
    urgent: bool


class ScheduleView(Struct, frozen=True):
    """A schedule, when it ticked last, and when it ticks next (three times, none while it is paused)."""

    name: str
    project: str
    pool: str
    cron: str
    zone: str
    missed: Missed
    mode: Mode
    mode_since: Time
    mode_reason: str | None
    mode_actor: str
    next_at: Time | None
    next_ticks: Sequence[Time]
    last_at: Time | None
    last_order: str | None
    order: TemplateView


class TickView(Struct, frozen=True):
    """A tick, and the order that was made for it."""

    at: Time
    order: str


class FullScheduleView(ScheduleView, frozen=True):
    """A schedule with its last ticks, newest first."""

    ticks: Sequence[TickView]


class SchedulesView(Struct, frozen=True):
    """All schedules."""

    schedules: Sequence[ScheduleView]


@router.get("/schedules")
async def list_schedules(request: Request, world: WorldNeed) -> Response:
    """All schedules, by name."""
    views = [_view(schedule) for schedule in await world.store.schedules()]
    return tagged(request, SchedulesView(schedules=views))


@router.get("/schedules/{name}")
async def show_schedule(request: Request, world: WorldNeed, name: str) -> Response:
    """One schedule, with its last ticks and their orders."""
    view = _view(await _find(world, name))
    made = [TickView(time(tick.at), tick.order_id) for tick in await world.store.ticks(name, TICKS_SHOWN)]
    return tagged(request, FullScheduleView(**asdict(view), ticks=made))


@router.post("/schedules", status_code=201)
async def add_schedule(request: Request, world: WorldNeed, actor: ActorNeed) -> Response:
    """A new schedule. The answer shows its next three ticks. What its order leaves out is the pool's as of now."""
    body, raw = await parse(request, ScheduleBody, world.config.request_max_kb)
    wish = await _wish(world, actor, body.order, scheduled_payload(raw))
    cause = world.cause(Trigger.REQUEST, actor)
    row = Schedule(
        name=body.name,
        project=wish.project,
        pool=wish.pool.name,
        cron=body.cron,
        zone=body.zone,
        missed=body.missed,
        memory_mb=wish.memory_mb,
        spec=wish.spec,
        mode_since=cause.at,
        mode_actor=actor,
        next_at=_next(body.cron, body.zone, cause.at),
    )
    change = ticks.add(cause, row, world.seal.close(sealed_for(row.name), wish.env))
    if (await world.store.save([change], together=True))[0].saved:
        return answer(_view(row), 201, {"Location": f"/api/v1/schedules/{row.name}"})
    text = f"there is a schedule {row.name!r} already"
    raise Problem(409, "name_taken", text, "take another name, change that one with PATCH, or remove it first")


@router.patch("/schedules/{name}")
async def change_schedule(request: Request, world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """Change when it ticks, what becomes of missed ticks, or its order (as a whole, with its env values)."""
    body, raw = await parse(request, PatchScheduleBody, world.config.request_max_kb)
    said = body.model_fields_set
    if not said:
        raise invalid("there is nothing to change", "send cron, zone, missed or order", "cron")
    wish = await _wish(world, actor, body.order, scheduled_payload(raw)) if "order" in said else None

    def change(was: Schedule) -> Change | None:
        cause = world.cause(Trigger.REQUEST, actor)
        row = replace(was, **{key: getattr(body, key) for key in ("cron", "zone", "missed") if key in said})
        sealed = None
        if wish is not None:
            row = replace(row, project=wish.project, pool=wish.pool.name, memory_mb=wish.memory_mb, spec=wish.spec)
            sealed = world.seal.close(sealed_for(name), wish.env) or b""
        if (row.cron, row.zone) != (was.cron, was.zone):
            first = _next(row.cron, row.zone, cause.at)
            row = replace(row, next_at=first if row.mode is Mode.OPEN else None)
        return ticks.alter(cause, was, row, sealed)

    return answer(_view(await _save(world, name, change)))


@router.delete("/schedules/{name}")
async def remove_schedule(world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """It ticks no more and is gone; its orders stay."""
    for _ in range(TRIES):
        row = await _find(world, name)
        change = ticks.remove(world.cause(Trigger.REQUEST, actor), row)
        if (await world.store.save([change], together=True))[0].saved:
            return answer(_view(row))
    raise _busy(name)


@router.post("/schedules/{name}/pause")
async def pause_schedule(request: Request, world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """It does not tick until it is resumed; ticks that would have come meanwhile are not made up for."""
    return await _set_mode(request, world, actor, name, Mode.PAUSED)


@router.post("/schedules/{name}/resume")
async def resume_schedule(request: Request, world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """It ticks again, from the next tick after now on."""
    return await _set_mode(request, world, actor, name, Mode.OPEN)


@router.post("/schedules/{name}/run", status_code=201)
async def run_schedule(world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """Make its order now, also while it is paused; its next tick comes as if nothing had been. 200 with the order that
    is there when its dedupe key is in use."""
    for _ in range(TRIES):
        row = await _find(world, name)
        cause = world.cause(Trigger.REQUEST, actor)
        try:
            made = await make_tick(world, cause, row, ticks.Due(tick=cause.at, missed=0, next_at=row.next_at))
        except (Refused, SealBroken) as error:
            text = f"schedule {name} cannot make its order: {error}"
            raise Problem(409, "cannot_run", text, "send its order anew with PATCH") from None
        work = await world.store.order(made.order_id) if made.answer is Answer.SAVED else None
        if work is not None:
            view = order_view(work.order, work.spec, position=await world.store.position(work.order))
            headers = {"Location": f"/api/v1/work-orders/{made.order_id}"} if made.new else {}
            return answer(view if made.new else replace(view, deduplicated=True), 201 if made.new else 200, headers)
    raise _busy(name)


async def _set_mode(request: Request, world: World, actor: str, name: str, mode: Mode) -> Response:
    body, _ = await parse(request, ReasonBody, world.config.request_max_kb, empty=b"{}")

    def change(was: Schedule) -> Change | None:
        cause = world.cause(Trigger.REQUEST, actor)
        next_at = _next(was.cron, was.zone, cause.at) if mode is Mode.OPEN else None
        return ticks.set_mode(cause, was, mode, body.reason, next_at)

    return answer(_view(await _save(world, name, change)))


async def _save(world: World, name: str, decide: Callable[[Schedule], Change | None]) -> Schedule:
    """The schedule as it is once what was decided about it is saved."""
    for _ in range(TRIES):
        row = await _find(world, name)
        change = decide(row)
        if change is None or change.schedule is None:
            return row
        if (await world.store.save([change], together=True))[0].saved:
            return change.schedule
    raise _busy(name)


async def _wish(world: World, actor: str, body: SubmitBody, payload: str) -> Wish:
    for field in ("not_before", "rerun_of"):
        if getattr(body, field) is not None:
            text = f"the order of a schedule cannot have {field}: the schedule says when"
            raise invalid(text, "leave it out", f"order.{field}")
    return await Intake(world, actor).wish(body, payload, None)


def _next(text: str, zone: str, now: int) -> int:
    """Its first tick after now; 422 when there is none, or it cannot be read."""
    found = cron.tick_after(_cron(text), _zone(zone), now)
    if found is None:
        raise invalid(f"cron: {text!r} never comes", "name a day that its month has", "cron")
    return found


def _cron(text: str) -> cron.Cron:
    try:
        return cron.parse(text)
    except cron.BadCron as error:
        hint = (
            "write five fields (minute, hour, day of month, month, day of week), or @hourly, @daily, @weekly, @monthly"
        )
        raise invalid(f"cron: {error}", hint, "cron") from None


def _zone(name: str) -> tzinfo:
    try:
        return zones.find(name)
    except Refused as error:
        raise invalid(f"zone: {error}", "use a name like UTC or Europe/Berlin", "zone") from None


async def _find(world: World, name: str) -> Schedule:
    row = await world.store.schedule(name)
    if row is None:
        raise not_found("schedule", name, [each.name for each in await world.store.schedules()])
    return row


def _busy(name: str) -> Problem:
    return Problem(409, "conflict", f"schedule {name} keeps changing", "send it again")


def _view(row: Schedule) -> ScheduleView:
    return view_of(ScheduleView, row, next_ticks=[time(tick) for tick in _preview(row)], order=_template(row))


def _preview(row: Schedule) -> list[int]:
    if row.next_at is None:
        return []
    try:
        return [row.next_at, *cron.preview(cron.parse(row.cron), zones.find(row.zone), row.next_at, 2)]
    except Refused:  # another server knew its zone
        return [row.next_at]


def _template(row: Schedule) -> TemplateView:
    spec = row.spec
    return view_of(
        TemplateView,
        spec,
        command=list(spec.command) or None,
        payload=Raw(spec.payload.encode()),
        memory_mb=row.memory_mb,
        retry=retry_view(spec.retry),
    )
