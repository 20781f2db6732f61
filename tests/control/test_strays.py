"""Places that vanish are made anew; things that belong to nobody go, but late, seen twice, and never many at once."""

from typing import Any

import pytest

from standby.core.errors import Unreachable
from standby.core.model import EventKind, OrderState, Slot, SlotState
from standby.drivers.contract import Making, Place
from tests.control.stage import Stage

pytestmark = pytest.mark.anyio
S = OrderState


async def warmed(stage: Stage) -> Any:
    leader = await stage.leader()
    await stage.steps(leader, 8, each_ms=1_000)
    return leader


def stage_of(slots_warm: int, **settings: Any) -> Stage:
    pool = {"slots_max": 20, "slots_warm": slots_warm, "memory_mb": 10, "idle_ttl": "none", **settings}
    return Stage(seats=False, pools={"default": pool})


def leave(stage: Stage, count: int, slot: str = "standby-pool-old-001") -> list[str]:
    """Things of ours that no row knows."""
    yard = stage.platform.yard
    for number in range(count):
        row = Slot(
            name=slot,
            host="local",
            pool="old",
            state=SlotState.CREATING,
            state_since=0,
            created_at=0,
            generation=number,
        )
        yard.create(row, Making(), stage.clock.ms)
    return [incarnation for incarnation, made in yard.made.items() if made.slot == slot]


async def test_an_idle_slot_whose_place_is_gone_is_made_anew() -> None:
    stage = stage_of(2)
    leader = await warmed(stage)
    first, second = await stage.store.slots()
    assert first.incarnation is not None
    del stage.platform.yard.made[first.incarnation]
    await stage.steps(leader, 40, each_ms=1_000)
    after = await stage.store.slots()
    assert [slot.state for slot in after] == ["idle", "idle"] and after[1] == second
    assert after[0].incarnation in stage.platform.yard.made and after[0].generation == first.generation + 1
    told = [event for event in await stage.store.events(0, 1_000) if event.kind is EventKind.SLOT_CLEANING]
    assert [event.subject for event in told] == [first.name] and told[0].data["note"]["why"]


async def test_a_place_that_cannot_serve_is_made_anew() -> None:
    stage = stage_of(1, warmth="running")
    leader = await warmed(stage)
    (before,) = await stage.store.slots()
    assert before.incarnation is not None
    stage.platform.yard.made[before.incarnation].sound = False
    await stage.steps(leader, 25, each_ms=1_000)
    (after,) = await stage.store.slots()
    assert after.incarnation != before.incarnation and list(stage.platform.yard.made) == [after.incarnation]


async def test_a_list_that_is_empty_once_makes_nothing_anew() -> None:
    stage = stage_of(3)
    leader = await warmed(stage)
    places, lies = stage.driver.places, [1]

    async def once_empty() -> Any:
        return [] if lies and lies.pop() else await places()

    stage.driver.places = once_empty  # type: ignore[method-assign]
    before = await stage.store.slots()
    await stage.steps(leader, 60, each_ms=1_000)
    assert not lies and await stage.store.slots() == before


async def test_a_stray_is_removed_after_two_sightings_and_a_minimum_age() -> None:
    stage = stage_of(1)
    leader = await warmed(stage)
    (stray,) = leave(stage, 1)
    await stage.steps(leader, 110, each_ms=1_000)
    assert stray in stage.platform.yard.made, "it is too young"
    await stage.steps(leader, 40, each_ms=1_000)
    assert stray not in stage.platform.yard.made and len(stage.platform.yard.made) == 1
    swept = [event for event in await stage.store.events(0, 1_000) if event.kind is EventKind.HOST_SWEPT]
    assert [event.data["note"]["strays"] for event in swept] == [[f"standby-pool-old-001 {stray}"]]


async def test_a_stray_that_does_not_go_is_swept_ever_more_rarely() -> None:
    stage = stage_of(1)
    leader = await warmed(stage)
    (stray,) = leave(stage, 1)
    remove_stray, asked = stage.driver.remove_stray, []

    async def refuse(place: Place) -> None:
        asked.append(place.incarnation)
        raise Unreachable("it is busy")

    stage.driver.remove_stray = refuse  # type: ignore[method-assign]
    await stage.steps(leader, 1_000, each_ms=1_000)
    assert 3 < len(asked) < 10
    swept = [event for event in await stage.store.events(0, 5_000) if event.kind is EventKind.HOST_SWEPT]
    assert len(swept) == len(asked)
    stage.driver.remove_stray = remove_stray  # type: ignore[method-assign]
    await stage.steps(leader, 1_000, each_ms=1_000)
    assert stray not in stage.platform.yard.made


async def test_an_old_stray_is_not_removed_at_first_sight() -> None:
    stage = stage_of(1)
    stray = leave(stage, 1)[0]
    stage.clock.ms += 10_000_000
    leader = await warmed(stage)
    await stage.steps(leader, 12, each_ms=1_000)
    assert stray in stage.platform.yard.made
    await stage.steps(leader, 40, each_ms=1_000)
    assert stray not in stage.platform.yard.made


async def test_a_sweep_of_too_many_refuses_and_says_so_until_it_is_settled() -> None:
    stage = stage_of(10)
    leader = await warmed(stage)
    strays = leave(stage, 4)
    await stage.steps(leader, 200, each_ms=1_000)
    host = await stage.store.host("local")
    assert set(strays) <= set(stage.platform.yard.made), "4 of 14 are too many"
    assert host is not None and host.error is not None and host.unreachable_since is None
    assert host.error.startswith("4 of 14 places belong to no slot")
    del stage.platform.yard.made[strays[0]]
    await stage.steps(leader, 40, each_ms=1_000)
    host = await stage.store.host("local")
    assert host is not None and host.error is None and len(stage.platform.yard.made) == 10
    alarms = [event for event in await stage.store.events(0, 1_000) if event.kind is EventKind.HOST_ALARMED]
    assert [event.data["host"]["error"] is None for event in alarms][:1] == [False]


async def test_what_runs_or_is_being_made_is_no_stray() -> None:
    stage = stage_of(0, slots_max=3)
    leader = await stage.leader()
    running = await stage.submit({"run_ms": None}, run_timeout_ms=None)
    await stage.steps(leader, 4, each_ms=1_000)
    stage.platform.yard.create_ms["default"] = 1_000_000
    await stage.submit({}, queue_timeout_ms=None)
    await stage.steps(leader, 300, each_ms=1_000)
    assert (await stage.order(running)).state is S.RUNNING and len(stage.platform.yard.made) == 2


async def test_a_platform_that_cannot_list_its_places_loses_nothing() -> None:
    stage = stage_of(2)
    leader = await warmed(stage)
    before = await stage.store.slots()

    async def fails() -> list[Place]:
        stage.platform.check_reachable(-1)
        raise OSError("500")

    stage.driver.places = fails  # type: ignore[method-assign]
    await stage.steps(leader, 60, each_ms=1_000)
    assert await stage.store.slots() == before
