"""Slots on Coolify: how they are made, started, watched, made clean and removed."""

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from msgspec.structs import replace

from standby.cli.serve import build_drivers
from standby.config import Config
from standby.core.errors import StandbyError, Unreachable
from standby.core.model import SlotState, Warmth
from standby.drivers.contract import Caption, CommandRefused, Driver, Logs, Places, Resets, Seen
from standby.drivers.coolify import Client, CoolifyDriver, CoolifyHost
from standby.drivers.coolify.answers import Application, Deployment
from standby.drivers.coolify.fleet import Life, verdict
from standby.drivers.coolify.marks import Mark
from standby.drivers.coolify.workshop import split_image
from tests.drivers.coolify_fake import PROJECT, SERVER, TOKEN
from tests.drivers.coolify_yard import ENV, IMAGE, LAG, LOOK_MS, MINUTE, Yard, making, new_slot, yard
from tests.drivers.rigs import CANNOT, open_run

pytestmark = pytest.mark.anyio


@pytest.fixture
async def at() -> AsyncIterator[Yard]:
    with yard() as made:
        yield made
        await made.close()


@pytest.fixture
async def driver(at: Yard) -> CoolifyDriver:
    return await at.server()


async def test_it_keeps_the_protocols_and_has_no_logs(driver: CoolifyDriver) -> None:
    kept: Driver = driver
    assert isinstance(kept, Places) and isinstance(kept, Resets) and isinstance(kept, Caption)
    assert not isinstance(kept, Logs)


# making


async def test_an_application_is_made_without_domain_or_deployment_under_one_container_name(
    at: Yard, driver: CoolifyDriver
) -> None:
    slot = await at.place(driver, what=making(cap_add=("NET_ADMIN",), cpus=1.5))
    (body,) = at.fake.sent("POST", "/applications/dockerimage")
    assert body["name"] == slot.name == "ours-pool-bots-001"
    assert (body["autogenerate_domain"], body["instant_deploy"]) == (False, False)
    assert body["is_consistent_container_name_enabled"] is True
    assert body["max_restart_count"] == 2
    assert (body["docker_registry_image_name"], body["docker_registry_image_tag"]) == tuple(IMAGE.rsplit(":", 1))
    assert (body["limits_memory"], body["limits_memory_swap"], body["limits_cpus"]) == ("512m", "512m", "1.5")
    assert body["custom_docker_run_options"] == "--init --shm-size=64m --cap-drop=ALL --cap-add=NET_ADMIN"
    assert at.deployments() == []


async def test_its_environment_is_the_slots_with_every_flag_and_nothing_of_any_order(
    at: Yard, driver: CoolifyDriver
) -> None:
    slot = await at.place(driver)
    await at.start(driver, slot)
    (body,) = at.fake.sent("PATCH", "/applications/app1/envs/bulk")
    assert {item["key"]: item["value"] for item in body["data"]} == ENV
    flags = ("is_preview", "is_literal", "is_multiline", "is_shown_once", "is_runtime", "is_buildtime")
    assert {tuple(item[flag] for flag in flags) for item in body["data"]} == {(False, True, False, False, True, False)}


@pytest.mark.parametrize(
    ("image", "name", "tag"),
    [
        ("bot", "bot", "latest"),
        ("bot:2", "bot", "2"),
        ("host:5000/a/bot", "host:5000/a/bot", "latest"),
        ("host:5000/a/bot:2", "host:5000/a/bot", "2"),
        ("a/bot@sha256:0ff", "a/bot@sha256", "0ff"),
    ],
)
async def test_an_image_is_split_as_coolify_wants_it(image: str, name: str, tag: str) -> None:
    assert split_image(image) == (name, tag)


@pytest.mark.parametrize(
    ("what", "text"),
    [
        (making(image=None), "needs an image"),
        (making(worker=False), "worker = true"),
        (making(Warmth.COLD), "no cold slots"),
        (making(command=("sh",)), "command"),
        (making(mounts=("/a:/b",)), "mounts"),
        (making(user="root"), "user"),
    ],
)
async def test_what_coolify_cannot_do_is_refused_in_words(driver: CoolifyDriver, what: object, text: str) -> None:
    with pytest.raises(CommandRefused, match=text):
        await driver.create(new_slot(), what)  # type: ignore[arg-type]


async def test_a_slot_in_a_running_pool_is_made_when_its_container_runs(at: Yard, driver: CoolifyDriver) -> None:
    slot, what = new_slot(), making(Warmth.RUNNING)
    assert await driver.create(slot, what) is None
    asked = len(at.fake.requests)
    assert await driver.create(slot, what) is None
    assert len(at.fake.requests) == asked, "nothing is asked before a newer look is there"
    made = await at.made(driver, slot, what)
    assert at.fake.app(slot.name).status == "running:unknown"
    asked = len(at.fake.requests)
    assert await driver.create(slot, what) == made.incarnation, "it is asked again until its worker has reported"
    slot = made
    assert (await at.start(driver, slot)).seen is Seen.STARTING
    assert len(at.fake.requests) == asked, "work is handed over by the worker"
    assert len(at.deployments()) == 1


async def test_a_running_slot_whose_deployment_fails_cannot_be_made_and_is_tried_again(
    at: Yard, driver: CoolifyDriver
) -> None:
    at.fake.failures = 1
    slot, what = new_slot(), making(Warmth.RUNNING)
    with pytest.raises(CommandRefused, match="is failed"):
        await at.made(driver, slot, what)
    at.at += 5_000
    again = await at.made(driver, replace(slot, state_since=at.at), what)
    assert again.incarnation is not None
    assert len(at.deployments()) == 2
    assert len(at.fake.apps) == 1


async def test_a_seven_minute_pull_delays_no_other_slot(at: Yard, driver: CoolifyDriver) -> None:
    slow = new_slot(1)
    assert await driver.create(slow, making(Warmth.RUNNING, image="large:1")) is None
    quick = await at.place(driver, 2)
    await at.start(driver, quick)
    await at.pass_time(driver, 5 * MINUTE)
    assert at.fake.app(quick.name).status == "running:unknown"
    assert at.fake.app(slow.name).container is None
    await at.made(driver, slow, making(Warmth.RUNNING, image="large:1"))
    assert at.fake.pulls == ["large:1"]


# starting


async def test_a_start_is_a_deployment_that_was_read_back(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.place(driver)
    sighting = await at.start(driver, slot)
    assert (sighting.seen, sighting.handle) == (Seen.STARTING, at.deployments()[0])
    assert [path for method, path, *_ in at.fake.requests][-1] == f"/deployments/{sighting.handle}"


async def test_another_server_finds_the_deployment_of_a_run_again(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.place(driver)
    first = await at.start(driver, slot)
    other = await at.server()
    assert (await at.seen(other, slot)).handle == first.handle
    assert (await at.start(other, slot)).handle == first.handle
    assert len(at.deployments()) == 1


async def test_a_place_serves_one_run_only(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.place(driver)
    await at.start(driver, slot)
    with pytest.raises(CommandRefused, match="used before"):
        await at.start(driver, slot, "another")


async def test_a_start_in_a_life_that_is_over_is_refused(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.running(driver)
    await at.clean(driver, slot)
    with pytest.raises(CommandRefused, match="is over"):
        await at.start(await at.server(), slot)
    assert len(at.deployments()) == 1


# watching


def life(status: str | None, *, finished: bool = True, ended_ago: int | None = None, began: bool = False) -> Life:
    made = Life(mark=Mark("app1", False, 1, 0), wanted_at=0, asked_at=1_000_000)
    if status is not None:
        made.deployment = Deployment(id=1, deployment_uuid="d", status=status, finished_at="then" if finished else None)
    made.ended_at = None if ended_ago is None else 1_000_000 - ended_ago
    made.ran = began
    return made


@pytest.mark.parametrize(
    ("of", "status", "seen"),
    [
        (life(None), "exited", Seen.FRESH),
        (life("queued"), "exited", Seen.STARTING),
        (life("in_progress"), "exited:unhealthy", Seen.STARTING),
        (life("in_progress"), "degraded:unhealthy", Seen.STOPPED),
        (life("finished", ended_ago=0), "exited", Seen.STARTING),
        (life("finished", ended_ago=LAG - 1), "exited", Seen.STARTING),
        (life("finished", ended_ago=LAG), "exited", Seen.STOPPED),
        (life("finished", ended_ago=LAG), "exited:unhealthy", Seen.STOPPED),
        (life("finished", ended_ago=LAG), None, Seen.STOPPED),
        (life("finished", ended_ago=LAG), "running", Seen.STARTING),
        (life("finished", ended_ago=LAG), "running:healthy", Seen.STARTING),
        (life("finished", ended_ago=LAG), "running:unhealthy", Seen.STARTING),
        (life("finished", ended_ago=LAG), "starting:unknown", Seen.STARTING),
        (life("finished", ended_ago=LAG), "restarting:unknown", Seen.STARTING),
        (life("finished", ended_ago=LAG), "paused:unknown", Seen.STARTING),
        (life("finished", ended_ago=0), "degraded:unhealthy", Seen.STOPPED),
        (life("failed", ended_ago=0), "exited", Seen.STOPPED),
        (life("failed", ended_ago=0), "running:unknown", Seen.STARTING),
        (life("failed", finished=False, ended_ago=0), "exited", Seen.STARTING),
        (life("failed", finished=False, ended_ago=LAG), "exited", Seen.STOPPED),
        (life("cancelled-by-user", ended_ago=0), "exited", Seen.STARTING),
        (life("cancelled-by-user", ended_ago=LAG), "exited", Seen.STOPPED),
    ],
)
async def test_status_counts_by_its_first_word_and_only_late_enough(of: Life, status: str | None, seen: Seen) -> None:
    row = Application(uuid="app1", status=status)
    found, ending = verdict(of, row, LAG)
    assert (found, ending is not None) == (seen, seen is Seen.STOPPED)


async def test_an_end_without_a_result_is_lost_and_a_start_that_failed_blames_its_place() -> None:
    ended = Application(uuid="app1", status="exited")
    looping = Application(uuid="app1", status="degraded:unhealthy")
    lost = [
        verdict(life("finished", ended_ago=LAG), ended, LAG),
        verdict(life("failed", ended_ago=LAG, began=True), ended, LAG),
        verdict(life("finished", ended_ago=0, began=True), looping, LAG),
    ]
    assert [ending.lost for _, ending in lost if ending] == [True, True, True]
    failed = [verdict(life("failed", ended_ago=0), ended, LAG), verdict(life("in_progress"), looping, LAG)]
    assert [(ending.lost, ending.place_failed) for _, ending in failed if ending] == [(False, True), (False, True)]
    _, cancelled = verdict(life("cancelled-by-user", ended_ago=LAG), ended, LAG)
    assert cancelled is not None
    assert (cancelled.start_error, cancelled.place_failed) == ("deployment d is cancelled-by-user", False)


async def test_a_hundred_runs_are_watched_by_two_requests_each_look(at: Yard, driver: CoolifyDriver) -> None:
    at.fake.concurrent_builds = at.fake.queue_limit = 200
    slots = []
    for number in range(1, 101):
        slots.append(await at.place(driver, number))
        await at.start(driver, slots[-1], f"o{number}")
        await at.look(driver, 5_000)
    runs = [open_run(slot, f"o{number}-1") for number, slot in enumerate(slots, 1)]
    await driver.observe(runs)
    await at.pass_time(driver, 2 * MINUTE)
    before = len(at.fake.requests)
    await at.pass_time(driver, MINUTE)
    assert len(at.fake.requests) - before == 8
    assert {sighting.seen for sighting in await driver.observe(runs)} == {Seen.STARTING}


async def test_a_look_is_not_waited_for(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.running(driver)
    at.at += LOOK_MS
    before = len(at.fake.requests)
    (sighting,) = await driver.observe([open_run(slot, "o-1")])
    assert sighting.asked_at == at.at - LOOK_MS
    assert len(at.fake.requests) == before
    await driver.places()  # the look that was begun
    looked = len(at.fake.requests)
    assert looked > before
    for _ in range(10):
        at.at += 1_000
        await driver.observe([open_run(slot, "o-1")])
        await at.person().project(PROJECT)  # lets a look begin, if there were one
    assert len(at.fake.requests) == looked + 10, "the next one is not due"


# stopping, cleaning, removing


async def test_a_stop_keeps_the_image_and_the_end_is_seen_only_when_exited(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.running(driver)
    assert slot.incarnation is not None
    await at.pass_time(driver, LAG)
    at.fake.stop_ms = MINUTE
    await driver.stop(slot, "o-1", slot.incarnation, force=False, epoch=1)
    assert at.fake.sent("POST", "/applications/app1/stop") == [{"docker_cleanup": "false"}]
    assert (await at.seen(driver, slot)).seen is Seen.STARTING
    sighting = await at.seen(driver, slot, ms=MINUTE)
    assert sighting.seen is Seen.STOPPED
    assert IMAGE in at.fake.images


async def test_a_stop_that_is_repeated_each_few_seconds_is_sent_twice_a_minute(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.running(driver)
    assert slot.incarnation is not None
    for _ in range(12):
        await driver.stop(slot, "o-1", slot.incarnation, force=False, epoch=1)
        at.at += 5_000
    assert len(at.fake.sent("POST", "/applications/app1/stop")) == 2


async def test_a_stop_cancels_a_deployment_that_has_not_ended(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.place(driver)
    await at.start(driver, slot)
    assert slot.incarnation is not None
    await driver.stop(slot, "o-1", slot.incarnation, force=False, epoch=1)
    assert [each.status for each in at.fake.deployments] == ["cancelled-by-user"]
    await at.pass_time(driver, LAG)
    assert (await at.seen(driver, slot)).seen is Seen.STOPPED
    assert at.fake.app(slot.name).container is None


async def test_a_stop_of_a_life_that_is_over_touches_nothing(at: Yard, driver: CoolifyDriver) -> None:
    old = await at.running(driver)
    new = await at.clean(driver, old)
    await at.start(driver, new, "next")
    await at.pass_time(driver, 2 * MINUTE)
    assert old.incarnation is not None
    before = len(at.fake.sent("POST", "/applications/app1/stop"))
    await driver.stop(old, "o-1", old.incarnation, force=True, epoch=1)
    assert len(at.fake.sent("POST", "/applications/app1/stop")) == before
    assert at.fake.app(new.name).container is not None


async def test_a_slots_second_order_makes_no_application_and_pulls_nothing(at: Yard, driver: CoolifyDriver) -> None:
    at.fake.images.clear()
    slot = await at.place(driver)
    await at.start(driver, slot)
    await at.pass_time(driver, 10 * MINUTE)
    again = await at.clean(driver, slot)
    assert again.incarnation != slot.incarnation
    assert at.fake.app(slot.name).container is None
    await at.start(driver, again, "next")
    await at.pass_time(driver, 2 * MINUTE)
    assert at.fake.app(slot.name).container is not None
    assert len(at.fake.sent("POST", "/applications/dockerimage")) == 1
    assert at.fake.pulls == [IMAGE]


async def test_a_slot_is_clean_only_when_its_container_was_seen_gone(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.running(driver)
    at.fake.stop_ms = 10 * MINUTE
    used = replace(slot, state=SlotState.CLEANING, state_since=at.at, generation=2)
    for _ in range(30):
        assert await driver.reset(used, making()) is None
        await at.look(driver)
    assert at.fake.app(slot.name).container is not None


async def test_cleaning_cancels_a_deployment_that_has_not_ended(at: Yard, driver: CoolifyDriver) -> None:
    at.fake.images.clear()
    slot = await at.place(driver)
    await at.start(driver, slot)
    await at.clean(driver, slot)
    assert [each.status for each in at.fake.deployments] == ["cancelled-by-user"]
    await at.pass_time(driver, 10 * MINUTE)
    assert at.fake.app(slot.name).container is None


async def test_a_container_that_was_never_seen_gets_the_lag_to_show_itself_before_its_slot_is_clean(
    at: Yard, driver: CoolifyDriver
) -> None:
    at.fake.status_ms = 10 * MINUTE
    slot = await at.place(driver)
    await at.start(driver, slot)
    await at.pass_time(driver, MINUTE)
    began = at.at
    await at.clean(driver, slot)
    assert at.at - began >= LAG


async def test_cleaning_goes_on_where_another_server_left_it(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.running(driver)
    used = replace(slot, state=SlotState.CLEANING, state_since=at.at, generation=2)
    assert await driver.reset(used, making()) is None
    await at.look(driver)
    clean = await at.clean(await at.server(), slot)
    assert clean.incarnation is not None
    assert at.fake.app(slot.name).container is None


async def test_an_application_of_unknown_history_counts_as_used(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.running(driver)
    found = await at.made(await at.server(), replace(new_slot(), state_since=at.at))
    assert found.incarnation != slot.incarnation
    assert at.fake.app(slot.name).container is None
    assert len(at.fake.apps) == 1


async def test_a_new_template_is_written_when_a_slot_is_made_clean(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.running(driver)
    await at.clean(driver, slot, making(image="registry.example/team/bot:2"))
    assert at.fake.app(slot.name).image == "registry.example/team/bot:2"


async def test_an_application_is_deleted_only_when_it_was_seen_stopped_and_gone_when_it_is_gone(
    at: Yard, driver: CoolifyDriver
) -> None:
    slot = await at.running(driver)
    leaving = replace(slot, state=SlotState.REMOVING, state_since=at.at)
    with pytest.raises(Unreachable):
        await driver.remove(leaving)
    assert at.fake.sent("DELETE", "/applications/app1") == []
    for _ in range(10):
        await at.look(driver)
        try:
            await driver.remove(leaving)
            break
        except Unreachable:
            assert at.fake.apps
    assert at.fake.apps == {}
    (query,) = at.fake.sent("DELETE", "/applications/app1")
    assert query["docker_cleanup"] == "false"
    await driver.remove(leaving)


async def test_a_stray_is_stopped_then_deleted_and_only_if_it_is_still_what_was_seen(
    at: Yard, driver: CoolifyDriver
) -> None:
    slot = await at.running(driver)
    (place,) = await driver.places()
    assert (place.slot, place.incarnation, place.usable) == (slot.name, slot.incarnation, False)
    await driver.remove_stray(replace(place, incarnation="app1:c9.0"))
    assert at.fake.sent("POST", "/applications/app1/stop") == []
    await driver.remove_stray(place)
    await at.look(driver)
    assert at.fake.app(slot.name).container is None
    await driver.remove_stray(place)
    await at.look(driver)
    assert at.fake.apps == {}
    await driver.remove_stray(place)


async def test_an_idle_place_is_usable_as_its_pool_needs_it(at: Yard, driver: CoolifyDriver) -> None:
    made_at = at.at
    created = await at.place(driver, 1)
    live = await at.place(driver, 2, making(Warmth.RUNNING))
    places = {place.slot: place for place in await at.look(driver) or ()}
    assert [places[slot.name].incarnation for slot in (created, live)] == [created.incarnation, live.incarnation]
    assert [places[slot.name].usable for slot in (created, live)] == [True, True]
    assert places[created.name].made_at == made_at
    at.fake.vanish(live.name)
    at.fake.push()
    places = {place.slot: place for place in await at.look(driver) or ()}
    assert places[live.name].usable is False


async def test_the_caption_is_the_applications_description(at: Yard, driver: CoolifyDriver) -> None:
    slot = await at.place(driver)
    await driver.caption(slot, "[IDLE] Available - Last used: never")
    assert at.fake.app(slot.name).fields["description"] == "[IDLE] Available - Last used: never"


async def test_two_installations_on_one_coolify_never_touch_each_other(at: Yard) -> None:
    ours, theirs = await at.server("a"), await at.server("a-pool-b")
    one = await at.made(ours, new_slot(installation="a"))
    two = await at.made(theirs, new_slot(installation="a-pool-b"))
    assert [place.slot for place in await at.look(ours) or ()] == [one.name]
    assert [place.slot for place in await at.look(theirs) or ()] == [two.name]
    leaving = replace(one, state=SlotState.REMOVING, state_since=at.at)
    for _ in range(5):
        try:
            await ours.remove(leaving)
        except Unreachable:
            await at.look(ours)
    assert [app.name for app in at.fake.apps.values()] == [two.name]


async def test_the_token_is_shown_to_nobody_but_coolify(at: Yard) -> None:
    with pytest.raises(Unreachable) as caught:
        await at.server(token="wrong-token")
    assert "401" in str(caught.value)
    assert "wrong-token" not in str(caught.value)
    assert TOKEN not in repr(vars(at.opened[0]))


def test_what_coolify_cannot_promise_is_said_on_its_page() -> None:
    page = (Path(__file__).parents[2] / "docs" / "drivers.md").read_text(encoding="utf-8")
    assert [f"| {promise} | {why} |" for promise, why in CANNOT["coolify"].items()] == [
        line for line in page.splitlines() if line.startswith(("| logs |", "| epochs |", "| exits |"))
    ]


async def test_the_token_may_be_in_a_file(at: Yard, tmp_path: Path) -> None:
    (tmp_path / "token").write_text(f"{TOKEN}\n")
    host = {"driver": "coolify", "url": at.url, "project": PROJECT, "server": SERVER}
    pool = {"image": IMAGE, "worker": True}

    def built(file: str) -> Driver:
        keys = {"hosts": {"cloud": {**host, "token_file": str(tmp_path / file)}}, "pools": {"bots": pool}}
        return build_drivers(Config.of(**keys), lambda: at.at)["cloud"]

    driver = built("token")
    await driver.open()
    assert (await driver.identity(), driver.lag_ms) == (f"coolify:{SERVER}:{PROJECT}", LAG)
    await driver.close()
    with pytest.raises(StandbyError, match="cannot be read"):
        built("no-such-file")


async def test_many_applications_that_are_removed_at_once_do_not_make_the_host_unreachable(
    at: Yard, driver: CoolifyDriver
) -> None:
    slots = [await at.place(driver, number) for number in range(1, 13)]
    leaving = [replace(slot, state=SlotState.REMOVING, state_since=at.at) for slot in slots]
    for _ in range(5):
        for slot in leaving:
            with contextlib.suppress(Unreachable):
                await driver.remove(slot)
        assert await at.look(driver) is not None
    assert at.fake.apps == {}


async def test_a_place_is_made_however_long_its_requests_take(at: Yard, driver: CoolifyDriver) -> None:
    def later() -> int:
        at.at += 40  # each look at the clock is a little later, as with a real one
        return at.at

    at.fake.now = later
    slow = CoolifyDriver(
        Client(at.url, TOKEN, later), CoolifyHost(project=PROJECT, server=SERVER), installation="ours", now=later
    )
    at.opened.append(slow)
    assert (await at.made(slow, new_slot(), making(Warmth.RUNNING))).incarnation is not None
