"""Huey's side on SQLite: WAL, synchronous as SQLite has it (FULL), worker threads, a short poll.

python -m bench.peers.huey FILE
"""

import asyncio
import sys
import time
from collections.abc import Mapping
from importlib.metadata import version
from typing import Any, Final

from huey import SqliteHuey

from bench.talk import answer, paced, rate, until, waits_ms

WORKERS: Final = 1
"""Faster than 2, 4 or 8 threads: they take turns at the database's one lock."""
POLL_S: Final = 0.01


class Peer:
    """One queue, asked for figures. It takes a task away before it runs: at most once, and no completion is stored."""

    def __init__(self, huey: SqliteHuey) -> None:
        self._huey = huey
        self.began: list[tuple[float, str]] = []

        def noop(sent: str) -> None:
            self.began.append((time.monotonic(), sent))

        self._noop: Any = huey.task()(noop)

    async def about(self) -> Mapping[str, str]:
        """Which version this is."""
        return {"huey": version("huey")}

    async def drain(self, orders: int, workers: int = WORKERS) -> Mapping[str, Any]:
        """Tasks a second from the first start to the last one, with nothing but a full queue at first."""
        for _ in range(orders):
            self._noop("")
        self.began = []
        consumer = self._consumer(workers)
        await until(lambda: len(self.began) == orders, 300)
        consumer.stop(graceful=True)
        return {"rate": orders / (self.began[-1][0] - self.began[0][0])}

    async def submit(self, calls: int, callers: int, size: int) -> Mapping[str, Any]:
        """Tasks a second put in, `size` a call. It has no bulk call, and callers take turns at the one lock anyway."""

        async def call() -> None:
            for _ in range(size):
                self._noop("")

        return {"rate": size * await rate(calls, callers, call)}

    async def starts(self, orders: int, per_second: float) -> Mapping[str, Any]:
        """How long each of a steady stream of tasks waits for its first instruction."""
        self.began = []
        consumer = self._consumer(WORKERS)

        async def call(sent: str) -> None:
            self._noop(sent)

        await paced(orders, per_second, call)
        await until(lambda: len(self.began) == orders)
        consumer.stop(graceful=True)
        return {"waits_ms": waits_ms(self.began)}

    def _consumer(self, workers: int) -> Any:
        consumer = self._huey.create_consumer(
            workers=workers, periodic=False, initial_delay=POLL_S, backoff=1.0, max_delay=POLL_S
        )
        consumer.start()
        return consumer


async def main(path: str) -> None:
    """Make the database and answer until nobody asks any more."""
    peer = Peer(SqliteHuey(filename=path))
    await answer({"about": peer.about, "drain": peer.drain, "submit": peer.submit, "starts": peer.starts})


if __name__ == "__main__":
    asyncio.run(main(sys.argv[1]))
