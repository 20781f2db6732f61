"""Process orders end to end, from the HTTP submit to the stored log, next to what bare posix_spawn can do here."""

import asyncio
import os
import time

import httpx2

from bench.rounds import Figures, turns
from bench.run import Run
from tests.e2e.house import House, house

CALLERS = 16
POOL = '[pools.default]\nslots_max = 64\nmemory_mb = 10\nqueue_timeout = "10m"\n'


def bare(count: int) -> float:
    """Spawn and reap `count` processes, 16 at a time, with nothing around them."""
    began = time.perf_counter()
    started = ended = 0
    while ended < count:
        while started < count and started - ended < CALLERS:
            os.posix_spawn(
                "/bin/echo", ["echo", "hello"], {}, file_actions=[(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]
            )
            started += 1
        os.wait()
        ended += 1
    return count / (time.perf_counter() - began)


async def orders(home: House, count: int) -> float:
    """Submit `count` orders by 16 callers at once and wait until every log is stored."""
    headers = {"Authorization": f"Bearer {home.key}"}
    async with httpx2.AsyncClient(base_url=f"{home.url}/api/v1", headers=headers, timeout=60) as client:
        began = time.perf_counter()
        numbers = iter(range(count))
        ids: list[str] = []

        async def caller() -> None:
            for _ in numbers:
                answer = await client.post("/work-orders", json={"command": ["/bin/echo", "hello"]})
                answer.raise_for_status()
                ids.append(answer.json()["id"])

        await asyncio.gather(*(caller() for _ in range(CALLERS)))
        while (await _unfinished(client)) > 0:
            await asyncio.sleep(0.02)
        rate = count / (time.perf_counter() - began)
        await _check_logs(client, ids)
    return rate


async def _unfinished(client: httpx2.AsyncClient) -> int:
    pool = (await client.get("/pools/default")).json()
    return int(pool["pending"]) + int(pool["open"])


async def _check_logs(client: httpx2.AsyncClient, ids: list[str]) -> None:
    """Every order completed and its one line is in the store: a rate without the work would be no rate."""
    for order_id in ids:
        while not (page := (await client.get(f"/work-orders/{order_id}/logs")).json())["closed"]:
            await asyncio.sleep(0.02)
        assert [line["text"] for line in page["lines"]] == ["hello"], order_id


def measure(run: Run) -> list[Figures]:
    """The row: orders a second against bare spawns a second, in turns."""
    count = run.scale.processes
    with house(run.file().parent / "house", toml=POOL, poll="1s") as home:
        home.start()
        asyncio.run(orders(home, 100))
        ours, limits = turns(min(3, run.scale.rounds), lambda: asyncio.run(orders(home, count)), lambda: bare(count))
    return [
        Figures(
            name="process orders, HTTP submit to stored log",
            engine="sqlite",
            unit="orders/s",
            better="higher",
            ours=ours,
            peer_name="bare posix_spawn",
            peer=limits,
        )
    ]
