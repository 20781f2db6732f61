"""A host's step on a store in memory and a scripted platform, under a clock that the test moves."""

import asyncio
import json
from typing import Any

from msgspec.structs import replace

from standby.config import Config
from standby.control.apply import apply_config
from standby.control.host import HostStep
from standby.control.lease import Hold
from standby.core import lifecycle
from standby.core.model import Order, OrderState, Spec, Trigger, run_id
from standby.drivers.contract import Start
from standby.drivers.scripted import ScriptedDriver, ScriptedPlatform
from standby.drivers.scripted_run import Copy
from standby.seal import Seal
from standby.store.contract import Heard, Store
from standby.store.sqlite import SqliteStore
from standby.world import World
from tests.rows import NOW


class TestClock:
    """Time that only the test moves."""

    __test__ = False

    def __init__(self) -> None:
        self.ms = NOW
        self.steady = True

    def now(self) -> int:
        return self.ms

    def monotonic(self) -> float:
        return self.ms / 1000


class Watched(ScriptedPlatform):
    """Remembers the most copies of each order that were ever alive at once."""

    def __init__(self, identity: str, *, seats: bool = True) -> None:
        super().__init__(identity, seats=seats)
        self.most_copies: dict[str, int] = {}

    def start(self, start: Start, incarnation: str | None, until: int, now: int) -> Copy:
        copy = super().start(start, incarnation, until, now)
        alive = sum(each.order_id == copy.order_id for each in self.alive(now))
        self.most_copies[copy.order_id] = max(alive, self.most_copies.get(copy.order_id, 0))
        return copy


class Stage:
    """One installation with one scripted host, its store and its platform; leaders come and go."""

    def __init__(self, store: Store | None = None, clock: TestClock | None = None, **keys: Any) -> None:
        self.clock = clock or TestClock()
        self.platform = Watched("platform-1", seats=keys.pop("seats", True))
        self.driver = ScriptedDriver(self.platform, now=self.clock.now, pause=lambda: asyncio.sleep(0))
        pools = keys.pop("pools", {"default": {"slots_max": 2, "memory_mb": 100}})
        config = Config.of(hosts={"local": {"driver": "scripted", **keys.pop("host", {})}}, pools=pools, **keys)
        self.store: Store = store or SqliteStore.in_memory(clock=self.clock.now)
        self.world = World(
            config=config,
            store=self.store,
            clock=self.clock,
            seal=Seal(b"k" * 32),
            drivers={"local": self.driver},
            chance=lambda: 0.5,
        )

    async def leader(self, owner: str = "a") -> HostStep:
        """Apply the configuration, take the lease and lead."""
        await apply_config(self.world)
        taken = await self.store.take_lease("local", owner, self.world.config.lease_ms)
        assert taken is not None, "somebody else leads"
        lease, before = taken
        hold = Hold(self.clock, lease, self.clock.monotonic(), self.world.config.lease_ms)
        step = HostStep(self.world, self.driver, hold, f"leader:{owner}", lambda: None)
        await step.lead(await self.driver.identity(), None if before is None else before.renewed_at)
        self.hold, self.owner = hold, owner
        return step

    async def submit(self, script: dict[str, Any] | None = None, **keys: Any) -> str:
        """An order whose payload scripts it."""
        columns: dict[str, Any] = {
            key: keys.pop(key) for key in ("project", "memory_mb", "pool", "dedupe_live") if key in keys
        }
        now = self.clock.now()
        order_id = self.world.ids.order(now)
        pool = await self.store.pool(columns.get("pool", "default"))
        assert pool is not None
        draft: dict[str, Any] = {
            "id": order_id,
            "project": "default",
            "pool": pool.name,
            "memory_mb": pool.settings.memory_mb,
            "submitted_at": now,
            "state": OrderState.PENDING,
            "state_since": now,
        }
        order = Order(**{**draft, **columns}, concurrency_key=keys.get("concurrency_key"))
        payload = json.dumps({"script": script if script is not None else {}})
        sealed, retries = keys.pop("sealed", None), keys.pop("retries", pool.settings.retry.retries)
        retry = replace(pool.settings.retry, retries=retries)
        asked: dict[str, Any] = {"order_id": order_id, "payload": payload, "retry": retry}
        spec = Spec(**{**asked, **keys})
        cause = self.world.cause(Trigger.REQUEST, "tester")
        (verdict,) = await self.store.save([lifecycle.submit(cause, order, spec, pool, sealed, None)])
        assert verdict.saved
        return order_id

    async def order(self, order_id: str) -> Order:
        work = await self.store.order(order_id)
        assert work is not None
        return work.order

    async def states(self, ids: list[str]) -> list[OrderState]:
        return [(await self.order(order_id)).state for order_id in ids]

    async def cancel(self, order_id: str) -> None:
        work = await self.store.order(order_id)
        assert work is not None
        change = lifecycle.cancel(self.world.cause(Trigger.REQUEST, "tester"), work.order, work.spec)
        assert change is not None
        await self.store.save([change])

    async def steps(self, leader: HostStep, count: int = 6, each_ms: int = 0, *, renew: bool = True) -> None:
        """Let the leader step, with the time it takes for its calls to come back."""
        for _ in range(count):
            self.clock.ms += each_ms
            if renew:
                await self.store.renew_leases(self.owner, ["local"], self.world.config.lease_ms)
                self.hold.renewed(self.clock.monotonic(), self.world.config.lease_ms)
            leader.hint(Heard(frozenset({"default"})))
            await leader.step()
            await self.answers()

    async def answers(self) -> None:
        """Let the calls that were launched come back."""
        for _ in range(5):
            await asyncio.sleep(0)

    def live_copies(self, order: Order) -> int:
        return sum(copy.order_id == order.id for copy in self.platform.alive(self.clock.now()))


__all__ = ["Stage", "TestClock", "run_id"]
