"""The hands of a leader: what is asked of a platform, and what is not asked again."""

import asyncio

import pytest

from standby.control.act import Hands
from standby.control.lease import Hold
from standby.core.model import Lease, Slot, SlotState
from standby.drivers.contract import Making
from standby.drivers.scripted import ScriptedDriver, ScriptedPlatform
from tests.rows import NOW

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
