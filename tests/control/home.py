"""A stage whose only slot has a resident worker, played over the real API."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Any

import httpx2

from standby.control.host import HostStep
from standby.core.model import OrderState, Slot
from tests.control.stage import Stage
from tests.workers import Played, front_door


class House:
    """A stage whose only slot has a resident worker."""

    def __init__(self, stage: Stage, leader: HostStep, http: httpx2.AsyncClient) -> None:
        self.stage, self.leader, self.http = stage, leader, http

    async def steps(self, count: int = 4, each_ms: int = 1_000) -> None:
        await self.stage.steps(self.leader, count, each_ms)

    async def slot(self) -> Slot:
        (slot,) = await self.stage.store.slots()
        return slot

    async def worker(self, nonce: str) -> Played:
        """One more life in the slot, booted."""
        worker = await self.unborn(nonce)
        assert (await worker.boot()).status_code == 200
        return worker

    async def unborn(self, nonce: str) -> Played:
        slot = await self.slot()
        return Played(self.http, self.stage.world.seal.slot_token(slot.name, slot.generation), nonce)

    async def running(self, **keys: Any) -> tuple[Played, str, str]:
        """An order at work: its worker, its id and its run's."""
        order_id = await self.stage.submit(**keys)
        await self.steps()
        worker = await self.worker("nonce-one")
        await self.steps()
        answer = await worker.fetch()
        assert answer.status_code == 200, answer.text
        run = answer.json()["run_id"]
        assert await worker.beat(run) == "go_on"
        await self.steps(2)
        assert (await self.stage.order(order_id)).state is OrderState.RUNNING
        return worker, order_id, run


@asynccontextmanager
async def opened(**settings: Any) -> AsyncIterator[House]:
    pool = {"slots_max": 1, "worker": True, "warmth": "running", "stop_grace": 5, **settings}
    stage = Stage(seats=False, pools={"default": pool})
    async with AsyncExitStack() as stack:
        leader = await stage.leader()
        http = await stack.enter_async_context(front_door(stage.world))
        stack.push_async_callback(leader.close, 1)
        yield House(stage, leader, http)
