"""Connections to a SQLite file, each with a thread of its own where its calls would keep the event loop waiting."""

import asyncio
import contextlib
import re
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path
from queue import SimpleQueue
from threading import Thread
from typing import Any, Final, Protocol, TypeVar

import apsw
from msgspec.json import encode

from standby.store.reads import Param
from standby.store.rows import Row

T = TypeVar("T")
Work = Callable[[apsw.Connection], T]

BUSY_MS: Final = 30_000
READ_BUSY_MS: Final = 1_000
_LIST: Final = re.compile(r"= any \(cast\(\$([0-9]+) as text\[\]\)\)")


class Lines(Protocol):
    """The connections to one database file."""

    writer: apsw.Connection

    async def write(self, work: Work[T]) -> T:
        """Run a whole transaction where the writer lives."""

    async def read(self, sql: str, params: Sequence[Param]) -> Sequence[Row]:
        """Run one reading statement."""

    async def read_beside(self, sql: str, params: Sequence[Param]) -> Sequence[Row]:
        """The same, while the caller's thread does something else."""

    def close(self) -> None: ...


class Line:
    """A connection whose calls are made by a thread, one after the other. (A pool of one thread takes three times as
    long for a call, and most of that with the interpreter in its hands.)"""

    def __init__(self, connection: apsw.Connection, name: str) -> None:
        self.connection = connection
        self._asked: SimpleQueue[tuple[asyncio.Future[Any], Work[Any]] | None] = SimpleQueue()
        self._thread = Thread(target=self._answer, name=name, daemon=True)
        self._thread.start()

    async def call(self, work: Work[T]) -> T:
        """What the work returns or raises. It is done also when nobody waits for it any more."""
        answer: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self._asked.put((answer, work))
        return await answer

    def close(self) -> None:
        """Do what was asked, and let the connection go."""
        self._asked.put(None)
        self._thread.join()
        self.connection.close()

    def _answer(self) -> None:
        while (asked := self._asked.get()) is not None:
            answer, work = asked
            try:
                done, error = work(self.connection), None
            except BaseException as raised:  # noqa: BLE001  it is the caller's
                done, error = None, raised
            with contextlib.suppress(RuntimeError):  # the loop is gone, and whoever waited with it
                answer.get_loop().call_soon_threadsafe(_tell, answer, done, error)
            del asked, answer, work, done, error  # nothing of it is kept until the next call


class Threads:
    """A file: one writer thread, and a reader.

    The writer's calls are made in the order in which they are asked for; group commit has at most two batches there, so
    a lease renewal never waits for more. Short reads are done on the spot: in WAL mode they wait for nobody, and a trip
    through a thread costs many times what they do. Long ones (logs) have a thread of their own, and so has what is read
    in advance.
    """

    def __init__(self, path: Path, *, synchronous: str, long_reads: bool) -> None:
        self.writer = open_connection(path, synchronous=synchronous)
        self._path, self._long_reads = path, long_reads
        self._writing = Line(self.writer, "standby-writer")
        self._reader: apsw.Connection | None = None
        self._beside: Line | None = None
        """Opened when it is needed."""

    def open_reader(self) -> None:
        """After the schema is there."""
        if not self._long_reads:
            self._reader = self._reading()

    async def write(self, work: Work[T]) -> T:
        return await self._writing.call(work)

    async def read(self, sql: str, params: Sequence[Param]) -> Sequence[Row]:
        if self._long_reads:
            return await self.read_beside(sql, params)
        assert self._reader is not None, "the schema was not opened"
        await asyncio.sleep(0)  # a loop of reads must not keep everybody else from their turn
        return fetch(self._reader, sql, params)

    async def read_beside(self, sql: str, params: Sequence[Param]) -> Sequence[Row]:
        if self._beside is None:
            self._beside = Line(self._reading(), "standby-reader")
        return await self._beside.call(lambda line: fetch(line, sql, params))

    def close(self) -> None:
        if self._beside is not None:
            self._beside.close()
        if self._reader is not None:
            self._reader.close()
        self._writing.close()

    def _reading(self) -> apsw.Connection:
        connection = apsw.Connection(str(self._path), flags=apsw.SQLITE_OPEN_READONLY)
        connection.set_busy_timeout(READ_BUSY_MS)
        return connection


class Inline:
    """A database in memory, used where the caller is: no threads, every call done when it returns."""

    def __init__(self) -> None:
        self.writer = apsw.Connection(":memory:")

    async def write(self, work: Work[T]) -> T:
        return work(self.writer)

    async def read(self, sql: str, params: Sequence[Param]) -> Sequence[Row]:
        return fetch(self.writer, sql, params)

    async def read_beside(self, sql: str, params: Sequence[Param]) -> Sequence[Row]:
        return fetch(self.writer, sql, params)

    def close(self) -> None:
        self.writer.close()


def open_connection(path: Path, *, synchronous: str = "full") -> apsw.Connection:
    """A writing connection as the store wants it."""
    connection = apsw.Connection(str(path))
    connection.set_busy_timeout(BUSY_MS)
    connection.pragma("journal_mode", "wal")
    connection.pragma("synchronous", synchronous)
    connection.pragma("journal_size_limit", 64_000_000)
    return connection


def fetch(connection: apsw.Connection, sql: str, params: Sequence[Param]) -> Sequence[Row]:
    """The rows of one of the texts of `queries`."""
    bound = [param if isinstance(param, str | int | float | None) else encode(param).decode() for param in params]
    return connection.execute(_text(sql), bound).fetchall()


def _tell(answer: "asyncio.Future[Any]", done: object, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(done)
    else:
        answer.set_exception(error)


@cache
def _text(sql: str) -> str:
    """A text as SQLite takes it."""
    return _LIST.sub(r"in (select value from json_each(?\1))", sql).replace("$", "?")
