"""A writer killed or frozen anywhere leaves nothing half done and stops nobody for long."""

import asyncio
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from sim.fold import fold
from standby.store.contract import Store
from standby.store.sqlite import SqliteStore
from standby.store.store import open_store
from tests import make
from tests.conftest import Database
from tests.postgres import fresh_database
from tests.store.history import rows_of

pytestmark = pytest.mark.anyio

ROOT = Path(__file__).parents[2]

SAVE_FOR_EVER = """
import asyncio, sys
from tests import make
from tests.conftest import Database

async def main(kind, url):
    store = await Database(kind, url).open()
    number = 0
    while True:
        number += 1
        places = [make.slot(f"{number}-{n}") for n in range(20)]
        made = [make.submit() for _ in places]
        await store.save([*made, *map(make.add_slot, places)])
        claims = [make.claim(one.order, place) for one, place in zip(made, places)]
        await store.save(claims)
        await store.save([make.settle(make.saved_order(one), place) for one, place in zip(claims, places)])

asyncio.run(main(*sys.argv[1:]))
"""

HOLD_THE_LOCK = """
import asyncio, sys
from standby.store import postgres_session as session

async def main(url):
    writer = await session.connect(url, session.WRITER)
    await writer.execute("begin")
    await writer.execute("select pg_advisory_xact_lock($1)", session.WRITE_LOCK)
    await writer.execute("insert into keys values ('half', 'done', 1)")
    print("held", flush=True)
    while True:
        await asyncio.sleep(3600)

asyncio.run(main(*sys.argv[1:]))
"""

STOP_HALFWAY = """
import sys
from pathlib import Path
from standby.store.entry import entry
from standby.store.sqlite_lines import open_connection
from standby.store.sqlite_commit import Batch
from tests import make

connection = open_connection(Path(sys.argv[1]))
connection.execute("begin immediate")
Batch(connection).write([entry(make.submit()) for _ in range(50)])
print("written", flush=True)
sys.stdin.read()
"""

READ_FOR_EVER = """
import sys, apsw
reader = apsw.Connection(sys.argv[1], flags=apsw.SQLITE_OPEN_READONLY)
reader.execute("begin")
reader.execute("select count(*) from events").fetchall()
print("reading", flush=True)
sys.stdin.read()
"""


@contextmanager
def process(text: str, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """Another process of ours; gone at the end, whatever happened to it."""
    command = [sys.executable, "-c", text, *args]
    env = {**os.environ, "PYTHONPATH": f"{ROOT}"}
    with subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        try:
            yield other
        finally:
            other.kill()


async def said(other: subprocess.Popen[bytes]) -> bytes:
    assert other.stdout is not None
    return await asyncio.to_thread(other.stdout.readline)


async def until_seq(store: Store, seq: int) -> None:
    async with asyncio.timeout(60):
        while await store.last_seq() < seq:  # noqa: ASYNC110 - another process writes
            await asyncio.sleep(0.01)


async def saved_in_time(store: Store, seconds: float) -> bool:
    async with asyncio.timeout(seconds):
        return all(verdict.saved for verdict in await store.save([make.submit()]))


async def test_a_killed_writer_leaves_nothing_half_done_and_blocks_nobody(database: Database) -> None:
    store = await database.open()
    with process(SAVE_FOR_EVER, database.kind, database.url) as other:
        await until_seq(store, 200)
        other.kill()
        assert await saved_in_time(store, 6)
        await check_history(store)


async def test_a_frozen_writer_leaves_nothing_half_done_and_blocks_nobody() -> None:
    # SQLite admits one server; what may be frozen beside it is a reader (below).
    async with fresh_database() as url, open_store(url) as store:
        with process(SAVE_FOR_EVER, "postgres", url) as other:
            await until_seq(store, 200)
            other.send_signal(signal.SIGSTOP)
            assert await saved_in_time(store, 6)
            await check_history(store)


async def check_history(store: Store) -> None:
    """No number is missing, and the rows are what the events say."""
    events = await store.events(0, 1_000_000)
    assert [event.seq for event in events] == list(range(1, len(events) + 1))
    assert fold(events) == await rows_of(store)


async def test_a_process_frozen_with_the_writers_lock_loses_it_within_seconds() -> None:
    async with fresh_database() as url, open_store(url) as store:
        with process(HOLD_THE_LOCK, url) as other:
            assert await said(other) == b"held\n"
            other.send_signal(signal.SIGSTOP)

            assert await saved_in_time(store, 6)
            assert await store.keys() == []


async def test_a_process_killed_inside_a_transaction_leaves_nothing_of_it(tmp_path: Path) -> None:
    path = tmp_path / "standby.db"
    async with open_store(f"sqlite:///{path}") as store:
        await store.save([make.submit()])
        with process(STOP_HALFWAY, str(path)) as other:
            assert await said(other) == b"written\n"
            other.kill()
            other.wait()

            assert await saved_in_time(store, 6)
            events = await store.events(0, 100)
            assert len(events) == 2
            assert fold(events) == await rows_of(store)


async def test_a_frozen_reader_blocks_no_writer(tmp_path: Path) -> None:
    path = tmp_path / "standby.db"
    async with open_store(f"sqlite:///{path}") as store:
        await store.save([make.submit()])
        with process(READ_FOR_EVER, str(path)) as other:
            assert await said(other) == b"reading\n"
            other.send_signal(signal.SIGSTOP)

            assert await saved_in_time(store, 6)


async def test_a_server_killed_leaves_a_file_that_the_next_one_opens(tmp_path: Path) -> None:
    path = tmp_path / "standby.db"
    url = f"sqlite:///{path}"
    async with open_store(url) as store:
        incarnation = store.incarnation
    with process(SAVE_FOR_EVER, "sqlite", url) as other:
        await until_events(path, 100)
        other.kill()
    async with open_store(url) as store:
        assert store.incarnation == incarnation
        assert fold(await store.events(0, 1_000_000)) == await rows_of(store)


async def until_events(path: Path, count: int) -> None:
    reader = SqliteStore.open(path)
    await until_seq(reader, count)
    await reader.close()
