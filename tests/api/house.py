"""A whole API over a real store in memory, with a clock that a test can move, and orders walked into any state."""

import asyncio
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import msgspec
from fastapi import FastAPI

from standby.api.app import create_app
from standby.api.auth import hashed
from standby.config import Config
from standby.control.apply import apply_config
from standby.core import lifecycle, slots
from standby.core.model import Lease, OrderState, Reason, Slot, Trigger, run_id
from standby.core.sighting import Exit as Ending
from standby.drivers.contract import LogLine
from standby.seal import Seal
from standby.store.contract import Key, LogChunk, Store, Work
from standby.store.sqlite import SqliteStore
from standby.world import Ids, World

TOKEN = "sb_" + "t" * 43
View = dict[str, Any]


class Clock:
    """Store time moves only by hand."""

    steady = True

    def __init__(self) -> None:
        self.at = 1_700_000_000_000
        self.skipped_s = 0.0

    def now(self) -> int:
        return self.at

    def monotonic(self) -> float:
        return time.monotonic() + self.skipped_s

    def skip(self, seconds: float) -> None:
        """Whoever waits has waited so much longer."""
        self.skipped_s += seconds


class House:
    """The API as a client sees it, and the store behind it."""

    def __init__(self, world: World, clock: Clock, app: FastAPI, http: httpx2.AsyncClient) -> None:
        self.world, self.clock, self.app, self.http = world, clock, app, http
        self.store = world.store
        self._slots: Counter[str] = Counter()

    def look_again(self) -> None:
        """What was read a moment ago is read anew."""
        for key in list(self.world.shared._asked):
            self.world.shared.forget(key)

    async def get(self, path: str, **more: Any) -> httpx2.Response:
        return await self.http.get(f"/api/v1{path}", **more)

    async def post(self, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return await self.http.post(f"/api/v1{path}", json=body, headers=named)

    async def send(self, raw: bytes, **headers: str) -> httpx2.Response:
        """Submit these very bytes."""
        named = {"Content-Type": "application/json", **{k.replace("_", "-"): v for k, v in headers.items()}}
        return await self.http.post("/api/v1/work-orders", content=raw, headers=named)

    async def submit(self, **body: Any) -> View:
        """Submit an order that is taken in."""
        answer = await self.post("/work-orders", {"command": ["true"], **body})
        assert answer.status_code in (200, 201), answer.text
        view: View = answer.json()
        return view

    async def show(self, order_id: str) -> View:
        answer = await self.get(f"/work-orders/{order_id}")
        assert answer.status_code == 200, answer.text
        view: View = answer.json()
        return view

    # what the control loop would do

    async def walk(self, order_id: str, state: OrderState) -> None:
        """Bring a pending order into a state by legal changes."""
        match state:
            case OrderState.PENDING:
                return
            case OrderState.CANCELLED:
                await self.post(f"/work-orders/{order_id}/cancel")
                return
            case _:
                await self._claim(order_id)
        if state is OrderState.PREPARING:
            return
        if state is OrderState.STOPPING:
            work = await self._work(order_id)
            await self._save(lifecycle.stop(self._cause(), work.order, work.spec, Reason.TIMEOUT))
            return
        if state is OrderState.WAITING_RETRY:
            await self.finish(order_id, Ending(lost=True))
            return
        work = await self._work(order_id)
        await self._save(lifecycle.ready(self._cause(), work.order, work.spec, "handle-1"))
        if state is not OrderState.RUNNING:
            await self.finish(order_id, Ending(code=0 if state is OrderState.COMPLETED else 3))

    async def finish(self, order_id: str, ending: Ending) -> None:
        """Its run was seen ended."""
        work = await self._work(order_id)
        (slot,) = [each for each in await self.store.slots() if each.name == work.order.slot]
        change = lifecycle.finish(
            self._cause(), work.order, work.spec, slot, ending, handle=None, seats=True, chance=0.5
        )
        await self._save(change)

    async def log(self, order_id: str, *lines: str, first: int = 0, closed: bool = False, cap: int = 2**20) -> None:
        """Store output of the order's last run."""
        run = run_id((await self._work(order_id)).order)
        rows = [LogLine(at=self.clock.at, stream="stdout", text=line) for line in lines]
        body = msgspec.json.encode(rows).decode()
        chunk = LogChunk(
            run_id=run, first=first, count=len(rows), body=body, cursor=str(first), closed=closed, bytes=len(body)
        )
        await self.store.append_logs([chunk], cap)

    async def _claim(self, order_id: str) -> None:
        work = await self._work(order_id)
        pool, host = await self.store.pool(work.order.pool), await self.store.host("local")
        assert pool is not None and host is not None
        slot = await self.new_slot()
        lease = await self.lead()
        cause = self.world.cause(Trigger.ADMIT, "test", (lease.host, lease.epoch))
        await self._save(lifecycle.claim(cause, work.order, work.spec, slot, pool, host, 2_000))

    async def lead(self) -> Lease:
        """Somebody leads the host."""
        taken = await self.store.take_lease("local", "leader", 10_000)
        return taken[0] if taken else next(each for each in await self.store.leases() if each.host == "local")

    async def new_slot(self, pool_name: str = "default", template: str = "") -> Slot:
        """One more idle slot of a pool."""
        pool = await self.store.pool(pool_name)
        assert pool is not None
        self._slots[pool_name] += 1
        name = f"standby-pool-{pool_name}-{self._slots[pool_name]:03}"
        await self._save(slots.create(self._cause(), name, pool, template))
        await self._save(slots.made(self._cause(), await self._slot_named(name), "i-1"))
        return await self._slot_named(name)

    async def _slot_named(self, name: str) -> Slot:
        (slot,) = [each for each in await self.store.slots() if each.name == name]
        return slot

    async def _work(self, order_id: str) -> Work:
        work = await self.store.order(order_id)
        assert work is not None
        return work

    def _cause(self) -> lifecycle.Cause:
        return self.world.cause(Trigger.LOOK, "test")

    async def _save(self, change: Any) -> None:
        (verdict,) = await self.store.save([change])
        assert verdict.saved, verdict


@asynccontextmanager
async def house(
    directory: Path, *, ids: Ids | None = None, store: Store | None = None, **keys: Any
) -> AsyncIterator[House]:
    """An API with one host `local`, the pool `default` and a known key."""
    hosts = {"hosts": {"local": {"driver": "scripted", "memory_mb": 1024}}} | keys
    config = Config.of(state_dir=str(directory), poll="20ms", log_poll="10ms", **hosts)
    clock = Clock()
    store = store or SqliteStore.in_memory(clock=clock.now)
    world = World(config=config, store=store, clock=clock, seal=Seal(b"k" * 32), ids=ids or Ids())
    await apply_config(world)
    await store.add_key(Key(name="tester", hash=hashed(TOKEN), created_at=clock.at))
    app = create_app(world)
    transport = httpx2.ASGITransport(app=app, raise_app_exceptions=False)
    headers = {"Authorization": f"Bearer {TOKEN}"} if config.auth else {}
    try:
        async with (
            app.router.lifespan_context(app),
            httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1:8377", headers=headers) as http,
        ):
            yield House(world, clock, app, http)
    finally:
        await store.close()


async def until(ask: Callable[[], Any], what: str, seconds: float = 10) -> Any:
    """Ask until the answer is true; a test fails when it never is."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        found = ask()
        found = await found if asyncio.iscoroutine(found) else found
        if found:
            return found
        await asyncio.sleep(0.005)
    raise AssertionError(f"not within {seconds} s: {what}")
