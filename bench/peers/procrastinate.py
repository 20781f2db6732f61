"""Procrastinate's side: psycopg with its C parts, uvloop, many jobs at once, woken by notifications.

python -m bench.peers.procrastinate DATABASE_URL
"""

import asyncio
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

import uvloop
from procrastinate import App, PsycopgConnector

from bench.talk import answer, paced, rate, until, waits_ms

AT_ONCE: Final = 20
"""From 1 to 100 at once its rate is the same within its spread: each job is two calls that wait for each other."""
PAGE: Final = 1_000


class Peer:
    """One app, asked for figures."""

    def __init__(self, app: App) -> None:
        self._app = app
        self.began: list[tuple[float, str]] = []
        self.finished = 0
        self.done_at = 0.0
        self._watch()

        async def noop(sent: str) -> None:
            self.began.append((time.monotonic(), sent))

        self._noop: Any = app.task(name="noop")(noop)

    def _watch(self) -> None:
        """Note when completions were committed."""
        jobs: Any = self._app.job_manager
        finish = jobs.finish_job

        async def finish_job(*arguments: Any, **named: Any) -> None:
            await finish(*arguments, **named)
            self.finished += 1
            self.done_at = time.monotonic()

        jobs.finish_job = finish_job

    async def about(self) -> Mapping[str, str]:
        """Which version this is."""
        return {"procrastinate": version("procrastinate")}

    async def drain(self, orders: int, at_once: int = AT_ONCE) -> Mapping[str, Any]:
        """Jobs a second from the first start to the last commit, with nothing but a full queue at first."""
        for first in range(0, orders, PAGE):
            await self._defer(min(PAGE, orders - first))
        self.began, self.finished = [], 0
        await self._app.run_worker_async(concurrency=at_once, wait=False, install_signal_handlers=False)
        assert self.finished == orders, f"{orders - self.finished} jobs are not done"
        return {"rate": orders / (self.done_at - self.began[0][0])}

    async def submit(self, calls: int, callers: int, size: int) -> Mapping[str, Any]:
        """Jobs a second that many callers at once put in, `size` a call."""
        call = self._defer_one if size == 1 else lambda: self._defer(size)
        return {"rate": size * await rate(calls, callers, call)}

    async def starts(self, orders: int, per_second: float) -> Mapping[str, Any]:
        """How long each of a steady stream of jobs waits for its first instruction."""
        self.began = []
        working = asyncio.create_task(self._app.run_worker_async(concurrency=AT_ONCE, install_signal_handlers=False))
        await self._noop.defer_async(sent=repr(time.monotonic()))
        await until(lambda: len(self.began) == 1)
        await paced(orders, per_second, lambda sent: self._noop.defer_async(sent=sent))
        await until(lambda: len(self.began) == orders + 1)
        working.cancel()
        await asyncio.gather(working, return_exceptions=True)
        return {"waits_ms": waits_ms(self.began[1:])}

    async def _defer_one(self) -> object:
        return await self._noop.defer_async(sent="")

    async def _defer(self, count: int) -> object:
        return await self._noop.batch_defer_async(*({"sent": ""} for _ in range(count)))


async def main(url: str) -> None:
    """Install the schema and answer until nobody asks any more."""
    app = App(connector=PsycopgConnector(conninfo=url, min_size=4, max_size=20))
    async with app.open_async():
        await app.schema_manager.apply_schema_async()
        peer = Peer(app)
        await answer({"about": peer.about, "drain": peer.drain, "submit": peer.submit, "starts": peer.starts})


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1]))
