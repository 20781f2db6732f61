"""Whose time comes between two polls: a step rests until then, and no longer."""

import pytest

from standby.control.book import DUE_GAP_MS, RELOAD_GAP_S
from standby.control.host import HostStep
from standby.core.model import Order, OrderState
from tests.control.stage import Stage

pytestmark = pytest.mark.anyio
S = OrderState
POOL = {"slots_max": 4, "memory_mb": 0, "retry_base": "200ms"}


async def _next_step(stage: Stage, leader: HostStep) -> int:
    """When it wants to be repeated, once nothing is left to do at once."""
    for _ in range(20):
        rest_s = await leader.step()
        await stage.answers()
        if rest_s > RELOAD_GAP_S:
            return stage.clock.ms + round(rest_s * 1_000)
        stage.clock.ms += round(rest_s * 1_000)
    raise AssertionError("it never rests")


async def _waiting_retry(stage: Stage, leader: HostStep) -> Order:
    order_id = await stage.submit({"start_error": "no such image"}, retries=1)
    await stage.steps(leader, 3)
    order = await stage.order(order_id)
    assert (order.state, order.due_at) == (S.WAITING_RETRY, stage.clock.ms + 200)
    return order


async def test_a_retry_is_queued_when_its_time_has_come_not_at_the_next_poll() -> None:
    stage = Stage(pools={"default": POOL})
    leader = await stage.leader()
    order = await _waiting_retry(stage, leader)
    assert order.due_at == await _next_step(stage, leader)
    stage.clock.ms = order.due_at - 1
    await leader.step()
    assert (await stage.order(order.id)).state is S.WAITING_RETRY
    stage.clock.ms += 1
    await leader.step()
    assert (await stage.order(order.id)).state is S.PENDING


async def test_whoever_was_put_off_begins_at_its_time_though_nobody_told_the_leader() -> None:
    stage = Stage(pools={"default": POOL})
    leader = await stage.leader()
    began = stage.clock.ms
    ids = [await stage.submit(not_before=began + later_ms) for later_ms in (1_300, 1_310, 1_700, 9_000)]
    assert await _next_step(stage, leader) == began + 1_000, "what is far off is left to the poll"
    stage.clock.ms = began + 1_000
    assert await _next_step(stage, leader) == began + 1_300
    stage.clock.ms = began + 1_300
    assert await _next_step(stage, leader) == began + 1_700
    assert stage.clock.ms == began + 1_300 + DUE_GAP_MS, "who comes right behind makes no step of its own"
    assert [(await stage.order(each)).due_at is None for each in ids] == [True, True, False, False]


async def test_a_time_that_passes_while_nobody_can_look_makes_no_step_restless() -> None:
    stage = Stage(pools={"default": POOL})
    leader = await stage.leader()
    order = await _waiting_retry(stage, leader)
    stage.clock.ms += 1_000
    stage.platform.unreachable_until = stage.clock.ms + 60_000
    await leader.step()
    assert await _next_step(stage, leader) > stage.clock.ms + 500
    assert (await stage.order(order.id)).state is S.WAITING_RETRY
