"""Slots of container pools: made ahead of need, made anew after use, given up when nobody wants them, healed."""

from typing import Any
from unittest import mock

import pytest
from msgspec.structs import replace

from standby.control.act import STUCK_S
from standby.core import places
from standby.core.errors import Unreachable
from standby.core.model import EventKind, OrderState, Reason, Slot, SlotState, Trigger
from standby.drivers.contract import Making
from tests.control.stage import Stage

pytestmark = pytest.mark.anyio
S = OrderState


def warm(**settings: Any) -> Stage:
    """A host of containers with one pool."""
    host = settings.pop("host", {})
    pool = {"slots_max": 4, "memory_mb": 100, **settings}
    return Stage(seats=False, host=host, pools={"default": pool})


async def words(stage: Stage, pool: str = "default") -> list[str]:
    return sorted(slot.state for slot in await stage.store.slots(pool=pool))


async def settings(stage: Stage, **changed: Any) -> None:
    """The pool's settings, changed as if by a new configuration."""
    pool = await stage.store.pool("default")
    assert pool is not None
    cause = stage.world.cause(Trigger.CONFIG, "config")
    change = places.apply_pool(cause, pool, pool.name, pool.host, replace(pool.settings, **changed))
    assert change is not None
    assert (await stage.store.save([change]))[0].saved


async def test_so_many_slots_as_shall_be_warm_are_made_without_any_order() -> None:
    stage = warm(slots_warm=3)
    leader = await stage.leader()
    await stage.steps(leader, 6, each_ms=100)
    assert await words(stage) == ["idle"] * 3
    await stage.steps(leader, 10, each_ms=1_000)
    assert len(stage.platform.yard.made) == 3


async def test_a_used_slot_is_made_anew_as_the_next_generation_and_serves_again() -> None:
    stage = warm(slots_max=1)
    leader = await stage.leader()
    first = await stage.submit({})
    await stage.steps(leader, 8, each_ms=50)
    (before,) = await stage.store.slots()
    second = await stage.submit({})
    await stage.steps(leader, 8, each_ms=50)
    (after,) = await stage.store.slots()
    assert await stage.states([first, second]) == [S.COMPLETED, S.COMPLETED]
    assert (after.uses, after.name) == (2, before.name)
    assert after.generation > before.generation and after.incarnation != before.incarnation
    assert list(stage.platform.yard.made) == [after.incarnation]


async def test_without_demand_a_pool_returns_to_exactly_its_warm_slots() -> None:
    stage = warm(slots_warm=1, idle_ttl="1m")
    leader = await stage.leader()
    orders = [await stage.submit({"run_ms": 500}) for _ in range(4)]
    await stage.steps(leader, 20, each_ms=200)
    assert await stage.states(orders) == [S.COMPLETED] * 4
    assert await words(stage) == ["idle"] * 4
    await stage.steps(leader, 6, each_ms=12_000)
    await stage.steps(leader, 4, each_ms=1_000)
    assert await words(stage) == ["idle"] and len(stage.platform.yard.made) == 1


async def test_a_slow_platform_never_leads_to_one_slot_too_many() -> None:
    stage = warm(slots_max=3, slots_warm=1)
    stage.platform.yard.create_ms["default"] = 60_000
    leader = await stage.leader()
    for _ in range(6):
        await stage.submit({"run_ms": 100})
    for _ in range(100):
        await stage.steps(leader, 1, each_ms=2_500)
        assert len(await stage.store.slots()) <= 3 and len(stage.platform.yard.made) <= 3


async def test_a_new_template_rolls_idle_slots_and_nobody_gets_an_old_one() -> None:
    stage = warm(slots_warm=2, image="app:1")
    leader = await stage.leader()
    await stage.steps(leader, 8, each_ms=100)
    old = await stage.store.pool("default")
    assert old is not None and await words(stage) == ["idle", "idle"]
    await settings(stage, template=replace(old.settings.template, image="app:2"))
    order = await stage.submit({})
    await stage.steps(leader, 12, each_ms=100)
    assert await stage.states([order]) == [S.COMPLETED]
    images = {made.making.template.image for made in stage.platform.yard.made.values()}
    assert images == {"app:2"} and await words(stage) == ["idle"] * 3


async def test_a_slot_is_given_up_after_its_uses_and_one_old_slot_at_a_time() -> None:
    stage = warm(slots_warm=2, max_uses=1, max_age="1h")
    leader = await stage.leader()
    await stage.steps(leader, 6, each_ms=100)
    first = {slot.created_at for slot in await stage.store.slots()}
    await stage.submit({})
    await stage.steps(leader, 10, each_ms=100)
    assert sorted(slot.uses for slot in await stage.store.slots()) == [0, 0]
    stage.clock.ms += 3_600_000
    leader = await stage.leader("b")
    await stage.steps(leader, 1)
    assert await words(stage) == ["creating", "idle", "removing"]
    await stage.steps(leader, 12, each_ms=500)
    assert await words(stage) == ["idle", "idle"]
    assert not first & {slot.created_at for slot in await stage.store.slots()}


async def test_a_live_place_of_one_project_serves_again_without_being_made_anew() -> None:
    stage = warm(slots_max=1, warmth="running", reset="none", project="default")
    leader = await stage.leader()
    orders = [await stage.submit({}) for _ in range(3)]
    await stage.steps(leader, 10, each_ms=50)
    (slot,) = await stage.store.slots()
    assert await stage.states(orders) == [S.COMPLETED] * 3
    assert (slot.uses, list(stage.platform.yard.made)) == (3, [slot.incarnation])


async def test_a_lost_run_cleans_also_where_slots_are_not_reset() -> None:
    stage = warm(slots_max=1, warmth="running", reset="none", project="default")
    leader = await stage.leader()
    await stage.submit({"run_ms": None, "vanish_after_ms": 200}, retries=0)
    await stage.steps(leader, 4, each_ms=50)
    (before,) = await stage.store.slots()
    await stage.steps(leader, 12, each_ms=500)
    (after,) = await stage.store.slots()
    assert after.state is SlotState.IDLE and after.incarnation != before.incarnation


async def test_a_place_that_cannot_start_puts_its_slot_in_error_and_is_made_anew() -> None:
    stage = warm(slots_max=1)
    leader = await stage.leader()
    order = await stage.submit({"start_error": "no such device", "place_failed": True}, retries=0)
    await stage.steps(leader, 6, each_ms=50)
    (slot,) = await stage.store.slots()
    assert (slot.state, slot.error, slot.failures) == (SlotState.ERROR, "no such device", 1)
    assert (await stage.order(order)).reason is Reason.START_FAILED
    good = await stage.submit({})
    await stage.steps(leader, 8, each_ms=1_000)
    (slot,) = await stage.store.slots()
    assert await stage.states([good]) == [S.COMPLETED]
    assert (slot.failures, len(stage.platform.yard.made)) == (0, 1)


async def test_the_breaker_opens_after_five_failures_and_an_operator_resets_it() -> None:
    stage = warm(slots_max=2)
    stage.platform.yard.refuses_creates = 5
    leader = await stage.leader()
    order = await stage.submit({}, queue_timeout_ms=None)
    await stage.steps(leader, 60, each_ms=1_000)
    pool = await stage.store.pool("default")
    assert pool is not None and (pool.failures, pool.broken_at is not None) == (5, True)
    made = len([event for event in await stage.store.events(0, 1_000) if event.kind is EventKind.SLOT_CREATING])
    await stage.steps(leader, 20, each_ms=10_000)
    again = len([event for event in await stage.store.events(0, 1_000) if event.kind is EventKind.SLOT_CREATING])
    assert made == again and await stage.states([order]) == [S.PENDING]
    pool = await stage.store.pool("default")
    assert pool is not None
    reset = places.reset_breaker(stage.world.cause(Trigger.REQUEST, "operator"), pool)
    assert reset is not None and (await stage.store.save([reset]))[0].saved
    await stage.steps(leader, 20, each_ms=1_000)
    pool = await stage.store.pool("default")
    assert await stage.states([order]) == [S.COMPLETED] and pool is not None and pool.failures == 0


@pytest.mark.parametrize("warmth", ["created", "running"])
async def test_an_open_breaker_tries_one_slot_after_five_minutes_and_closes_when_that_serves(warmth: str) -> None:
    stage = warm(slots_max=3, slots_warm=3, warmth=warmth)
    stage.platform.yard.refuses_creates = 7
    leader = await stage.leader()
    orders = [await stage.submit({}, queue_timeout_ms=None) for _ in range(2)]
    await stage.steps(leader, 60, each_ms=1_000)
    pool = await stage.store.pool("default")
    assert pool is not None and (pool.failures, pool.broken_at is not None) == (6, True)
    await stage.steps(leader, 26, each_ms=10_000)
    assert stage.platform.yard.refuses_creates == 0  # the outage is not over when it is tried first
    pool = await stage.store.pool("default")
    assert pool is not None and (pool.failures, pool.broken_at is not None) == (7, True)
    assert await stage.states(orders) == [S.PENDING] * 2
    await stage.steps(leader, 34, each_ms=10_000)
    pool = await stage.store.pool("default")
    assert pool is not None and (pool.failures, pool.broken_at) == (0, None)
    assert await stage.states(orders) == [S.COMPLETED] * 2


async def test_places_that_their_platform_broke_as_it_went_away_open_no_breaker() -> None:
    stage = warm(slots_max=6, slots_warm=6)
    leader = await stage.leader()
    await stage.steps(leader, 12, each_ms=100)
    broken = {"start_error": "endpoint exists already", "place_failed": True}
    away = mock.patch.object(stage.driver, "observe", side_effect=Unreachable("no answer"))
    with away:
        await stage.steps(leader, 2, each_ms=1_100)
    orders = [await stage.submit(broken, retries=0) for _ in range(6)]
    await stage.steps(leader, 4, each_ms=1_100)
    assert {(await stage.order(order)).reason for order in orders} == {Reason.START_FAILED}
    pool = await stage.store.pool("default")
    assert pool is not None and (pool.failures, pool.broken_at) == (0, None)
    assert {slot.failures for slot in await stage.store.slots()} == {1}  # they are made anew all the same
    await stage.steps(leader, 20, each_ms=1_100)
    [await stage.submit(broken, retries=0) for _ in range(6)]
    await stage.steps(leader, 4, each_ms=1_100)
    pool = await stage.store.pool("default")
    assert pool is not None and pool.broken_at is not None


async def test_a_new_template_closes_the_breaker() -> None:
    stage = warm(slots_max=5, image="app:1", slots_warm=5)
    stage.platform.yard.refuses_creates = 5
    leader = await stage.leader()
    await stage.steps(leader, 20, each_ms=500)
    pool = await stage.store.pool("default")
    assert pool is not None and pool.broken_at is not None
    await settings(stage, template=replace(pool.settings.template, image="app:2"))
    await stage.steps(leader, 12, each_ms=500)
    assert await words(stage) == ["idle"] * 5


async def test_a_slot_that_is_not_ready_in_time_fails() -> None:
    stage = warm(slots_warm=1, start_timeout="1m")
    stage.platform.yard.create_ms["default"] = 10_000_000
    leader = await stage.leader()
    await stage.steps(leader, 14, each_ms=5_000)
    (slot,) = await stage.store.slots()
    assert slot.state is SlotState.ERROR and slot.error == "it was not ready after 60 s"


async def test_time_in_which_the_platform_could_not_be_asked_fails_no_slot() -> None:
    stage = warm(slots_warm=1, start_timeout="1m")
    stage.platform.yard.create_ms["default"] = 95_000
    leader = await stage.leader()
    await stage.steps(leader, 4, each_ms=5_000)
    stage.platform.unreachable_until = stage.clock.ms + 60_000
    await stage.steps(leader, 13, each_ms=5_000)
    await stage.steps(leader, 5, each_ms=5_000)
    assert await words(stage) == ["idle"]


async def test_a_project_at_its_limit_makes_no_slots() -> None:
    stage = Stage(
        seats=False, pools={"default": {"slots_max": 4, "memory_mb": 100}}, projects={"default": {"running_max": 1}}
    )
    leader = await stage.leader()
    for _ in range(3):
        await stage.submit({"run_ms": None})
    await stage.steps(leader, 8, each_ms=200)
    assert len(await stage.store.slots()) == 1


async def test_idle_live_slots_of_another_pool_go_for_an_order_that_waits_for_memory() -> None:
    live = {"slots_max": 2, "slots_warm": 1, "memory_mb": 100, "warmth": "running"}
    stage = Stage(
        seats=False, host={"memory_mb": 250}, pools={"default": {"slots_max": 1, "memory_mb": 100}, "b": live}
    )
    leader = await stage.leader()
    await stage.steps(leader, 6, each_ms=200)
    pair = [await stage.submit({"run_ms": 300}, pool="b") for _ in range(2)]
    await stage.steps(leader, 10, each_ms=1_000)
    assert await stage.states(pair) == [S.COMPLETED] * 2 and await words(stage, "b") == ["idle", "idle"]
    small = await stage.submit({"run_ms": 2_000})
    await stage.steps(leader, 2, each_ms=1_000)
    assert (await stage.order(small)).state is S.PENDING and (await words(stage, "b")).count("idle") == 1
    await stage.steps(leader, 4, each_ms=300)
    assert (await stage.order(small)).state is S.RUNNING and await words(stage, "b") == ["idle"]


async def test_a_create_of_seven_minutes_in_one_pool_delays_no_other() -> None:
    stage = Stage(
        seats=False,
        pools={"default": {"slots_max": 2, "memory_mb": 100}, "slow": {"slots_max": 2, "memory_mb": 100}},
    )
    stage.platform.yard.create_ms["slow"] = 420_000
    leader = await stage.leader()
    slow = await stage.submit({}, pool="slow", queue_timeout_ms=None)
    await stage.steps(leader, 3, each_ms=1_000)
    for _ in range(5):
        order = await stage.submit({})
        await stage.steps(leader, 6, each_ms=100)
        assert (await stage.order(order)).state is S.COMPLETED
    await stage.steps(leader, 85, each_ms=5_000)
    assert (await stage.order(slow)).state is S.COMPLETED
    assert stage.platform.yard.made and len(await stage.store.slots(pool="slow")) == 1


async def test_a_slow_call_that_makes_a_place_is_not_given_up_after_a_minute() -> None:
    stage = warm(slots_max=1)
    leader = await stage.leader()
    create, asked = stage.driver.create, []

    async def slowly(slot: Slot, making: Making) -> str | None:
        asked.append(stage.clock.ms)
        until = stage.clock.ms + 420_000
        while stage.clock.ms < until:
            await stage.driver._pause()
        return await create(slot, making)

    stage.driver.create = slowly  # type: ignore[method-assign]
    order = await stage.submit({}, queue_timeout_ms=None)
    await stage.steps(leader, 100, each_ms=5_000)
    assert (await stage.order(order)).state is S.COMPLETED and asked[1:2] != asked[:1] and len(asked) == 2


async def test_a_slot_that_is_given_up_while_it_is_made_does_not_wait_for_that_for_ever() -> None:
    stage = warm(slots_max=1, slots_warm=1, image="app:1")
    leader = await stage.leader()
    create, hangs = stage.driver.create, [True]

    async def hang(slot: Slot, making: Making) -> str | None:
        while hangs:
            await stage.driver._pause()
        return await create(slot, making)

    stage.driver.create = hang  # type: ignore[method-assign]
    await stage.steps(leader, 3, each_ms=1_000)
    pool = await stage.store.pool("default")
    assert pool is not None and await words(stage) == ["creating"]
    await settings(stage, template=replace(pool.settings.template, image="app:2"))
    await stage.steps(leader, 20, each_ms=1_000)
    assert await words(stage) == ["removing"]
    await stage.steps(leader, 45, each_ms=1_000)
    hangs.clear()
    await stage.steps(leader, 4, each_ms=1_000)
    assert await words(stage) == ["idle"]


async def test_a_slot_that_its_platform_does_not_take_away_says_why_and_goes_when_it_can() -> None:
    stage = warm(slots_max=1, slots_warm=1)
    leader = await stage.leader()
    await stage.steps(leader, 3, each_ms=1_000)
    remove, whys = stage.driver.remove, ["it is busy"]

    async def refuse(slot: Slot) -> None:
        if whys:
            raise Unreachable(f"place cannot be removed: {whys[0]}")
        await remove(slot)

    stage.driver.remove = refuse  # type: ignore[method-assign]
    await settings(stage, slots_warm=0, slots_max=0)

    async def errors() -> list[str | None]:
        return [slot.error for slot in await stage.store.slots() if slot.state is SlotState.REMOVING]

    await stage.steps(leader, STUCK_S, each_ms=1_000)
    assert await errors() == [None]  # a moment is nothing to speak of
    await stage.steps(leader, 30, each_ms=1_000)
    assert await errors() == ["place cannot be removed: it is busy"]
    whys[0] = "another\0 reason"
    await stage.steps(leader, 30, each_ms=1_000)
    assert await errors() == ["place cannot be removed: another reason"]
    whys.clear()
    await stage.steps(leader, 3, each_ms=1_000)
    assert await words(stage) == []
    told = [event.kind for event in await stage.store.events(0, 200) if event.kind is EventKind.SLOT_STUCK]
    assert len(told) == 2  # not at each try
