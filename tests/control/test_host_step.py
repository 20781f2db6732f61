from collections.abc import Sequence
from typing import Any

import pytest

from sim.fold import fold
from standby.control.lease import Deposed
from standby.core import places
from standby.core.model import Change, EventKind, Mode, OrderState, Reason, SlotState, Trigger
from standby.core.sighting import Sighting
from standby.drivers.contract import OpenRun
from standby.store.contract import Answer, Heard, Verdict
from tests.control.stage import Stage

pytestmark = pytest.mark.anyio
S = OrderState


async def test_an_order_goes_from_submit_to_completed_and_its_slot_is_free_again() -> None:
    stage = Stage()
    leader = await stage.leader()
    order_id = await stage.submit({"start_ms": 50, "run_ms": 100})
    await stage.steps(leader, 3)
    assert (await stage.order(order_id)).state is S.PREPARING
    await stage.steps(leader, 1, each_ms=60)
    assert (await stage.order(order_id)).state is S.RUNNING
    await stage.steps(leader, 1, each_ms=100)
    ended = await stage.order(order_id)
    assert (ended.state, ended.exit_code, ended.attempt, ended.slot) == (S.COMPLETED, 0, 1, None)
    (slot,) = await stage.store.slots()
    assert (slot.state, slot.uses) == (SlotState.IDLE, 1)


async def test_slots_are_made_on_demand_below_the_maximum_and_reused() -> None:
    stage = Stage()
    leader = await stage.leader()
    ids = [await stage.submit() for _ in range(5)]
    await stage.steps(leader, 12)
    assert set(await stage.states(ids)) == {S.COMPLETED}
    assert sorted(slot.name for slot in await stage.store.slots()) == [
        "standby-pool-default-001",
        "standby-pool-default-002",
    ]


async def test_a_failed_start_is_retried_after_a_wait_and_then_given_up() -> None:
    stage = Stage()
    leader = await stage.leader()
    order_id = await stage.submit({"start_error": "no such image"})
    await stage.steps(leader, 3)
    waiting = await stage.order(order_id)
    assert (waiting.state, waiting.reason, waiting.due_at) == (
        S.WAITING_RETRY,
        Reason.START_FAILED,
        stage.clock.ms + 5_000,
    )
    await stage.steps(leader, 60, each_ms=1_000)
    given_up = await stage.order(order_id)
    assert (given_up.state, given_up.reason, given_up.attempt) == (S.FAILED, Reason.START_FAILED, 4)
    assert [run.error for run in await stage.store.runs(order_id)] == ["no such image"] * 4


async def test_a_commands_own_failure_is_not_retried_unless_asked() -> None:
    stage = Stage()
    leader = await stage.leader()
    order_id = await stage.submit({"exit": 3})
    await stage.steps(leader, 4)
    ended = await stage.order(order_id)
    assert (ended.state, ended.reason, ended.exit_code, ended.attempt) == (S.FAILED, Reason.EXIT, 3, 1)


async def test_a_vanished_run_is_lost_and_retried() -> None:
    stage = Stage()
    leader = await stage.leader()
    order_id = await stage.submit({"run_ms": None, "vanish_after_ms": 3_000})
    await stage.steps(leader, 5, each_ms=1_000)
    waiting = await stage.order(order_id)
    assert (waiting.state, waiting.reason) == (S.WAITING_RETRY, Reason.LOST)


async def test_a_cancel_asks_first_and_forces_after_the_grace() -> None:
    stage = Stage()
    leader = await stage.leader()
    order_id = await stage.submit({"run_ms": None, "ignore_stop": True}, stop_grace_ms=5_000)
    await stage.steps(leader, 3)
    await stage.cancel(order_id)
    await stage.steps(leader, 4, each_ms=1_000)
    assert (await stage.order(order_id)).state is S.STOPPING
    await stage.steps(leader, 4, each_ms=1_000)
    ended = await stage.order(order_id)
    assert (ended.state, ended.reason, ended.exit_code) == (S.CANCELLED, Reason.CANCELLED, 137)


async def test_a_run_over_its_time_is_stopped_and_fails_with_timeout() -> None:
    stage = Stage()
    leader = await stage.leader()
    order_id = await stage.submit({"run_ms": None}, run_timeout_ms=2_000)
    await stage.steps(leader, 6, each_ms=1_000)
    ended = await stage.order(order_id)
    assert (ended.state, ended.reason) == (S.FAILED, Reason.TIMEOUT)


async def test_a_slow_start_over_its_time_is_a_failed_start() -> None:
    stage = Stage()
    leader = await stage.leader()
    order_id = await stage.submit({"start_ms": 60_000}, start_timeout_ms=2_000)
    await stage.steps(leader, 6, each_ms=1_000)
    assert (await stage.order(order_id)).reason is Reason.START_FAILED


async def test_a_claim_whose_start_was_never_sent_is_commanded_again_by_the_next_leader() -> None:
    stage = Stage()
    leader = await stage.leader()
    await stage.submit()
    await stage.steps(leader, 4)
    order_id = await stage.submit({"run_ms": 100})
    leader.hint(Heard(frozenset({"default"})))
    await leader.step()
    await leader.close(0)  # killed between the claim and its call
    stage.platform.copies.clear()
    claimed = await stage.order(order_id)
    assert claimed.state is S.PREPARING
    stage.clock.ms += 20_000
    second = await stage.leader("b")
    await stage.steps(second, 3, each_ms=200, renew=False)
    ended = await stage.order(order_id)
    assert (ended.state, ended.attempt) == (S.COMPLETED, 1)


async def test_a_new_leader_adopts_what_runs_without_starting_it_again() -> None:
    stage = Stage()
    leader = await stage.leader()
    order_id = await stage.submit({"run_ms": 30_000})
    await stage.steps(leader, 4)
    stage.clock.ms += 20_000
    second = await stage.leader("b")
    await stage.steps(second, 2)
    order = await stage.order(order_id)
    assert (order.state, order.attempt, stage.live_copies(order)) == (S.RUNNING, 1, 1)
    stage.clock.ms += 9_000
    await stage.steps(second, 3, each_ms=2_000)
    assert (await stage.order(order_id)).state is S.COMPLETED
    assert stage.platform.most_copies == {order_id: 1}


async def test_a_deposed_leader_writes_nothing_and_stops() -> None:
    stage = Stage()
    first = await stage.leader()
    stage.clock.ms += 20_000
    await stage.leader("b")
    order_id = await stage.submit()
    with pytest.raises(Deposed):
        await stage.steps(first, 6, renew=False)
    assert (await stage.order(order_id)).state is S.PENDING


async def test_nothing_is_judged_while_the_platform_cannot_be_asked_and_queue_time_stands_still() -> None:
    stage = Stage(pools={"default": {"slots_max": 1, "memory_mb": 1}})
    leader = await stage.leader()
    first = await stage.submit({"run_ms": 1_000})
    await stage.steps(leader, 3)
    second = await stage.submit(queue_timeout_ms=3_000)
    stage.platform.unreachable_until = stage.clock.ms + 60_000
    await stage.steps(leader, 30, each_ms=1_000)
    host = await stage.store.host("local")
    assert host is not None and host.unreachable_since is not None and "cannot be asked" in (host.error or "")
    assert (await stage.order(first)).state is S.RUNNING
    assert (await stage.order(second)).state is S.PENDING
    await stage.steps(leader, 40, each_ms=1_000)
    assert (await stage.order(first)).state is S.COMPLETED
    assert (await stage.order(second)).state is S.COMPLETED
    host = await stage.store.host("local")
    assert host is not None and (host.unreachable_since, host.error) == (None, None)


async def test_an_order_that_waits_too_long_in_a_serving_pool_expires() -> None:
    stage = Stage(pools={"default": {"slots_max": 1, "memory_mb": 1}})
    leader = await stage.leader()
    await stage.submit({"run_ms": None})
    second = await stage.submit(queue_timeout_ms=3_000)
    await stage.steps(leader, 6, each_ms=1_000)
    ended = await stage.order(second)
    assert (ended.state, ended.reason, ended.attempt) == (S.FAILED, Reason.QUEUE_TIMEOUT, 0)


async def test_time_without_a_leader_does_not_count_as_queue_time() -> None:
    stage = Stage(pools={"default": {"slots_max": 1, "memory_mb": 1}})
    leader = await stage.leader()
    await stage.submit({"run_ms": 60_000})
    await stage.steps(leader, 3)
    second = await stage.submit(queue_timeout_ms=30_000)
    stage.clock.ms += 600_000
    next_leader = await stage.leader("b")
    await stage.steps(next_leader, 6, each_ms=10, renew=False)
    assert (await stage.order(second)).state is S.COMPLETED


async def test_a_paused_pool_claims_nothing_and_its_orders_do_not_expire() -> None:
    stage = Stage()
    leader = await stage.leader()
    pool = await stage.store.pool("default")
    assert pool is not None
    await _mode(stage, Mode.PAUSED)
    order_id = await stage.submit(queue_timeout_ms=1_000)
    await stage.steps(leader, 5, each_ms=1_000)
    assert (await stage.order(order_id)).state is S.PENDING
    await _mode(stage, Mode.OPEN)
    await stage.steps(leader, 5, each_ms=100)
    assert (await stage.order(order_id)).state is S.COMPLETED


async def test_a_pause_that_the_leader_has_not_seen_yet_still_stops_its_claim() -> None:
    stage = Stage()
    leader = await stage.leader()
    await stage.submit()
    await stage.steps(leader, 5)
    order_id = await stage.submit()
    await _mode(stage, Mode.PAUSED)
    leader._book.reload = False  # it decides on what it read before the pause
    await leader.step()
    assert (await stage.order(order_id)).state is S.PENDING


async def test_a_drained_pool_finishes_what_runs_and_gives_up_its_slots() -> None:
    stage = Stage()
    leader = await stage.leader()
    order_id = await stage.submit({"run_ms": 1_000})
    await stage.steps(leader, 3)
    await _mode(stage, Mode.DRAINING)
    await stage.steps(leader, 2)
    assert (await stage.order(order_id)).state is S.RUNNING
    await stage.steps(leader, 4, each_ms=1_000)
    assert (await stage.order(order_id)).state is S.COMPLETED
    assert await stage.store.slots() == []


async def test_declared_memory_is_never_exceeded() -> None:
    stage = Stage(host={"memory_mb": 250}, pools={"default": {"slots_max": 9, "memory_mb": 100}})
    leader = await stage.leader()
    ids = [await stage.submit({"run_ms": None}) for _ in range(4)]
    await stage.steps(leader, 6)
    assert (await stage.states(ids)).count(S.RUNNING) == 2


async def test_a_project_limit_holds_over_the_whole_installation() -> None:
    stage = Stage(projects={"a": {"running_max": 1}}, pools={"default": {"slots_max": 9, "memory_mb": 1}})
    leader = await stage.leader()
    ids = [await stage.submit({"run_ms": 500}, project="a") for _ in range(3)]
    other = await stage.submit({"run_ms": 500}, project="b")
    await stage.steps(leader, 5)
    assert (await stage.states(ids)).count(S.RUNNING) == 1
    assert (await stage.order(other)).state is S.RUNNING
    await stage.steps(leader, 12, each_ms=500)
    assert set(await stage.states(ids)) == {S.COMPLETED}


async def test_a_slot_that_is_no_seat_is_cleaned_before_it_serves_again() -> None:
    stage = Stage(seats=False, pools={"default": {"slots_max": 1, "memory_mb": 1}})
    leader = await stage.leader()
    ids = [await stage.submit() for _ in range(3)]
    await stage.steps(leader, 16)
    assert set(await stage.states(ids)) == {S.COMPLETED}
    runs = [(await stage.store.runs(order_id))[0] for order_id in ids]
    assert len({run.incarnation for run in runs}) == 3
    assert len({run.slot for run in runs}) == 1


async def test_another_platform_under_the_same_name_is_not_believed() -> None:
    stage = Stage()
    leader = await stage.leader()
    order_id = await stage.submit({"run_ms": None})
    await stage.steps(leader, 4)
    stage.driver.platform = type(stage.platform)("platform-2")
    stage.platform.name = "one"
    stage.driver.platform.name = "another"
    await stage.steps(leader, 4, each_ms=2_000)
    host = await stage.store.host("local")
    assert host is not None and "declare-dead" in (host.error or "")
    assert (await stage.order(order_id)).state is S.RUNNING


async def test_an_operators_word_ends_what_nobody_can_look_at() -> None:
    stage = Stage()
    leader = await stage.leader()
    order_id = await stage.submit({"run_ms": None})
    await stage.steps(leader, 4)
    stage.driver.platform = type(stage.platform)("platform-2")
    stage.driver.platform.name = "another"
    await stage.steps(leader, 2, each_ms=2_000)
    host = await stage.store.host("local")
    assert host is not None
    cause = stage.world.cause(Trigger.REQUEST, "tester")
    await stage.store.save([places.declare_dead(cause, host, "it burnt")])
    await stage.steps(leader, 12, each_ms=1_000)
    order = await stage.order(order_id)
    assert (order.state, order.attempt) == (S.RUNNING, 2)


async def test_the_events_of_a_busy_house_fold_back_to_its_rows() -> None:
    stage = Stage(seats=False)
    leader = await stage.leader()
    scripts: list[dict[str, Any]] = [
        {"exit": 1},
        {"start_error": "no"},
        {"run_ms": 100},
        {"vanish_after_ms": 10, "run_ms": None},
    ] * 5
    ids = [await stage.submit(script) for script in scripts]
    await stage.steps(leader, 20, each_ms=700)
    unfinished = [order_id for order_id in ids if (await stage.order(order_id)).ended_at is None]
    await stage.cancel(unfinished[0])
    await stage.steps(leader, 40, each_ms=2_000)
    folded = fold(await stage.store.events(0, 10_000))
    assert folded.orders == {order_id: await stage.order(order_id) for order_id in ids}
    assert folded.slots == {slot.name: slot for slot in await stage.store.slots()}
    assert folded.pools == {pool.name: pool for pool in await stage.store.pools()}
    assert folded.hosts == {host.name: host for host in await stage.store.hosts()}
    kinds = {event.kind for event in await stage.store.events(0, 10_000)}
    assert EventKind.ORDER_RETRY_WAITING in kinds


async def _mode(stage: Stage, mode: Mode) -> None:
    pool = await stage.store.pool("default")
    assert pool is not None
    change = places.set_pool_mode(stage.world.cause(Trigger.REQUEST, "tester"), pool, mode, "test")
    assert change is not None
    (verdict,) = await stage.store.save([change])
    assert verdict.saved


async def test_an_env_that_cannot_be_opened_fails_its_own_order_only() -> None:
    stage = Stage()
    leader = await stage.leader()
    broken = await stage.submit({"run_ms": 100}, env_names=("TOKEN",), sealed=b"not what the key made", retries=0)
    other = await stage.submit({"run_ms": 100})
    await stage.steps(leader, 8, each_ms=100)
    failed = await stage.order(broken)
    assert (failed.state, failed.reason) == (S.FAILED, Reason.START_FAILED)
    assert "seal key" in str((await stage.store.runs(broken))[0].error)
    assert (await stage.order(other)).state is S.COMPLETED
    assert broken not in stage.platform.most_copies


async def test_a_leader_whose_changes_are_always_refused_slows_down() -> None:
    stage = Stage()
    leader = await stage.leader()
    await stage.submit()
    waits = []
    save = stage.store.save

    async def refuse(changes: Sequence[Change]) -> Sequence[Verdict]:
        return [Verdict(Answer.CONFLICT) for _ in changes]

    stage.store.save = refuse  # type: ignore[method-assign, assignment]
    for _ in range(8):
        leader.hint(Heard(frozenset({"default"})))
        waits.append(await leader.step())
        stage.clock.ms += 100
    assert waits[0] == 0.0 and waits == sorted(waits) and waits[-1] >= 0.5
    stage.store.save = save  # type: ignore[method-assign]
    assert [await leader.step() for _ in range(2)][-1] > 0


async def test_a_driver_s_text_with_a_nul_does_not_keep_its_run_open() -> None:
    stage = Stage()
    leader = await stage.leader()
    order_id = await stage.submit({"start_error": "no\0such thing"}, retries=0)
    await stage.steps(leader, 6, each_ms=30)
    assert (await stage.order(order_id)).state is S.FAILED
    assert [run.error for run in await stage.store.runs(order_id)] == ["nosuch thing"]


async def test_who_waits_is_read_again_when_something_was_committed_and_else_not() -> None:
    stage = Stage(hints=False)
    leader = await stage.leader()
    asked: list[str] = []
    real = stage.store.candidates

    async def candidates(pool: str, *rest: Any) -> Any:
        asked.append(pool)
        return await real(pool, *rest)

    stage.store.candidates = candidates  # type: ignore[assignment,method-assign]

    async def polls(count: int) -> None:
        for _ in range(count):
            stage.clock.ms += 5_000
            stage.hold.renewed(stage.clock.monotonic(), stage.world.config.lease_ms)
            await leader.step()
            await stage.answers()

    await polls(3)
    before = len(asked)
    await polls(12)
    assert len(asked) <= before + 2  # now and then, to be sure
    before = len(asked)
    order_id = await stage.submit({"run_ms": None})
    await polls(2)
    assert len(asked) > before
    assert (await stage.order(order_id)).slot is not None


async def test_the_platform_is_asked_about_open_runs_but_not_about_one_whose_end_was_heard_of() -> None:
    stage = Stage()
    leader = await stage.leader()
    asked: list[str] = []
    real = stage.driver.observe

    async def observe(runs: Sequence[OpenRun]) -> Sequence[Sighting]:
        asked.extend(run.run_id for run in runs)
        return await real(runs)

    stage.driver.observe = observe  # type: ignore[method-assign]
    short, long = await stage.submit({"run_ms": 0}), await stage.submit({"run_ms": None})
    await stage.steps(leader, 8, each_ms=5_000)
    assert (await stage.states([short, long])) == [S.COMPLETED, S.RUNNING]
    assert set(asked) == {f"{long}-1"}
