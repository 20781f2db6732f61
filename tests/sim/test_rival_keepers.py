"""Rival keepers of schedules, stopped and killed at every point where they wait for the store, whose commits are
sometimes of unknown outcome, while time passes: each tick has one order, or was given up, and none has two."""

import asyncio
from collections import Counter
from collections.abc import Callable
from dataclasses import replace as with_
from datetime import UTC
from itertools import takewhile
from random import Random
from typing import Any, cast

import pytest
from msgspec.structs import replace

from sim.line import SimStore
from standby import ticking
from standby.config import Config
from standby.control import schedules
from standby.control.apply import apply_config
from standby.control.controller import SCHEDULES
from standby.control.lease import Deposed, Hold
from standby.control.schedules import ScheduleStep
from standby.core import cron, ticks
from standby.core.lifecycle import Cause
from standby.core.model import EventKind, Missed, Mode, Schedule, Spec, Trigger
from standby.seal import Seal
from standby.store.contract import OrderFilter, Store, StoreDown
from standby.ticking import Made, make_tick
from standby.world import Ids, World
from tests.control.stage import TestClock

pytestmark = pytest.mark.anyio
SEEDS = 40
ACTIONS = 250
LEASE_MS = 10_000
KEEPERS = ("a", "b", "c")
EXPRESSION = cron.parse("*/10 * * * *")


class Watcher:
    """The database's own constraints are never needed."""

    def __init__(self) -> None:
        self.found: list[str] = []

    def committed(self) -> None: ...
    def led_until(self, host: str, until: int) -> None: ...
    def broken(self, truth: str) -> None:
        self.found.append(truth)


class Gated:
    """One keeper's way to the store: it waits before and after each call until it is let through."""

    def __init__(self, store: Store, gate: Callable[[], "asyncio.Future[None]"]) -> None:
        self._store, self._gate = store, gate

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **named: Any) -> Any:
            await self._gate()
            answer = await getattr(self._store, name)(*args, **named)
            await self._gate()
            return answer

        return call


class Rivals:
    """Several keepers over one store; chance says who goes on, who dies, and how late it is."""

    def __init__(self, seed: int, missed: Missed) -> None:
        self.chance, self.missed, self.clock = Random(f"{seed} {missed}"), missed, TestClock()
        self.watcher = Watcher()
        self.store = SimStore.made(self.clock.now, self.watcher, hints=False)
        self.world = World(
            config=Config.of(hosts={"local": {"driver": "scripted"}}),
            store=self.store,
            clock=self.clock,
            seal=Seal(b"k" * 32),
            ids=Ids(self.chance.randbytes),
        )
        self.first = cron.tick_after(EXPRESSION, UTC, self.clock.now()) or 0
        self.waiting: dict[str, asyncio.Future[None]] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def play(self) -> None:
        await apply_config(self.world)
        row = Schedule(
            name="often",
            project="a",
            pool="default",
            cron="*/10 * * * *",
            missed=self.missed,
            memory_mb=1,
            spec=Spec(order_id="", command=("true",)),
            mode_since=1,
            mode_actor="ada",
            next_at=self.first,
        )
        await self.store.save([ticks.add(self.world.cause(Trigger.REQUEST, "ada"), row, None)], together=True)
        for name in KEEPERS:
            self._begin(name)
        for _ in range(ACTIONS):
            await self._act()
        for name in KEEPERS:
            await self._kill(name)
        await self._calm()

    async def _act(self) -> None:
        name = self.chance.choice(KEEPERS)
        match self.chance.choices(["go on", "time", "kill", "unsure"], [30, 6, 1, 2])[0]:
            case "go on":
                waits = self.waiting.pop(name, None)
                if waits is not None and not waits.done():
                    waits.set_result(None)
            case "time":
                self.clock.ms += self.chance.choice([100, 3_000, 11_000, 60_000, 600_000, 1_900_000])
            case "kill":
                await self._kill(name)
                self._begin(name)
            case _:
                self.store.unsure += self.chance.choice([["before"], ["after"], ["after", "find"], ["before", "after"]])
        await self._settle()

    def _begin(self, name: str) -> None:
        self.tasks[name] = asyncio.create_task(self._keep(name))

    async def _kill(self, name: str) -> None:
        self.tasks[name].cancel()
        (end,) = await asyncio.gather(self.tasks[name], return_exceptions=True)
        if not isinstance(end, asyncio.CancelledError):
            self.watcher.broken(f"a keeper failed: {end!r}")
        self.waiting.pop(name, None)

    async def _settle(self) -> None:
        for _ in range(8):
            await asyncio.sleep(0)

    async def _keep(self, name: str) -> None:
        def gate() -> "asyncio.Future[None]":
            self.waiting[name] = asyncio.get_running_loop().create_future()
            return self.waiting[name]

        world = with_(self.world, store=cast(Store, Gated(self.store, gate)))
        hold: Hold | None = None
        while True:
            await gate()
            try:
                if hold is None or not hold.outlives(0):
                    sent_at = self.clock.monotonic()
                    taken = await world.store.take_lease(SCHEDULES, name, LEASE_MS)
                    hold = None if taken is None else Hold(self.clock, taken[0], sent_at, LEASE_MS)
                if hold is not None:
                    await ScheduleStep(world, hold, name).step()
            except (Deposed, StoreDown):
                hold = None

    async def _calm(self) -> None:
        """No more faults: one keeper brings everything up to date."""
        self.store.unsure.clear()
        self.clock.ms += LEASE_MS
        taken = await self.store.take_lease(SCHEDULES, "last", LEASE_MS)
        assert taken is not None
        step = ScheduleStep(self.world, Hold(self.clock, taken[0], self.clock.monotonic(), LEASE_MS), "last")
        while await step.step() == 0:
            pass

    async def wrong(self) -> list[str]:
        """Which truths do not hold."""
        row = await self.store.schedule("often")
        assert row is not None
        later = cron.ticks_after(EXPRESSION, UTC, self.first)
        expected = [self.first, *takewhile(lambda tick: tick <= self.clock.now(), later)]
        listed = (await self.store.orders(OrderFilter(), None, 10_000)).orders
        made = Counter(each.spec.tick_at for each in listed)
        events = await self.store.events(0, 100_000)
        given_up = sum(event.data.get("note", {}).get("missed", 0) for event in events)
        told = [event for event in events if event.kind is EventKind.SCHEDULE_TICKED]
        truths = {
            "a tick has two orders": max(made.values(), default=1) == 1,
            "an order has a tick that there is not": set(made) <= set(expected),
            "a tick was lost": given_up + len(made) == len(expected),
            "with all a tick was given up": self.missed is not Missed.ALL or given_up == 0,
            "a tick has no event": len(told) == len(made),
            "the next tick has passed": row.mode is Mode.OPEN and (row.next_at or 0) > self.clock.now(),
        }
        return [*self.watcher.found, *(text for text, holds in truths.items() if not holds)]


@pytest.mark.parametrize("missed", Missed)
async def test_rival_keepers_make_each_tick_once(missed: Missed) -> None:
    for seed in range(SEEDS):
        rivals = Rivals(seed, missed)
        await rivals.play()
        assert await rivals.wrong() == [], f"seed {seed}"


async def order_first(world: World, cause: Cause, schedule: Schedule, due: ticks.Due) -> Made:
    """A bug: the order and its tick are two transactions."""
    pool = await world.store.pool(schedule.pool)
    assert pool is not None and due.tick is not None
    order_id = world.ids.order(cause.at)
    (verdict,) = await world.store.save([ticks.order(cause, schedule, pool, due.tick, order_id, None)])
    if not verdict.saved:
        return Made(verdict.answer, order_id)
    tick = ticking._tick(world, cause, schedule, due, order_id)
    return Made((await world.store.save([tick], together=True))[0].answer, order_id)


async def by_an_old_lease(world: World, cause: Cause, schedule: Schedule, due: ticks.Due) -> Made:
    """A bug: the tick is written without its lease, on the newest version of the schedule."""
    newest = await world.store.schedule(schedule.name)
    assert newest is not None
    return await make_tick(world, replace(cause, lease=None), newest, due)


@pytest.mark.parametrize("bug", [order_first, by_an_old_lease])
async def test_a_planted_bug_is_found(monkeypatch: pytest.MonkeyPatch, bug: Any) -> None:
    monkeypatch.setattr(schedules, "make_tick", bug)
    for seed in range(SEEDS):
        rivals = Rivals(seed, Missed.ALL)
        await rivals.play()
        if await rivals.wrong():
            return
    raise AssertionError("it was not found")
