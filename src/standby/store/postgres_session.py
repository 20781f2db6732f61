"""Sessions with PostgreSQL: how they are opened, what bounds them, and what an error says about the outcome."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

from standby.core.errors import Refused
from standby.store.contract import StoreDown
from standby.store.migrate import APPLIED, LEDGER, Applied, Status, compare, known, new_incarnation, refuse

try:
    import asyncpg
except ImportError:  # pragma: no cover
    asyncpg = None

Connection = Any  # asyncpg has no types

CONNECT_S: Final = 5.0
END_S: Final = 2.0
COMMAND_S: Final = 8.0
"""Longer than any bound of the server's own, so that it is the server who says what became of a statement."""

WRITE_LOCK: Final = 0x5354414E444259
"""The advisory lock of all writers, the same number as in the schema."""

_SESSION: Final = {
    "application_name": "standby",
    "jit": "off",
    "tcp_keepalives_idle": "5",
    "tcp_keepalives_interval": "2",
    "tcp_keepalives_count": "3",
    "idle_in_transaction_session_timeout": "2000",
    # A plan made when a table was empty, or made for one value, would walk the whole table once it is full.
    "plan_cache_mode": "force_generic_plan",
    "enable_seqscan": "off",
    "enable_bitmapscan": "off",
    "enable_hashjoin": "off",
    "enable_mergejoin": "off",
    # What an index already has in order is not collected and sorted: a page costs a page.
    "enable_sort": "off",
    # Each statement must see what was committed before it, also after a wait for the lock.
    "default_transaction_isolation": "read committed",
}

WRITER: Final = {
    **_SESSION,
    "join_collapse_limit": "1",
    # Nobody holds the writers' lock for more than 3 s. A wait for it is cut after 1 s and begun anew, so each attempt
    # has 2 s of its own and waiting is not counted.
    "lock_timeout": "1000",
    "statement_timeout": "3000",
    "client_connection_check_interval": "1000",
}

READER: Final = {**_SESSION, "statement_timeout": "5000", "lock_timeout": "2000"}


async def connect(url: str, settings: Mapping[str, str]) -> Connection:
    """A session with these settings. Raises StoreDown when there is no server, Refused when asyncpg is missing."""
    require()
    try:
        return await asyncpg.connect(
            url,
            timeout=CONNECT_S,
            command_timeout=COMMAND_S,
            server_settings=dict(settings),
            max_cached_statement_lifetime=0,
        )
    except transient() as error:
        why = str(error) or f"no answer within {CONNECT_S:g} s"  # a timeout has no words of its own
        raise StoreDown(f"PostgreSQL could not be reached: {why}") from error


def pool(url: str, settings: Mapping[str, str], most: int) -> Any:
    """A pool of such sessions, opened when they are needed; to be awaited before use."""
    require()
    return asyncpg.create_pool(
        url,
        min_size=0,
        max_size=most,
        timeout=CONNECT_S,
        command_timeout=COMMAND_S,
        server_settings=dict(settings),
        max_cached_statement_lifetime=0,
        # Nothing here changes its session, so there is nothing to reset and no round trip to pay for it.
        reset=_leave,
    )


async def end(sessions: Any) -> None:
    """Close a session or a pool; politely, unless the server does not answer."""
    try:
        async with asyncio.timeout(END_S):
            await sessions.close()
    except transient():
        sessions.terminate()


def require() -> None:
    """Refuse clearly when the driver is not installed."""
    if asyncpg is None:
        raise Refused("PostgreSQL needs standby[postgres]; in a clone: .venv/bin/pip install -e '.[postgres]'")


def transient() -> tuple[type[Exception], ...]:
    """What a call can raise when the server is gone, slow or in trouble."""
    # An internal error of the client is what a session says that ended under its hands.
    return (OSError, TimeoutError, asyncpg.PostgresError, asyncpg.InterfaceError, asyncpg.InternalClientError)


def violated() -> tuple[type[Exception], ...]:
    """What says that a row can never be written as it is, and that nothing of its transaction was."""
    broken = (asyncpg.IntegrityConstraintViolationError, asyncpg.DataError, asyncpg.exceptions.DataError)
    return (*broken, asyncpg.ProgramLimitExceededError, OverflowError)


def lock_not_available() -> type[Exception]:
    """What a wait for the writers' lock ends with when it took too long."""
    found: type[Exception] = asyncpg.LockNotAvailableError
    return found


async def postgres_status(connection: Connection) -> Status:
    """How an open PostgreSQL database stands; changes nothing."""
    if await connection.fetchval("select to_regclass('migrations') is null"):
        return compare(known("postgres"), [])
    return compare(known("postgres"), [Applied(*row) for row in await connection.fetch(APPLIED)])


async def migrate_postgres(url: str) -> Status:
    """Bring a PostgreSQL database up to date in one transaction; returns what was done."""
    connection = await connect(url, {"application_name": "standby migrate"})
    try:
        async with connection.transaction():
            await connection.execute("select pg_advisory_xact_lock($1)", WRITE_LOCK, timeout=60)
            status = await postgres_status(connection)
            if status.unknown or status.changed:
                refuse(status)
            await connection.execute(LEDGER)
            for step in status.pending:
                await connection.execute(step.sql, timeout=3600)
                ledger = "insert into migrations values ($1, $2, $3, floor(extract(epoch from now()) * 1000)::bigint)"
                await connection.execute(ledger, step.number, step.name, step.checksum)
            if await connection.fetchval("select count(*) from meta") == 0:
                await connection.execute("insert into meta (incarnation) values ($1)", new_incarnation())
        return status
    finally:
        await connection.close()


async def _leave(connection: Connection) -> None:
    return None
