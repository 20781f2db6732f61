"""A long past, made fast: copies of one real ended order with its spec, run and events."""

import asyncio
from collections.abc import Iterator
from contextlib import closing
from typing import Any, Final

import apsw
import asyncpg

from standby.store.store import POSTGRES, sqlite_path

PAGE: Final = 20_000
SAMPLE: Final = "select order_id from specs order by seq limit 1"
ROWS: Final = {
    "orders": "select * from orders where id = $1",
    "specs": "select * from specs where order_id = $1",
    "runs": "select * from runs where order_id = $1",
    "events": "select * from events where subject = $1 order by seq",
}
NUMBERED: Final = {"specs", "events"}
"""Tables whose first column is the number of an event: the order's first one, or its own."""
LAST_SEQ: Final = "select max(seq) from events"

Table = list[tuple[Any, ...]]


def add_history(url: str, ended: int) -> None:
    """Add so many ended orders to a database that has at least one, and let the planner know of them."""
    if url.startswith(POSTGRES):
        asyncio.run(_add_postgres(url, ended))
    else:
        _add_sqlite(url, ended)


def copies(sample: dict[str, Table], order_id: str, last_seq: int, ended: int) -> Iterator[dict[str, Table]]:
    """The sample's rows so many times, a page at a time, under ids older than any real one, events numbered on."""
    events = len(sample["events"])
    for page in range(0, ended, PAGE):
        made: dict[str, Table] = {name: [] for name in sample}
        for number in range(page, min(page + PAGE, ended)):
            twin, seq = f"0{number:025d}", last_seq + 1 + number * events
            for name, rows in sample.items():
                for place, row in enumerate(rows):
                    head = seq + place if name in NUMBERED else row[0]
                    made[name].append(tuple(_renamed(value, order_id, twin) for value in (head, *row[1:])))
        yield made


def _renamed(value: Any, order_id: str, twin: str) -> Any:
    return value.replace(order_id, twin) if isinstance(value, str) and order_id in value else value


async def _add_postgres(url: str, ended: int) -> None:
    connection = await asyncpg.connect(url)
    try:
        order_id, last_seq = await connection.fetchval(SAMPLE), await connection.fetchval(LAST_SEQ)
        sample = {name: [tuple(row) for row in await connection.fetch(sql, order_id)] for name, sql in ROWS.items()}
        for page in copies(sample, order_id, last_seq, ended):
            for name, rows in page.items():
                await connection.copy_records_to_table(name, records=rows)
        await connection.execute("vacuum analyze")
        await connection.execute("checkpoint")
    finally:
        await connection.close()


def _add_sqlite(url: str, ended: int) -> None:
    with closing(apsw.Connection(str(sqlite_path(url)))) as connection:
        order_id, last_seq = connection.execute(SAMPLE).get, connection.execute(LAST_SEQ).get
        sample = {name: list(connection.execute(sql, (order_id,))) for name, sql in ROWS.items()}
        for page in copies(sample, order_id, last_seq, ended):
            with connection:
                for name, rows in page.items():
                    places = ", ".join("?" * len(rows[0]))
                    connection.executemany(f"insert into {name} values ({places})", rows)  # noqa: S608 (a key of ROWS)
        connection.execute("analyze")
        connection.pragma("wal_checkpoint(truncate)")
