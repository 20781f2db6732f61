"""What must happen although nothing stirs, and what must not happen although much time passes."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace as with_
from typing import Any

import pytest

from standby.config import Config
from standby.control.apply import apply_config
from standby.control.controller import Controller
from standby.control.host import HostStep
from standby.control.lease import Deposed
from standby.core import places
from standby.core.errors import ConfigError, Unreachable
from standby.core.model import Change, EventKind, Mode, OrderState, Reason, Retry, Slot, Trigger
from standby.drivers.contract import Making
from standby.store.contract import Answer, StoreDown, Verdict
from tests.control.stage import Stage

pytestmark = pytest.mark.anyio
S = OrderState


async def _quiet(stage: Stage, leader: HostStep, count: int, each_ms: int = 1_100) -> None:
    """Steps that only the poll brings about."""
    for _ in range(count):
        stage.clock.ms += each_ms
        await stage.store.renew_leases("a", ["local"], stage.world.config.lease_ms)
        stage.hold.renewed(stage.clock.monotonic(), stage.world.config.lease_ms)
        await leader.step()
        await stage.answers()


async def test_a_retry_comes_although_nothing_else_happens() -> None:
    stage = Stage()
    leader = await stage.leader()
    policy = Retry(retries=1, retry_on=(Reason.EXIT,))
    order_id = await stage.submit({"run_ms": 20_000, "exit": 3}, retry=policy)
    await _quiet(stage, leader, 60)
    order = await stage.order(order_id)
    assert (order.state, order.attempt) == (S.FAILED, 2)


async def test_orders_do_not_expire_before_anybody_ever_led_their_host() -> None:
    stage = Stage()
    await apply_config(stage.world)
    ids = [await stage.submit({"run_ms": 10}) for _ in range(3)]
    stage.clock.ms += 600_000
    leader = await stage.leader()
    await stage.steps(leader, 8, each_ms=100)
    assert set(await stage.states(ids)) == {S.COMPLETED}


async def test_orders_do_not_expire_when_a_leader_died_before_it_led() -> None:
    stage = Stage()
    leader = await stage.leader()
    await stage.steps(leader, 2, each_ms=100)
    ids = [await stage.submit({"run_ms": 10}) for _ in range(3)]
    stage.clock.ms += 600_000
    assert await stage.store.take_lease("local", "short-lived", 10_000) is not None
    stage.clock.ms += 11_000
    leader = await stage.leader()
    await stage.steps(leader, 8, each_ms=100)
    assert set(await stage.states(ids)) == {S.COMPLETED}


async def test_the_time_in_which_a_look_waits_in_vain_for_its_answer_is_no_queue_time() -> None:
    stage = Stage(pools={"default": {"slots_max": 1, "memory_mb": 1}})
    leader = await stage.leader()
    await stage.submit({"run_ms": None})
    await stage.steps(leader, 3)
    second = await stage.submit(queue_timeout_ms=3_000)
    observe = stage.driver.observe

    async def hangs(_: Any) -> Any:
        stage.clock.ms += 5_000
        raise Unreachable("no answer")

    stage.driver.observe = hangs  # type: ignore[method-assign, assignment]
    await stage.steps(leader, 1, each_ms=1_000)
    stage.driver.observe = observe  # type: ignore[method-assign]
    await stage.steps(leader, 1, each_ms=1_000)
    assert (await stage.order(second)).state is S.PENDING
    await stage.steps(leader, 3, each_ms=1_000)
    assert (await stage.order(second)).reason is Reason.QUEUE_TIMEOUT


async def test_a_block_that_could_not_be_saved_is_saved_with_the_next_look() -> None:
    stage = Stage()
    leader = await stage.leader()
    await stage.steps(leader, 2, each_ms=100)
    stage.platform.unreachable_until = stage.clock.ms + 60_000
    save = stage.store.save

    async def without_blocks(changes: Any) -> Any:
        verdicts = iter(await save([change for change in changes if change.kind != "pool.blocked"]))
        refused = Verdict(Answer.CONFLICT)
        return [refused if change.kind == "pool.blocked" else next(verdicts) for change in changes]

    stage.store.save = without_blocks  # type: ignore[method-assign, assignment]
    await stage.steps(leader, 2, each_ms=1_000)
    stage.store.save = save  # type: ignore[method-assign]
    await stage.steps(leader, 2, each_ms=1_000)
    (pool,) = await stage.store.pools()
    assert pool.blocked_since is not None


async def test_free_seats_of_a_platform_that_was_declared_dead_are_made_anew() -> None:
    stage = Stage()
    leader = await stage.leader()
    await stage.submit({"run_ms": 10})
    await stage.steps(leader, 6, each_ms=100)
    stage.platform.identity = stage.platform.name = "platform-2"
    await stage.steps(leader, 3, each_ms=1_100)
    host = await stage.store.host("local")
    assert host is not None
    await stage.store.save([places.declare_dead(stage.world.cause(Trigger.REQUEST, "op"), host, "gone")])
    order_id = await stage.submit({"run_ms": 10}, retries=0)
    await stage.steps(leader, 10, each_ms=1_100)
    assert (await stage.order(order_id)).state is S.COMPLETED


async def test_a_pool_with_slots_is_not_moved_to_another_host() -> None:
    stage = Stage()
    leader = await stage.leader()
    await stage.submit({"run_ms": 10})
    await stage.steps(leader, 6, each_ms=100)
    hosts = {"local": {"driver": "scripted"}, "other": {"driver": "scripted"}}
    moved = Config.of(hosts=hosts, pools={"default": {"host": "other"}})
    with pytest.raises(ConfigError, match=r"drain default"):
        await apply_config(with_(stage.world, config=moved))
    (pool,) = await stage.store.pools()
    assert pool.host == "local"


def _as_of_a_newer_version(stage: Stage, order_id: str) -> None:
    """Its spec names a reason that this version does not know."""
    text = """update specs set body = json_set(body, '$.retry.retry_on', json('["newer"]')) where order_id = ?"""
    stage.store._main.writer.execute(text, (order_id,))  # type: ignore[attr-defined]


async def test_a_spec_of_a_newer_version_stops_nobody_else() -> None:
    stage = Stage()
    leader = await stage.leader()
    running = await stage.submit({"run_ms": 3_000})
    await stage.steps(leader, 4, each_ms=100)
    waiting = await stage.submit({"run_ms": 10})
    for order_id in (running, waiting):
        _as_of_a_newer_version(stage, order_id)
    other = await stage.submit({"run_ms": 10})
    await stage.steps(leader, 8, each_ms=1_000)
    assert await stage.states([running, waiting, other]) == [S.COMPLETED, S.PENDING, S.COMPLETED]


@pytest.mark.parametrize("unreadable", [1, 3])
async def test_orders_behind_as_many_unreadable_specs_as_there_are_slots_are_served(unreadable: int) -> None:
    stage = Stage(pools={"default": {"slots_max": unreadable, "memory_mb": 1}})
    leader = await stage.leader()
    running = [await stage.submit({"run_ms": 3_000}) for _ in range(unreadable)]
    await stage.steps(leader, 4, each_ms=100)
    heads = [await stage.submit({"run_ms": 10}) for _ in range(2 * unreadable)]
    for order_id in heads:
        _as_of_a_newer_version(stage, order_id)
    behind = [await stage.submit({"run_ms": 10}) for _ in range(3)]
    await stage.steps(leader, 30, each_ms=1_000)
    assert set(await stage.states([*running, *behind])) == {S.COMPLETED}
    assert set(await stage.states(heads)) == {S.PENDING}


async def test_an_instance_can_be_stopped_while_the_store_is_down_from_the_start() -> None:
    stage = Stage()

    async def down(_: object) -> object:
        raise StoreDown("nobody there")

    stage.store.hosts = lambda: down(None)  # type: ignore[method-assign, assignment, return-value]
    stop = asyncio.Event()
    running = asyncio.create_task(Controller(stage.world, "a").run(stop))
    await asyncio.sleep(0)
    stop.set()
    async with asyncio.timeout(10):
        await running


async def test_a_leader_that_was_frozen_past_its_lease_judges_nobody_and_leads_anew() -> None:
    stage = Stage(pools={"default": {"slots_max": 1, "memory_mb": 1}})
    leader = await stage.leader()
    await stage.submit({"run_ms": 60_000})
    await stage.steps(leader, 4, each_ms=100)
    waiting = await stage.submit({"run_ms": 10}, queue_timeout_ms=30_000)
    stage.clock.ms += 600_000
    with pytest.raises(Deposed):
        await leader.step()
    assert (await stage.order(waiting)).state is S.PENDING
    leader = await stage.leader()
    await stage.steps(leader, 8, each_ms=100)
    assert (await stage.order(waiting)).state is S.COMPLETED


async def test_nothing_is_sent_after_a_slow_answer_outlived_the_lease() -> None:
    stage = Stage(seats=False, pools={"default": {"slots_max": 1, "memory_mb": 1}})
    leader = await stage.leader()
    await stage.submit({"run_ms": 10})
    remove, creates = stage.driver.remove, []
    create = stage.driver.create

    async def slowly(slot: Slot) -> None:
        stage.clock.ms += 60_000
        await remove(slot)

    async def noted(slot: Slot, making: Making) -> str | None:
        creates.append(stage.clock.ms)
        return await create(slot, making)

    stage.driver.remove, stage.driver.create = slowly, noted  # type: ignore[method-assign]
    began = stage.clock.ms
    with pytest.raises(Deposed):
        await stage.steps(leader, 8, each_ms=100, renew=False)
    assert creates and all(at < began + 10_000 for at in creates)


async def test_a_blockade_that_a_leader_noted_after_its_lease_hides_no_time_without_one() -> None:
    stage = Stage()
    await stage.leader()
    led_until = stage.clock.ms
    stage.clock.ms += 20_000
    pool = await stage.store.pool("default")
    assert pool is not None
    cause = stage.world.cause(Trigger.LOOK, "leader:a", stage.hold.key)
    (verdict,) = await stage.store.save([places.block(cause, pool, stage.clock.ms)])
    assert verdict.saved
    await stage.leader("b")
    pool = await stage.store.pool("default")
    assert pool is not None and pool.blocked_since is not None
    assert pool.blocked_since <= led_until


async def test_a_pool_that_changes_while_a_leader_begins_hides_no_time_without_one() -> None:
    stage = Stage()
    await stage.leader()
    led_until = stage.clock.ms
    stage.clock.ms += 20_000
    real, changed = stage.store.save, list[Verdict]()

    async def save(changes: Sequence[Change], **keys: Any) -> Sequence[Verdict]:
        if not changed and any(change.kind is EventKind.HOST_LED for change in changes):
            pool = await stage.store.pool("default")
            assert pool is not None
            paused = places.set_pool_mode(stage.world.cause(Trigger.REQUEST, "tester"), pool, Mode.PAUSED, None)
            assert paused is not None
            changed.extend(await real([paused]))
        return await real(changes, **keys)

    stage.store.save = save  # type: ignore[method-assign]
    await stage.leader("b")
    pool = await stage.store.pool("default")
    assert [verdict.saved for verdict in changed] == [True]
    assert pool is not None and pool.blocked_since is not None
    assert pool.blocked_since <= led_until


async def test_a_retry_comes_although_the_store_was_down_when_it_was_asked_who_waits() -> None:
    stage = Stage()
    leader = await stage.leader()
    order_id = await stage.submit({"exit": 3}, retry=Retry(retries=1, base_ms=30_000, retry_on=(Reason.EXIT,)))
    await _quiet(stage, leader, 4, each_ms=100)
    assert (await stage.order(order_id)).state is S.WAITING_RETRY
    real = stage.store.waiting

    async def down(_: Sequence[str]) -> bool:
        stage.store.waiting = real  # type: ignore[method-assign]
        raise StoreDown("for a moment")

    stage.store.waiting = down  # type: ignore[method-assign,assignment]
    with pytest.raises(StoreDown):
        await _quiet(stage, leader, 2)
    await _quiet(stage, leader, 50)
    assert (await stage.order(order_id)).state is S.FAILED
