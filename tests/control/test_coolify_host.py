"""A host's step on Coolify, with its real driver and the fake server, under a clock that the test moves."""

import asyncio
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import pytest

from standby.control.host import HostStep
from standby.core import work
from standby.core.model import OPEN, Order, OrderState, Reason, Slot, SlotState, Trigger, run_id
from standby.core.work import Report
from standby.drivers.coolify import Client, CoolifyDriver, CoolifyHost
from tests.control.stage import Stage, TestClock
from tests.drivers.coolify_fake import PROJECT, SERVER, TOKEN, FakeCoolify
from tests.drivers.coolify_yard import IMAGE, LAG, MINUTE

pytestmark = pytest.mark.anyio
S = OrderState
CLOUD = {
    "driver": "coolify",
    "url": "http://fake",
    "token": TOKEN,
    "project": PROJECT,
    "server": SERVER,
    "starts_max": "none",
}
BOTS = {"image": IMAGE, "worker": True, "memory_mb": 100, "slots_max": 8}


class Cloud(Stage):
    """One installation with one Coolify host; what its workers say is written by the test."""

    def __init__(self, fake: FakeCoolify, url: str, clock: TestClock, **pool: Any) -> None:
        super().__init__(clock=clock, host=CLOUD, pools={"default": {**BOTS, **pool}})
        self.fake = fake
        host = CoolifyHost(project=PROJECT, server=SERVER)
        self.coolify = CoolifyDriver(Client(url, TOKEN, clock.now), host, installation="standby", now=clock.now)
        self.driver = self.coolify  # type: ignore[assignment]
        self.world = dataclasses.replace(self.world, drivers={"local": self.coolify})
        fake.images.add(IMAGE)

    async def until(self, leader: HostStep, check: Callable[[], Any], what: str, most_ms: int = 30 * MINUTE) -> None:
        """Step and let time pass until it is so."""
        began = self.clock.ms
        while not await check():
            assert self.clock.ms - began < most_ms, what
            await self.go_on(leader, 5_000)

    async def go_on(self, leader: HostStep, ms: int) -> None:
        """Let time pass, with a step each 5 s, whose calls come back."""
        for _ in range(ms // 5_000):
            await self.steps(leader, 1, each_ms=5_000)
            await _wait_for_calls(leader, self.coolify)

    async def state_is(self, order_id: str, state: OrderState) -> bool:
        return (await self.order(order_id)).state is state

    async def running(self, leader: HostStep) -> Order:
        """An order whose worker said that it has begun."""
        order_id = await self.submit()
        await self.until(leader, lambda: self.has_container(order_id), "its container is up")
        await self.say(await self.order(order_id), begun_at=self.clock.ms)
        await self.until(leader, lambda: self.state_is(order_id, S.RUNNING), "its worker was heard")
        return await self.order(order_id)

    async def has_container(self, order_id: str) -> bool:
        self.fake.settle()
        slot = (await self.order(order_id)).slot
        return slot is not None and self.fake.app(slot).container is not None

    async def deployed(self, times: int) -> bool:
        self.fake.settle()
        (app,) = self.fake.apps.values()
        return len(self.fake.deployments) == times and app.container is not None

    async def say(self, order: Order, **said: Any) -> None:
        """What the order's worker reports."""
        report = Report(run_id=run_id(order), boot="b", heartbeat_at=self.clock.ms, **said)
        await self.store.put_report(report, news=True)

    async def boot(self) -> None:
        """The worker of the only slot reports."""
        slot = await self.slot()
        pool = await self.store.pool("default")
        assert pool is not None
        change = work.boot(self.world.cause(Trigger.REQUEST, "worker"), slot, pool, None, "nonce-of-a-boot")
        assert change is not None
        await self.store.save([change])

    async def slot(self) -> Slot:
        (slot,) = await self.store.slots()
        return slot


async def _wait_for_calls(leader: HostStep, driver: CoolifyDriver) -> None:
    """Until every call has come back, and the look under way."""
    async with asyncio.timeout(20):
        while leader._hands._calls or (  # noqa: ASYNC110 - the real world sends no events
            driver._fleet._looking and not driver._fleet._looking.done()
        ):
            await asyncio.sleep(0.002)


@pytest.fixture
async def cloud() -> AsyncIterator[Callable[..., Cloud]]:
    clock = TestClock()
    fake = FakeCoolify(now=clock.now)
    made: list[Cloud] = []
    with fake.serving() as url:

        def make(**pool: Any) -> Cloud:
            made.append(Cloud(fake, url, clock, **pool))
            return made[-1]

        yield make
        for each in made:
            await each.coolify.close()
    assert fake.violations == []


async def test_a_slot_serves_one_order_after_the_other_with_the_same_application(cloud: Callable[..., Cloud]) -> None:
    stage = cloud(slots_max=1)
    leader = await stage.leader()
    environments, generations = [], []
    for number in (1, 2):
        order = await stage.running(leader)
        assert order.handle == stage.fake.deployments[-1].uuid
        container = stage.fake.app(order.slot or "").container
        assert container is not None
        environments.append(container.env)
        await stage.say(order, begun_at=stage.clock.ms, ended_at=stage.clock.ms, exit_code=0)
        await stage.until(leader, lambda of=order.id: stage.state_is(of, S.COMPLETED), "its result was heard")  # type: ignore[misc]
        assert stage.fake.app((await stage.slot()).name).container is not None, "a result is not the end of a container"

        async def clean() -> bool:
            return (await stage.slot()).state is SlotState.IDLE

        await stage.until(leader, clean, "the slot is clean")
        slot = await stage.slot()
        assert slot.uses == number
        generations.append(slot.generation)
        assert stage.fake.app(slot.name).container is None
    assert len(stage.fake.sent("POST", "/applications/dockerimage")) == 1
    assert stage.fake.pulls == []
    assert generations[0] < generations[1]
    assert environments[0]["STANDBY_SLOT"] == "standby-pool-default-001"
    assert environments[0]["STANDBY_SLOT_TOKEN"] != environments[1]["STANDBY_SLOT_TOKEN"]


@pytest.mark.parametrize("lie", ["empty", "half", 500, 429])
async def test_a_listing_that_lies_deletes_nothing_and_fails_no_order(
    cloud: Callable[..., Cloud], lie: str | int
) -> None:
    stage = cloud(idle_ttl="none")
    stage.fake.concurrent_builds = 8
    leader = await stage.leader()
    ids = [await stage.submit() for _ in range(8)]

    async def all_up() -> bool:
        return all([await stage.has_container(order_id) for order_id in ids])

    await stage.until(leader, all_up, "all containers are up")
    for order_id in ids[:4]:
        await stage.say(await stage.order(order_id), begun_at=stage.clock.ms)
    before = [(await stage.order(order_id)).attempt for order_id in ids]
    stops = len(stage.fake.sent("POST", "/applications/.*/stop"))
    stage.fake.list_lies = lie
    await stage.go_on(leader, 5 * MINUTE)
    stage.fake.list_lies = None
    await stage.go_on(leader, 5 * MINUTE)
    orders = [await stage.order(order_id) for order_id in ids]
    assert {order.state for order in orders} == {S.RUNNING, S.PREPARING}
    assert [order.attempt for order in orders] == before
    assert stage.fake.sent("DELETE", "/applications/.*") == []
    assert len(stage.fake.sent("POST", "/applications/.*/stop")) == stops
    assert len(stage.fake.apps) == 8
    host = await stage.store.host("local")
    assert host is not None and host.unreachable_since is None


async def test_a_run_whose_worker_still_speaks_is_not_lost_because_a_dead_agent_says_exited(
    cloud: Callable[..., Cloud],
) -> None:
    stage = cloud()
    leader = await stage.leader()
    order = await stage.running(leader)
    stage.fake.status_ms = 100 * MINUTE
    stage.fake.app(order.slot or "").status = "exited"
    for _ in range((LAG + MINUTE) // 5_000):
        await stage.say(order, begun_at=stage.clock.ms)
        await stage.go_on(leader, 5_000)
    assert await stage.state_is(order.id, S.RUNNING)
    await stage.go_on(leader, MINUTE)
    ended = await stage.order(order.id)
    assert (ended.state in OPEN, ended.reason) == (False, Reason.LOST)


async def test_a_resident_worker_that_does_not_stop_is_ended_and_its_application_stays(
    cloud: Callable[..., Cloud],
) -> None:
    stage = cloud(warmth="running", slots_max=1, slots_warm=1)
    leader = await stage.leader()
    order_id = await stage.submit()

    async def slot_is_made() -> bool:
        stage.fake.settle()
        slots = await stage.store.slots()
        return bool(slots) and bool(stage.fake.apps) and stage.fake.app(slots[0].name).container is not None

    await stage.until(leader, slot_is_made, "its container is up")
    await stage.boot()
    await stage.until(leader, lambda: stage.state_is(order_id, S.PREPARING), "it was handed over")
    assert len(stage.fake.deployments) == 1, "nothing was sent for it"
    await stage.cancel(order_id)
    await stage.until(leader, lambda: stage.state_is(order_id, S.CANCELLED), "it was ended")
    await stage.until(leader, lambda: stage.deployed(2), "it is deployed again")
    await stage.boot()

    async def warm() -> bool:
        return (await stage.slot()).state is SlotState.IDLE

    await stage.until(leader, warm, "its next worker was heard")
    assert stage.fake.sent("DELETE", "/applications/.*") == []
    assert len(stage.fake.apps) == 1
