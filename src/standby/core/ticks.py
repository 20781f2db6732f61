"""Schedules: which of their ticks are made, which are given up, and every change of them."""

from collections.abc import Sequence
from itertools import islice, takewhile
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from standby.core import cron, lifecycle
from standby.core.cron import Zone
from standby.core.draft import draft
from standby.core.lifecycle import Cause, change
from standby.core.model import Change, EventKind, Json, Missed, Mode, Pool, Schedule, Tick

K = EventKind
ON_TIME_MS: Final = 60_000
"""A tick that comes no later than this was not missed."""
ALL_MOST: Final = 100
"""So many missed ticks are made up for with `all`, the last ones."""
COUNTED_MOST: Final = 1_000
"""Missed ticks are counted no further."""
_HOUR_MS: Final = 3_600_000


class Due(Struct, frozen=True, kw_only=True):
    """What is to be done about a schedule whose time has come: one tick at a time, the oldest first."""

    tick: int | None
    """The one to make an order for; null when all that have passed are given up."""
    missed: int
    """How many are given up before it."""
    next_at: int | None
    """When the one after it is."""


def due(schedule: Schedule, zone: Zone, now: int) -> Due:
    """What `missed` says about the ticks from `next_at` until now, of which there is at least one."""
    assert schedule.next_at is not None and schedule.next_at <= now
    expression = cron.parse(schedule.cron)
    last, count = _passed(expression, zone, schedule.next_at, now)
    match schedule.missed:
        case Missed.SKIP:
            made: Sequence[int] = [tick for tick in last[-1:] if now - tick <= ON_TIME_MS]
        case Missed.ONCE:
            made = last[-1:]
        case Missed.ALL:
            made = last
    after = made[1] if len(made) > 1 else cron.tick_after(expression, zone, now)
    return Due(tick=made[0] if made else None, missed=count - len(made), next_at=after)


def _passed(expression: cron.Cron, zone: Zone, first: int, now: int) -> tuple[Sequence[int], int]:
    """The last ticks until now, at most ALL_MOST, and how many there are, counted up to COUNTED_MOST."""

    def walk(after: int) -> list[int]:
        return list(
            takewhile(lambda tick: tick <= now, islice(cron.ticks_after(expression, zone, after), COUNTED_MOST))
        )

    ticks = [first, *walk(first)]
    if len(ticks) <= COUNTED_MOST:
        return ticks[-ALL_MOST:], len(ticks)
    back = _HOUR_MS
    while len(tail := walk(now - back)) < ALL_MOST:
        back *= 2
    return tail[-ALL_MOST:], COUNTED_MOST


def add(cause: Cause, schedule: Schedule, sealed_env: bytes | None) -> Change:
    """nothing -> a schedule."""
    return change(cause, K.SCHEDULE_ADDED, schedule=schedule, sealed_env=sealed_env)


def alter(cause: Cause, was: Schedule, schedule: Schedule, sealed_env: bytes | None) -> Change | None:
    """Another expression, zone, policy or order; null when nothing differs. Without `sealed_env` its env values stay,
    with an empty one there are none."""
    if was == schedule and sealed_env is None:
        return None
    return change(cause, K.SCHEDULE_CHANGED, schedule_was=was, schedule=schedule, sealed_env=sealed_env)


def set_mode(cause: Cause, schedule: Schedule, mode: Mode, reason: str | None, next_at: int | None) -> Change | None:
    """Pause it, or let it tick again, from `next_at` on; null when it is that already. What it did not tick while it
    was paused was not missed."""
    if schedule.mode is mode:
        return None
    after = replace(
        schedule, mode=mode, mode_since=cause.at, mode_reason=reason, mode_actor=cause.actor, next_at=next_at
    )
    return change(cause, K.SCHEDULE_MODE, schedule_was=schedule, schedule=after)


def tick(
    cause: Cause, schedule: Schedule, at: int, order_id: str, next_at: int | None, *, missed: int = 0, new: bool = True
) -> Change:
    """An order was made for a tick (or, unless `new`, an unfinished one has its dedupe key); saved together with it."""
    after = replace(schedule, last_at=at, last_order=order_id, next_at=next_at)
    note: dict[str, Json] = {"tick_at": at, "order": order_id, "pool": schedule.pool}
    note |= {"missed": missed} if missed else {}
    note |= {} if new else {"deduplicated": True}
    row = Tick(schedule=schedule.name, at=at, order_id=order_id)
    return change(cause, K.SCHEDULE_TICKED, schedule_was=schedule, schedule=after, tick=row, note=note)


def miss(cause: Cause, schedule: Schedule, missed: int, next_at: int | None) -> Change:
    """Ticks that nobody could make in time are given up."""
    note: dict[str, Json] = {"missed": missed, "pool": schedule.pool}
    return change(
        cause, K.SCHEDULE_MISSED, schedule_was=schedule, schedule=replace(schedule, next_at=next_at), note=note
    )


def remove(cause: Cause, schedule: Schedule) -> Change:
    """A schedule -> gone, with its ticks; its orders stay."""
    return change(cause, K.SCHEDULE_REMOVED, schedule_was=schedule)


def order(cause: Cause, schedule: Schedule, pool: Pool, at: int, order_id: str, sealed_env: bytes | None) -> Change:
    """The order of a tick, submitted."""
    spec = replace(schedule.spec, order_id=order_id, schedule=schedule.name, tick_at=at)
    row = draft(order_id, cause.at, schedule.project, schedule.pool, schedule.memory_mb, spec)
    return lifecycle.submit(cause, row, spec, pool, sealed_env, None)
