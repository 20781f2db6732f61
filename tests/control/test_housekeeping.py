"""The global step: history is kept as long as it was asked for."""

import asyncio

import pytest

from standby.control.controller import Controller
from standby.control.housekeeping import DAY_MS, Housekeeping
from standby.core import lifecycle
from standby.core.model import Trigger
from standby.store.contract import OrderFilter
from tests.control.stage import Stage

pytestmark = pytest.mark.anyio


async def test_orders_and_events_older_than_the_history_are_pruned() -> None:
    stage = Stage()
    await stage.leader()
    orders = {name: await stage.submit() for name in ("old", "waiting", "late")}
    await cancel(stage, orders["old"])
    before = (await stage.store.history()).last_seq
    stage.clock.ms += 40 * DAY_MS
    await cancel(stage, orders["late"])
    await Housekeeping(stage.world).step()
    listed = await stage.store.orders(OrderFilter(), None, 10)
    assert {each.order.id for each in listed.orders} == {orders["waiting"], orders["late"]}
    history = await stage.store.history()
    assert (history.orders_pruned, history.pruned_to, history.oldest_at) == (1, before, stage.clock.ms)


async def cancel(stage: Stage, order_id: str) -> None:
    work = await stage.store.order(order_id)
    assert work is not None
    change = lifecycle.cancel(stage.world.cause(Trigger.REQUEST, "tester"), work.order, work.spec)
    assert change is not None
    await stage.store.save([change])


async def test_nothing_is_pruned_by_a_clock_that_jumped() -> None:
    stage = Stage()
    await stage.leader()
    await cancel(stage, await stage.submit())
    stage.clock.ms += 40 * DAY_MS
    stage.clock.steady = False
    await Housekeeping(stage.world).step()
    assert (await stage.store.history()).pruned_to == 0


async def test_housekeeping_with_a_fault_ends_nothing_else_and_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, stop, tries = Stage(), asyncio.Event(), list[int]()

    async def step(_: Housekeeping) -> None:
        tries.append(1)
        raise ValueError("a row that nobody can read")

    monkeypatch.setattr(Housekeeping, "every_s", 0.0)
    monkeypatch.setattr(Housekeeping, "step", step)
    running = asyncio.create_task(Controller(stage.world, "a").run(stop))
    async with asyncio.timeout(20):
        while len(tries) < 2:
            await asyncio.sleep(0)
            assert not running.done()
        stop.set()
        await running
