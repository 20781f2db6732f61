"""PgQueuer's side, as its documents say it is fastest: asyncpg, uvloop, batches, its autovacuum settings.

python -m bench.peers.pgqueuer DATABASE_URL
"""

import asyncio
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

import asyncpg
import uvloop
from pgqueuer.core.qm import QueueManager
from pgqueuer.models import Job
from pgqueuer.queries import Queries
from pgqueuer.types import QueueExecutionMode

from bench.talk import answer, paced, rate, until, waits_ms

ENTRYPOINT: Final = "noop"
PAGE: Final = 1_000


class Peer:
    """One queue, asked for figures."""

    def __init__(self, queries: Queries) -> None:
        self._queries = queries
        self._left = 0
        self._done_at = 0.0
        self._watch()

    def _watch(self) -> None:
        """Note when completions were committed."""
        log_jobs = self._queries.log_jobs

        async def watched(done: list[Any]) -> None:
            await log_jobs(done)
            self._left -= len(done)
            self._done_at = time.monotonic()

        self._queries.log_jobs = watched

    async def about(self) -> Mapping[str, str]:
        """Which version this is."""
        return {"pgqueuer": version("pgqueuer")}

    async def drain(self, orders: int, batch: int) -> Mapping[str, Any]:
        """Jobs a second from the first start to the last commit, with nothing but a full queue at first."""
        for first in range(0, orders, PAGE):
            await self._enqueue(min(PAGE, orders - first))
        worker, began = self._worker()
        self._left = orders
        await worker.run(batch_size=batch, mode=QueueExecutionMode.drain)
        assert self._left == 0, f"{self._left} jobs are not done"
        return {"rate": orders / (self._done_at - began[0][0])}

    async def submit(self, calls: int, callers: int, size: int) -> Mapping[str, Any]:
        """Jobs a second that many callers at once put in, `size` a call."""
        call = self._enqueue_one if size == 1 else lambda: self._enqueue(size)
        return {"rate": size * await rate(calls, callers, call)}

    async def starts(self, orders: int, per_second: float) -> Mapping[str, Any]:
        """How long each of a steady stream of jobs waits for its first instruction."""
        worker, began = self._worker()
        working = asyncio.create_task(worker.run(batch_size=100))
        await self._queries.enqueue(ENTRYPOINT, repr(time.monotonic()).encode())
        await until(lambda: len(began) == 1)
        await paced(orders, per_second, lambda sent: self._queries.enqueue(ENTRYPOINT, sent.encode()))
        await until(lambda: len(began) == orders + 1)
        worker.shutdown.set()
        await working
        return {"waits_ms": waits_ms(began[1:])}

    async def _enqueue_one(self) -> object:
        return await self._queries.enqueue(ENTRYPOINT, None)

    async def _enqueue(self, count: int) -> object:
        return await self._queries.enqueue([ENTRYPOINT] * count, [None] * count, [0] * count)

    def _worker(self) -> tuple[QueueManager, list[tuple[float, str]]]:
        worker, began = QueueManager(self._queries), list[tuple[float, str]]()

        async def noop(job: Job) -> None:
            began.append((time.monotonic(), (job.payload or b"").decode()))

        worker.entrypoint(ENTRYPOINT)(noop)
        return worker, began


async def main(url: str) -> None:
    """Install the schema and answer until nobody asks any more."""
    async with asyncpg.create_pool(url, min_size=4, max_size=20) as pool:
        queries = Queries.from_asyncpg_pool(pool)
        await queries.install()
        await queries.optimize_autovacuum()
        peer = Peer(queries)
        await answer({"about": peer.about, "drain": peer.drain, "submit": peer.submit, "starts": peer.starts})


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
