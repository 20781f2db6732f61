"""An order that need not wait is claimed by the commit that takes it in; every gate holds for it as for any other."""

import asyncio
from collections.abc import Sequence
from typing import Any

import pytest

from standby.control.controller import Controller
from standby.control.host import HostStep
from standby.core import lifecycle
from standby.core.draft import draft
from standby.core.model import EventKind, Mode, OrderState, Spec, Trigger
from standby.core.places import set_pool_mode
from standby.store.contract import StoreDown, Work
from tests.control.stage import Stage
from tests.rows import order

pytestmark = pytest.mark.anyio
S = OrderState


async def ready(stage: Stage, slots: int = 1) -> HostStep:
    """A leader with so many idle slots that knows that nobody waits."""
    leader = await stage.leader()
    for _ in range(slots):
        await stage.submit({"run_ms": 1})
    await stage.steps(leader, 12, each_ms=10)
    await stage.steps(leader, 2, each_ms=1_100)
    return leader


async def arrive(stage: Stage, leader: HostStep, *, save: bool = True, **keys: Any) -> tuple[bool, str]:
    """Whether the leader takes it, and its id; it is saved right behind."""
    now, memory_mb, project = stage.clock.now(), keys.pop("memory_mb", 0), keys.pop("project", "default")
    order_id = stage.world.ids.order(now)
    spec = Spec(order_id=order_id, payload='{"script": {"run_ms": 1000}}', **keys)
    pool = await stage.store.pool("default")
    assert pool is not None
    order = draft(order_id, now, project, "default", memory_mb, spec)
    change = lifecycle.submit(stage.world.cause(Trigger.REQUEST, "tester"), order, spec, pool, None, None)
    assert change.order is not None
    taken = leader.take_in(Work(change.order, spec))
    if save:
        (verdict,) = await stage.store.save([change])
        assert verdict.saved
    await stage.answers()
    return taken, order_id


async def test_an_order_for_which_a_slot_is_free_is_claimed_and_started_without_a_step() -> None:
    stage = Stage()
    leader = await ready(stage)
    taken, order_id = await arrive(stage, leader)
    assert taken
    assert stage.live_copies(await stage.order(order_id)) == 1
    kinds = [event.kind for event in await stage.store.events(0, 1_000) if event.subject == order_id]
    assert kinds == [EventKind.ORDER_SUBMITTED, EventKind.ORDER_CLAIMED]
    await stage.steps(leader, 8, each_ms=500)
    assert (await stage.order(order_id)).state is S.COMPLETED


async def test_a_step_follows_as_soon_as_the_claim_is_saved() -> None:
    stage = Stage()
    leader = await ready(stage)
    woken = list[bool]()
    leader._book._wake = lambda: woken.append(True)
    assert (await arrive(stage, leader))[0]
    assert woken == [True]


async def test_the_second_of_two_waits_for_the_only_slot_and_gets_it() -> None:
    stage = Stage(pools={"default": {"slots_max": 1, "memory_mb": 0}})
    leader = await ready(stage)
    first, second = await arrive(stage, leader), await arrive(stage, leader)
    assert (first[0], second[0]) == (True, False)
    await stage.steps(leader, 16, each_ms=500)
    assert await stage.states([first[1], second[1]]) == [S.COMPLETED] * 2


async def test_nobody_who_waits_is_overtaken() -> None:
    stage = Stage(pools={"default": {"slots_max": 1, "memory_mb": 0}, "other": {"slots_max": 1, "memory_mb": 0}})
    leader = await ready(stage)
    await stage.submit({"run_ms": 1}, pool="other")  # of which the leader has not heard the end yet
    leader._book.ahead.forget()
    assert not (await arrive(stage, leader))[0]


async def test_memory_that_is_used_is_not_given_away() -> None:
    stage = Stage(host={"memory_mb": 100}, pools={"default": {"slots_max": 2, "memory_mb": 0}})
    leader = await ready(stage, slots=2)
    assert (await arrive(stage, leader, memory_mb=60))[0]
    assert not (await arrive(stage, leader, memory_mb=60))[0]


async def test_what_a_step_is_about_to_give_away_is_not_given_twice() -> None:
    stage = Stage()
    leader = await ready(stage)
    real, seen = leader._step, list[bool]()

    async def step() -> float:
        seen.append((await arrive(stage, leader, save=False))[0])
        return await real()

    leader._step = step  # type: ignore[method-assign]
    await leader.step()
    assert seen == [False]


async def test_a_pool_that_was_paused_meanwhile_starts_nothing_and_loses_nothing() -> None:
    stage = Stage()
    leader = await ready(stage)
    pool = await stage.store.pool("default")
    assert pool is not None
    cause = stage.world.cause(Trigger.REQUEST, "tester")
    pause = set_pool_mode(cause, pool, Mode.PAUSED, "enough")
    assert pause is not None
    await stage.store.save([pause])
    _, order_id = await arrive(stage, leader)
    await stage.steps(leader, 4, each_ms=100)
    assert (await stage.order(order_id)).state is S.PENDING
    assert await stage.store.holders() == {}


async def test_an_order_that_is_never_saved_leaves_its_slot_free() -> None:
    stage = Stage(pools={"default": {"slots_max": 1, "memory_mb": 0}})
    leader = await ready(stage)
    assert (await arrive(stage, leader, save=False))[0]
    await stage.steps(leader, 2, each_ms=100)
    assert await stage.store.holders() == {}
    _, order_id = await arrive(stage, leader)
    await stage.steps(leader, 8, each_ms=500)
    assert (await stage.order(order_id)).state is S.COMPLETED


async def test_a_leader_whose_lease_ends_soon_takes_nothing() -> None:
    stage = Stage()
    leader = await ready(stage)
    stage.clock.ms += stage.world.config.lease_ms - 100
    assert not (await arrive(stage, leader))[0]


async def test_an_order_with_a_concurrency_key_is_left_to_the_store() -> None:
    stage = Stage()
    leader = await ready(stage)
    assert not (await arrive(stage, leader, concurrency_key="k"))[0]


async def test_a_store_that_could_not_say_who_waits_lets_nobody_overtake_them(monkeypatch: pytest.MonkeyPatch) -> None:
    stage = Stage(pools={"default": {"slots_max": 1, "memory_mb": 0}})
    leader = await ready(stage)
    waits = await stage.submit({"run_ms": 1_000})

    async def down(*_: Any, **__: Any) -> Sequence[Work]:
        raise StoreDown("gone")

    with monkeypatch.context() as away:
        away.setattr(stage.store, "candidates", down)
        with pytest.raises(StoreDown):
            await stage.steps(leader, 1, each_ms=100)
    assert not (await arrive(stage, leader))[0]
    await leader.step()  # the next one, long before the poll
    await stage.answers()
    assert stage.live_copies(await stage.order(waits)) == 1


async def test_a_leader_that_leaves_is_offered_nothing_any_more(monkeypatch: pytest.MonkeyPatch) -> None:
    stage, stop, offered = Stage(), asyncio.Event(), list[Work]()
    work = Work(order(), Spec(order_id="o"))
    real = HostStep.close

    async def close(self: HostStep, grace_s: float) -> None:
        assert not stage.world.arrivals.offer(work)
        await real(self, grace_s)

    def take_in(_: HostStep, work: Work) -> bool:
        offered.append(work)
        stop.set()
        return False

    monkeypatch.setattr(HostStep, "close", close)
    monkeypatch.setattr(HostStep, "take_in", take_in)
    leading = asyncio.create_task(Controller(stage.world, "a").run(stop))
    async with asyncio.timeout(20):
        while not offered:
            stage.world.arrivals.offer(work)
            await asyncio.sleep(0)
        await leading
    assert offered == [work]
