"""The line beside each slot in the platform's own page."""

from itertools import pairwise

import pytest

from standby.control.captions import caption
from standby.core.model import OrderState, Slot, SlotState
from tests.control.stage import Stage
from tests.rows import NOW, order, slot

pytestmark = pytest.mark.anyio


def test_the_texts_are_those_that_people_know() -> None:
    at = "2023-11-14T22:13:20.000Z"
    held, ready = order(OrderState.PREPARING, commanded_at=NOW), order(OrderState.RUNNING, ready_at=NOW)
    broken = slot(state=SlotState.ERROR, error="no room", state_since=NOW)
    assert caption(slot(last_used_at=NOW), None) == f"[IDLE] Available - Last used: {at}"
    assert caption(slot(), None) == "[IDLE] Available - Last used: never"
    assert caption(slot(), held) == f"[DEPLOYING] Order order-1 - {at}"
    assert caption(slot(), ready) == f"[BUSY] Order order-1 - {at}"
    assert caption(broken, None) == f"[ERROR] no room - {at}"
    assert caption(slot(state=SlotState.CREATING), None) is None


async def test_captions_follow_the_slots_one_call_a_second() -> None:
    stage = Stage(seats=False, pools={"default": {"slots_max": 3, "slots_warm": 3, "memory_mb": 10}})
    leader = await stage.leader()
    calls: list[tuple[int, str]] = []
    real = stage.driver.caption

    async def noted(slot: Slot, text: str) -> None:
        calls.append((stage.clock.ms, text))
        await real(slot, text)

    stage.driver.caption = noted  # type: ignore[method-assign]
    await stage.steps(leader, 20, each_ms=250)
    assert set(stage.platform.yard.captions.values()) == {"[IDLE] Available - Last used: never"}
    order_id = await stage.submit({"run_ms": None})
    await stage.steps(leader, 20, each_ms=250)
    assert len(stage.platform.yard.captions) == 3
    assert sum(text.startswith(f"[BUSY] Order {order_id} - ") for text in stage.platform.yard.captions.values()) == 1
    assert all(later - sooner >= 1_000 for (sooner, _), (later, _) in pairwise(calls))
    count = len(calls)
    await stage.steps(leader, 20, each_ms=250)
    assert len(calls) == count, "nothing changed"
