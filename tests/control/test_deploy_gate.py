"""The deploy gate: at most so many platform starts in flight on a host, first come first served, counted from rows."""

from itertools import pairwise
from typing import Any

import pytest

from standby.core.model import Event, EventKind, Order, OrderState, Reason, SlotState
from tests.control.stage import Stage

pytestmark = pytest.mark.anyio
S = OrderState
SLOW = {"start_ms": 30_000, "run_ms": 60_000}


def gated(starts_max: int | None = 4, pools: dict[str, Any] | None = None, **host: Any) -> Stage:
    """A host with places that are there at once, where starts are slow."""
    default = {"default": {"slots_max": 20, "memory_mb": 10}}
    return Stage(seats=host.pop("seats", True), host={"starts_max": starts_max, **host}, pools=pools or default)


async def starting(stage: Stage, ids: list[str]) -> list[int]:
    """Which of these orders have been granted a start so far, by their place in the list."""
    return [place for place, state in enumerate(await stage.states(ids)) if state is not S.PENDING]


async def notes(stage: Stage, kind: EventKind) -> list[Event]:
    return [event for event in await stage.store.events(0, 10_000) if event.kind is kind]


async def submitted(stage: Stage, count: int, script: dict[str, Any] | None = None, **keys: Any) -> list[str]:
    """So many orders, one after the other."""
    ids = []
    for _ in range(count):
        stage.clock.ms += 10
        ids.append(await stage.submit(script or SLOW, **keys))
    return ids


async def test_below_the_limit_a_start_is_granted_at_once_and_the_claim_says_so() -> None:
    stage = gated()
    leader = await stage.leader()
    (only,) = await submitted(stage, 1)
    await stage.steps(leader, 3)
    assert (await stage.order(only)).state is S.PREPARING
    (claim,) = await notes(stage, EventKind.ORDER_CLAIMED)
    assert claim.data["note"]["starts"] == {"n": 1, "max": 4, "queue": 0, "waited_ms": 0}


async def test_the_fifth_start_waits_in_the_open_and_is_granted_when_one_came_through() -> None:
    stage = gated()
    leader = await stage.leader()
    ids = await submitted(stage, 5)
    await stage.steps(leader, 6)
    assert await starting(stage, ids) == [0, 1, 2, 3]
    (held,) = await notes(stage, EventKind.ORDER_HELD)
    assert (held.subject, held.data["note"]["starts"]) == (ids[4], {"n": 4, "max": 4, "place": 1, "queue": 1})
    await stage.steps(leader, 8, each_ms=5_000)
    assert await starting(stage, ids) == [0, 1, 2, 3, 4]
    last = (await notes(stage, EventKind.ORDER_CLAIMED))[-1]
    assert last.subject == ids[4] and last.data["note"]["starts"]["waited_ms"] >= 25_000
    assert len(await notes(stage, EventKind.ORDER_HELD)) == 1


async def test_starts_are_granted_first_come_first_served_also_after_a_restart() -> None:
    stage = gated(2)
    leader = await stage.leader()
    ids = await submitted(stage, 6)
    await stage.steps(leader, 4)
    assert await starting(stage, ids) == [0, 1]
    stage.clock.ms += 11_000
    leader = await stage.leader("b")
    await stage.steps(leader, 3)
    assert await starting(stage, ids) == [0, 1]
    await stage.steps(leader, 6, each_ms=5_000)
    assert await starting(stage, ids) == [0, 1, 2, 3]
    await stage.steps(leader, 8, each_ms=5_000)
    assert await starting(stage, ids) == [0, 1, 2, 3, 4, 5]


async def test_an_order_that_only_waits_for_a_start_gets_longer_once_and_then_fails_with_deploy_timeout() -> None:
    stage = gated(1)
    leader = await stage.leader()
    first, second, third = await submitted(stage, 3, {"start_ms": 2_300_000}, start_timeout_ms=3_000_000)
    await stage.steps(leader, 4)
    await stage.steps(leader, 32, each_ms=10_000)
    waits = await stage.order(second)
    assert waits.state is S.PENDING and waits.deploy_since is not None
    await stage.steps(leader, 150, each_ms=10_000)
    assert [await _end(stage, order_id) for order_id in (second, third)] == [Reason.DEPLOY_TIMEOUT] * 2
    assert (await stage.order(first)).state is S.PREPARING
    assert len(await notes(stage, EventKind.ORDER_EXTENDED)) == 2


async def _end(stage: Stage, order_id: str) -> Reason | None:
    order = await stage.order(order_id)
    assert order.state is S.FAILED
    return order.reason


async def test_an_order_for_which_no_slot_comes_free_fails_with_queue_timeout() -> None:
    stage = gated(4, {"default": {"slots_max": 1, "memory_mb": 10}})
    leader = await stage.leader()
    _, second = await submitted(stage, 2, {"run_ms": None}, run_timeout_ms=None)
    await stage.steps(leader, 33, each_ms=10_000)
    assert (await stage.order(second)).reason is Reason.QUEUE_TIMEOUT


@pytest.mark.parametrize("end", ["ended", "cancelled", "failed"])
async def test_whatever_ends_a_start_lets_the_next_one_begin(end: str) -> None:
    stage = gated(1)
    leader = await stage.leader()
    script: dict[str, Any] = {"start_ms": 400, "run_ms": 0}
    if end == "failed":
        script["start_error"] = "no such command"
    if end == "cancelled":
        script["start_ms"] = 90_000
    ids = [*await submitted(stage, 1, script, retries=0), *await submitted(stage, 1)]
    await stage.steps(leader, 3)
    assert await starting(stage, ids) == [0]
    if end == "cancelled":
        await stage.cancel(ids[0])
    await stage.steps(leader, 4, each_ms=200)
    assert await starting(stage, ids) == [0, 1]


async def test_a_cancelled_waiter_holds_nothing_and_an_urgent_one_passes_the_others() -> None:
    stage = gated(1)
    leader = await stage.leader()
    ids = await submitted(stage, 3)
    await stage.steps(leader, 3)
    await stage.cancel(ids[1])
    urgent = await stage.submit(SLOW, priority=0)
    await stage.steps(leader, 7, each_ms=5_000)
    assert await stage.states([*ids, urgent]) == [S.RUNNING, S.CANCELLED, S.PENDING, S.PREPARING]


async def test_work_is_handed_to_live_slots_without_a_permit() -> None:
    live = {"slots_max": 6, "slots_warm": 6, "memory_mb": 10, "warmth": "running"}
    stage = gated(1, {"default": live}, seats=False)
    leader = await stage.leader()
    await stage.steps(leader, 14, each_ms=100)
    ids = await submitted(stage, 6)
    await stage.steps(leader, 2)
    assert await starting(stage, ids) == [0, 1, 2, 3, 4, 5]
    assert await notes(stage, EventKind.ORDER_HELD) == []


async def test_slots_being_made_take_permits_and_waiting_orders_come_before_refill() -> None:
    pools = {
        "default": {"slots_max": 10, "memory_mb": 10},
        "ahead": {"slots_max": 10, "slots_warm": 8, "memory_mb": 10},
    }
    stage = gated(4, pools, seats=False)
    stage.platform.yard.create_ms.update(default=5_000, ahead=5_000)
    leader = await stage.leader()
    await stage.steps(leader, 3, each_ms=100)
    making = [slot for slot in await stage.store.slots() if slot.state is SlotState.CREATING]
    assert [slot.pool for slot in making] == ["ahead"] * 3, "one permit is left for whoever comes"
    ids = await submitted(stage, 5, {"run_ms": None})
    for _ in range(120):
        await stage.steps(leader, 1, each_ms=250)
        slots = await stage.store.slots()
        flying = sum(slot.state is SlotState.CREATING for slot in slots)
        flying += sum(state is S.PREPARING for state in await stage.states(ids))
        assert flying <= 4
        waiting = sum(state is S.PENDING for state in await stage.states(ids))
        soon = [slot.pool for slot in slots if slot.state is SlotState.CREATING]
        if waiting > soon.count("default") and stage.clock.ms > making[0].state_since + 6_000:
            assert "ahead" not in soon
    assert await stage.states(ids) == [S.RUNNING] * 5
    assert sum(slot.pool == "ahead" and slot.state is SlotState.IDLE for slot in await stage.store.slots()) == 8


async def test_a_gap_between_starts_lets_one_through_at_a_time() -> None:
    stage = gated(None, start_gap="5s")
    leader = await stage.leader()
    ids = await submitted(stage, 4, {"run_ms": 60_000})
    granted: list[int] = []
    for _ in range(100):
        await stage.steps(leader, 1, each_ms=200)
        granted = [event.at for event in await notes(stage, EventKind.ORDER_CLAIMED)]
    assert await stage.states(ids) == [S.RUNNING] * 4
    assert all(later - sooner >= 5_000 for sooner, later in pairwise(granted))


async def test_ten_images_share_four_permits_and_none_starves() -> None:
    pools = {f"p{n}": {"slots_max": 3, "memory_mb": 10, "image": f"app:{n}"} for n in range(10)}
    stage = gated(4, pools, seats=False)
    stage.platform.yard.create_ms.update(dict.fromkeys(pools, 400))
    leader = await stage.leader()
    orders: list[str] = []
    for _ in range(3):
        for name in pools:
            orders += await submitted(stage, 1, {"start_ms": 600, "run_ms": 300}, pool=name)
    ended: list[Order] = []
    for _ in range(400):
        await stage.steps(leader, 1, each_ms=200)
        slots = await stage.store.slots()
        opened = list((await stage.store.holders()).values())
        flying = sum(slot.state is SlotState.CREATING for slot in slots) + sum(each.ready_at is None for each in opened)
        assert flying <= 4
        ended = [order for order in [await stage.order(each) for each in orders] if order.state is S.COMPLETED]
        if len(ended) == len(orders):
            break
    assert len(ended) == 30
    first = {pool: min(order.ended_at or 0 for order in ended if order.pool == pool) for pool in pools}
    assert max(first.values()) <= sorted(order.ended_at or 0 for order in ended)[20], "each image had its turn early"


async def test_fifty_orders_on_an_empty_pool_of_twenty_stay_below_every_limit() -> None:
    pools = {"default": {"slots_max": 20, "memory_mb": 10}}
    stage = gated(4, pools, seats=False)
    stage.platform.yard.create_ms["default"] = 300
    leader = await stage.leader()
    ids = await submitted(stage, 50, {"start_ms": 100, "run_ms": 400})
    for _ in range(600):
        await stage.steps(leader, 1, each_ms=100)
        slots = await stage.store.slots()
        opened = list((await stage.store.holders()).values())
        assert len(slots) <= 20 and len({slot.name for slot in slots}) == len(slots)
        assert len(stage.platform.yard.made) <= 20
        flying = sum(slot.state is SlotState.CREATING for slot in slots) + sum(each.ready_at is None for each in opened)
        assert flying <= 4
        if set(await stage.states(ids)) == {S.COMPLETED}:
            break
    assert set(await stage.states(ids)) == {S.COMPLETED}
