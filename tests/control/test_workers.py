"""Resident workers, played over the real API against a leader's steps: who gets a run, and what becomes of it."""

from collections.abc import AsyncIterator

import pytest

from standby.core import places, work
from standby.core.model import OrderState, Reason, SlotState, Trigger, run_id
from standby.core.work import Report
from tests.control.home import House, opened
from tests.control.stage import Stage
from tests.workers import Played, front_door

pytestmark = pytest.mark.anyio
S = OrderState


@pytest.fixture
async def home() -> AsyncIterator[House]:
    async with opened() as found:
        yield found


# slots


async def test_a_slot_is_idle_only_after_its_worker_has_booted(home: House) -> None:
    order_id = await home.stage.submit()
    await home.steps()
    assert (await home.slot()).state is SlotState.CREATING
    assert (await home.stage.order(order_id)).state is S.PENDING

    await home.worker("nonce-one")
    await home.steps()
    slot, order = await home.slot(), await home.stage.order(order_id)
    assert (slot.state, slot.boot) == (SlotState.IDLE, "nonce-one")
    assert (order.state, order.boot) == (S.PREPARING, "nonce-one")
    assert home.stage.platform.copies == {}


async def test_a_used_slot_waits_for_the_worker_of_its_next_generation(home: House) -> None:
    worker, order_id, run = await home.running()
    first = await home.slot()
    assert (await worker.tell(run, result={"ok": True})).status_code == 200
    await home.steps()
    slot = await home.slot()
    assert (await home.stage.order(order_id)).state is S.COMPLETED
    assert (slot.state, slot.boot, slot.generation) == (SlotState.CREATING, None, first.generation + 1)
    # whoever lived there before has nothing to do there any more
    assert (await worker.fetch()).status_code == 401
    assert (await worker.boot()).status_code == 401

    await home.worker("nonce-two")
    await home.steps()
    slot = await home.slot()
    assert (slot.state, slot.boot) == (SlotState.IDLE, "nonce-two")
    assert slot.incarnation != first.incarnation


# a run's way


async def test_a_run_begins_with_its_first_heartbeat_and_ends_with_its_result(home: House) -> None:
    worker, order_id, run = await home.running()
    assert await worker.beat(run, progress=0.5, text="half of it") == "go_on"
    report = (await home.stage.store.reports([run]))[run]
    assert (report.progress, report.text) == (0.5, "half of it")

    assert (await worker.tell(run, result=[1])).status_code == 200
    await home.steps(2)
    order = await home.stage.order(order_id)
    assert (order.state, order.exit_code, order.reason) == (S.COMPLETED, 0, None)
    (ended,) = await home.stage.store.runs(order_id)
    assert (ended.boot, ended.reason) == ("nonce-one", None)


async def test_a_run_that_was_fetched_and_not_begun_is_not_running(home: House) -> None:
    order_id = await home.stage.submit()
    await home.steps()
    worker = await home.worker("nonce-one")
    await home.steps()
    assert (await worker.fetch()).status_code == 200
    await home.steps()
    assert (await home.stage.order(order_id)).state is S.PREPARING


@pytest.mark.parametrize(("retryable", "state"), [(True, S.WAITING_RETRY), (False, S.FAILED), (None, S.FAILED)])
async def test_an_error_is_kept_by_its_name_and_retried_as_the_worker_says(
    home: House, retryable: bool | None, state: OrderState
) -> None:
    worker, order_id, run = await home.running()
    error = {"name": "NoSuchMeeting", "text": "nobody is there", "retryable": retryable}
    await worker.tell(run, error=error)
    await home.steps(2)
    order = await home.stage.order(order_id)
    (ended,) = await home.stage.store.runs(order_id)
    assert (order.state, order.reason) == (state, Reason.ERROR)
    assert (ended.error_name, ended.error) == ("NoSuchMeeting", "nobody is there")


async def test_a_cancelled_run_is_told_to_stop_and_ends_cancelled(home: House) -> None:
    worker, order_id, run = await home.running()
    await home.stage.cancel(order_id)
    await home.steps(1)
    assert await worker.beat(run) == "stop"
    await worker.tell(run, exit_code=143)
    await home.steps(2)
    order = await home.stage.order(order_id)
    assert (order.state, order.exit_code) == (S.CANCELLED, 143)


async def test_a_worker_that_does_not_obey_loses_its_place_when_the_grace_is_over(home: House) -> None:
    worker, order_id, run = await home.running(stop_grace_ms=5_000)
    place = (await home.slot()).incarnation or ""
    await home.stage.cancel(order_id)
    await home.steps(4)
    assert home.stage.platform.has(place)
    await home.steps(6)
    assert not home.stage.platform.has(place)
    assert (await home.stage.order(order_id)).state is S.STOPPING  # it was heard not long ago
    await home.steps(work.HEARD_MS // 1_000)
    assert (await home.stage.order(order_id)).state is S.CANCELLED
    assert (await worker.ask("POST", "heartbeat", worker.boot_token, {"run_id": run})).status_code == 401


async def test_a_run_that_is_cancelled_before_it_was_fetched_is_given_back_at_once(home: House) -> None:
    order_id = await home.stage.submit()
    await home.steps()
    worker = await home.worker("nonce-one")
    await home.steps()
    await home.stage.cancel(order_id)
    assert (await worker.fetch()).status_code == 204
    await home.steps(1)
    assert (await home.stage.order(order_id)).state is S.CANCELLED


async def test_a_question_that_comes_late_gives_back_what_was_not_begun_and_the_worker_hears_of_it(home: House) -> None:
    order_id = await home.stage.submit()
    await home.steps()
    worker = await home.worker("nonce-one")
    await home.steps()
    run = (await worker.fetch()).json()["run_id"]
    await home.stage.cancel(order_id)
    assert (await worker.fetch()).status_code == 204
    assert await worker.beat(run) == "exit"
    await home.steps(1)
    assert (await home.stage.order(order_id)).state is S.CANCELLED


async def test_a_question_that_comes_late_gives_nothing_back_that_was_begun(home: House) -> None:
    worker, order_id, run = await home.running()
    await home.stage.cancel(order_id)
    assert (await worker.fetch()).status_code == 204
    await home.steps(1)
    assert (await home.stage.order(order_id)).state is S.STOPPING
    assert await worker.beat(run) == "stop"


# the cases of the protocol


async def test_a_lost_reply_to_a_fetch_is_asked_for_again(home: House) -> None:
    await home.stage.submit()
    await home.steps()
    worker = await home.worker("nonce-one")
    await home.steps()
    first, again = await worker.fetch(), await worker.fetch()
    assert first.json() == again.json()
    assert await worker.beat(first.json()["run_id"]) == "go_on"
    assert (await worker.fetch()).json() == first.json()


async def test_a_restarted_container_that_fetches_again_does_not_get_the_run_a_second_time(home: House) -> None:
    worker, order_id, run = await home.running()
    restarted = await home.worker("nonce-two")
    assert (await restarted.fetch()).status_code == 204
    assert await restarted.beat(run) == "exit"
    assert (await restarted.tell(run, exit_code=0)).status_code == 409
    await home.steps()
    assert (await home.stage.order(order_id)).state is S.RUNNING

    # the run is over when its own worker says so, and the next one is made for the slot's next life
    await worker.tell(run)
    await home.steps(1)
    assert (await home.stage.order(order_id)).state is S.COMPLETED


async def test_of_two_workers_with_one_slot_token_one_gets_each_run(home: House) -> None:
    order_id = await home.stage.submit()
    await home.steps()
    first = await home.worker("nonce-one")
    second = await home.worker("nonce-two")
    await home.steps()
    assert (await home.stage.order(order_id)).boot == "nonce-two"
    assert (await first.fetch()).status_code == 409  # it may leave: another one lives there
    assert (await second.fetch()).status_code == 200


async def test_a_worker_dead_between_fetch_and_start_is_lost_when_its_place_is_gone(home: House) -> None:
    order_id = await home.stage.submit()
    await home.steps()
    worker = await home.worker("nonce-one")
    await home.steps()
    assert (await worker.fetch()).status_code == 200
    slot = await home.slot()
    home.stage.platform.remove(slot.incarnation or "", home.stage.clock.now())
    await home.steps(4)
    order = await home.stage.order(order_id)
    assert (order.state, order.reason) == (S.WAITING_RETRY, Reason.LOST)


async def test_a_result_counts_although_its_place_is_gone_before_anybody_heard_of_it(home: House) -> None:
    worker, order_id, run = await home.running()
    slot = await home.slot()
    # nobody is told of it, and the next look comes before the next poll
    await home.stage.store.put_report(
        Report(run_id=run, boot=worker.nonce, heartbeat_at=home.stage.clock.now(), ended_at=1, exit_code=0), news=False
    )
    home.stage.platform.remove(slot.incarnation or "", home.stage.clock.now())
    await home.steps(3, each_ms=50)
    assert (await home.stage.order(order_id)).state is S.COMPLETED


async def test_while_the_platform_cannot_be_asked_its_workers_go_on_and_their_results_count(home: House) -> None:
    worker, order_id, run = await home.running()
    home.stage.platform.unreachable_until = home.stage.clock.now() + 3_600_000
    await home.steps(300)
    assert (await home.stage.order(order_id)).state is S.RUNNING
    assert await worker.beat(run) == "go_on"
    await worker.tell(run, exit_code=0)
    await home.steps(1)
    assert (await home.stage.order(order_id)).state is S.COMPLETED


async def test_silence_settles_nothing_where_workers_do_not_fence_themselves(home: House) -> None:
    _, order_id, _ = await home.running(run_timeout_ms=None)
    home.stage.platform.unreachable_until = home.stage.clock.now() + 10_000_000
    await home.steps(100, each_ms=60_000)
    assert (await home.stage.order(order_id)).state is S.RUNNING


async def test_the_silence_of_a_worker_that_fences_itself_settles_a_run_that_nobody_can_look_at() -> None:
    async with opened(silence=30) as home:
        worker, order_id, run = await home.running(stop_grace_ms=5_000)
        home.stage.platform.unreachable_until = home.stage.clock.now() + 10_000_000
        settled_after = 30_000 + 5_000 + work.MARGIN_MS
        heard_at = (await home.stage.store.reports([run]))[run].heartbeat_at
        home.stage.clock.ms = heard_at + settled_after
        await home.steps(1, each_ms=0)
        assert (await home.stage.order(order_id)).state is S.RUNNING
        # it should have ended by now, and is told so if it has not
        assert await worker.beat(run) == "exit"
        assert (await worker.fetch()).status_code == 409
        assert (await worker.tell(run)).status_code == 409
        await home.steps(1, each_ms=1_001)
        order = await home.stage.order(order_id)
        assert (order.state, order.reason) == (S.WAITING_RETRY, Reason.LOST)


async def test_a_silent_worker_whose_place_is_seen_alive_is_taken_away_first() -> None:
    async with opened(silence=30) as home:
        _, order_id, _ = await home.running(stop_grace_ms=5_000)
        place = (await home.slot()).incarnation or ""
        await home.steps(43)
        order = await home.stage.order(order_id)
        assert (order.state, order.stop_reason) == (S.STOPPING, Reason.LOST)
        assert home.stage.platform.has(place)
        await home.steps(9)
        assert not home.stage.platform.has(place)
        assert (await home.stage.order(order_id)).reason is Reason.LOST


async def test_a_heartbeat_keeps_a_worker_that_fences_itself_alive() -> None:
    async with opened(silence=30) as home:
        worker, order_id, run = await home.running()
        for _ in range(5):
            await home.steps(1, each_ms=25_000)
            assert await worker.beat(run) == "go_on"
        assert (await home.stage.order(order_id)).state is S.RUNNING


@pytest.mark.parametrize("heard", [False, True])
async def test_an_operators_word_ends_a_run_unless_its_worker_is_heard_later(home: House, heard: bool) -> None:
    worker, order_id, run = await home.running()
    home.stage.platform.unreachable_until = home.stage.clock.now() + 10_000_000
    await home.steps(5)
    host = await home.stage.store.host("local")
    assert host is not None
    cause = home.stage.world.cause(Trigger.REQUEST, "operator")
    await home.stage.store.save([places.declare_dead(cause, host, "burnt down")])
    home.stage.clock.ms += 1_000
    if heard:
        assert await worker.beat(run) == "go_on"
    await home.steps(1)
    order = await home.stage.order(order_id)
    assert order.state is (S.RUNNING if heard else S.WAITING_RETRY)


# workers that begin with their run


async def test_where_each_run_starts_its_worker_the_first_boot_after_the_command_has_it() -> None:
    script = {"run_ms": None}
    async with opened(warmth="created", ready="heartbeat") as home:
        order_id = await home.stage.submit(script)
        await home.steps()
        order = await home.stage.order(order_id)
        assert (order.state, order.boot) == (S.PREPARING, None)
        first, second = await home.worker("nonce-one"), await home.worker("nonce-two")
        assert (await home.stage.order(order_id)).boot == "nonce-one"
        assert (await second.fetch()).status_code == 204
        assert (await first.fetch()).json()["run_id"] == run_id(order)
        await home.steps()
        assert (await home.stage.order(order_id)).state is S.PREPARING
        assert await first.beat(run_id(order)) == "go_on"
        await home.steps(2)
        assert (await home.stage.order(order_id)).state is S.RUNNING
        await first.tell(run_id(order), exit_code=4)
        await home.steps(2)
        order = await home.stage.order(order_id)
        assert (order.state, order.exit_code) == (S.FAILED, 4)


# runs that speak for themselves


async def test_a_run_shows_its_own_token_and_its_exit_code_decides_unless_it_names_an_error() -> None:
    stage = Stage()
    async with front_door(stage.world) as http:
        leader = await stage.leader()
        ids = [await stage.submit({"run_ms": 5_000, "exit": 3}, retries=0) for _ in range(2)]
        await stage.steps(leader, 3, 100)
        quiet, named = [run_id(await stage.order(order_id)) for order_id in ids]
        speaker = Played(http, "", "")
        for run in (quiet, named):
            token = stage.world.seal.run_token(run)
            answer = await speaker.ask("POST", "heartbeat", token, {"progress": 0.1})
            assert answer.json()["do"] == "go_on"
        said = {"error": {"name": "Broken", "text": "by itself"}}
        assert (await speaker.ask("POST", "result", stage.world.seal.run_token(named), said)).status_code == 200
        await stage.steps(leader, 3, 3_000)
        ends = [await stage.order(order_id) for order_id in ids]
        assert [(order.reason, order.exit_code) for order in ends] == [(Reason.EXIT, 3), (Reason.ERROR, 3)]
        late = await speaker.ask("POST", "heartbeat", stage.world.seal.run_token(named))
        assert late.json()["do"] == "exit"
        over = await speaker.ask("POST", "result", stage.world.seal.run_token(named), said)
        assert (over.status_code, over.json()["code"]) == (409, "run_over")
        await leader.close(1)
