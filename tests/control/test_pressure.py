"""A pressed host: fewer starts, then none, and back after a calm; what is missing changes nothing."""

import asyncio
from itertools import pairwise
from typing import Any

import pytest

from standby.core.model import Event, EventKind, Host, Level, OrderState
from standby.core.sighting import Pressure, Reading
from standby.store.contract import Store
from tests.control.stage import Stage

pytestmark = pytest.mark.anyio
S = OrderState
CALM, TIGHT, FULL = (Reading(memory_total_mb=1_000, memory_available_mb=free) for free in (500, 150, 50))
LONG = {"run_ms": None}


def measured(reading: Reading | None = CALM, *, store: Store | None = None, **host: Any) -> Stage:
    stage = Stage(store, host=host, pools={"default": {"slots_max": 20, "memory_mb": 10, "run_timeout": "none"}})
    stage.platform.reading = reading
    return stage


async def submitted(stage: Stage, count: int) -> list[str]:
    return [await stage.submit(LONG) for _ in range(count)]


async def open_runs(stage: Stage) -> int:
    return len(await stage.store.holders())


async def events(stage: Stage, kind: EventKind) -> list[Event]:
    return [event for event in await stage.store.events(0, 10_000) if event.kind is kind]


async def row(stage: Stage) -> Host:
    host = await stage.store.host("local")
    assert host is not None
    return host


async def test_a_critical_host_claims_nothing_and_goes_on_after_the_calm() -> None:
    stage = measured(FULL)
    leader = await stage.leader()
    await stage.steps(leader, 3, each_ms=1_000)
    await submitted(stage, 5)
    await stage.steps(leader, 20, each_ms=1_000)
    host = await row(stage)
    assert (host.pressure, host.pressure_cause) == (Level.CRITICAL, "95% of the memory is used (limit 90%)")
    assert await open_runs(stage) == 0
    stage.platform.reading = CALM
    await stage.steps(leader, 30, each_ms=1_000)
    assert await open_runs(stage) == 0, "thirty seconds of calm are not over"
    await stage.steps(leader, 80, each_ms=1_000)
    assert (await row(stage)).pressure is Level.NONE
    assert await open_runs(stage) == 5
    levels = [event.data["host"]["pressure"] for event in await events(stage, EventKind.HOST_PRESSURE)]
    assert levels == ["critical", "warning", "none"]


async def test_a_new_leader_of_a_full_machine_claims_nothing_at_all() -> None:
    stage = measured(CALM)
    await stage.leader()
    await submitted(stage, 3)
    stage.platform.reading = FULL
    stage.clock.ms += 20_000
    leader = await stage.leader("b")
    await stage.steps(leader, 10, each_ms=1_000)
    assert await open_runs(stage) == 0


async def test_at_warning_starts_are_two_seconds_apart() -> None:
    stage = measured(TIGHT)
    leader = await stage.leader()
    await stage.steps(leader, 3, each_ms=500)
    ids = await submitted(stage, 5)
    await stage.steps(leader, 50, each_ms=500)
    assert await stage.states(ids) == [S.RUNNING] * 5
    claims = [event.at for event in await events(stage, EventKind.ORDER_CLAIMED)]
    assert all(later - sooner >= 2_000 for sooner, later in pairwise(claims))


async def test_at_warning_half_of_the_starts_are_in_flight() -> None:
    stage = measured(TIGHT, starts_max=4)
    leader = await stage.leader()
    await stage.steps(leader, 3, each_ms=500)
    ids = [await stage.submit({"start_ms": 600_000}) for _ in range(6)]
    await stage.steps(leader, 60, each_ms=500)
    assert (await stage.states(ids)).count(S.PREPARING) == 2


async def test_a_reading_that_goes_missing_keeps_the_level() -> None:
    stage = measured(FULL)
    leader = await stage.leader()
    await stage.steps(leader, 3, each_ms=1_000)
    await submitted(stage, 1)
    stage.platform.reading = None
    await stage.steps(leader, 100, each_ms=1_000)
    assert ((await row(stage)).pressure, await open_runs(stage)) == (Level.CRITICAL, 0)


async def test_a_host_that_was_never_measured_is_not_pressed_and_writes_nothing() -> None:
    stage = measured(None)
    leader = await stage.leader()
    await submitted(stage, 3)
    await stage.steps(leader, 10, each_ms=1_000)
    assert ((await row(stage)).pressure, await open_runs(stage)) == (Level.NONE, 3)
    assert await stage.store.reading("local") is None
    assert await events(stage, EventKind.HOST_CALMING) == []


async def test_the_next_leader_finds_the_level_and_begins_the_calm_anew() -> None:
    stage = measured(FULL)
    leader = await stage.leader()
    await stage.steps(leader, 3, each_ms=1_000)
    await submitted(stage, 1)
    stage.platform.reading = CALM
    await stage.steps(leader, 25, each_ms=1_000)
    stage.clock.ms += 20_000
    leader = await stage.leader("b")
    await stage.steps(leader, 25, each_ms=1_000)
    assert ((await row(stage)).pressure, await open_runs(stage)) == (Level.CRITICAL, 0)
    await stage.steps(leader, 10, each_ms=1_000)
    assert (await row(stage)).pressure is Level.WARNING


async def test_a_gauge_with_a_fault_keeps_nobody_from_leading(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = measured()

    async def measure() -> Reading:
        raise ValueError("a file that nobody can read")

    monkeypatch.setattr(stage.driver, "measure", measure)
    leader = await stage.leader()
    await submitted(stage, 3)
    await stage.steps(leader, 4, each_ms=1_000)
    assert await open_runs(stage) == 3


async def test_a_measurement_that_hangs_holds_up_no_step(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = measured()
    never: asyncio.Future[Reading] = asyncio.get_running_loop().create_future()

    async def measure() -> Reading:
        return await never

    monkeypatch.setattr(stage.driver, "measure", measure)
    leader = await stage.leader()
    await submitted(stage, 3)
    await stage.steps(leader, 4, each_ms=1_000)
    assert await open_runs(stage) == 3
    never.cancel()
    await leader.close(1)


async def test_stalls_alone_press_a_host() -> None:
    stage = measured(Reading(memory_total_mb=1_000, memory_available_mb=900, pressure=Pressure(memory_full_avg10=9)))
    leader = await stage.leader()
    await stage.steps(leader, 3, each_ms=1_000)
    assert (await row(stage)).pressure is Level.CRITICAL


async def test_a_disk_below_the_reserve_stops_claims(store: Store) -> None:
    stage = measured(Reading(memory_total_mb=1_000, memory_available_mb=900, disk_free_mb=500), store=store)
    leader = await stage.leader()
    await stage.steps(leader, 3, each_ms=1_000)
    await submitted(stage, 1)
    await stage.steps(leader, 3, each_ms=1_000)
    host = await row(stage)
    assert (host.pressure_cause, await open_runs(stage)) == ("500 MB of disk are free (reserve 1024 MB)", 0)


async def test_the_limits_are_settings_of_the_host_and_kept_in_its_row(store: Store) -> None:
    stage = measured(CALM, store=store, pressure_warning=0.4, pressure_critical=0.5, pressure_calm="5s", cpus=1.5)
    leader = await stage.leader()
    await stage.steps(leader, 3, each_ms=1_000)
    host = await row(stage)
    assert (host.limits.warning, host.limits.critical, host.limits.calm_ms, host.cpus) == (0.4, 0.5, 5_000, 1.5)
    assert host.pressure is Level.CRITICAL


async def test_while_pressed_every_reading_is_stored_else_one_in_ten_seconds() -> None:
    stage = measured(CALM)
    leader = await stage.leader()
    times = set()
    for _ in range(60):
        await stage.steps(leader, 1, each_ms=1_000)
        found = await stage.store.reading("local")
        times.add(found and found[0])
    assert 6 <= len(times) <= 8
    stage.platform.reading = FULL
    before = stage.clock.ms
    for _ in range(10):
        await stage.steps(leader, 1, each_ms=1_000)
        found = await stage.store.reading("local")
        times.add(found and found[0])
    assert len([at for at in times if at is not None and at > before]) >= 9
