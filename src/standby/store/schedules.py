"""Schedules and their ticks: how both engines write and read them. A schedule is always saved in a group of its own
(`together`), with the order of its tick."""

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from msgspec.json import encode
from msgspec.structs import asdict, astuple

from standby.core.model import Schedule, Tick
from standby.store.entry import Entry
from standby.store.rows import Row, value

if TYPE_CHECKING:
    import apsw

TICKS_KEPT: Final = 1_000
"""Of each schedule. `next_at` only goes forward, so an older one cannot come again."""

PUT_SCHEDULE: Final = "select put_schedule($1, $2, $3, $4, $5)"
_UPSERT: Final = """
insert into schedules (name, version, project, pool, cron, zone, missed, memory_mb, spec, mode, mode_since, mode_reason,
    mode_actor, next_at, last_at, last_order, sealed_env)
values (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, nullif(?17, x''))
on conflict (name) do update set version = ?2, project = ?3, pool = ?4, cron = ?5, zone = ?6, missed = ?7,
    memory_mb = ?8, spec = ?9, mode = ?10, mode_since = ?11, mode_reason = ?12, mode_actor = ?13, next_at = ?14,
    last_at = ?15, last_order = ?16,
    sealed_env = case when ?17 is null then sealed_env else nullif(?17, x'') end
"""
_TICK: Final = "insert into ticks (schedule, at, order_id) values (?, ?, ?)"
_FORGET: Final = """
delete from ticks where schedule = ?1
    and at <= (select at from ticks where schedule = ?1 order by at desc limit 1 offset ?2)
"""

# schedules: all of them, one of them, and those whose tick has come
SCHEDULES: Final = "select * from schedules order by name"
SCHEDULE: Final = "select * from schedules where name = $1"
DUE_SCHEDULES: Final = "select * from schedules where next_at <= $1 order by next_at, name limit $2"
SCHEDULE_ENV: Final = "select sealed_env from schedules where name = $1"
# ticks: the last ones of a schedule
TICKS: Final = "select * from ticks where schedule = $1 order by at desc limit $2"


def put_schedule(cursor: "apsw.Cursor", one: Entry) -> None:
    """Write the schedule of a change, and its tick, into an open transaction of SQLite."""
    change, row = one.change, one.schedule
    if row is None:
        assert change.schedule_was is not None
        for text in ("delete from schedules where name = ?", "delete from ticks where schedule = ?"):
            cursor.execute(text, (change.schedule_was.name,))
        return
    columns = tuple({**asdict(row), "spec": encode(row.spec).decode()}.values())
    cursor.execute(_UPSERT, (*columns, change.sealed_env))
    if change.tick is not None:
        cursor.execute(_TICK, astuple(change.tick))
        cursor.execute(_FORGET, (change.tick.schedule, TICKS_KEPT))


def put_parameters(one: Entry) -> tuple[Any, ...]:
    """The same for `put_schedule` of PostgreSQL, which says whether the schedule was as it should be."""
    change = one.change
    was = None if change.schedule_was is None else change.schedule_was.version
    body = encode(one.schedule or change.schedule_was).decode()
    tick = None if change.tick is None else encode(change.tick).decode()
    return was, one.schedule is None, body, change.sealed_env, tick


class ScheduleReads:
    """What is read of schedules, the same for both engines."""

    @abstractmethod
    async def fetch(self, sql: str, *params: Any) -> Sequence[Row]: ...

    async def schedules(self) -> Sequence[Schedule]:
        return [value(Schedule, row) for row in await self.fetch(SCHEDULES)]

    async def schedule(self, name: str) -> Schedule | None:
        found = await self.fetch(SCHEDULE, name)
        return value(Schedule, found[0]) if found else None

    async def due_schedules(self, now: int, most: int) -> Sequence[Schedule]:
        return [value(Schedule, row) for row in await self.fetch(DUE_SCHEDULES, now, most)]

    async def ticks(self, name: str, most: int) -> Sequence[Tick]:
        return [value(Tick, row) for row in await self.fetch(TICKS, name, most)]

    async def schedule_env(self, name: str) -> bytes | None:
        found = await self.fetch(SCHEDULE_ENV, name)
        return found[0][0] if found else None
