"""The reads of the contract, the same for both engines: a text, its parameters, rows turned into values."""

import asyncio
import re
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Final

from msgspec import Struct
from msgspec.json import encode

from standby.core.model import ENDED, Event, Host, Idempotency, Lease, Order, OrderState, Pool, Project, Run, Slot, Spec
from standby.core.sighting import ImageState
from standby.core.work import Report
from standby.store import queries, rows
from standby.store.contract import (
    History,
    Key,
    Length,
    Listed,
    LogChunk,
    LogTail,
    OrderFilter,
    Page,
    Peaks,
    Queued,
    Wanted,
    Work,
)
from standby.store.hints import Hear, Hints
from standby.store.hot import whole
from standby.store.migrate import APPLIED, Applied, Kind, compare, known
from standby.store.rows import Row
from standby.store.schedules import ScheduleReads

COUNT_MOST: Final = 10_001
"""A place in a queue is counted no further than this."""
LANES_MOST: Final = 1_000
KEYED_MOST: Final = 1_000
UNLIMITED: Final = 2**62
SOME: Final = 100
"""So many orders are made of rows at a time."""
FEW: Final = 2_000
NEVER: Final = 2**62
WINDOW: Final = 2_000
"""Orders looked at in one read, when only some of them match."""
WALK_MOST: Final = 40_000
"""Orders looked at for one page; then it ends, however short."""
PREFIX_FEW: Final = 7
"""Ids begin with their time: so many letters name those of half a minute."""
PREFIX_MOST: Final = 20_000

Param = str | int | float | None | Sequence[str] | Sequence[int]


class Dialect(Struct, frozen=True):
    """The reads whose texts differ between the engines."""

    candidates: str
    candidates_after: str
    named: str
    log_tails: str
    lengths: str


class Reads(ScheduleReads):
    """Everything a store answers without writing, as `contract.Store` promises it."""

    incarnation: str
    dialect: Dialect
    kind: Kind
    hints: Hints

    @abstractmethod
    async def fetch(self, sql: str, *params: Param) -> Sequence[Row]:
        """The rows of one statement, seen at one moment. Raises StoreDown."""

    async def fetch_ahead(self, *params: Param) -> Sequence[Row]:
        """The rows of `candidates_after`, for which nobody waits yet: whatever else is going on goes on."""
        return await self.fetch(self.dialect.candidates_after, *params)

    @abstractmethod
    async def fetch_logs(self, sql: str, *params: Param) -> Sequence[Row]:
        """The same, where the logs are."""

    async def schema_refusal(self) -> str | None:
        applied = [Applied(*row) for row in await self.fetch(APPLIED)]
        return compare(known(self.kind), applied).refusal

    async def order(self, order_id: str) -> Work | None:
        found = await self.fetch(queries.ORDER, order_id)
        return _work(found[0]) if found else None

    async def orders(self, only: OrderFilter, before: int | None, most: int) -> Page:
        below = NEVER if before is None else before
        states = f",{','.join(sorted(only.states))}," if only.states else None
        cap = UNLIMITED if only.labels else most + 1
        if only.ids:
            found = await self.fetch(self.dialect.named, list(only.ids), below)
        elif only.id_prefix is not None and len(only.id_prefix) >= PREFIX_FEW:
            ids = (only.id_prefix, only.id_prefix + "~")
            found = await self.fetch(queries.NEWEST_BY_ID, below, states, only.pool, PREFIX_MOST, *ids, only.project)
            found = sorted(found, key=lambda row: row[0], reverse=True)
        elif only.states and ENDED.isdisjoint(only.states) and await self._few_unfinished():
            found = await self.fetch(queries.NEWEST_UNFINISHED, below, states, only.pool, cap, only.project)
        else:
            return await self._walk(only, states, below, most)
        listed = [each for each in map(_listed, found) if _matches(only, each)]
        return Page(listed[:most], listed[most - 1].seq if len(listed) > most else None)

    async def _walk(self, only: OrderFilter, states: str | None, below: int, most: int) -> Page:
        """Look at the newest orders, window by window, so that a rare match in a long history keeps nobody waiting."""
        listed: list[Listed] = []
        picky = bool(only.states or only.pool or only.labels or only.id_prefix)
        window = WINDOW if picky else most + 1
        cap = window if only.labels or only.id_prefix else most + 1
        label = _pattern(only.labels)
        for _ in range(max(1, WALK_MOST // window)):
            floor, count = await self._window(below, window, only.project)
            if only.project is None:
                found = await self.fetch(queries.NEWEST, below, states, only.pool, cap, floor, label)
            else:
                found = await self.fetch(
                    queries.NEWEST_OF_PROJECT, below, states, only.pool, cap, floor, label, only.project
                )
            listed += [each for each in map(_listed, found) if _matches(only, each)]
            if len(listed) > most:
                return Page(listed[:most], listed[most - 1].seq)
            if count < window:
                return Page(listed, None)
            below = floor
        return Page(listed, below)

    async def _window(self, below: int, most: int, project: str | None) -> tuple[int, int]:
        if project is None:
            found = await self.fetch(queries.WINDOW, below, most)
        else:
            found = await self.fetch(queries.WINDOW_OF_PROJECT, below, most, project)
        return found[0][0], found[0][1]

    async def _few_unfinished(self) -> bool:
        found = await self.fetch(queries.FEW_UNFINISHED, FEW)
        return bool(found[0][0] < FEW)

    async def open_orders(self, host: str, *, brief: bool = False) -> Sequence[Work]:
        return [_work(row) for row in await self.fetch(_brief(queries.OPEN_ORDERS, brief), host)]

    async def candidates(
        self,
        pool: str,
        per_lane: int,
        memory_max: int | None,
        after: Mapping[str, tuple[int, str]] | None = None,
        cpus_max: float | None = None,
        *,
        brief: bool = False,
    ) -> Sequence[Work]:
        most = UNLIMITED if memory_max is None else memory_max, float(UNLIMITED) if cpus_max is None else cpus_max
        if after is None:
            found = await self.fetch(_brief(self.dialect.candidates, brief), pool, per_lane, *most)
        else:
            ranks, ids = [rank for rank, _ in after.values()], [order_id for _, order_id in after.values()]
            found = await self.fetch_ahead(pool, per_lane, *most, list(after), ranks, ids)
        works: list[Work] = []
        for some in range(0, len(found), SOME):
            if some:
                await asyncio.sleep(0)  # an answer to a commit, and the next one, do not wait for a whole page
            page = found[some : some + SOME]
            works += [Work(rows.ready(row), spec) for row in page if (spec := rows.spec(row[0])) is not None]
        if len(works) < len(found):
            # those behind what cannot be read take its place: a lane of which fewer are known has no more
            known = {work.order.id for work in works}
            orders = [rows.ready(row) for row in found]
            lanes = {order.project for order in orders if order.id not in known}
            ends = {order.project: (order.rank or 0, order.id) for order in orders if order.project in lanes}
            works += await self.candidates(pool, per_lane, memory_max, ends, cpus_max)
        return works

    async def expired(self, pool: str, limit_at: int, most: int, spared: Sequence[str] = ()) -> Sequence[Order]:
        names = f",{','.join(spared)}," if spared else None
        return [rows.value(Order, row) for row in await self.fetch(queries.EXPIRED, pool, limit_at, most, names)]

    async def due(self, pool: str, now: int, most: int) -> Sequence[Work]:
        return [_work(row) for row in await self.fetch(queries.DUE, pool, now, most)]

    async def waiting(self, pools: Sequence[str]) -> bool:
        return bool(await self.fetch(queries.WAITING, list(pools)))

    async def position(self, order: Order) -> int | None:
        if order.rank is None:
            return None
        found = await self.fetch(queries.POSITION, order.pool, order.project, order.rank, order.id, COUNT_MOST)
        return int(found[0][0])

    async def queues(self, pool: str) -> Mapping[str, Queued]:
        found = await self.fetch(queries.QUEUES, pool, LANES_MOST, COUNT_MOST)
        return {project: Queued(int(ready), int(urgent)) for project, ready, urgent in found}

    async def wanted_keys(self, pool: str, before: Order | None = None) -> Mapping[str, Sequence[Wanted]]:
        place = ("", 0, "") if before is None else (before.project, before.rank or 0, before.id)
        found: dict[str, list[Wanted]] = {}
        for project, ready, held_since in await self.fetch(queries.WANTED_KEYS, pool, *place, KEYED_MOST):
            found.setdefault(project, []).append((int(ready), held_since))
        return found

    async def lengths(self, after: int, last: int) -> Sequence[Length]:
        found = await self.fetch(self.dialect.lengths, after, last)
        return [
            Length(pool, took, start, bool(made), at, project, rows.labels(labels) if labels else {})
            for _, pool, took, start, made, at, project, labels in found
            if took is not None
        ]

    async def peaks(self) -> Mapping[str, Peaks]:
        found = await self.fetch(queries.PEAKS)
        return {pool: Peaks(int(runs), int(above), int(most_kb)) for pool, runs, above, most_kb in found}

    async def contenders(self, project: str, key: str, most: int) -> Sequence[Listed]:
        return [_listed(row) for row in await self.fetch(queries.CONTENDERS, project, key, most)]

    async def lanes(self, pool: str, most: int) -> Sequence[str]:
        return [row[0] for row in await self.fetch(queries.LANES, pool, most)]

    async def last_start(self, pool: str) -> int | None:
        at = (await self.fetch(queries.LAST_START, pool))[0][0]
        return None if at is None else int(at)

    async def depth(self, pool: str | None, project: str | None, most: int) -> int:
        if pool is not None:
            return int((await self.fetch(queries.DEPTH_OF_POOL, pool, most))[0][0])
        return int((await self.fetch(queries.DEPTH_OF_PROJECT, project, most))[0][0])

    async def position_at(self, pool: str, project: str, rank: int, order_id: str) -> int:
        found = await self.fetch(queries.POSITION_AT, pool, project, rank, order_id, COUNT_MOST - 1)
        return int(found[0][0]) + 1

    async def sealed_env(self, order_ids: Sequence[str]) -> Mapping[str, bytes]:
        return {row[0]: row[1] for row in await self.fetch(queries.ENVS, list(order_ids))}

    async def runs(self, order_id: str) -> Sequence[Run]:
        return [rows.value(Run, row) for row in await self.fetch(queries.RUNS, order_id)]

    async def ended_runs(self, run_ids: Sequence[str]) -> frozenset[str]:
        orders = list({run_id.rpartition("-")[0] for run_id in run_ids})
        found = await self.fetch(queries.ENDED_NUMBERS, orders)
        return frozenset(run_ids) & {f"{order_id}-{number}" for order_id, number in found}

    async def open_by_project(self) -> Mapping[str, int]:
        return {row[0]: row[1] for row in await self.fetch(queries.OPEN_BY_PROJECT)}

    async def counts(self) -> Mapping[tuple[str, OrderState], int]:
        counted: dict[tuple[str, OrderState], int] = {}
        for pool, state, count in await self.fetch(queries.COUNTS):
            key = (pool, OrderState(state))
            counted[key] = counted.get(key, 0) + count
        return counted

    async def slots(self, *, host: str | None = None, pool: str | None = None) -> Sequence[Slot]:
        return [rows.value(Slot, row) for row in await self.fetch(queries.SLOTS, host, pool)]

    async def holders(self, *, host: str | None = None, pool: str | None = None) -> Mapping[str, Order]:
        found = [rows.value(Order, row) for row in await self.fetch(queries.HOLDERS, host, pool)]
        return {order.slot: order for order in found if order.slot is not None}

    async def seat(self, name: str) -> tuple[Slot, Work | None] | None:
        slots, orders = await asyncio.gather(self.fetch(queries.SLOT, name), self.fetch(queries.ORDER_IN_SLOT, name))
        return (rows.value(Slot, slots[0]), _work(orders[0]) if orders else None) if slots else None

    async def reports(self, run_ids: Sequence[str]) -> Mapping[str, Report]:
        found = [rows.value(Report, row) for row in await self.fetch(queries.REPORTS, list(run_ids))]
        return {report.run_id: report for report in found}

    async def pools(self) -> Sequence[Pool]:
        return [rows.value(Pool, row) for row in await self.fetch(queries.POOLS)]

    async def pool(self, name: str) -> Pool | None:
        found = await self.fetch(queries.POOL, name)
        return rows.value(Pool, found[0]) if found else None

    async def hosts(self) -> Sequence[Host]:
        return [rows.value(Host, row) for row in await self.fetch(queries.HOSTS)]

    async def host(self, name: str) -> Host | None:
        found = await self.fetch(queries.HOST, name)
        return rows.value(Host, found[0]) if found else None

    async def projects(self) -> Sequence[Project]:
        return [rows.value(Project, row) for row in await self.fetch(queries.PROJECTS)]

    async def events(self, after: int, most: int, subject: str | None = None) -> Sequence[Event]:
        if subject is None:
            found = await self.fetch(queries.EVENTS, after, most)
        else:
            found = await self.fetch(queries.EVENTS_OF, after, most, subject)
        return [whole(rows.value(Event, row)) for row in found]

    async def events_before(self, before: int | None, most: int, subject: str | None = None) -> Sequence[Event]:
        place = UNLIMITED if before is None else before
        if subject is None:
            found = await self.fetch(queries.EVENTS_BEFORE, place, most)
        else:
            found = await self.fetch(queries.EVENTS_BEFORE_OF, place, most, subject)
        return [whole(rows.value(Event, row)) for row in found]

    async def last_seq(self) -> int:
        return int((await self.fetch(queries.LAST_SEQ))[0][0])

    async def mark(self, seq: int) -> str | None:
        found = await self.fetch(queries.MARK, seq)
        return str(found[0][0]) if found else None

    async def history(self) -> History:
        return History(*(await self.fetch(queries.HISTORY))[0])

    async def leases(self) -> Sequence[Lease]:
        return [rows.value(Lease, row) for row in await self.fetch(queries.LEASES)]

    async def log_tails(self, run_ids: Sequence[str]) -> Mapping[str, LogTail]:
        found = [rows.value(LogTail, row) for row in await self.fetch_logs(self.dialect.log_tails, list(run_ids))]
        return {tail.run_id: tail for tail in found}

    async def read_log(self, run_id: str, from_line: int, most_bytes: int) -> Sequence[LogChunk]:
        found = await self.fetch_logs(queries.READ_LOG, run_id, from_line, most_bytes)
        return [rows.value(LogChunk, row) for row in found]

    async def reading(self, host: str) -> tuple[int, str] | None:
        found = await self.fetch(queries.READING, host)
        return (found[0][0], found[0][1]) if found else None

    async def images(self, host: str) -> Sequence[ImageState]:
        return [rows.value(ImageState, row) for row in await self.fetch(queries.IMAGES, host)]

    async def keys(self) -> Sequence[Key]:
        return [rows.value(Key, row) for row in await self.fetch(queries.KEYS)]

    async def idempotency(self, project: str, key: str) -> Idempotency | None:
        found = await self.fetch(queries.IDEMPOTENCY, project, key)
        return rows.value(Idempotency, found[0]) if found else None

    def listen(self, hear: Hear) -> Callable[[], None]:
        return self.hints.listen(hear)


def _brief(sql: str, brief: bool) -> str:
    return sql.replace("select s.body", f"select {queries.BRIEF}") if brief else sql


def _work(row: Row) -> Work:
    """An order with its spec. One that cannot be read is never claimed (see `candidates`), but watched all the same."""
    order = rows.value(Order, row[1:])
    return Work(order, rows.spec(row[0]) or Spec(order_id=order.id))


def _listed(row: Row) -> Listed:
    work = _work(row[1:])
    return Listed(work.order, work.spec, row[0])


def _pattern(labels: Mapping[str, str]) -> str | None:
    """What the stored spec of an order with the first of these labels looks like."""
    for name, value in labels.items():
        text = encode({name: value}).decode()[1:-1]
        return "%" + re.sub("([!%_])", r"!\1", text) + "%"
    return None


def _matches(only: OrderFilter, each: Listed) -> bool:
    """Whether an order is one that was asked for; the reads have looked at some of this already."""
    order, spec = each.order, each.spec
    return (
        (not only.states or order.state in only.states)
        and only.pool in (None, order.pool)
        and only.project in (None, order.project)
        and order.id.startswith(only.id_prefix or "")
        and all(spec.labels.get(name) == value for name, value in only.labels.items())
    )
