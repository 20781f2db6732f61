"""The embedded store: SQLite in WAL mode, one writer thread, a reader of its own, logs in a second file."""

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import cache
from pathlib import Path
from typing import Final, Protocol, TypeVar

import apsw
from msgspec.json import encode
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
from standby.store.sqlite_hot import SCHEMA, hot_parameters, save_hot
from standby.store.sweep import Step, Sweeps

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]

BUSY_MS: Final = 30_000
READ_BUSY_MS: Final = 1_000
_LIST: Final = re.compile(r"= any \(cast\(\$([0-9]+) as text\[\]\)\)")

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


class Lines(Protocol):
    """The connections to one database file."""

    writer: apsw.Connection

    async def write(self, work: Work[T]) -> T:
        """Run a whole transaction where the writer lives."""

    async def read(self, sql: str, params: Sequence[Param]) -> Sequence[Row]:
        """Run one reading statement."""

    def close(self) -> None: ...


class Threads:
    """A file: one writer thread, and a reader.

    The writer's queue is first in, first out; group commit has at most one batch in it, so a lease renewal never waits
    for more than the batch under way. Short reads are done on the spot: in WAL mode they wait for nobody, and a trip
    through a thread costs many times what they do. Long ones (logs) have a thread of their own.
    """

    def __init__(self, path: Path, *, synchronous: str, long_reads: bool) -> None:
        self.writer = open_connection(path, synchronous=synchronous)
        self._writing = ThreadPoolExecutor(1, thread_name_prefix="standby-writer")
        self._reading = ThreadPoolExecutor(1, thread_name_prefix="standby-reader") if long_reads else None
        self._reader: apsw.Connection | None = None
        self._path = path

    def open_reader(self) -> None:
        """After the schema is there."""
        self._reader = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
        self._reader.set_busy_timeout(READ_BUSY_MS)

    async def write(self, work: Work[T]) -> T:
        return await asyncio.get_running_loop().run_in_executor(self._writing, work, self.writer)

    async def read(self, sql: str, params: Sequence[Param]) -> Sequence[Row]:
        assert self._reader is not None, "the schema was not opened"
        if self._reading is None:
            await asyncio.sleep(0)  # a loop of reads must not keep everybody else from their turn
            return _fetch(self._reader, sql, params)
        return await asyncio.get_running_loop().run_in_executor(self._reading, _fetch, self._reader, sql, params)

    def close(self) -> None:
        if self._reading is not None:
            self._reading.shutdown()
        self._writing.shutdown()
        if self._reader is not None:
            self._reader.close()
        self.writer.close()


class Inline:
    """A database in memory, used where the caller is: no threads, every call done when it returns."""

    def __init__(self) -> None:
        self.writer = apsw.Connection(":memory:")

    async def write(self, work: Work[T]) -> T:
        return work(self.writer)

    async def read(self, sql: str, params: Sequence[Param]) -> Sequence[Row]:
        return _fetch(self.writer, sql, params)

    def close(self) -> None:
        self.writer.close()


class SqliteStore(Sweeps):
    """The store contract on SQLite. One server process at a time: `open_store` sees to that."""

    dialect = DIALECT
    purged = sweep.PURGED_SQLITE
    kind = "sqlite"

    def __init__(self, main: Lines, logs: Lines, incarnation: str, *, clock: Callable[[], int], hints: bool) -> None:
        self.incarnation = incarnation
        self.hints = Hints(on=hints)
        self._main, self._logs, self._clock = main, logs, clock
        main.writer.execute(SCHEMA)
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

    async def save(self, changes: Sequence[Change], *, together: bool = False) -> Sequence[Verdict]:
        return await self._commit.save(changes, together=together)

    async def close(self) -> None:
        """Write what waits, then let go of the files."""
        if self._closed:
            return
        await self._commit.close()
        self._closed = True
        self._main.close()
        self._logs.close()

    async def fetch(self, sql: str, *params: Param) -> Sequence[Row]:
        return await self._read(self._main, sql, params)

    async def fetch_logs(self, sql: str, *params: Param) -> Sequence[Row]:
        return await self._read(self._logs, sql, params)

    async def _read(self, lines: Lines, sql: str, params: Sequence[Param]) -> Sequence[Row]:
        if self._closed:
            raise StoreDown("the store is closed")
        try:
            return await lines.read(sql, params)
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
        if not others:
            last_seq = await self._main.write(lambda line: save_hot(line, values))
            if last_seq is not None:
                return in_turn(batch, in_order(kinds), last_seq - len(batch))
        return await self._main.write(lambda line: sqlite_commit.commit(line, batch, together=together))

    async def find(self, batch: Sequence[Entry]) -> Mapping[str, int]:
        """Which changes of a batch are in the history. Asked on the writer, so nothing can be under way."""
        subjects = [one.change.subject for one in batch]
        ids = [one.change.id for one in batch]
        found = await self._write(self._main, lambda line: _fetch(line, queries.FOUND, (subjects, ids, 0)))
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
            return _fetch(connection, queries.LOG_TAILS_SQLITE, [runs])

        tails = [rows.value(LogTail, row) for row in await self._write(self._logs, append)]
        return {tail.run_id: tail for tail in tails}

    async def transact(self, *steps: Step, as_writer: bool = False) -> Sequence[Row]:
        """Run the steps in one transaction; the rows of the first one. Whoever writes is the writer here."""
        first, *_ = await self._write(self._main, lambda line: [_fetch(line, sql, rest) for sql, *rest in steps])
        return first

    async def transact_logs(self, *steps: Step) -> None:
        await self._write(self._logs, lambda line: [_fetch(line, sql, values) for sql, *values in steps])


def open_connection(path: Path, *, synchronous: str = "full") -> apsw.Connection:
    """A writing connection as the store wants it."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(BUSY_MS)
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", synchronous)
    connection.pragma("journal_size_limit", 64_000_000)
    return connection


def _incarnation(connection: apsw.Connection) -> str:
    return str(connection.execute(queries.INCARNATION).get)


def _fetch(connection: apsw.Connection, sql: str, params: Sequence[Param]) -> Sequence[Row]:
    bound = [param if isinstance(param, str | int | float | None) else encode(param).decode() for param in params]
    return connection.execute(_text(sql), bound).fetchall()


@cache
def _text(sql: str) -> str:
    """A text as SQLite takes it."""
    return _LIST.sub(r"in (select value from json_each(?\1))", sql).replace("$", "?")
