"""A connection with a thread of its own: what is asked of it is done, once and in turn, whoever still waits."""

import asyncio
import threading
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import apsw
import pytest

from standby.store.sqlite_lines import Line, Threads, open_connection

pytestmark = pytest.mark.anyio


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    line = Line(open_connection(tmp_path / "some.db"), "test")
    yield line
    line.close()


def _insert(connection: apsw.Connection, number: int) -> None:
    connection.execute("insert into t values (?)", (number,))


def _numbers(connection: apsw.Connection) -> list[int]:
    return [row[0] for row in connection.execute("select n from t order by rowid")]


async def test_calls_are_made_one_after_the_other_beside_the_event_loop(line: Line) -> None:
    await line.call(lambda connection: connection.execute("create table t (n)").fetchall())
    calls = [asyncio.create_task(line.call(partial(_insert, number=n))) for n in range(20)]
    await asyncio.gather(*calls)
    assert await line.call(_numbers) == list(range(20))
    assert await line.call(lambda _: threading.current_thread().name) == "test"


async def test_what_a_call_raises_is_told_to_its_caller_alone(line: Line) -> None:
    with pytest.raises(apsw.SQLError, match="no such table"):
        await line.call(_numbers)
    with pytest.raises(ZeroDivisionError):
        await line.call(lambda _: 1 // 0)
    assert await line.call(lambda connection: connection.execute("select 1").get) == 1


async def test_a_call_is_made_also_when_nobody_waits_for_it_any_more(line: Line) -> None:
    held = threading.Event()
    first = asyncio.create_task(line.call(lambda _: held.wait(10)))
    made = asyncio.create_task(line.call(lambda connection: connection.execute("create table t (n)").fetchall()))
    await asyncio.sleep(0)
    made.cancel()
    held.set()
    assert await first
    assert await line.call(_numbers) == []


async def test_closing_waits_for_what_was_asked(tmp_path: Path) -> None:
    lines = Threads(tmp_path / "some.db", synchronous="full", long_reads=False)
    await lines.write(lambda connection: connection.execute("create table t (n)").fetchall())
    lines.open_reader()
    asked = [asyncio.create_task(lines.write(partial(_insert, number=n))) for n in range(20)]
    await asyncio.sleep(0)
    assert await lines.read_beside("select count(*) from t", ()) != []
    lines.close()
    await asyncio.gather(*asked)
    assert _numbers(apsw.Connection(str(tmp_path / "some.db"))) == list(range(20))


def test_a_loop_that_is_gone_leaves_the_thread_at_work(tmp_path: Path) -> None:
    line, held = Line(open_connection(tmp_path / "some.db"), "test"), threading.Event()

    async def leave() -> None:
        asking = asyncio.ensure_future(line.call(lambda _: held.wait(10)))
        await asyncio.sleep(0)
        asking.cancel()

    asyncio.run(leave())
    held.set()

    async def ask() -> object:
        return await line.call(lambda connection: connection.execute("select 1").get)

    assert asyncio.run(ask()) == 1
    line.close()
