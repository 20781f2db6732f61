"""Where a store is named by a URL: opened, migrated, asked for its schema."""

import fcntl
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing, contextmanager
from pathlib import Path
from typing import Final

from standby.core.errors import Refused
from standby.store.contract import Store, StoreDown
from standby.store.migrate import Status, compare, known, migrate_sqlite, sqlite_status

SQLITE: Final = "sqlite:///"
POSTGRES: Final = ("postgresql://", "postgres://")


@asynccontextmanager
async def open_store(url: str, *, hints: bool = True) -> AsyncIterator[Store]:
    """The store of a server, closed at the end. An engine that is not used is not loaded."""
    if url.startswith(POSTGRES):
        from standby.store.postgres import PostgresStore  # asyncpg is an extra

        remote = await PostgresStore.open(url, hints=hints)
        try:
            yield remote
        finally:
            await remote.close()
        return
    from standby.store.sqlite import SqliteStore

    path = sqlite_path(url)
    with only_server(path):
        local = SqliteStore.open(path, hints=hints)
        try:
            await local.void_leases()
            yield local
        finally:
            await local.close()


async def schema_status(url: str) -> Status:
    """Which migrations were applied and which are pending (`.sql` is their text); changes nothing."""
    if url.startswith(POSTGRES):
        from standby.store import postgres_session as session

        connection = await session.connect(url, session.READER)
        try:
            return await session.postgres_status(connection)
        finally:
            await connection.close()
    path = sqlite_path(url)
    with _in_words(path):
        if not path.exists():
            return compare(known("sqlite"), [])
        import apsw

        with closing(apsw.Connection(str(path), flags=apsw.SQLITE_OPEN_READONLY)) as reader:
            return sqlite_status(reader)


async def migrate(url: str) -> Status:
    """Bring the database up to date; returns how it stood before."""
    if url.startswith(POSTGRES):
        from standby.store.postgres_session import migrate_postgres

        return await migrate_postgres(url)
    from standby.store.sqlite import clock_ms
    from standby.store.sqlite_lines import open_connection

    path = sqlite_path(url)
    with only_server(path), _in_words(path), closing(open_connection(path)) as connection:
        return migrate_sqlite(connection, clock_ms(), path=path)


def sqlite_path(url: str) -> Path:
    """The file that a sqlite:/// URL names: `sqlite:///relative.db` or `sqlite:////absolute.db`."""
    if not url.startswith(SQLITE) or len(url) == len(SQLITE):
        raise Refused(f"not a store: {url!r}. Use sqlite:///path/to/standby.db or postgresql://host/database")
    return Path(url.removeprefix(SQLITE))


@contextmanager
def only_server(path: Path) -> Iterator[None]:
    """Hold the file against a second server; the lock ends with the process, however that ends."""
    with _in_words(path):
        path.parent.mkdir(parents=True, exist_ok=True)
        lock = path.with_name(f"{path.name}.lock").open("a+")  # closed below
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            lock.seek(0)
            pid = lock.read().strip() or "unknown"
            raise Refused(
                f"another Standby server (pid {pid}) uses {path}. SQLite admits one server: stop it, or use PostgreSQL"
            ) from None
        lock.truncate(0)
        lock.write(str(os.getpid()))
        lock.flush()
        yield


@contextmanager
def _in_words(path: Path) -> Iterator[None]:
    """Say which file cannot be used, and why."""
    import apsw

    try:
        yield
    except (apsw.Error, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise StoreDown(f"{path} cannot be used as a database: {why}") from error
