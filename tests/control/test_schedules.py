"""The step that keeps schedules, under a clock that the test moves: which orders there are after which absence."""

from typing import Any

import pytest
from msgspec.structs import replace

from standby.control.apply import apply_config
from standby.control.controller import SCHEDULES
from standby.control.lease import Deposed, Hold
from standby.control.schedules import REST_S, ScheduleStep
from standby.core import cron, ticks
from standby.core.model import EventKind, Missed, Mode, OnConflict, Schedule, Spec, Trigger
from standby.seal import Seal
from standby.store.contract import OrderFilter, StoreDown
from standby.ticking import sealed_for
from standby.zones import find
from tests.control.stage import Stage

pytestmark = pytest.mark.anyio
MINUTE = 60_000
HOUR = 60 * MINUTE


async def keeper(stage: Stage, owner: str = "a") -> ScheduleStep:
    """A server that takes the lease of the schedules."""
    await apply_config(stage.world)
    taken = await stage.store.take_lease(SCHEDULES, owner, 10**12)
    assert taken is not None, "somebody else keeps them"
    return ScheduleStep(stage.world, Hold(stage.clock, taken[0], stage.clock.monotonic(), 10**12), f"leader:{owner}")


async def add(stage: Stage, missed: Missed = Missed.ONCE, env: dict[str, str] | None = None, **columns: Any) -> int:
    """An hourly schedule; returns its first tick."""
    now = stage.clock.now()
    first = cron.tick_after(cron.parse(columns.get("cron", "@hourly")), find(columns.get("zone", "UTC")), now)
    assert first is not None
    base: dict[str, Any] = {
        "name": "hourly",
        "project": "default",
        "pool": "default",
        "cron": "@hourly",
        "memory_mb": 1,
        "spec": Spec(order_id="", command=("true",), env_names=tuple(env or ())),
        "mode_since": now,
        "mode_actor": "ada",
        "next_at": first,
    }
    row = Schedule(missed=missed, **{**base, **columns})
    sealed = stage.world.seal.close(sealed_for(row.name), env or {})
    (verdict,) = await stage.store.save(
        [ticks.add(stage.world.cause(Trigger.REQUEST, "ada"), row, sealed)], together=True
    )
    assert verdict.saved
    return first


async def until_quiet(step: ScheduleStep) -> float:
    """Let it step as long as it has something to do."""
    while True:
        wait_s = await step.step()
        if wait_s > 0:
            return wait_s


async def made(stage: Stage) -> list[int]:
    """For which ticks there are orders, oldest first."""
    page = await stage.store.orders(OrderFilter(), None, 1_000)
    return sorted(each.spec.tick_at for each in page.orders if each.spec.tick_at is not None)


async def row_of(stage: Stage, name: str = "hourly") -> Schedule:
    row = await stage.store.schedule(name)
    assert row is not None
    return row


async def test_a_tick_makes_an_order_when_it_comes_and_not_before() -> None:
    stage = Stage()
    step = await keeper(stage)
    first = await add(stage)
    stage.clock.ms = first - 1_500
    assert (await until_quiet(step), await made(stage)) == (1.5, [])
    stage.clock.ms = first
    await until_quiet(step)
    assert await made(stage) == [first]
    row = await row_of(stage)
    assert (row.last_at, row.next_at) == (first, first + HOUR)
    work = await stage.store.order(row.last_order or "")
    assert work is not None and work.spec.schedule == "hourly"
    stage.clock.ms = first + 30_000
    await until_quiet(step)
    assert await made(stage) == [first]


@pytest.mark.parametrize(
    ("past_ms", "wait_s"), [(0, 3), (1, 2.999), (2_999, 0.001), (3_000, 57), (30_000, 30), (59_999, 0.001)]
)
async def test_it_looks_with_each_minute_and_a_little_later(past_ms: int, wait_s: float) -> None:
    stage = Stage()
    step = await keeper(stage)
    stage.clock.ms = 1_700_000_040_000 + past_ms
    assert await step.step() == pytest.approx(wait_s)


@pytest.mark.parametrize(
    ("missed", "expected"), [(Missed.ALL, [0, 1, 2, 3]), (Missed.ONCE, [3]), (Missed.SKIP, list[int]())]
)
async def test_after_an_absence_the_policy_says_which_orders_there_are(missed: Missed, expected: list[int]) -> None:
    stage = Stage()
    first = await add(stage, missed)
    stage.clock.ms = first + 3 * HOUR + 10 * MINUTE
    await until_quiet(await keeper(stage))
    assert await made(stage) == [first + hour * HOUR for hour in expected]
    assert (await row_of(stage)).next_at == first + 4 * HOUR
    told = [event for event in await stage.store.events(0, 100) if event.kind.startswith("schedule.")]
    assert sum(event.data["note"].get("missed", 0) for event in told[1:]) == 4 - len(expected)
    assert (EventKind.SCHEDULE_MISSED in {event.kind for event in told}) is (missed is Missed.SKIP)


@pytest.mark.parametrize("missed", Missed)
async def test_a_keeper_that_dies_anywhere_neither_loses_nor_doubles_a_tick(missed: Missed) -> None:
    """Every save and every read of a step is, in turn, the last thing that its keeper does."""
    for deadly in range(40):
        stage = Stage()
        first = await add(stage, missed)
        stage.clock.ms = first + 2 * HOUR + 10 * MINUTE
        step = await keeper(stage)
        died = await die_at(stage, step, deadly)
        await until_quiet(await keeper(stage, "a"))
        expected = {Missed.ALL: [0, 1, 2], Missed.ONCE: [2], Missed.SKIP: list[int]()}[missed]
        assert await made(stage) == [first + hour * HOUR for hour in expected], f"died at {deadly}"
        if not died:
            return
    raise AssertionError("it never came through")


async def die_at(stage: Stage, step: ScheduleStep, deadly: int) -> bool:
    """Let the step die at its nth call of the store, before or after that is done."""
    store, calls = stage.world.store, iter(range(10_000))
    names = ("due_schedules", "schedule_env", "pool", "save")

    def deathly(name: str) -> Any:
        real = getattr(type(store), name)

        async def call(*args: Any, **named: Any) -> Any:
            number = next(calls)
            if number * 2 == deadly:
                raise KeyboardInterrupt
            answer = await real(store, *args, **named)
            if number * 2 + 1 == deadly:
                raise KeyboardInterrupt
            return answer

        return call

    try:
        for name in names:
            setattr(store, name, deathly(name))
        await until_quiet(step)
        return False
    except KeyboardInterrupt:
        return True
    finally:
        for name in names:
            delattr(store, name)


async def test_of_two_keepers_the_deposed_one_makes_nothing() -> None:
    stage = Stage()
    old = await keeper(stage)
    first = await add(stage)
    stage.clock.ms = first
    await stage.store.resign_leases("a", [SCHEDULES])
    new = await keeper(stage, "b")
    with pytest.raises(Deposed):
        await old.step()
    assert await made(stage) == []
    await until_quiet(new)
    assert await made(stage) == [first]


async def test_env_values_reach_the_order_sealed_for_it() -> None:
    stage = Stage()
    step = await keeper(stage)
    stage.clock.ms = await add(stage, env={"TOKEN": "secret"})
    await until_quiet(step)
    order = (await row_of(stage)).last_order or ""
    sealed = await stage.store.sealed_env([order])
    assert stage.world.seal.open(order, sealed[order]) == {"TOKEN": "secret"}


async def test_with_a_dedupe_key_a_tick_means_the_order_that_is_unfinished() -> None:
    stage = Stage()
    step = await keeper(stage)
    first = await add(stage, spec=Spec(order_id="", command=("true",), dedupe_key="one"))
    for hour in range(3):
        stage.clock.ms = first + hour * HOUR
        await until_quiet(step)
    assert await made(stage) == [first]
    found = await stage.store.ticks("hourly", 10)
    assert [tick.at for tick in found] == [first + 2 * HOUR, first + HOUR, first]
    assert len({tick.order_id for tick in found}) == 1


@pytest.mark.parametrize(
    ("on_conflict", "states"),
    [
        (OnConflict.WAIT, ["pending", "pending"]),
        (OnConflict.CANCEL_NEW, ["pending", "cancelled"]),
        (OnConflict.CANCEL_OLD, ["cancelled", "pending"]),
    ],
)
async def test_a_tick_does_about_its_concurrency_key_what_its_order_says(
    on_conflict: OnConflict, states: list[str]
) -> None:
    stage = Stage()
    step = await keeper(stage)
    spec = Spec(order_id="", command=("true",), concurrency_key="one", on_conflict=on_conflict)
    first = await add(stage, spec=spec)
    for hour in range(2):
        stage.clock.ms = first + hour * HOUR
        await until_quiet(step)
    page = await stage.store.orders(OrderFilter(), None, 10)
    assert [each.order.state for each in sorted(page.orders, key=lambda each: each.spec.tick_at or 0)] == states


async def test_what_cannot_be_made_is_paused_with_the_reason() -> None:
    stage = Stage()
    step = await keeper(stage)
    first = await add(stage, env={"TOKEN": "secret"})
    await add(stage, name="lost", pool="nowhere")
    await add(stage, name="adrift", zone="UTC")
    adrift = await row_of(stage, "adrift")
    moved = ticks.alter(stage.world.cause(Trigger.REQUEST, "ada"), adrift, replace(adrift, zone="No/Where"), None)
    assert moved is not None
    await stage.store.save([moved], together=True)
    stage.clock.ms = first
    strange = ScheduleStep(replace_seal(stage), step._hold, "leader:a")
    await until_quiet(strange)
    reasons = {row.name: (row.mode, row.mode_reason) for row in await stage.store.schedules()}
    assert {mode for mode, _ in reasons.values()} == {Mode.PAUSED}
    assert reasons["lost"][1] == "there is no pool nowhere"
    assert "no time zone 'No/Where'" in (reasons["adrift"][1] or "")
    assert "seal key" in (reasons["hourly"][1] or "") and "secret" not in (reasons["hourly"][1] or "")


def replace_seal(stage: Stage) -> Any:
    from dataclasses import replace as with_other

    return with_other(stage.world, seal=Seal(b"x" * 32))


async def test_nothing_ticks_by_a_clock_that_jumped() -> None:
    stage = Stage()
    step = await keeper(stage)
    stage.clock.ms = await add(stage)
    stage.clock.steady = False
    assert await step.step() == REST_S
    assert await made(stage) == []


async def test_a_store_that_is_away_is_no_reason_to_give_a_tick_up(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage()
    step = await keeper(stage)
    first = stage.clock.ms = await add(stage)

    async def away(*_: Any, **__: Any) -> Any:
        raise StoreDown("away")

    with monkeypatch.context() as patch:
        patch.setattr(stage.store, "save", away)
        with pytest.raises(StoreDown):
            await step.step()
    await until_quiet(step)
    assert await made(stage) == [first]


async def test_every_tick_is_an_event() -> None:
    stage = Stage()
    step = await keeper(stage)
    first = stage.clock.ms = await add(stage)
    await until_quiet(step)
    (event,) = [each for each in await stage.store.events(0, 100) if each.kind is EventKind.SCHEDULE_TICKED]
    assert (event.subject, event.trigger, event.actor) == ("hourly", Trigger.DUE, "leader:a")
    assert event.data["note"]["tick_at"] == first
