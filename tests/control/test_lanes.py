"""A leader's turns, limits and keys, with the scripted platform under a clock that the test moves."""

import statistics
from collections import Counter
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from standby.core.admit import OVERTAKEN_MAX
from standby.core.model import EventKind, OrderState
from tests.control.stage import Stage

pytestmark = pytest.mark.anyio
S = OrderState
RUN_MS = 1_000


async def _started(stage: Stage, ids: list[str]) -> list[int]:
    """When each was claimed."""
    found = []
    for order_id in ids:
        runs, order = await stage.store.runs(order_id), await stage.order(order_id)
        at = runs[0].commanded_at if runs else order.commanded_at
        assert at is not None, order.state
        found.append(at)
    return found


def _stage(**pool: Any) -> Stage:
    keys = {"projects": pool.pop("projects", {})}
    return Stage(
        pools={
            "default": {"slots_max": 4, "memory_mb": 0, "queue_timeout": "none", "queue_timeout_max": "none", **pool}
        },
        **keys,
    )


async def test_ten_thousand_waiting_orders_do_not_delay_another_projects_ten(figure: Callable[[str], None]) -> None:
    """B arrives with 10 when A has 10,000 waiting; alone with its share it would have two of the four slots."""
    stage = _stage()
    leader = await stage.leader()
    for _ in range(10_000):
        await stage.submit({"run_ms": RUN_MS}, project="a")
    await stage.steps(leader, 4, each_ms=RUN_MS // 2)
    came_at = stage.clock.ms
    ids = [await stage.submit({"run_ms": RUN_MS}, project="b") for _ in range(10)]
    await stage.steps(leader, 40, each_ms=RUN_MS // 4)
    waits = [at - came_at for at in await _started(stage, ids)]
    alone = [n // 2 * RUN_MS for n in range(10)]
    mine, share = statistics.median(waits), statistics.median(alone)
    figure(
        f"fairness: 10 orders behind 10,000 of another project: median wait {mine} ms, alone with its share {share} ms"
    )
    assert mine <= 2 * share


async def test_shares_follow_the_weights() -> None:
    stage = _stage(projects={"b": {"weight": 3}})
    leader = await stage.leader()
    for _ in range(60):
        await stage.submit({"run_ms": RUN_MS}, project="a")
        await stage.submit({"run_ms": RUN_MS}, project="b")
    served = Counter[str]()
    for _ in range(40):
        await stage.steps(leader, 1, each_ms=RUN_MS // 4)
    for event in await stage.store.events(0, 10_000):
        if event.kind.value == "order.claimed":
            served[(await stage.order(event.subject)).project] += 1
    assert served["a"] + served["b"] > 20
    assert abs(served["b"] - 3 * served["a"]) <= 4


async def test_a_new_leader_forgets_turns_and_gives_nobody_more_than_one_too_many() -> None:
    stage = _stage(slots_max=1)
    leader = await stage.leader()
    ids = {project: [await stage.submit({"run_ms": 0}, project=project) for _ in range(9)] for project in "ab"}
    for turn in range(3):
        await stage.steps(leader, 4, each_ms=10)
        states = {project: await stage.states(rows) for project, rows in ids.items()}
        done = {project: len(rows) - rows.count(S.PENDING) for project, rows in states.items()}
        assert abs(done["a"] - done["b"]) <= 1 + turn
        await leader.close(0)
        leader = await stage.leader()


async def test_the_running_limit_of_a_pool_holds_and_can_be_raised_while_orders_wait() -> None:
    stage = _stage(running_max=2)
    leader = await stage.leader()
    ids = [await stage.submit({"run_ms": RUN_MS}) for _ in range(5)]
    await stage.steps(leader, 4)
    assert (await stage.states(ids)).count(S.RUNNING) == 2
    assert len(await stage.store.slots()) == 2
    await stage.steps(leader, 12, each_ms=RUN_MS)
    assert set(await stage.states(ids)) == {S.COMPLETED}


async def test_one_order_of_a_key_runs_at_a_time_and_others_use_the_slots() -> None:
    stage = _stage()
    leader = await stage.leader()
    same = [await stage.submit({"run_ms": RUN_MS}, concurrency_key="k") for _ in range(3)]
    others = [await stage.submit({"run_ms": RUN_MS}), await stage.submit({"run_ms": RUN_MS}, concurrency_key="l")]
    await stage.steps(leader, 4)
    assert await stage.states(same) == [S.RUNNING, S.PENDING, S.PENDING]
    assert await stage.states(others) == [S.RUNNING, S.RUNNING]
    for done in (1, 2, 3):
        await stage.steps(leader, 6, each_ms=RUN_MS // 5)
        assert (await stage.states(same)).count(S.COMPLETED) == done
        assert (await stage.states(same)).count(S.RUNNING) <= 1


async def test_runs_of_a_pool_begin_no_faster_than_its_rate_also_after_a_change_of_leader() -> None:
    stage = _stage(starts_per_minute=30)
    leader = await stage.leader()
    ids = [await stage.submit({"run_ms": 100}) for _ in range(6)]
    await stage.steps(leader, 40, each_ms=100)
    await leader.close(0)
    leader = await stage.leader()
    await stage.steps(leader, 120, each_ms=100)
    starts = sorted(await _started(stage, ids))
    assert all(later - sooner >= 2_000 for sooner, later in pairwise(starts))


async def test_a_step_is_due_when_a_start_rate_lets_the_next_one_through() -> None:
    stage = _stage(starts_per_minute=120)
    leader = await stage.leader()
    await stage.submit()
    await stage.steps(leader, 2)
    assert 0 < await leader.step() <= 0.5


@pytest.mark.parametrize("slots_max", [3, 9])
async def test_in_its_pool_a_large_order_is_overtaken_a_bounded_number_of_times(slots_max: int) -> None:
    pool = {"slots_max": slots_max, "memory_mb": 10, "queue_timeout": "none", "queue_timeout_max": "none"}
    stage = Stage(host={"memory_mb": 100}, pools={"default": pool, "other": {**pool, "slots_max": 6}})
    leader = await stage.leader()
    small = [
        await stage.submit({"run_ms": 300 + 100 * (number % 7)}, project="b", pool=("default", "other")[number % 2])
        for number in range(120)
    ]
    await stage.steps(leader, 3, each_ms=50)
    big = await stage.submit({"run_ms": 100}, project="a", memory_mb=95)
    waited = await stage.store.last_seq()
    for _ in range(200):
        await stage.steps(leader, 1, each_ms=50)
        if (await stage.order(big)).state is not S.PENDING:
            break
    claims = [event for event in await stage.store.events(waited, 10_000) if event.kind is EventKind.ORDER_CLAIMED]
    before = [event.subject for event in claims[: [event.subject for event in claims].index(big)]]
    assert len([each for each in before if each in small[::2]]) <= OVERTAKEN_MAX


async def test_a_host_with_very_many_lanes_reads_few_orders_of_each() -> None:
    stage = _stage(slots_max=50)
    leader = await stage.leader()
    for number in range(3_000):
        await stage.submit({"run_ms": None}, project=f"p{number % 600}")
    asked: list[int] = []
    real = stage.store.candidates

    async def candidates(pool: str, per_lane: int, *rest: Any) -> Any:
        found = await real(pool, per_lane, *rest)
        asked.append(len(found))
        return found

    stage.store.candidates = candidates  # type: ignore[assignment,method-assign]
    await stage.steps(leader, 6)
    assert len(await stage.store.holders()) == 50
    assert sum(asked) <= 4 * (600 + 500)
    projects = {order.project for order in (await stage.store.holders()).values()}
    assert len(projects) == 50
