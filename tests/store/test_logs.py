"""Logs: stored once, resumed where they ended, capped at their oldest end."""

import asyncio

import pytest

from standby.store.contract import LogChunk, LogTail, Store

pytestmark = pytest.mark.anyio

BIG = 1_000_000


def chunk(first: int, count: int = 2, *, run: str = "r-1", closed: bool = False, body: str | None = None) -> LogChunk:
    text = body if body is not None else f"[{first}]"
    return LogChunk(
        run_id=run,
        first=first,
        count=count,
        body=text,
        cursor=f"at {first + count}",
        closed=closed,
        bytes=len(text.encode()),
    )


async def read(store: Store, from_line: int = 0, most_bytes: int = BIG) -> list[int]:
    return [one.first for one in await store.read_log("r-1", from_line, most_bytes)]


async def test_a_log_is_read_back_as_it_was_stored(store: Store) -> None:
    chunks = [chunk(0), chunk(2), chunk(4, closed=True)]
    await store.append_logs(chunks, BIG)

    assert list(await store.read_log("r-1", 0, BIG)) == chunks
    assert await store.read_log("r-2", 0, BIG) == []


async def test_a_chunk_is_never_stored_twice(store: Store) -> None:
    await store.append_logs([chunk(0), chunk(2)], BIG)
    await asyncio.gather(*(store.append_logs([chunk(0, body="other"), chunk(2), chunk(4)], BIG) for _ in range(5)))
    await store.append_logs([chunk(3)], BIG)

    assert await read(store) == [0, 2, 4]
    assert (await store.read_log("r-1", 0, 1))[0].body == "[0]"


async def test_the_tail_says_where_to_go_on(store: Store) -> None:
    await store.append_logs([chunk(0), chunk(2, 5), chunk(0, 1, run="r-2", closed=True)], BIG)

    assert await store.log_tails(["r-1", "r-2", "r-3"]) == {
        "r-1": LogTail(run_id="r-1", next_line=7, cursor="at 7", closed=False),
        "r-2": LogTail(run_id="r-2", next_line=1, cursor="at 1", closed=True),
    }
    assert await store.log_tails([]) == {}


async def test_an_empty_chunk_moves_the_cursor_and_gives_way_to_lines(store: Store) -> None:
    await store.append_logs([chunk(0, 0)], BIG)
    assert (await store.log_tails(["r-1"]))["r-1"].next_line == 0

    await store.append_logs([chunk(0, 3)], BIG)
    await store.append_logs([chunk(3, 0, closed=True)], BIG)

    assert (await store.log_tails(["r-1"]))["r-1"] == LogTail(run_id="r-1", next_line=3, cursor="at 3", closed=True)
    assert [one.closed for one in await store.read_log("r-1", 0, BIG)] == [False, True]


async def test_a_closed_log_stays_closed(store: Store) -> None:
    await store.append_logs([chunk(0, 0, closed=True)], BIG)
    await store.append_logs([chunk(0, 3)], BIG)

    assert (await store.log_tails(["r-1"]))["r-1"] == LogTail(run_id="r-1", next_line=0, cursor="at 0", closed=True)


async def test_the_oldest_lines_go_when_a_log_is_over_its_cap(store: Store) -> None:
    body = "x" * 100
    for first in range(0, 20, 2):
        await store.append_logs([chunk(first, body=body), chunk(first, run="r-2", body=body)], 350)

    assert await read(store) == [14, 16, 18]
    await store.append_logs([chunk(0, body="late")], 350)
    assert await read(store) == [14, 16, 18]


async def test_a_chunk_larger_than_the_cap_is_kept_while_it_is_the_last(store: Store) -> None:
    await store.append_logs([chunk(0, body="x" * 500)], 100)
    assert await read(store) == [0]
    await store.append_logs([chunk(2, body="x" * 10)], 100)
    assert await read(store) == [2]


async def test_a_log_is_read_from_a_line_and_up_to_some_bytes(store: Store) -> None:
    await store.append_logs([chunk(first, body="x" * 100) for first in range(0, 20, 2)], BIG)

    assert await read(store, 5) == list(range(4, 20, 2))
    assert await read(store, 5, 250) == [4, 6, 8]
    assert await read(store, 5, 1) == [4]
    assert await read(store, 18) == [18]
    assert await read(store, 20) == []
