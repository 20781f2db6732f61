"""What the Docker driver promises beyond the contract, each on a real engine."""

import json

import pytest
from msgspec.structs import replace

from standby.core.model import Spec, Warmth
from standby.drivers.contract import CommandRefused, Making, Seen
from tests.engine import box, load_image

from .docker_rig import DockerRig, bare_image, beside, only, output, run, template
from .rigs import ended_when_asked, look, place, script, slot_named, start_of, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

AWKWARD = 'it\'s "a" $HOME `b`\n\\c *'


async def test_command_env_and_payload_reach_the_run_as_they_are(tier: DockerRig) -> None:
    show = 'printf "%s|%s|%s|" "$1" "$A" "$STANDBY_ATTEMPT"; cat $STANDBY_PAYLOAD_FILE'
    spec = Spec(order_id="any", command=("/bin/sh", "-c", show, "x", AWKWARD), payload=json.dumps(AWKWARD))
    _, ending = await run(tier, spec, env={"A": AWKWARD})
    assert ending.code == 0
    assert "\n".join(await output(tier)) == f"{AWKWARD}|{AWKWARD}|1|{json.dumps(AWKWARD)}"


async def test_a_script_is_run_by_its_first_line(tier: DockerRig) -> None:
    _, ending = await run(tier, script("#!/bin/sh -u\necho before\necho $NOT_THERE\n"))
    assert ending.code not in (0, None)
    assert "before" in await output(tier)


async def test_a_large_payload_arrives_whole(tier: DockerRig) -> None:
    payload = json.dumps("é" * 400_000, ensure_ascii=False)
    spec = Spec(order_id="any", script="wc -c <$STANDBY_PAYLOAD_FILE", payload=payload)
    await run(tier, spec)
    assert await output(tier) == [str(len(payload.encode()) + 1)]


async def test_no_value_of_an_order_can_be_read_from_the_container(created: DockerRig) -> None:
    slot = await place(created.driver)
    await created.driver.start(slot, start_of(slot, "o", created.lasting(), env={"SECRET": "hidden-value"}))
    assert "hidden-value" not in json.dumps(only(created))


async def test_limits_and_a_closed_root_are_the_default(tier: DockerRig) -> None:
    tier.driver.usual = Making(template=replace(tier.making.template, cpus=0.5, pids_max=50, shm_mb=8), memory_mb=32)
    tries = script("touch /x 2>/dev/null && echo wrote; touch /tmp/x && echo tmp; grep CapEff /proc/self/status")
    await run(tier, tries)
    assert [line.replace("\t", " ") for line in await output(tier)] == ["tmp", "CapEff: 0000000000000000"]
    host = only(tier)["HostConfig"]
    assert (host["Memory"], host["MemorySwap"], host["ShmSize"]) == (32 << 20, 32 << 20, 8 << 20)
    assert (host["NanoCpus"], host["PidsLimit"]) == (500_000_000, 50)
    assert (host["NetworkMode"], host["RestartPolicy"]["Name"], host["AutoRemove"]) == ("none", "no", False)


async def test_root_capabilities_user_and_mounts_can_be_set(tier: DockerRig, tmp_path: object) -> None:
    parts = {"read_only": False, "cap_add": ("CHOWN",), "user": "1234:99", "mounts": (f"{tmp_path}:/data:ro",)}
    tier.driver.usual = Making(template=replace(tier.making.template, **parts), memory_mb=64)
    _, ending = await run(tier, script("id -u; id -g; touch /data/x 2>/dev/null || echo read only"))
    assert ending.code == 0
    assert await output(tier) == ["1234", "99", "read only"]
    host = only(tier)["HostConfig"]
    assert (host["ReadonlyRootfs"], host["CapAdd"]) == (False, ["CHOWN"])


async def test_labels_say_whose_it_is_and_which(tier: DockerRig) -> None:
    await run(tier, tier.ending(0))
    labels = only(tier)["Config"]["Labels"]
    mine = {name.removeprefix("standby."): labels[name] for name in labels}
    assert mine["installation"] == tier.installation
    assert (mine["host"], mine["pool"], mine["generation"]) == ("h", "p", "1")
    assert mine["slot"] == f"{tier.installation}-seat-1"


async def test_two_installations_do_not_see_each_other(created: DockerRig) -> None:
    other = DockerRig(created.engine, Warmth.CREATED)
    slot = await place(created.driver)
    assert await other.driver.places() == []
    assert (await look(other.driver, slot, "o-1")).seen is Seen.ABSENT
    with pytest.raises(CommandRefused):
        await other.driver.start(slot, start_of(slot, "o", other.lasting()))
    await other.driver.remove(slot)
    assert len(created.containers()) == 1
    await other.end()


async def test_too_little_memory_is_told_apart_from_a_kill(tier: DockerRig) -> None:
    _, ending = await run(tier, script("exec dd if=/dev/zero of=/dev/null bs=200M count=5"))
    assert (ending.oom, ending.lost) == (True, False)


async def test_a_run_that_kills_itself_was_not_short_of_memory(tier: DockerRig) -> None:
    _, ending = await run(tier, script("kill -9 $$"))
    assert (ending.signal, ending.oom, ending.lost) == (9, False, False)


async def test_a_container_killed_from_outside_is_a_lost_run(tier: DockerRig) -> None:
    slot = await place(tier.driver)
    await tier.driver.start(slot, start_of(slot, "o", tier.lasting()))
    await wait_for(tier, tier.driver, slot, "o-1", Seen.READY)
    with tier.engine.client() as client:
        client.post(f"/containers/{only(tier)['Id']}/kill")
    sighting = await wait_for(tier, tier.driver, slot, "o-1")
    assert sighting.exit is not None
    assert (sighting.exit.lost, sighting.exit.oom) == (True, False)


async def test_a_container_stopped_by_hand_is_a_lost_run(tier: DockerRig) -> None:
    slot = await place(tier.driver)
    await tier.driver.start(slot, start_of(slot, "o", tier.lasting()))
    await wait_for(tier, tier.driver, slot, "o-1", Seen.READY)
    with tier.engine.client() as client:
        client.post(f"/containers/{only(tier)['Id']}/stop", params={"t": 5})
    sighting = await wait_for(tier, tier.driver, slot, "o-1")
    assert sighting.exit is not None
    assert sighting.exit.lost


@pytest.mark.parametrize("code", [125, 126, 127, 137, 143])
async def test_exit_codes_that_others_use_too_are_the_runs_own(created: DockerRig, code: int) -> None:
    _, ending = await run(created, created.ending(code))
    assert ending.start_error is None and not ending.lost
    assert (ending.code, ending.signal) == ((None, code - 128) if code > 128 else (code, None))


async def test_what_is_not_executable_never_began_and_its_place_is_not_to_blame(tier: DockerRig) -> None:
    _, ending = await run(tier, Spec(order_id="any", command=("/etc/hosts",)))
    assert (ending.start_error, ending.retryable) == ("not executable: /etc/hosts", False)
    assert not ending.place_failed


async def test_an_image_that_is_not_there_cannot_be_made_into_a_place(created: DockerRig) -> None:
    absent = Making(template=template(Warmth.CREATED, image="standby-test/absent:1"), memory_mb=64)
    with pytest.raises(CommandRefused, match="No such image"):
        await created.driver.create(slot_named("s"), absent)
    assert created.containers() == []


async def test_an_image_that_is_not_there_is_a_start_error_of_a_cold_place(cold: DockerRig) -> None:
    cold.driver.usual = Making(template=template(Warmth.COLD, image="standby-test/absent:1"), memory_mb=64)
    slot = await place(cold.driver)
    sighting = await cold.driver.start(slot, start_of(slot, "o", cold.lasting()))
    assert sighting.seen is Seen.STOPPED and sighting.exit is not None
    assert "No such image" in (sighting.exit.start_error or "")
    assert sighting.exit.place_failed


async def test_an_image_without_a_shell_is_a_start_error_of_its_place(tier: DockerRig) -> None:
    load_image(tier.engine, "standby-test/bare:1", bare_image())
    parts = {"image": "standby-test/bare:1", "command": ("/busybox", "sleep", "1000") if tier.shared else ()}
    tier.driver.usual = Making(template=replace(tier.making.template, **parts), memory_mb=64)
    _, ending = await run(tier, tier.lasting())
    assert ending.start_error is not None
    assert ending.place_failed


async def test_a_live_container_that_ends_at_once_cannot_be_a_place(running: DockerRig) -> None:
    ends = Making(template=template(Warmth.RUNNING, command=("/bin/sh", "-c", "exit 4")), memory_mb=64)
    with pytest.raises(CommandRefused, match="exit code 4"):
        for _ in range(200):
            await running.driver.create(slot_named("s"), ends)
    assert running.containers() == []


async def test_a_healthy_one_is_ready_when_its_check_says_so(created: DockerRig) -> None:
    image = "standby-test/checked:1"
    check = "HEALTHCHECK --interval=100ms --timeout=5s --retries=100 CMD test -e /tmp/healthy"
    load_image(created.engine, image, box(), check)
    created.driver.usual = Making(template=template(Warmth.CREATED, image=image, ready="healthy"), memory_mb=64)
    slot = await place(created.driver)
    begun = script("while [ ! -e /tmp/go ]; do sleep 0.05; done; touch /tmp/healthy; sleep 600")
    first = await created.driver.start(slot, start_of(slot, "o", begun))
    assert first.seen is Seen.STARTING
    assert (await look(created.driver, slot, "o-1")).seen is Seen.STARTING
    beside(created, slot.incarnation, "/bin/touch", "/tmp/go")
    await wait_for(created, created.driver, slot, "o-1", Seen.READY)


async def test_nothing_is_said_in_the_name_of_a_run(tier: DockerRig) -> None:
    slot = await place(tier.driver)
    await tier.driver.start(slot, start_of(slot, "o", tier.lasting()))
    await wait_for(tier, tier.driver, slot, "o-1", Seen.READY)
    await ended_when_asked(tier, slot, "o-1")
    assert await output(tier) == []
