"""The store for many instances: PostgreSQL, one writing session each, one round trip a commit."""

import asyncio
import contextlib
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final, cast

import structlog
from msgspec.json import Decoder
from msgspec.structs import astuple

from standby.core.model import Change, Lease
from standby.core.work import Report
from standby.store import postgres_session as session
from standby.store import queries, rows, sweep
from standby.store.commit import GroupCommit, Unsure, Violated, held_back
from standby.store.contract import Answer, LogChunk, LogTail, StoreDown, Verdict
from standby.store.entry import Entry, Prepared, by_kind, in_order, in_turn
from standby.store.hints import Hints
from standby.store.migrate import refuse
from standby.store.postgres_batch import SAVE, heard_of, hint_text, parameters, report_text, verdicts
from standby.store.postgres_hot import hot_call
from standby.store.postgres_lone import lone_call
from standby.store.reads import Dialect, Param
from standby.store.rows import Row
from standby.store.schedules import PUT_SCHEDULE, put_parameters
from standby.store.sweep import Step, Sweeps

LOCK_WAIT_S: Final = 30.0
"""How long a commit waits for other writers before it gives up."""
CHANNEL: Final = "standby"
LISTEN_AGAIN_S: Final = 1.0
LISTEN_CHECK_S: Final = 30.0

DIALECT: Final = Dialect(
    candidates=queries.CANDIDATES_POSTGRES,
    candidates_after=queries.CANDIDATES_AFTER_POSTGRES,
    named=queries.NAMED_POSTGRES,
    log_tails=queries.LOG_TAILS_POSTGRES,
    lengths=queries.LENGTHS_POSTGRES,
)

RENEW: Final = """
update leases l set until = c.now_ms + $2, renewed_at = c.now_ms from (select clock_ms() + $3 as now_ms) c
where l.owner = $1 and l.host = any($4) and l.until > c.now_ms returning l.*
"""
RESIGN: Final = """
update leases l set until = c.now_ms from (select clock_ms() + $2 as now_ms) c
where l.owner = $1 and l.host = any($3) and l.until > c.now_ms
"""
APPEND_LOGS: Final = """
insert into logs as l (run_id, first, count, body, cursor, closed, bytes)
select u.* from unnest($1::text[], $2::bigint[], $3::bigint[], $4::text[], $5::text[], $6::boolean[], $7::bigint[])
    as u (run_id, first, count, body, cursor, closed, bytes)
where u.first = coalesce((select first + count from logs where run_id = u.run_id order by first desc limit 1), 0)
    and not exists (select 1 from logs where run_id = u.run_id and closed)
order by u.run_id
on conflict (run_id, first) do update set count = excluded.count, body = excluded.body, cursor = excluded.cursor,
    closed = excluded.closed, bytes = excluded.bytes
where l.count = 0 and not l.closed
returning l.run_id, l.first + l.count, l.cursor, l.closed
"""
TRIM_LOGS: Final = """
delete from logs l using (
    select k.run_id, k.first, sum(k.bytes) over w as kept, max(k.first) over (partition by k.run_id) as newest
    from unnest($1::text[]) u (run_id) join logs k on k.run_id = u.run_id
    window w as (partition by k.run_id order by k.first desc)) old
where l.run_id = old.run_id and l.first = old.first and old.kept > $2 and old.first < old.newest
"""

log = structlog.get_logger("standby.store")
_names = Decoder(list[str])


class _HeldBack(Exception):
    """Some of a group was refused: its transaction is rolled back."""

    def __init__(self, answers: Sequence[Any]) -> None:
        super().__init__()
        self.answers = answers


class PostgresStore(Sweeps):
    """The store contract on PostgreSQL."""

    dialect = DIALECT
    purged = sweep.PURGED_POSTGRES
    kind = "postgres"
    sends_ahead = False

    def __init__(self, url: str, reading: Any, beside: Any, *, hints: bool, offset: Callable[[], int]) -> None:
        self.hints = Hints(on=hints)
        self._url, self._reading, self._beside, self._offset = url, reading, beside, offset
        self._commit = GroupCommit(self, self.hints.tell)
        self._writer: session.Connection = None
        self._writer_pid = 0
        self._last_seq = 0
        self._listening: asyncio.Task[None] | None = None

    @classmethod
    async def open(cls, url: str, *, hints: bool = True, offset: Callable[[], int] = lambda: 0) -> "PostgresStore":
        """Connect to a database whose schema is current; `offset` is added to its clock, for tests."""
        # Leases, keys and logs have sessions of their own: a slow read must not cost a lease.
        store = cls(
            url,
            await session.pool(url, session.READER, 4),
            await session.pool(url, session.READER, 3),
            hints=hints,
            offset=offset,
        )
        try:
            writer = await store._session()
            refuse(await session.postgres_status(writer))
            store.incarnation = await writer.fetchval(queries.INCARNATION)
            store._last_seq = await writer.fetchval(queries.LAST_SEQ)
        except BaseException:
            await store.close()
            raise
        if hints:
            store._listening = asyncio.create_task(store._listen_always(), name="store listener")
        return store

    async def now(self) -> int:
        return int((await self.fetch("select clock_ms()"))[0][0]) + self._offset()

    def save(self, changes: Sequence[Change], *, together: bool = False) -> Coroutine[Any, Any, Sequence[Verdict]]:
        return self._commit.save(changes, together=together)

    async def close(self) -> None:
        """Write what waits, then let go of the server."""
        await self._commit.close()
        if self._listening is not None:
            self._listening.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._listening
        if self._writer is not None:
            await session.end(self._writer)
        await session.end(self._reading)
        await session.end(self._beside)

    async def fetch(self, sql: str, *params: Param) -> Sequence[Row]:
        return await self._ask(self._reading, sql, *params)

    async def fetch_logs(self, sql: str, *params: Param) -> Sequence[Row]:
        return await self._ask(self._reading, sql, *params)

    async def _ask(self, sessions: Any, sql: str, *params: Any) -> Sequence[Row]:
        try:
            found: Sequence[Row] = await sessions.fetch(sql, *params)
        except session.transient() as error:
            raise StoreDown(f"PostgreSQL did not answer: {error!r}") from error
        return found

    # the writer

    def prepare(self, batch: Sequence[Entry]) -> Prepared:
        """The statement that saves it, with its values."""
        kinds, others = by_kind(batch)
        return kinds, others, hot_call(kinds, parameters(others) if others else (), self._hint(batch))

    async def commit(
        self, batch: Sequence[Entry], *, together: bool = False, prepared: Prepared | None = None
    ) -> Sequence[Verdict]:
        """One transaction of group commit, in one round trip; a hot change that was not taken gets its exact verdict
        from a second one, and a group that is saved together takes three."""
        if together:
            try:
                return await self._save_others(batch, together=True)
            except _HeldBack as held:
                return held_back(verdicts(*held.answers))
        if all(one.hot is None for one in batch):
            return await self._save_others(batch)
        lone = lone_call(batch, self._hint(batch)) if prepared is None else None
        if lone is not None and (before := (await self._call(*lone))[0]) is not None:
            self._last_seq = max(self._last_seq, before + len(batch))
            return in_turn(batch, batch, before)
        kinds, others, call = prepared or self.prepare(batch)
        taken, before, *more = await self._call(*call)
        written = in_order(kinds)
        hot = [written[place - 1] for place in taken]
        if len(hot) == len(batch):
            self._last_seq = max(self._last_seq, before + len(hot))
            return in_turn(batch, hot, before)
        saved = {one.change.id: Verdict(Answer.SAVED, seq) for seq, one in enumerate(hot, before + 1)}
        if others:
            saved.update(zip((one.change.id for one in others), verdicts(*more), strict=True))
        if len(saved) < len(batch):
            missed = [one for one in batch if one.change.id not in saved]
            try:
                saved.update(zip((one.change.id for one in missed), await self._save_others(missed), strict=True))
            except (Violated, StoreDown) as error:
                raise Unsure(f"a part of the batch is saved: {error}") from error
        # not before: a look for what is saved begins after this one
        self._last_seq = max((self._last_seq, before + len(hot), *(more[1] or ())))
        return [saved[one.change.id] for one in batch]

    async def _save_others(self, batch: Sequence[Entry], *, together: bool = False) -> Sequence[Verdict]:
        hint = self._hint(batch)
        schedules = [(n, put_parameters(one)) for n, one in enumerate(batch) if one.of_schedule]
        answers = await self._call(SAVE, [*parameters(batch), hint], schedules, together=together)
        self._last_seq = max(self._last_seq, *answers[1])
        return verdicts(*answers)

    def _hint(self, batch: Sequence[Entry]) -> str | None:
        return hint_text(batch) if self.hints.on else None

    async def _call(
        self,
        sql: str,
        values: Sequence[Any],
        schedules: Sequence[tuple[int, tuple[Any, ...]]] = (),
        *,
        together: bool = False,
    ) -> Sequence[Any]:
        give_up = time.monotonic() + LOCK_WAIT_S
        while True:
            writer = await self._session()
            try:
                if not together:
                    found: Sequence[Any] = await writer.fetchrow(sql, *values)
                    return found
                async with writer.transaction():
                    found = await writer.fetchrow(sql, *values)
                    if any(found[0]):
                        raise _HeldBack(found)
                    for place, schedule in schedules:
                        if not await writer.fetchval(PUT_SCHEDULE, *schedule):
                            stale = [int(n == place) for n in range(len(found[0]))]
                            raise _HeldBack((stale, found[1], found[2]))
                return found
            except session.lock_not_available() as error:
                if time.monotonic() > give_up:
                    raise StoreDown("other writers held their lock for too long") from error
            except session.violated() as error:
                raise Violated(str(error)) from error
            except session.transient() as error:
                self._drop_writer()
                raise Unsure(repr(error)) from error

    async def find(self, batch: Sequence[Entry]) -> Mapping[str, int]:
        """Which changes of a batch are in the history, asked with the writers' lock held."""
        subjects = [one.change.subject for one in batch]
        ids = [one.change.id for one in batch]
        give_up = time.monotonic() + LOCK_WAIT_S
        while True:
            writer = await self._session()
            try:
                async with writer.transaction():
                    await writer.execute("select pg_advisory_xact_lock($1)", session.WRITE_LOCK)
                    found = await writer.fetch(queries.FOUND, subjects, ids, self._last_seq)
                return {row[0]: row[1] for row in found}
            except session.transient() as error:
                if not isinstance(error, session.lock_not_available()) or time.monotonic() > give_up:
                    self._drop_writer()
                    raise StoreDown(f"the outcome of a commit could not be looked up: {error}") from error

    async def _session(self) -> session.Connection:
        if self._writer is None or self._writer.is_closed():
            self._writer = await session.connect(self._url, session.WRITER)
            self._writer_pid = self._writer.get_server_pid()
        return self._writer

    def _drop_writer(self) -> None:
        if self._writer is not None:
            self._writer.terminate()
            self._writer = None

    # hints

    async def _listen_always(self) -> None:
        """Hear the hints of other instances; while the session is lost they are only missed."""
        while True:
            try:
                listener = await session.connect(self._url, session.READER)
            except StoreDown:
                await asyncio.sleep(LISTEN_AGAIN_S)
                continue
            lost = asyncio.Event()
            listener.add_termination_listener(lambda _: lost.set())  # noqa: B023
            try:
                await listener.add_listener(CHANNEL, self._hear)
                await _until_lost(listener, lost)
            except session.transient() as error:
                log.info("hints of other instances are not heard for a while", error=str(error))
            finally:
                await session.end(listener)
            await asyncio.sleep(LISTEN_AGAIN_S)

    def _hear(self, _: session.Connection, pid: int, __: str, payload: str) -> None:
        if pid != self._writer_pid:
            self.hints.tell(heard_of(_names.decode(payload)))

    # leases, logs, keys: no version, no event, no writers' lock (but to take a lease)

    async def take_lease(self, host: str, owner: str, ttl_ms: int) -> tuple[Lease, Lease | None] | None:
        sql = "select * from take_lease($1, $2, $3, $4)"
        found = [
            rows.value(Lease, row) for row in await self._ask(self._beside, sql, host, owner, ttl_ms, self._offset())
        ]
        return (found[0], found[1] if len(found) > 1 else None) if found else None

    async def renew_leases(self, owner: str, hosts: Sequence[str], ttl_ms: int) -> Sequence[Lease]:
        found = await self._ask(self._beside, RENEW, owner, ttl_ms, self._offset(), list(hosts))
        return [rows.value(Lease, row) for row in found]

    async def resign_leases(self, owner: str, hosts: Sequence[str]) -> None:
        await self._ask(self._beside, RESIGN, owner, self._offset(), list(hosts))

    async def append_logs(self, chunks: Sequence[LogChunk], cap_bytes: int) -> Mapping[str, LogTail]:
        tails: dict[str, LogTail] = {}
        for one_each in _rounds(chunks):
            values = zip(*map(astuple, one_each), strict=True)
            stored = [rows.value(LogTail, row) for row in await self._ask(self._beside, APPEND_LOGS, *values)]
            tails.update((tail.run_id, tail) for tail in stored)
        if any(chunk.bytes for chunk in chunks):
            await self._ask(self._beside, TRIM_LOGS, sorted(tails), cap_bytes)
        # what was not stored had a rival: the store says how far it is
        ignored = [chunk.run_id for chunk in chunks if chunk.run_id not in tails]
        return {**tails, **(await self.log_tails(ignored) if ignored else {})}

    def telling(self, report: Report) -> Sequence[Step]:
        """What tells other instances of a report."""
        return [("select pg_notify($1, $2)", CHANNEL, report_text(report.run_id))] if self.hints.on else []

    async def transact(self, *steps: Step, as_writer: bool = False) -> Sequence[Row]:
        """Run the steps in one transaction, with the writers' lock held when asked for; the rows of the first one."""
        try:
            async with self._beside.acquire() as connection, connection.transaction():
                if as_writer:
                    await connection.execute("select pg_advisory_xact_lock($1)", session.WRITE_LOCK)
                first, *_ = [await connection.fetch(sql, *rest) for sql, *rest in steps]
        except session.transient() as error:
            raise StoreDown(f"PostgreSQL did not answer: {error!r}") from error
        return cast(Sequence[Row], first)

    async def transact_logs(self, *steps: Step) -> None:
        await self.transact(*steps)


def _rounds(chunks: Sequence[LogChunk]) -> Iterable[Sequence[LogChunk]]:
    """The chunks in their order, in as few rounds as it takes to have each run at most once in a round."""
    rounds: list[dict[str, LogChunk]] = []
    seen: Counter[str] = Counter()
    for chunk in chunks:
        if seen[chunk.run_id] == len(rounds):
            rounds.append({})
        rounds[seen[chunk.run_id]][chunk.run_id] = chunk
        seen[chunk.run_id] += 1
    return [list(each.values()) for each in rounds]


async def _until_lost(listener: session.Connection, lost: asyncio.Event) -> None:
    """Return or raise when the session is gone; one that vanished without a word is noticed by asking."""
    while not lost.is_set():
        try:
            async with asyncio.timeout(LISTEN_CHECK_S):
                await lost.wait()
        except TimeoutError:
            await listener.fetchval("select 1")
