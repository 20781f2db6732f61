"""What Coolify says that is not so, what it leaves out, and how it refuses: one test for each."""

import contextlib
import json
from collections.abc import AsyncIterator

import httpx2
import pytest
from msgspec.structs import replace
from starlette.responses import PlainTextResponse, Response

from standby.core.errors import Unreachable
from standby.core.model import SlotState, Warmth
from standby.drivers.contract import CommandRefused, Seen
from standby.drivers.coolify import CoolifyDriver
from standby.drivers.coolify.client import Budget, Client
from tests.drivers.coolify_fake import PROJECT, TOKEN
from tests.drivers.coolify_table import disagreements, read_table, violations
from tests.drivers.coolify_yard import IMAGE, LAG, LOOK_MS, MINUTE, Yard, making, new_slot, yard
from tests.drivers.rigs import open_run

pytestmark = pytest.mark.anyio


@pytest.fixture
async def at() -> AsyncIterator[Yard]:
    with yard() as made:
        yield made
        await made.close()


@pytest.fixture
async def driver(at: Yard) -> CoolifyDriver:
    return await at.server()


# its queue


async def test_an_id_of_a_deployment_that_is_not_there_is_not_believed(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.place(driver)
    at.fake.phantoms = 1
    with pytest.raises(CommandRefused, match="queued no deployment"):
        await at.start(driver, slot)
    assert (await at.seen(driver, slot)).seen is Seen.FRESH
    assert (await at.start(driver, slot)).handle == at.deployments()[0]


async def test_a_skip_without_an_id_is_no_start(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.place(driver)
    at.fake.skips = 1
    with pytest.raises(CommandRefused, match="queued no deployment"):
        await at.start(driver, slot)
    assert (await at.seen(driver, slot)).seen is Seen.FRESH


async def test_a_deployment_that_is_pending_already_is_adopted_instead_of_the_id_of_the_skip(
    at: Yard, driver: CoolifyDriver
) -> None:
    slot = await at.place(driver)
    at.fake.lost_replies = ["POST /deploy"]
    with pytest.raises(Unreachable):
        await at.start(driver, slot)
    (real,) = at.deployments()
    assert await at.person().deploy("app1") != real, "Coolify makes an id up for a duplicate"
    assert (await at.start(driver, slot)).handle == real
    assert at.deployments() == [real]


async def test_a_start_whose_answer_was_lost_is_found_by_the_next_look(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.place(driver)
    at.fake.lost_replies = ["POST /deploy"]
    with pytest.raises(Unreachable):
        await at.start(driver, slot)
    sighting = await at.seen(driver, slot)
    assert (sighting.seen, sighting.handle) == (Seen.STARTING, at.deployments()[0])


async def test_a_full_queue_refuses_a_start_and_nothing_else(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.place(driver)
    at.fake.queue_limit = 0
    with pytest.raises(CommandRefused, match="queue is full"):
        await at.start(driver, slot)
    assert await at.look(driver) is not None
    with_container = new_slot(2)
    assert await driver.create(with_container, making(Warmth.RUNNING)) is None
    at.fake.queue_limit = 25
    await at.made(driver, with_container, making(Warmth.RUNNING))


async def test_live_deployments_keyed_by_number_are_read_like_a_list(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.place(driver)
    await at.start(driver, slot)
    for numbered in (True, False):
        at.fake.numbered = numbered
        before = len(at.fake.requests)
        assert (await at.seen(driver, slot, ms=LOOK_MS // 2 + 1)).seen is Seen.STARTING
        assert len(at.fake.requests) - before <= 2, "it is found in the list"


async def test_the_record_of_an_earlier_deployment_says_nothing_about_this_one(at: Yard, driver: CoolifyDriver) -> None:
    at.fake.failures = 1
    slot = await at.place(driver)
    await at.start(driver, slot)
    await at.pass_time(driver, MINUTE)
    assert (await at.seen(driver, slot)).seen is Seen.STOPPED
    again = await at.clean(driver, slot)
    assert (await at.seen(driver, again, "p-1")).seen is Seen.FRESH
    second = await at.start(driver, again, "p")
    assert (second.seen, second.handle) == (Seen.STARTING, at.deployments()[1])
    assert (await at.seen(driver, again, "p-1")).seen is Seen.STARTING


async def test_a_failed_record_of_this_deployment_fails_it_at_once(at: Yard, driver: CoolifyDriver) -> None:
    at.fake.failures = 1
    slot = await at.place(driver)
    handle = (await at.start(driver, slot)).handle
    sighting = await at.seen(driver, slot, ms=31_000)
    assert sighting.seen is Seen.STOPPED
    assert sighting.exit is not None
    assert (sighting.exit.start_error, sighting.exit.place_failed) == (f"deployment {handle} is failed", True)


async def test_a_deployment_that_a_person_cancels_is_over_and_blames_no_place(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.place(driver)
    handle = (await at.start(driver, slot)).handle
    await at.person().cancel(handle or "")
    await at.seen(driver, slot)
    sighting = await at.seen(driver, slot, ms=LAG)
    assert sighting.exit is not None
    assert (sighting.seen, sighting.exit.place_failed) == (Seen.STOPPED, False)


async def test_a_restart_of_coolify_fails_every_record_but_not_what_runs(at: Yard, driver: CoolifyDriver) -> None:
    at.fake.concurrent_builds = 1
    up, queued = await at.place(driver, 1), await at.place(driver, 2)
    await at.start(driver, up, "a")
    await at.start(driver, queued, "b")
    at.at += at.fake.up_ms
    at.fake.boot()
    runs = [open_run(up, "a-1"), open_run(queued, "b-1")]
    for _ in range(3):
        await driver.observe(runs)
        await at.look(driver)
        assert {sighting.seen for sighting in await driver.observe(runs)} == {Seen.STARTING}
    await at.pass_time(driver, LAG + MINUTE)
    alive, never = await driver.observe(runs)
    assert alive.seen is Seen.STARTING
    assert at.fake.app(up.name).status == "running:unknown"
    assert never.seen is Seen.STOPPED
    assert never.exit is not None
    assert (never.exit.lost, never.exit.place_failed) == (False, False)


# its statuses


async def test_the_status_of_an_earlier_life_is_not_the_end_of_this_one(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.place(driver)
    at.fake.status_ms = 10 * MINUTE
    await at.start(driver, slot)
    at.at += 30_000
    for _ in range(LAG // LOOK_MS):
        assert (await at.seen(driver, slot)).seen is Seen.STARTING
        assert at.fake.app(slot.name).status == "exited"
    assert [each.status for each in at.fake.deployments] == ["finished"]


async def test_exited_counts_when_the_deployment_is_over_and_the_lag_has_passed(
    at: Yard, driver: CoolifyDriver
) -> None:
    slot = await at.running(driver)
    at.fake.vanish(slot.name)
    at.fake.push()
    assert (await at.seen(driver, slot)).seen is Seen.STARTING
    await at.pass_time(driver, LAG)
    sighting = await at.seen(driver, slot)
    assert sighting.seen is Seen.STOPPED
    assert sighting.exit is not None
    assert sighting.exit.lost


async def test_a_container_that_keeps_ending_fails_at_once(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.place(driver)
    await at.start(driver, slot)
    at.at += at.fake.up_ms
    at.fake.settle()
    at.fake.crash_loop(slot.name)
    at.fake.push()
    sighting = await at.seen(driver, slot)
    assert sighting.seen is Seen.STOPPED
    assert sighting.exit is not None
    assert sighting.exit.place_failed


async def test_a_container_that_docker_started_again_is_alive_and_no_second_run(
    at: Yard, driver: CoolifyDriver
) -> None:
    slot = await at.running(driver)
    at.fake.restart(slot.name)
    assert (await at.seen(driver, slot)).seen is Seen.STARTING
    assert len(at.deployments()) == 1


async def test_an_image_that_coolify_cleaned_up_is_pulled_again_and_its_run_waits(
    at: Yard, driver: CoolifyDriver
) -> None:
    slot = await at.running(driver)
    for _ in range(2):
        at.fake.restart(slot.name)
    at.fake.push()  # so many restarts: Coolify stops it, and prunes
    await at.look(driver)
    assert IMAGE not in at.fake.images
    again = await at.clean(driver, slot)
    await at.start(driver, again, "next")
    for _ in range(6 * MINUTE // LOOK_MS):
        assert (await at.seen(driver, again, "next-1")).seen is Seen.STARTING
    await at.pass_time(driver, 3 * MINUTE)
    assert at.fake.pulls == [IMAGE]
    assert at.fake.app(slot.name).container is not None


# its lists


@pytest.mark.parametrize("lie", ["empty", "half", 500, 429])
async def test_a_list_that_lies_ends_no_run_deletes_nothing_and_makes_nothing_twice(
    at: Yard, driver: CoolifyDriver, lie: str | int
) -> None:
    slots = [await at.running(driver, 1), *[await at.place(driver, number) for number in range(2, 13)]]
    run = open_run(slots[0], "o-1")
    await driver.observe([run])
    at.fake.list_lies = lie
    for _ in range(20):
        places = await at.look(driver)
        assert places is None or len(places) == 12
        try:
            (sighting,) = await driver.observe([run])
        except Unreachable:
            continue
        assert sighting.seen is Seen.STARTING
    with pytest.raises(Unreachable):
        await driver.create(replace(new_slot(2), state_since=at.at), making())
    at.fake.list_lies = None
    await at.look(driver, 2 * MINUTE)
    assert len(await driver.places()) == 12
    assert at.fake.sent("DELETE", "/applications/.*") == []
    assert len(at.fake.apps) == 12


@pytest.mark.parametrize("lie", ["empty", "half"])
async def test_a_server_that_has_just_begun_makes_no_second_application_because_a_list_lacks_the_first(
    at: Yard, driver: CoolifyDriver, lie: str
) -> None:
    slot = await at.running(driver)
    at.fake.list_lies = lie
    clean = await at.clean(await at.server(), slot)
    assert (clean.incarnation or "").partition(":")[0] == "app1"
    assert len(at.fake.apps) == 1


async def test_what_a_list_lacks_is_asked_for_by_itself(at: Yard, driver: CoolifyDriver) -> None:
    slots = [await at.place(driver, number) for number in range(1, 5)]
    await at.look(driver)
    at.fake.list_lies = "half"
    assert [place.slot for place in await at.look(driver) or ()] == [slot.name for slot in slots]


async def test_an_application_that_a_person_deleted_is_absent(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.running(driver)
    assert (await at.seen(driver, slot)).seen is Seen.STARTING
    del at.fake.apps["app1"]
    assert (await at.seen(driver, slot)).seen is Seen.ABSENT
    asked = [path for _, path, *_ in at.fake.requests]
    assert asked[-2:] == ["/applications/app1", f"/projects/{PROJECT}"]


async def test_a_token_of_another_team_sees_nothing_and_concludes_nothing(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.running(driver)
    apps, at.fake.apps, at.fake.project = at.fake.apps, {}, "another"
    assert await at.look(driver) is None
    with pytest.raises(Unreachable):
        await driver.observe([open_run(slot, "o-1")])
    at.fake.apps, at.fake.project = apps, PROJECT
    assert (await at.seen(driver, slot)).seen is Seen.STARTING


async def test_a_list_that_takes_no_notice_of_the_tag_is_read_by_name(at: Yard, driver: CoolifyDriver) -> None:
    at.fake.knows_tags = False
    other = await at.server("theirs")
    await at.made(other, new_slot(installation="theirs"))
    slot = await at.place(driver)
    assert [place.slot for place in await at.look(driver) or ()] == [slot.name]


async def test_a_create_whose_answer_was_lost_makes_no_second_application(at: Yard, driver: CoolifyDriver) -> None:
    at.fake.lost_replies = ["POST /applications/dockerimage"]
    with pytest.raises(Unreachable):
        await driver.create(new_slot(), making())
    at.at += 1_000
    assert await driver.create(new_slot(), making()) is not None
    assert len(at.fake.apps) == 1


async def test_of_two_applications_with_one_name_it_is_always_the_same_that_serves(
    at: Yard, driver: CoolifyDriver
) -> None:
    slot = await at.place(driver)
    (body,) = at.fake.sent("POST", "/applications/dockerimage")
    await at.person().create(body)
    places = await at.look(driver) or []
    assert [place.incarnation for place in places] == [slot.incarnation, "app2:"]
    assert await (await at.server()).create(new_slot(), making()) == slot.incarnation


async def test_a_slot_that_is_given_up_goes_with_everything_that_was_made_under_its_name(
    at: Yard, driver: CoolifyDriver
) -> None:
    slot = await at.place(driver)
    (body,) = at.fake.sent("POST", "/applications/dockerimage")
    await at.person().create(body)
    leaving = replace(slot, state=SlotState.REMOVING, state_since=at.at)
    for _ in range(6):
        with contextlib.suppress(Unreachable):
            await driver.remove(leaving)
        await at.look(driver)
    assert at.fake.apps == {}


async def test_a_delete_that_happens_later_is_not_taken_for_done(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.place(driver)
    at.fake.delete_ms = MINUTE
    leaving = replace(slot, state=SlotState.REMOVING, state_since=at.at)
    for _ in range(4):
        with pytest.raises(Unreachable, match="not gone yet"):
            await driver.remove(leaving)
        await at.look(driver, 14_000)
        assert slot.name in [app.name for app in at.fake.apps.values()]


# how it refuses


async def test_commands_are_posted_because_getting_them_is_refused(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.running(driver)
    await at.clean(driver, slot)
    headers = {"Authorization": f"Bearer {TOKEN}"}
    for path in ("deploy?uuid=app1", "applications/app1/stop", "applications/app1/start"):
        answer = httpx2.get(f"{at.url}/api/v1/{path}", headers=headers)
        assert (answer.status_code, answer.headers["Allow"]) == (405, "POST")


async def test_the_api_switched_off_is_an_outage_although_it_says_success(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.running(driver)
    at.fake.api_on = False
    assert await at.look(driver) is None
    with pytest.raises(Unreachable, match="API is disabled"):
        await driver.observe([open_run(slot, "o-1")])
    at.fake.api_on = True
    assert (await at.seen(driver, slot)).seen is Seen.STARTING


@pytest.mark.parametrize(
    "answer",
    [
        PlainTextResponse("404 page not found", 404),
        PlainTextResponse("Bad Gateway", 502),
        PlainTextResponse("<html>Sign in</html>", 200),
        Response(json.dumps({"message": "Not found.", "docs": "there"}), 404, media_type="application/json"),
        Response(json.dumps({"message": "Unauthenticated."}), 401, media_type="application/json"),
        Response("[[1]]", 200, media_type="application/json"),
        Response('"text"', 200, media_type="application/json"),
    ],
)
async def test_an_outage_is_not_absence(at: Yard, driver: CoolifyDriver, answer: Response) -> None:
    slot = await at.running(driver)
    at.fake.outage = answer
    assert await at.look(driver) is None
    with pytest.raises(Unreachable):
        await driver.observe([open_run(slot, "o-1")])
    with pytest.raises(Unreachable):
        await driver.remove(replace(slot, state=SlotState.REMOVING, state_since=at.at))
    with pytest.raises(Unreachable):
        await at.driver().open()
    at.fake.outage = None
    assert (await at.seen(driver, slot)).seen is Seen.STARTING


async def test_a_server_that_does_not_answer_is_unreachable(at: Yard) -> None:
    client = Client("http://127.0.0.1:9", TOKEN, lambda: at.at)
    with pytest.raises(Unreachable, match="does not answer"):
        await client.project(PROJECT)
    await client.close()


async def test_a_throttle_is_obeyed_for_as_long_as_it_says(at: Yard, driver: CoolifyDriver) -> None:
    await at.place(driver)
    at.fake.rate_limit = 1
    assert await at.look(driver) is None
    refused, at.fake.rate_limit = len(at.fake.requests), 200
    asked_again = []
    for _ in range(12):
        found = await at.look(driver, 5_000)
        asked_again.append((found is not None, len(at.fake.requests)))
    assert asked_again[0] == (False, refused), "nothing is sent before the pause is over"
    assert asked_again[-1][0]


async def test_never_more_than_200_requests_a_minute_are_sent_and_looks_find_theirs(at: Yard) -> None:
    budget = Budget(lambda: at.at)
    taken: list[int] = []
    refused = 0
    for _ in range(4 * 600):
        at.at += 100
        for _ in range(5):
            try:
                budget.take(10)
                taken.append(at.at)
            except Unreachable:
                refused += 1
        if at.at % LOOK_MS == 0:
            budget.take(0)
            taken.append(at.at)
    assert refused
    assert max(sum(since < each <= since + MINUTE for each in taken) for since in taken) <= 200


async def test_captions_are_left_out_before_anything_else_is(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.place(driver)
    for number in range(40):
        await driver.caption(slot, f"text {number}")
    assert 10 < len(at.fake.sent("PATCH", "/applications/app1")) < 25
    assert (await at.start(driver, slot)).seen is Seen.STARTING


# the table


def _table_says(method: str, path: str, body: object = None, **query: str) -> list[str]:
    return list(violations(read_table(), method, f"/api/v1{path}", query, body))


async def test_the_table_refuses_what_the_api_does_not_have() -> None:
    assert _table_says("POST", "/deploy", uuid="a") == []
    assert _table_says("GET", "/deploy", uuid="a") == ["GET /api/v1/deploy is not in the table"]
    assert _table_says("POST", "/deploy", force="yes") == ["/deploy: there is no parameter force"]
    assert _table_says("POST", "/applications/a/stop", docker_cleanup="0") != []
    assert _table_says("GET", "/deployments/applications/a", take="ten") != []
    assert _table_says("PATCH", "/applications/a", {"name2": "b"}) == ["/applications/{uuid}: name2 is not allowed"]
    assert _table_says("PATCH", "/applications/a", {"description": 1}) != []
    assert _table_says("PATCH", "/applications/a") != []
    assert _table_says("DELETE", "/applications/a", {}) != []
    assert _table_says("PATCH", "/applications/a/envs/bulk", {"data": [{"key": 1}]}) != []
    assert len(_table_says("POST", "/applications/dockerimage", {})) == 4


async def test_the_table_is_held_against_a_description_that_differs() -> None:
    (call,) = [each for each in read_table() if each.path == "/applications/{uuid}/stop"]
    parameter = {"name": "docker_cleanup", "in": "query", "schema": {"type": "string"}}
    document = {"paths": {call.path: {"post": {"parameters": [parameter]}}}}
    assert list(disagreements((call,), document)) == [f"POST {call.path}: docker_cleanup is string, not boolean"]
    assert list(disagreements((call,), {"paths": {}})) == [f"POST {call.path} is not described"]
    body = {"content": {"application/json": {"schema": {"required": ["now"]}}}}
    bodied = {"paths": {call.path: {"post": {"requestBody": body}}}}
    assert f"POST {call.path}: now is required" in list(disagreements((call,), bodied))


async def test_a_record_that_was_deleted_is_no_reason_to_start_again(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.place(driver)
    handle = (await at.start(driver, slot)).handle
    at.fake.deployments.clear()
    sighting = await at.seen(driver, slot)
    assert (sighting.seen, sighting.handle) == (Seen.STARTING, handle)
    await at.pass_time(driver, LAG)
    assert (await at.seen(driver, slot)).seen is Seen.STOPPED
