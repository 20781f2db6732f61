"""Standby's side: the real store and the real controller over the scripted platform, where orders end at once.

python -m bench.ours DATABASE_URL SLOTS [gates]
"""

import asyncio
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager
from typing import Any, Final, cast

import uvloop
from msgspec.json import decode
from msgspec.structs import replace
from starlette.requests import Request
from starlette.types import Message

from bench.talk import answer, paced, rate, until, waits_ms
from standby import __version__
from standby.api.submit import submit
from standby.config import Config
from standby.control.apply import apply_config
from standby.control.controller import Controller
from standby.core import lifecycle
from standby.core.model import Change, EventKind, Order, OrderState, Pool, Slot, Spec, Trigger
from standby.core.sighting import Sighting
from standby.drivers.contract import Start
from standby.drivers.scripted import ScriptedDriver, ScriptedPlatform
from standby.seal import Seal
from standby.store.contract import Store, Verdict
from standby.store.store import migrate, open_store
from standby.world import StoreClock, World, settle_interpreter

HOST: Final = "host"
POOL: Final = "default"
PROJECT: Final = "default"
PAGE: Final = 500
MANY: Final = 1_000_000
GATES: Final[Mapping[str, Any]] = {
    "hosts": {HOST: {"driver": "scripted", "memory_mb": MANY, "starts_max": MANY}},
    "projects": {f"p{number}": {"running_max": MANY, "weight": number + 1, "queue_max": MANY} for number in range(4)},
}
SPEC: Final = decode(
    b'{"order_id": "", "command": ["true"], "queue_timeout_ms": 86400000, "start_timeout_ms": 1500000,'
    b' "run_timeout_ms": 3600000, "stop_grace_ms": 30000, "retry": {"base_ms": 5000, "cap_ms": 300000}}',
    type=Spec,
)
"""What an order without wishes of its own has from its pool, as the API takes it in. Nobody gives up waiting while a
long queue is measured."""
JSON: Final = [(b"content-type", b"application/json")]
COMPLETED: Final = EventKind.ORDER_COMPLETED


class Watched:
    """A store that notes when orders were saved as completed; everything else is the store's own."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.left = 0
        self.done = asyncio.Event()
        self.done_at = 0.0

    def expect(self, orders: int) -> None:
        """Set `done` when so many more orders are completed, each one committed."""
        self.left, self.done = orders, asyncio.Event()

    async def save(self, changes: Sequence[Change]) -> Sequence[Verdict]:
        verdicts = await self._store.save(changes)
        ended = [verdict for change, verdict in zip(changes, verdicts, strict=True) if change.kind is COMPLETED]
        if ended:
            self.left -= sum(verdict.saved for verdict in ended)
            if self.left <= 0:
                self.done_at = time.monotonic()
                self.done.set()
        return verdicts

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Stamped(ScriptedDriver):
    """Notes when each run begins, before anything else."""

    began: list[tuple[float, str]]

    def start(self, slot: Slot, start: Start) -> Coroutine[Any, Any, Sighting]:
        self.began.append((time.monotonic(), start.spec.payload))
        return super().start(slot, start)


class Ours:
    """One instance, asked for figures."""

    def __init__(self, world: World, store: Watched, driver: Stamped) -> None:
        self._world, self._store, self._driver = world, store, driver

    async def about(self) -> Mapping[str, str]:
        """Which version this is."""
        return {"standby": __version__, "python": sys.version.split()[0]}

    async def drain(self, orders: int, projects: int = 1, keys: bool = False) -> Mapping[str, Any]:
        """Orders a second from the first start to the last commit, with nothing but a full queue at first."""
        await self._fill(orders, projects, keys=keys)
        async with self._controlled(orders):
            await self._store.done.wait()
        unfinished = await self._world.store.counts()
        assert self._store.left == 0, f"{-self._store.left} orders ended twice"
        assert not sum(unfinished.values()), f"orders are not done: {unfinished}"
        return {"rate": orders / (self._store.done_at - self._driver.began[0][0])}

    async def claims(self, pending: int, orders: int, projects: int) -> Mapping[str, Any]:
        """Orders a second of the first ones that are served, with so many waiting at first."""
        waiting = sum((await self._world.store.counts()).values())
        await self._fill(max(0, pending + orders - waiting), projects)
        async with self._controlled(orders):
            await self._store.done.wait()
        return {"rate": orders / (self._store.done_at - self._driver.began[0][0])}

    async def submit(self, calls: int, callers: int, size: int) -> Mapping[str, Any]:
        """Orders a second that many callers at once put in: one by one as the API does it, many in one `save`."""
        call = self._submit if size == 1 else lambda: self._fill(size)
        return {"rate": size * await rate(calls, callers, call)}

    async def starts(self, orders: int, per_second: float) -> Mapping[str, Any]:
        """How long each of a steady stream of orders waits for the first instruction of its start."""
        async with self._controlled(orders + 1):
            await self._submit(repr(time.monotonic()))
            await until(lambda: len(self._driver.began) == 1)
            await paced(orders, per_second, self._submit)
            await self._store.done.wait()
        return {"waits_ms": waits_ms(self._driver.began[1:])}

    @asynccontextmanager
    async def _controlled(self, orders: int) -> AsyncIterator[None]:
        """A controller at work; what happens inside may wait until so many orders are completed."""
        self._driver.began = []
        self._store.expect(orders)
        stop = asyncio.Event()
        controlling = asyncio.create_task(Controller(self._world, "bench").run(stop))
        try:
            yield
        finally:
            stop.set()
            await controlling

    async def _submit(self, payload: str = "null") -> None:
        """What the API does with one request, from its body to its answer."""
        body = b'{"command": ["true"], "payload": %s}' % payload.encode()

        async def receive() -> Message:
            return {"type": "http.request", "body": body, "more_body": False}

        answered = await submit(Request({"type": "http", "headers": JSON}, receive), self._world, "bench")
        assert answered.status_code == 201, answered.body

    async def _fill(self, orders: int, projects: int = 1, *, keys: bool = False) -> None:
        pool = await self._world.store.pool(POOL)
        assert pool is not None
        for first in range(0, orders, PAGE):
            names = [
                PROJECT if projects == 1 else f"p{(first + n) % projects}" for n in range(min(PAGE, orders - first))
            ]
            changes = [self._submitted(pool, name, keys=keys) for name in names]
            assert all(verdict.saved for verdict in await self._world.store.save(changes))

    def _submitted(self, pool: Pool, project: str, *, keys: bool) -> Change:
        cause = self._world.cause(Trigger.REQUEST, "bench")
        order_id = self._world.ids.order(cause.at)
        order = Order(
            id=order_id,
            project=project,
            pool=pool.name,
            memory_mb=0,
            submitted_at=cause.at,
            state=OrderState.PENDING,
            state_since=cause.at,
            concurrency_key=order_id if keys else None,
        )
        return lifecycle.submit(cause, order, replace(SPEC, order_id=order_id), pool, None, None)


async def main(url: str, slots: int, *, gates: bool) -> None:
    """Open the database and answer until nobody asks any more."""
    with tempfile.TemporaryDirectory() as state:
        config = Config.of(
            database=url,
            state_dir=state,
            **(GATES if gates else {"hosts": {HOST: {"driver": "scripted"}}}),
            pools={POOL: {"slots_max": slots, "memory_mb": 0, "running_max": MANY if gates else None}},
        )
        await migrate(url)
        async with open_store(url) as store:
            clock, watched = StoreClock(), Watched(store)
            await clock.anchor(store)
            driver = Stamped(ScriptedPlatform("bench"), now=clock.now)
            world = World(
                config=config, store=cast(Store, watched), clock=clock, seal=Seal(bytes(32)), drivers={HOST: driver}
            )
            await apply_config(world)
            ours = Ours(world, watched, driver)
            settle_interpreter()
            verbs = (ours.about, ours.drain, ours.claims, ours.submit, ours.starts)
            await answer({verb.__name__: verb for verb in verbs})


if __name__ == "__main__":
    uvloop.run(main(sys.argv[1], int(sys.argv[2]), gates="gates" in sys.argv[3:]))
