"""Pause, drain and drain at once, of a pool, a host and a project: what goes on, what waits, and what is stopped."""

import pytest
from msgspec.structs import replace

from standby.control.host import HostStep
from standby.core import places
from standby.core.model import Change, Mode, OrderState, Project, Reason, Trigger
from tests.control.stage import Stage

pytestmark = pytest.mark.anyio
S = OrderState
NOUNS = ("pool", "host", "project")
FOR_EVER = {"run_ms": 10**9}


async def set_mode(stage: Stage, noun: str, mode: Mode, *, stop: bool = False) -> None:
    store, cause = stage.store, stage.world.cause(Trigger.REQUEST, "ada")
    if noun == "pool":
        pool = await store.pool("default")
        assert pool is not None
        change: Change | None = places.set_pool_mode(cause, pool, mode, "why", stop=stop)
    elif noun == "host":
        host = await store.host("local")
        assert host is not None
        change = places.set_host_mode(cause, host, mode, "why", stop=stop)
    else:
        known = {project.name: project for project in await store.projects()}
        change = places.set_project_mode(cause, known.get("default"), "default", mode, "why", stop=stop)
    assert change is not None
    assert (await store.save([change]))[0].saved


async def polls(stage: Stage, leader: HostStep, count: int = 4) -> None:
    await stage.steps(leader, count, each_ms=1_100)


@pytest.mark.parametrize("noun", NOUNS)
@pytest.mark.parametrize("mode", [Mode.PAUSED, Mode.DRAINING])
async def test_while_it_is_closed_what_runs_goes_on_and_what_waits_starts_when_it_opens(noun: str, mode: Mode) -> None:
    stage = Stage()
    leader = await stage.leader()
    runs = await stage.submit({"run_ms": 20_000})
    await polls(stage, leader)
    await set_mode(stage, noun, mode)
    await polls(stage, leader, 2)
    waits = await stage.submit({"run_ms": 1_000})
    await polls(stage, leader)
    assert await stage.states([runs, waits]) == [S.RUNNING, S.PENDING]
    await polls(stage, leader, 20)
    assert await stage.states([runs, waits]) == [S.COMPLETED, S.PENDING]
    await set_mode(stage, noun, Mode.OPEN)
    await polls(stage, leader, 8)
    assert await stage.states([waits]) == [S.COMPLETED]


@pytest.mark.parametrize("noun", NOUNS)
async def test_draining_at_once_stops_what_runs_and_it_runs_again_when_it_opens(noun: str) -> None:
    stage = Stage()
    leader = await stage.leader()
    order_id, once = await stage.submit(FOR_EVER), await stage.submit(FOR_EVER, retries=0)
    await polls(stage, leader)
    await set_mode(stage, noun, Mode.DRAINING, stop=True)
    await polls(stage, leader, 60)
    assert await stage.states([order_id, once]) == [S.PENDING, S.FAILED]
    assert [(await stage.order(each)).reason for each in (order_id, once)] == [Reason.DRAINED, Reason.DRAINED]
    await set_mode(stage, noun, Mode.OPEN)
    await polls(stage, leader)
    order = await stage.order(order_id)
    assert (order.state, order.attempt) == (S.RUNNING, 2)


async def test_a_new_leader_goes_on_stopping() -> None:
    stage = Stage()
    leader = await stage.leader()
    order_id = await stage.submit(FOR_EVER, retries=0)
    await polls(stage, leader)
    await set_mode(stage, "project", Mode.DRAINING, stop=True)
    await stage.store.resign_leases("a", ["local"])
    await polls(stage, await stage.leader("b"), 60)
    assert await stage.states([order_id]) == [S.FAILED]


async def test_another_project_is_served_while_one_is_closed() -> None:
    stage = Stage()
    leader = await stage.leader()
    await set_mode(stage, "project", Mode.PAUSED)
    ids = [await stage.submit({"run_ms": 100}), await stage.submit({"run_ms": 100}, project="other")]
    await polls(stage, leader, 6)
    assert await stage.states(ids) == [S.PENDING, S.COMPLETED]


async def test_orders_of_a_closed_project_do_not_expire_and_get_their_time_again_when_it_opens() -> None:
    stage = Stage(pools={"default": {"slots_max": 1, "memory_mb": 100}})
    leader = await stage.leader()
    await set_mode(stage, "project", Mode.PAUSED)
    holds = await stage.submit(FOR_EVER, project="other")
    ids = [await stage.submit(queue_timeout_ms=300_000), await stage.submit(queue_timeout_ms=300_000, project="other")]
    await polls(stage, leader, 370)
    assert await stage.states([holds, *ids]) == [S.RUNNING, S.PENDING, S.FAILED]
    await set_mode(stage, "project", Mode.OPEN)
    await polls(stage, leader, 250)
    assert await stage.states(ids[:1]) == [S.PENDING]
    await polls(stage, leader, 30)
    assert await stage.states(ids[:1]) == [S.FAILED]


async def test_the_configuration_leaves_the_mode_of_a_project_alone() -> None:
    stage = Stage(projects={"default": {"running_max": 3}})
    await stage.leader()
    await set_mode(stage, "project", Mode.PAUSED)
    await stage.leader()
    (project,) = await stage.store.projects()
    assert replace(project, mode_since=0) == Project(
        name="default",
        version=2,
        running_max=0,
        mode=Mode.PAUSED,
        mode_reason="why",
        mode_actor="ada",
        configured_max=3,
    )
