"""The embedded store: SQLite in WAL mode, one writer thread, a reader of its own, logs in a second file."""

import time
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final, TypeVar

import apsw
from msgspec.json import Decoder, encode
from msgspec.structs import astuple

from standby.core.model import Change, Lease
from standby.store import queries, rows, sqlite_commit, sweep
from standby.store.commit import GroupCommit
from standby.store.contract import LogChunk, LogTail, StoreDown, Verdict
from standby.store.entry import Entry, Prepared, by_kind, in_order, in_turn
from standby.store.hints import Hints
from standby.store.migrate import migrate_sqlite
from standby.store.reads import Dialect, Param
from standby.store.rows import Row
from standby.store.sqlite_hot import HotLine, hot_parameters
from standby.store.sqlite_lines import Inline, Lines, Threads, Work, fetch
from standby.store.sweep import Step, Sweeps

T = TypeVar("T")
Read = Callable[[str, Sequence[Param]], Awaitable[Sequence[Row]]]

_rows = Decoder(list[list[Any]])

DIALECT: Final = Dialect(
    candidates=queries.CANDIDATES_SQLITE,
    candidates_after=queries.CANDIDATES_AFTER_SQLITE,
    named=queries.NAMED_SQLITE,
    log_tails=queries.LOG_TAILS_SQLITE,
    lengths=queries.LENGTHS_SQLITE,
)

APPEND_LOG: Final = """
insert into logs (run_id, first, count, body, cursor, closed, bytes)
select ?1, ?2, ?3, ?4, ?5, ?6, ?7
where ?2 = coalesce((select first + count from logs where run_id = ?1 order by first desc limit 1), 0)
    and not exists (select 1 from logs where run_id = ?1 and closed)
on conflict (run_id, first) do update set count = excluded.count, body = excluded.body, cursor = excluded.cursor,
    closed = excluded.closed, bytes = excluded.bytes
"""
TRIM_LOG: Final = """
delete from logs where run_id = ?1 and first in (
    select first from (select first, sum(bytes) over (order by first desc) as kept from logs where run_id = ?1)
    where kept > ?2 and first < (select max(first) from logs where run_id = ?1))
"""


def clock_ms() -> int:
    """The machine's clock in milliseconds."""
    return time.time_ns() // 1_000_000


class SqliteStore(Sweeps):
    """The store contract on SQLite. One server process at a time: `open_store` sees to that."""

    dialect = DIALECT
    purged = sweep.PURGED_SQLITE
    kind = "sqlite"
    sends_ahead = True

    def __init__(self, main: Lines, logs: Lines, incarnation: str, *, clock: Callable[[], int], hints: bool) -> None:
        self.incarnation = incarnation
        self.hints = Hints(on=hints)
        self._main, self._logs, self._clock = main, logs, clock
        self._hot = HotLine(main.writer)
        self._commit = GroupCommit(self, self.hints.tell, inline=isinstance(main, Inline))
        self._closed = False

    @classmethod
    def open(cls, path: Path, *, clock: Callable[[], int] = clock_ms, hints: bool = True) -> "SqliteStore":
        """Open or make the database file, brought up to date; the logs of `standby.db` are beside it in `logs.db`."""
        path.parent.mkdir(parents=True, exist_ok=True)
        logs_path = path.with_name("logs.db") if path.stem == "standby" else path.with_name(f"{path.stem}.logs.db")
        with ExitStack() as undo:
            try:
                main = Threads(path, synchronous="full", long_reads=False)
                undo.callback(main.close)
                logs = Threads(logs_path, synchronous="normal", long_reads=True)
                undo.callback(logs.close)
                migrate_sqlite(main.writer, clock(), path=path)
                migrate_sqlite(logs.writer, clock(), path=logs_path, kind="sqlite_logs")
                main.open_reader()
                logs.open_reader()
                store = cls(main, logs, _incarnation(main.writer), clock=clock, hints=hints)
            except apsw.Error as error:
                raise StoreDown(f"{path} could not be opened: {error}") from error
            undo.pop_all()
        return store

    @classmethod
    def in_memory(cls, *, clock: Callable[[], int] = clock_ms, hints: bool = True) -> "SqliteStore":
        """A store that lives and ends with this value, everything inline: for tests and simulations."""
        main, logs = Inline(), Inline()
        migrate_sqlite(main.writer, clock(), path=None)
        migrate_sqlite(logs.writer, clock(), path=None, kind="sqlite_logs")
        return cls(main, logs, _incarnation(main.writer), clock=clock, hints=hints)

    async def now(self) -> int:
        return self._clock()

    def save(self, changes: Sequence[Change], *, together: bool = False) -> Coroutine[Any, Any, Sequence[Verdict]]:
        return self._commit.save(changes, together=together)

    async def close(self) -> None:
        """Write what waits, then let go of the files."""
        if self._closed:
            return
        await self._commit.close()
        self._closed = True
        self._main.close()
        self._logs.close()

    async def fetch(self, sql: str, *params: Param) -> Sequence[Row]:
        return await self._read(self._main.read, sql, params)

    async def fetch_ahead(self, *params: Param) -> Sequence[Row]:
        found = await self._read(self._main.read_beside, self.dialect.candidates_after, params)
        return _rows.decode(found[0][0])

    async def fetch_logs(self, sql: str, *params: Param) -> Sequence[Row]:
        return await self._read(self._logs.read, sql, params)

    async def _read(self, read: Read, sql: str, params: Sequence[Param]) -> Sequence[Row]:
        if self._closed:
            raise StoreDown("the store is closed")
        try:
            return await read(sql, params)
        except apsw.Error as error:
            raise StoreDown(f"the database could not be read: {error}") from error

    async def _write(self, lines: Lines, work: Work[T]) -> T:
        """Run one transaction that is no change."""

        def transaction(connection: apsw.Connection) -> T:
            connection.execute("begin immediate")
            try:
                done = work(connection)
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise
            return done

        if self._closed:
            raise StoreDown("the store is closed")
        try:
            return await lines.write(transaction)
        except apsw.Error as error:
            raise StoreDown(f"the database could not be written: {error}") from error

    def prepare(self, batch: Sequence[Entry]) -> Prepared:
        """The values that the view for hot changes takes, if it has no others."""
        kinds, others = by_kind(batch)
        return kinds, others, None if others else hot_parameters(kinds)

    async def commit(
        self, batch: Sequence[Entry], *, together: bool = False, prepared: Prepared | None = None
    ) -> Sequence[Verdict]:
        """One transaction of group commit; a batch of hot changes that are not all as they were takes two."""
        kinds, others, values = prepared or self.prepare(batch)

        def write(connection: apsw.Connection) -> int | Sequence[Verdict]:
            before = None if others else self._hot.save(values, len(batch))
            if before is not None:
                return before
            self._hot.forget()
            return sqlite_commit.commit(connection, batch, together=together)

        written = await self._main.write(write)
        return in_turn(batch, in_order(kinds), written) if isinstance(written, int) else written

    async def find(self, batch: Sequence[Entry]) -> Mapping[str, int]:
        """Which changes of a batch are in the history. Asked on the writer, so nothing can be under way."""
        subjects = [one.change.subject for one in batch]
        ids = [one.change.id for one in batch]
        found = await self._write(self._main, lambda line: fetch(line, queries.FOUND, (subjects, ids, 0)))
        return {row[0]: row[1] for row in found}

    async def void_leases(self) -> None:
        """End the leases of earlier servers: whoever holds the lock file knows that they are gone."""
        text = "update leases set until = ?1 where until > ?1"
        await self._write(self._main, lambda line: line.execute(text, (self._clock(),)).fetchall())

    async def take_lease(self, host: str, owner: str, ttl_ms: int) -> tuple[Lease, Lease | None] | None:

        def take(connection: apsw.Connection) -> tuple[Lease, Lease | None] | None:
            found = connection.execute("select * from leases where host = ?", (host,)).fetchall()
            was = rows.value(Lease, found[0]) if found else None
            now = self._clock()
            if was is not None and was.until > now and was.owner != owner:
                return None
            epoch = max(now, 0 if was is None else was.epoch + 1)
            led_until = now if was is None else was.renewed_at  # nobody led since then until the new leader renews
            mine = Lease(host=host, owner=owner, epoch=epoch, until=now + ttl_ms, renewed_at=led_until)
            connection.execute("insert or replace into leases values (?, ?, ?, ?, ?)", astuple(mine))
            return mine, was

        return await self._write(self._main, take)

    async def renew_leases(self, owner: str, hosts: Sequence[str], ttl_ms: int) -> Sequence[Lease]:
        text = """
        update leases set until = ?1 + ?2, renewed_at = ?1
        where owner = ?3 and host in (select value from json_each(?4)) and until > ?1 returning *
        """

        def renew(connection: apsw.Connection) -> Sequence[Row]:
            return connection.execute(text, (self._clock(), ttl_ms, owner, encode(hosts).decode())).fetchall()

        return [rows.value(Lease, row) for row in await self._write(self._main, renew)]

    async def resign_leases(self, owner: str, hosts: Sequence[str]) -> None:
        text = """
        update leases set until = ?1 where owner = ?2 and host in (select value from json_each(?3)) and until > ?1
        """
        named = encode(hosts).decode()
        await self._write(self._main, lambda line: line.execute(text, (self._clock(), owner, named)).fetchall())

    async def append_logs(self, chunks: Sequence[LogChunk], cap_bytes: int) -> Mapping[str, LogTail]:
        runs = sorted({chunk.run_id for chunk in chunks})

        def append(connection: apsw.Connection) -> Sequence[Row]:
            connection.executemany(APPEND_LOG, (astuple(chunk) for chunk in chunks))
            if any(chunk.bytes for chunk in chunks):
                connection.executemany(TRIM_LOG, [(run, cap_bytes) for run in runs])
            return fetch(connection, queries.LOG_TAILS_SQLITE, [runs])

        tails = [rows.value(LogTail, row) for row in await self._write(self._logs, append)]
        return {tail.run_id: tail for tail in tails}

    async def transact(self, *steps: Step, as_writer: bool = False) -> Sequence[Row]:
        """Run the steps in one transaction; the rows of the first one. Whoever writes is the writer here."""
        first, *_ = await self._write(self._main, lambda line: [fetch(line, sql, rest) for sql, *rest in steps])
        return first

    async def transact_logs(self, *steps: Step) -> None:
        await self._write(self._logs, lambda line: [fetch(line, sql, values) for sql, *values in steps])


def _incarnation(connection: apsw.Connection) -> str:
    return str(connection.execute(queries.INCARNATION).get)
