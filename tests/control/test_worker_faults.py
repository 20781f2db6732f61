"""Results just before an end, questions that come late, answers that take long: no run is lost or doubled."""

from typing import Any

import pytest

from standby.core import places
from standby.core.model import OrderState, SlotState, Trigger, run_id
from tests.control.home import opened

pytestmark = pytest.mark.anyio
S = OrderState


async def test_a_result_counts_although_its_place_is_gone_before_anybody_read_it() -> None:
    async with opened() as home:
        worker, order_id, run = await home.running()
        await worker.tell(run, exit_code=0)
        home.stage.platform.remove((await home.slot()).incarnation or "", home.stage.clock.now())
        home.stage.clock.ms += 100
        await home.leader.step()  # between two polls, and nobody was told of the result
        await home.steps(1)
        order = await home.stage.order(order_id)
        assert (order.state, order.reason) == (S.COMPLETED, None)


async def test_a_result_counts_although_an_operator_declared_its_host_dead() -> None:
    async with opened() as home:
        worker, order_id, run = await home.running()
        await worker.tell(run, exit_code=0)
        host = await home.stage.store.host("local")
        assert host is not None
        cause = home.stage.world.cause(Trigger.REQUEST, "operator")
        await home.stage.store.save([places.declare_dead(cause, host, "burnt down")])
        home.stage.clock.ms += 100
        home.stage.platform.unreachable_until = home.stage.clock.now() + 10_000_000
        await home.steps(1, each_ms=0)
        await home.steps(1)
        assert (await home.stage.order(order_id)).state is S.COMPLETED


async def test_silence_counts_until_the_reports_were_asked_for_not_until_they_came(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with opened(silence=30) as home:
        _, order_id, _ = await home.running(stop_grace_ms=5_000)
        store, clock = home.stage.store, home.stage.clock
        real = store.reports

        async def slowly(runs: Any) -> Any:
            found = await real(runs)
            clock.ms += 60_000  # meanwhile its worker is heard, by another server
            await store.renew_leases(home.stage.owner, ["local"], 1_000_000)
            home.stage.hold.renewed(clock.monotonic(), 1_000_000)
            return found

        home.stage.platform.unreachable_until = clock.now() + 10_000_000
        monkeypatch.setattr(store, "reports", slowly)
        await home.steps(1)
        monkeypatch.undo()
        assert (await home.stage.order(order_id)).state is S.RUNNING


async def test_a_late_question_for_work_does_not_end_a_run_that_has_begun() -> None:
    async with opened() as home:
        worker, order_id, run = await home.running()
        await home.stage.cancel(order_id)
        assert (await worker.fetch()).status_code == 204  # asked before the run was fetched, answered only now
        await home.steps(2)
        assert (await home.stage.order(order_id)).state is S.STOPPING
        assert await worker.beat(run) == "stop"
        await worker.tell(run, exit_code=143)
        await home.steps(2)
        assert (await home.stage.order(order_id)).state is S.CANCELLED


async def test_a_slot_whose_place_was_taken_away_by_force_is_made_anew_whatever_its_worker_said() -> None:
    async with opened(reset="none", project="default") as home:
        worker, order_id, run = await home.running(stop_grace_ms=1_000)
        await home.stage.cancel(order_id)
        await home.steps(1)
        home.stage.clock.ms += 1_000
        await worker.tell(run, exit_code=143)
        home.leader._workers._told.clear()
        home.stage.platform.remove((await home.slot()).incarnation or "", home.stage.clock.now())
        await home.steps(1, each_ms=0)
        assert (await home.stage.order(order_id)).state is S.CANCELLED
        assert (await home.slot()).state is not SlotState.IDLE


@pytest.mark.parametrize("used", [False, True])
async def test_a_place_whose_worker_never_came_is_gone_before_the_next_one_is_made(used: bool) -> None:
    async with opened(start_timeout=10) as home:
        if used:
            worker, _, run = await home.running()
            await worker.tell(run)
        await home.stage.submit(start_timeout_ms=1_000_000)
        await home.steps(40)
        (slot,) = await home.stage.store.slots()
        assert slot.failures > 0
        assert len(home.stage.platform.yard.made) <= 1


@pytest.mark.parametrize("settled", [False, True])
@pytest.mark.parametrize("warmth", ["created", "cold"])
async def test_a_worker_that_began_with_its_run_leaves_when_that_is_over(warmth: str, settled: bool) -> None:
    async with opened(warmth=warmth, ready="heartbeat") as home:
        order_id = await home.stage.submit({"run_ms": None})
        await home.steps()
        run = run_id(await home.stage.order(order_id))
        worker = await home.worker("nonce-one")
        assert (await worker.fetch()).json()["run_id"] == run
        assert await worker.beat(run) == "go_on"
        await worker.tell(run)
        if settled:
            await home.steps(1)
            assert (await home.stage.order(order_id)).state is S.COMPLETED
        assert (await worker.fetch()).status_code in (401, 409)
