"""The hands of a leader: what is asked of a platform, and what is not asked again."""

import asyncio

import pytest
from msgspec.structs import replace

from standby.control.act import Hands
from standby.control.lease import Hold
from standby.core.model import Lease, OrderState, Slot, SlotState, run_id
from standby.core.sighting import Sighting
from standby.drivers.contract import Making, Start
from standby.drivers.scripted import ScriptedDriver, ScriptedPlatform
from standby.store.contract import Work
from tests.rows import NOW, order, spec

from .stage import TestClock

pytestmark = pytest.mark.anyio


class Counting(ScriptedDriver):
    """Counts what it is asked to make and to take away."""

    asked = 0

    async def create(self, slot: Slot, making: Making) -> str | None:
        self.asked += 1
        return await super().create(slot, making)

    async def remove(self, slot: Slot) -> None:
        self.asked += 1
        await super().remove(slot)


@pytest.mark.parametrize("state", [SlotState.CREATING, SlotState.REMOVING])
async def test_a_slot_whose_answer_waits_for_the_next_step_is_not_asked_for_again(state: SlotState) -> None:
    clock = TestClock()
    driver = Counting(ScriptedPlatform("p", seats=False), now=clock.now, pause=lambda: asyncio.sleep(0))
    lease = Lease(host="h", owner="a", epoch=1, until=NOW + 10_000, renewed_at=NOW)
    hands = Hands(driver, Hold(clock, lease, clock.monotonic(), 10_000), clock, lambda: None)
    slot = Slot(name="s", host="h", pool="p", state=state, state_since=NOW, created_at=NOW)

    async def ask() -> int:
        if state is SlotState.CREATING:
            hands.make(slot, Making(), 1_000)
        else:
            hands.remove(slot)
        for _ in range(10):
            await asyncio.sleep(0)
        return driver.asked

    assert [await ask(), await ask()] == [1, 1]
    (made,) = hands.reports()[1]
    assert made.slot == slot
    assert await ask() == 2


async def test_a_resident_worker_is_forced_out_also_where_its_place_is_another_than_was_noted() -> None:
    """A create that arrived once more after its place had vanished made another one, and nobody heard of it."""
    clock = TestClock()
    platform = ScriptedPlatform("p", seats=False)
    driver = ScriptedDriver(platform, now=clock.now, pause=lambda: asyncio.sleep(0))
    lease = Lease(host="h", owner="a", epoch=1, until=NOW + 10_000, renewed_at=NOW)
    hands = Hands(driver, Hold(clock, lease, clock.monotonic(), 10_000), clock, lambda: None)
    slot = Slot(name="s", host="h", pool="p", state=SlotState.IDLE, state_since=NOW, created_at=NOW)
    noted = await driver.create(slot, Making())
    assert noted is not None
    platform.remove(noted, NOW)
    assert await driver.create(slot, Making()) not in (None, noted)
    slot = replace(slot, incarnation=noted)
    stopping = order(state=OrderState.STOPPING, slot="s", incarnation=noted, attempt=1)
    hands.stop(stopping, slot, force=True, resident=True)
    for _ in range(10):
        await asyncio.sleep(0)
    assert list(platform.yard.made) == []


async def test_the_answer_of_a_start_is_heard_also_after_a_step_that_was_taken_meanwhile() -> None:
    clock, woken, go = TestClock(), list[str](), asyncio.Event()

    class Slow(ScriptedDriver):
        async def start(self, slot: Slot, start: Start) -> Sighting:
            await go.wait()
            return await super().start(slot, start)

    driver = Slow(ScriptedPlatform("p"), now=clock.now, pause=lambda: asyncio.sleep(0))
    lease = Lease(host="h", owner="a", epoch=1, until=NOW + 10_000, renewed_at=NOW)
    hands = Hands(driver, Hold(clock, lease, clock.monotonic(), 10_000), clock, lambda: woken.append("woken"))
    slot = Slot(name="s", host="h", pool="p", state=SlotState.IDLE, incarnation="p", state_since=NOW, created_at=NOW)
    claimed = order(state=OrderState.PREPARING, slot="s", incarnation="p", attempt=1, command_until=NOW + 2_000)
    hands.start(run_id(claimed), Work(claimed, spec(order_id=claimed.id)), slot, {}, Making())
    await asyncio.sleep(0)
    assert hands.reports() == ([], [])
    go.set()
    for _ in range(10):
        await asyncio.sleep(0)
    assert woken == ["woken"]
    ((sighting,), _) = hands.reports()
    assert sighting.run_id == run_id(claimed)
