"""A long past, or a long queue, made fast: copies of one real order with its spec, run and events."""

import asyncio
from collections.abc import Iterator, Mapping
from contextlib import closing
from typing import Any, Final

import apsw
import asyncpg
from msgspec import Struct

from standby.store.store import POSTGRES, sqlite_path

PAGE: Final = 20_000
SAMPLE: Final = "select order_id, project from specs order by seq limit 1"
ROWS: Final = {
    "orders": "select * from orders where id = $1",
    "specs": "select * from specs where order_id = $1",
    "runs": "select * from runs where order_id = $1",
    "events": "select * from events where subject = $1 order by seq",
}
NUMBERED: Final = {"specs", "events"}
"""Tables whose first column is the number of an event: the order's first one, or its own."""
OF_PROJECT: Final = {"orders": 2, "specs": 3}
"""Tables with a column for the project, and its place."""
LAST_SEQ: Final = "select max(seq) from events"

Table = list[tuple[Any, ...]]


class Sample(Struct, frozen=True):
    """The rows of one order, by table."""

    order_id: str
    project: str
    rows: Mapping[str, Table]
    last_seq: int


def add_history(url: str, ended: int) -> None:
    """Add so many ended orders to a database whose first one is ended, and let the planner know of them."""
    _add(url, ended, None)


def add_waiting(url: str, waiting: int, projects: int) -> None:
    """Add so many waiting orders, of so many projects, to a database whose first one waits; the same."""
    _add(url, waiting, projects)


def _add(url: str, orders: int, projects: int | None) -> None:
    if url.startswith(POSTGRES):
        asyncio.run(_add_postgres(url, orders, projects))
    else:
        _add_sqlite(url, orders, projects)


def copies(sample: Sample, orders: int, projects: int | None) -> Iterator[Mapping[str, Table]]:
    """The sample's rows so many times, a page at a time, under ids older than any real one, events numbered on."""
    events = len(sample.rows["events"])
    for page in range(0, orders, PAGE):
        made: dict[str, Table] = {name: [] for name in sample.rows}
        for number in range(page, min(page + PAGE, orders)):
            project = sample.project if projects is None else f"p{number % projects}"
            told = [f'"project":"{each}"' for each in (sample.project, project)]
            seq = sample.last_seq + 1 + number * events
            for name, rows in sample.rows.items():
                for place, row in enumerate(rows):
                    head = seq + place if name in NUMBERED else row[0]
                    texts = [_renamed(value, sample.order_id, f"0{number:025d}") for value in (head, *row[1:])]
                    twin = [_renamed(value, *told) for value in texts]
                    if name in OF_PROJECT:
                        twin[OF_PROJECT[name]] = project
                    made[name].append(tuple(twin))
        yield made


def _renamed(value: Any, name: str, other: str) -> Any:
    return value.replace(name, other) if isinstance(value, str) and name in value else value


async def _add_postgres(url: str, orders: int, projects: int | None) -> None:
    connection = await asyncpg.connect(url)
    try:
        order_id, project = await connection.fetchrow(SAMPLE)
        rows = {name: [tuple(row) for row in await connection.fetch(sql, order_id)] for name, sql in ROWS.items()}
        sample = Sample(order_id, project, rows, await connection.fetchval(LAST_SEQ))
        for page in copies(sample, orders, projects):
            for name, made in page.items():
                await connection.copy_records_to_table(name, records=made)
        await connection.execute("vacuum analyze")
        await connection.execute("checkpoint")
    finally:
        await connection.close()


def _add_sqlite(url: str, orders: int, projects: int | None) -> None:
    with closing(apsw.Connection(str(sqlite_path(url)))) as connection:
        order_id, project = connection.execute(SAMPLE).get
        rows = {name: list(connection.execute(sql, (order_id,))) for name, sql in ROWS.items()}
        sample = Sample(order_id, project, rows, connection.execute(LAST_SEQ).get)
        for page in copies(sample, orders, projects):
            with connection:
                for name, made in page.items():
                    places = ", ".join("?" * len(made[0])) if made else ""
                    connection.executemany(f"insert into {name} values ({places})", made)  # noqa: S608 (a key of ROWS)
        connection.execute("analyze")
        connection.pragma("wal_checkpoint(truncate)")
