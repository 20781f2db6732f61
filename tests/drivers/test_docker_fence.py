"""One run is one copy on a Docker engine, whoever is late, repeated or killed; and what is left of places."""

import os
import signal

import anyio
import pytest
from msgspec.structs import replace

from standby.core.model import Slot, SlotState, Warmth
from standby.drivers.contract import CommandRefused, Making, Seen
from standby.drivers.docker import wrap
from standby.drivers.docker.engine import Engine
from standby.drivers.docker.shape import Container
from tests.engine import BOX, shared_engine

from .docker_rig import DockerRig, beside, only, output, run, template
from .rigs import look, place, script, slot_named, start_of, until, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


async def test_a_container_that_ran_refuses_another_run(created: DockerRig) -> None:
    slot, _ = await run(created, created.ending(0))
    with pytest.raises(CommandRefused, match="used before"):
        await created.driver.start(slot, start_of(slot, "other", created.lasting()))


async def test_a_container_bound_to_a_run_refuses_another_before_it_started(created: DockerRig) -> None:
    slot = await place(created.driver)
    with created.engine.client() as client:
        name = f"{created.installation}-seat-1.1.first-1"
        assert client.post(f"/containers/{slot.incarnation}/rename", params={"name": name}).status_code == 204
    with pytest.raises(CommandRefused, match="used before"):
        await created.driver.start(slot, start_of(slot, "o", created.lasting()))
    assert (await look(created.driver, slot, "first-1")).seen is Seen.FRESH
    await created.driver.start(slot, start_of(slot, "first", created.lasting()))
    await wait_for(created, created.driver, slot, "first-1", Seen.READY)


async def test_a_late_start_of_an_ended_container_runs_nothing_and_changes_no_outcome(created: DockerRig) -> None:
    slot, _ = await run(created, script("echo once; exit 3"))
    with created.engine.client() as client:
        assert client.post(f"/containers/{slot.incarnation}/start").status_code == 204
        client.post(f"/containers/{slot.incarnation}/wait")
    sighting = await wait_for(created, created.driver, slot, "o-1")
    assert sighting.exit is not None
    assert sighting.exit.code == 3
    assert await output(created) == ["once"]


@pytest.mark.parametrize("lacking", [20, 150, None])
async def test_an_order_that_did_not_arrive_whole_does_nothing(created: DockerRig, lacking: int | None) -> None:
    slot = await place(created.driver)
    engine = Engine(created.engine.unix)
    name = f"{created.installation}-seat-1.1.o-1"
    await engine.call("POST", f"/containers/{slot.incarnation}/rename", {"name": name})
    async with engine.pipe(f"/containers/{slot.incarnation}/attach", {"stream": 1, "stdin": 1}) as pipe:
        await engine.call("POST", f"/containers/{slot.incarnation}/start")
        text = wrap.order_text("o-1", script("echo done"), {}, alone=True)
        await pipe.write(b"" if lacking is None else text[:-lacking])
    await engine.close()
    sighting = await wait_for(created, created.driver, slot, "o-1")
    assert sighting.exit is not None
    assert sighting.exit.start_error == "the order did not arrive whole"
    assert not sighting.exit.place_failed  # whoever sent it died
    assert "done" not in await output(created)


async def test_an_order_whose_sender_dies_after_the_start_begins(created: DockerRig) -> None:
    slot = await place(created.driver)
    engine = Engine(created.engine.unix)
    name = f"{created.installation}-seat-1.1.o-1"
    await engine.call("POST", f"/containers/{slot.incarnation}/rename", {"name": name})
    async with engine.pipe(f"/containers/{slot.incarnation}/attach", {"stream": 1, "stdin": 1}) as pipe:
        # one sender was killed before the start, the next one right after it
        text = wrap.order_text("o-1", script("echo done"), {}, alone=True)
        await pipe.write(text)
        await created.driver.start(slot, start_of(slot, "o", script("echo done")))
    await engine.close()
    sighting = await wait_for(created, created.driver, slot, "o-1")
    assert sighting.exit is not None and sighting.exit.code == 0
    assert await output(created) == ["done"]


async def test_a_run_id_that_began_in_a_live_container_begins_there_no_second_time(running: DockerRig) -> None:
    slot = await place(running.driver)
    await running.driver.start(slot, start_of(slot, "o", running.lasting()))
    await wait_for(running, running.driver, slot, "o-1", Seen.READY)
    await running.wait(lambda: _noted(running, slot.incarnation, "o-1"))
    late = ("/bin/sh", "-c", wrap.BY_EXEC, "standby", "o-1")
    assert beside(running, slot.incarnation, *late, env=["STANDBY_MARK=o-1;"]) == wrap.NOT_BEGUN
    assert (await look(running.driver, slot, "o-1")).seen is Seen.READY
    assert (await look(running.another_driver(), slot, "o-1")).seen is Seen.READY


async def test_what_another_server_began_is_seen_by_one_that_looked_before(running: DockerRig) -> None:
    slot = await place(running.driver)
    other = running.another_driver()
    assert (await look(other, slot, "o-1")).seen is Seen.FRESH
    await running.driver.start(slot, start_of(slot, "o", running.lasting()))
    assert (await look(other, slot, "o-1")).seen is Seen.READY
    await other.stop(slot, "o-1", slot.incarnation or "", force=True, epoch=1)
    await wait_for(running, running.driver, slot, "o-1")


async def test_a_second_try_by_a_server_that_knew_nothing_of_the_first_ends_nothing(running: DockerRig) -> None:
    slot = await place(running.driver)
    other = running.another_driver()
    assert await other.unstored() == []
    await running.driver.start(slot, start_of(slot, "o", running.lasting()))
    await wait_for(running, running.driver, slot, "o-1", Seen.READY)
    await running.wait(lambda: _noted(running, slot.incarnation, "o-1"))
    second = await other.start(slot, start_of(slot, "o", running.lasting()))
    assert second.seen is not Seen.STOPPED
    assert (await wait_for(running, other, slot, "o-1", Seen.READY)).exit is None
    assert (await look(running.driver, slot, "o-1")).seen is Seen.READY


async def _noted(rig: DockerRig, container: str | None, run_id: str) -> bool:
    return beside(rig, container, "/bin/test", "-e", f"{wrap.RUNS}/{run_id}/pid") == 0


async def test_a_live_container_serves_one_run_after_the_other(running: DockerRig) -> None:
    slot = await place(running.driver)
    for name, code in (("a", 1), ("b", 2), ("c", 0)):
        await running.driver.start(slot, start_of(slot, name, script(f"echo {name}; exit {code}")))
        sighting = await wait_for(running, running.driver, slot, f"{name}-1")
        assert sighting.exit is not None and sighting.exit.code == code
    assert [await output(running, f"{name}-1") for name in "abc"] == [["a"], ["b"], ["c"]]
    again = running.another_driver()
    assert set(await again.unstored()) == {"a-1", "b-1", "c-1"}
    await again.forget(["a-1", "c-1"])
    assert set(await running.another_driver().unstored()) == {"b-1"}


async def test_an_exec_is_over_when_its_children_are(running: DockerRig) -> None:
    slot = await place(running.driver)
    await running.driver.start(slot, start_of(slot, "o", script("sleep 1234 & sleep 1234 & exit 5")))
    sighting = await wait_for(running, running.driver, slot, "o-1")
    assert sighting.exit is not None and sighting.exit.code == 5
    assert beside(running, slot.incarnation, "/bin/sh", "-c", "grep -ls '[1]234' /proc/[0-9]*/cmdline") == 1


async def test_children_of_a_killed_exec_are_ended_before_it_counts_as_over(running: DockerRig) -> None:
    slot = await place(running.driver)
    await running.driver.start(slot, start_of(slot, "o", script("sleep 1234 & sleep 4321")))
    await wait_for(running, running.driver, slot, "o-1", Seen.READY)
    # the wrapper alone, as the kernel would when memory is short
    kill = f"kill -9 $(cat {wrap.RUNS}/o-1/pid)"
    await running.wait(lambda: _answers(running, slot, f"test -s {wrap.RUNS}/o-1/pid && grep -qs 1234 /proc/*/cmdline"))
    beside(running, slot.incarnation, "/bin/sh", "-c", kill)
    sighting = await wait_for(running, running.driver, slot, "o-1")
    assert sighting.exit is not None and sighting.exit.lost
    assert beside(running, slot.incarnation, "/bin/sh", "-c", "grep -ls '[1]234' /proc/[0-9]*/cmdline") == 1


async def _answers(rig: DockerRig, slot: Slot, command: str) -> bool:
    return beside(rig, slot.incarnation, "/bin/sh", "-c", command) == 0


async def test_a_force_that_comes_before_its_exec_began_lets_it_begin_no_more(running: DockerRig) -> None:
    slot = await place(running.driver)
    assert slot.incarnation is not None
    assert await running.driver._handover._tool(slot.incarnation, "o-1", "kill") == 0
    await running.driver.start(slot, start_of(slot, "o", running.lasting()))
    sighting = await wait_for(running, running.driver, slot, "o-1")
    assert sighting.exit is not None
    assert (sighting.exit.signal, sighting.exit.place_failed) == (9, False)


async def test_a_force_where_nothing_can_be_run_any_more_ends_the_container(running: DockerRig) -> None:
    # few, and yet enough for the engine's own helper, whose threads count too while it starts the container
    crowded = Making(template=replace(running.making.template, pids_max=16), memory_mb=64)
    running.driver.usual = crowded
    slot = await place(running.driver)
    assert slot.incarnation is not None
    await running.driver.start(slot, start_of(slot, "o", script("while :; do sleep 100 & done 2>/dev/null; wait")))
    await wait_for(running, running.driver, slot, "o-1", Seen.READY)
    await running.driver.stop(slot, "o-1", slot.incarnation, force=True, epoch=1)
    await wait_for(running, running.driver, slot, "o-1")


async def test_a_removed_place_leaves_its_output_until_it_is_forgotten(tier: DockerRig) -> None:
    slot, _ = await run(tier, script("echo last words"))
    await tier.driver.remove(slot)
    await tier.driver.remove(slot)
    again = tier.another_driver()
    assert list(await again.unstored()) == ["o-1"]
    assert await output(tier) == ["last words"]
    await again.forget(["o-1"])
    assert tier.containers() == []


async def test_a_removed_place_that_never_ran_leaves_nothing(tier: DockerRig) -> None:
    await tier.driver.remove(await place(tier.driver))
    assert tier.containers() == []


async def test_a_removed_place_ends_what_runs_in_it(tier: DockerRig) -> None:
    slot = await place(tier.driver)
    await tier.driver.start(slot, start_of(slot, "o", tier.lasting()))
    await wait_for(tier, tier.driver, slot, "o-1", Seen.READY)
    await tier.driver.remove(slot)
    assert [each["State"] for each in tier.containers()] == ["exited"]


async def test_the_next_of_a_slot_is_made_while_the_last_waits_for_its_output(tier: DockerRig) -> None:
    slot, _ = await run(tier, tier.ending(0))
    await tier.driver.remove(slot)
    fresh = replace(slot, incarnation=await tier.driver.create(slot, Making()))
    await tier.driver.start(fresh, start_of(fresh, "next", tier.lasting()))
    await wait_for(tier, tier.driver, fresh, "next-1", Seen.READY)
    await tier.driver.forget(["o-1"])
    assert (await look(tier.driver, fresh, "next-1")).seen is Seen.READY


async def test_a_late_remove_does_not_touch_the_next_generation(created: DockerRig) -> None:
    old = await place(created.driver)
    await created.driver.remove(old)
    new = replace(old, generation=2)
    new = replace(new, incarnation=await created.driver.create(replace(new, incarnation=None), Making()))
    await created.driver.remove(old)
    assert [each.incarnation for each in await created.driver.places()] == [new.incarnation]


async def test_making_the_next_generation_again_keeps_what_was_made(running: DockerRig) -> None:
    old = await place(running.driver)
    new = replace(old, generation=2, state=SlotState.CREATING)
    made = []
    for _ in range(2):  # as a leader does that asks whether it is ready
        await running.driver.remove(new)
        made.append(await running.driver.create(new, Making()))
    assert made[0] == made[1] != old.incarnation
    assert [each.incarnation for each in await running.driver.places()] == [made[0]]


async def test_a_slot_that_is_given_up_leaves_nothing_of_any_generation(tier: DockerRig) -> None:
    old = await place(tier.driver)
    new = replace(old, generation=2)
    await tier.driver.create(new, Making())  # and the server died before it could save that
    await tier.driver.remove(replace(new, state=SlotState.REMOVING))
    assert tier.containers() == []


async def test_places_say_what_could_serve(created: DockerRig) -> None:
    idle, used = await place(created.driver, "idle"), await place(created.driver, "used")
    await created.driver.start(used, start_of(used, "o", created.lasting()))
    found = {each.incarnation: each for each in await created.driver.places()}
    assert {each: found[each].usable for each in found} == {idle.incarnation: True, used.incarnation: False}
    stray = found[idle.incarnation or ""]
    assert stray.slot == f"{created.installation}-idle"
    assert 0 < stray.asked_at - stray.made_at < 60_000
    await created.driver.remove_stray(stray)
    await created.driver.remove_stray(stray)
    assert [each.incarnation for each in await created.driver.places()] == [used.incarnation]


async def test_a_live_place_that_died_could_not_serve(running: DockerRig) -> None:
    await place(running.driver)
    assert [each.usable for each in await running.driver.places()] == [True]
    os.kill(only(running)["State"]["Pid"], signal.SIGKILL)
    await until(lambda: only(running)["State"]["Status"] == "exited")
    assert [each.usable for each in await running.driver.places()] == [False]


async def test_a_place_that_waits_for_its_output_is_no_stray(tier: DockerRig) -> None:
    slot, _ = await run(tier, tier.ending(0))
    await tier.driver.remove(slot)
    assert [each for each in await tier.driver.places() if not each.usable] == []


async def test_a_worker_is_given_its_env_and_socket_and_hears_nothing_of_a_start(
    running: DockerRig, tmp_path_factory: pytest.TempPathFactory
) -> None:
    socket = tmp_path_factory.mktemp("sockets") / "worker.sock"
    socket.touch()
    lives = template(running.making.template.warmth, worker=True)
    running.driver.usual = Making(template=lives, memory_mb=64, env={"STANDBY_SOCKET": str(socket), "A": "b"})
    slot = await place(running.driver)
    assert beside(running, slot.incarnation, "/bin/sh", "-c", 'test -e "$STANDBY_SOCKET" && test "$A" = b') == 0
    first = await running.driver.start(slot, start_of(slot, "o", running.lasting()))
    assert first.seen is Seen.STARTING
    assert (await look(running.driver, slot, "o-1")).seen is Seen.STARTING
    assert slot.incarnation is not None
    await running.driver.stop(slot, "o-1", slot.incarnation, force=False, epoch=1)
    assert (await look(running.driver, slot, "o-1")).seen is Seen.STARTING
    await running.driver.stop(slot, "o-1", slot.incarnation, force=True, epoch=1)
    sighting = await wait_for(running, running.driver, slot, "o-1")
    assert sighting.exit is not None and sighting.exit.lost
    await running.driver.remove(slot)
    assert (await look(running.driver, slot, "o-1")).seen is Seen.ABSENT


async def test_an_engine_elsewhere_is_given_no_socket_of_this_machine() -> None:
    rig = DockerRig(shared_engine(), Warmth.CREATED, tls=True)
    rig.driver.usual = Making(template=rig.making.template, memory_mb=64, env={"STANDBY_SOCKET": "/no/such.sock"})
    slot = await place(rig.driver)
    env = {"STANDBY_SOCKET": "/no/such.sock"}
    await rig.driver.start(slot, start_of(slot, "o", script('echo "${STANDBY_SOCKET-none}"'), env=env))
    await wait_for(rig, rig.driver, slot, "o-1")
    assert await output(rig) == ["none"]
    assert only(rig)["HostConfig"]["Binds"] == []
    await rig.end()


async def test_starts_of_one_run_at_the_same_time_are_one_copy(tier: DockerRig) -> None:
    slot = await place(tier.driver)
    others = [tier.driver, tier.another_driver(), tier.another_driver()]
    spec = script("echo begun; sleep 1")

    async def start(index: int) -> None:
        try:
            await others[index].start(slot, start_of(slot, "o", spec))
        except CommandRefused:
            pass

    async with anyio.create_task_group() as group:
        for index in range(len(others)):
            group.start_soon(start, index)
    sighting = await wait_for(tier, tier.driver, slot, "o-1")
    assert sighting.exit is not None and sighting.exit.code == 0
    assert await output(tier) == ["begun"]


async def test_a_slot_of_a_name_that_is_taken_by_somebody_else_cannot_be_made(created: DockerRig) -> None:
    with created.engine.client() as client:
        name = f"{created.installation}-s.1"
        made = client.post("/containers/create", params={"name": name}, json={"Image": BOX, "Cmd": ["true"]})
    with pytest.raises(CommandRefused, match="already in use"):
        await created.driver.create(slot_named("s"), Making())
    with created.engine.client() as client:
        client.delete(f"/containers/{made.json()['Id']}")


async def test_an_order_that_was_cut_off_on_its_way_into_a_live_container_is_not_its_fault(running: DockerRig) -> None:
    slot = await place(running.driver)
    cut = ("/bin/sh", "-c", wrap.BY_EXEC, "standby", "o-1")
    assert beside(running, slot.incarnation, *cut, env=["STANDBY_MARK=o-1;"]) == wrap.NOT_BEGUN
    sighting = await wait_for(running, running.another_driver(), slot, "o-1")
    assert sighting.exit is not None
    assert (sighting.exit.start_error, sighting.exit.place_failed) == ("the order did not arrive whole", False)


async def test_what_an_earlier_leader_made_as_the_next_generation_is_not_taken_away(running: DockerRig) -> None:
    slot = await place(running.driver)
    again = replace(slot, state=SlotState.CREATING, generation=slot.generation + 1)
    made = await running.driver.create(again, Making())
    await running.driver.remove(again)
    assert [each["Id"] for each in running.containers()] == [made]
    assert await running.driver.create(again, Making()) == made


async def test_a_live_container_whose_output_is_kept_can_be_taken_away_twice(running: DockerRig) -> None:
    slot, _ = await run(running, running.printing("kept"))
    await running.driver.remove(slot)
    await running.driver.remove(slot)
    assert await output(running) == ["kept"]


async def test_a_run_that_never_began_in_a_live_container_can_be_forgotten(running: DockerRig) -> None:
    slot = await place(running.driver)
    await running.driver.start(slot, start_of(slot, "o", running.ending(0)))
    await wait_for(running, running.driver, slot, "o-1")
    assert beside(running, slot.incarnation, "/bin/rm", "-r", wrap.RUNS) == 0
    await running.driver.forget(["o-1"])
    assert await running.driver.unstored() == []


async def test_a_cold_container_that_could_not_start_is_a_place_and_goes_with_its_slot(cold: DockerRig) -> None:
    slot = await place(cold.driver)
    wrong = Making(template=template(Warmth.COLD, user="nobody-there"))
    sighting = await cold.driver.start(slot, replace(start_of(slot, "o", cold.ending(0)), making=wrong))
    assert sighting.exit is not None and sighting.exit.place_failed
    assert [each.incarnation for each in await cold.driver.places()] == [only(cold)["Id"]]
    await cold.driver.remove(replace(slot, state=SlotState.CREATING, generation=slot.generation + 1))
    assert cold.containers() == []


async def test_a_live_container_that_is_taken_away_while_its_run_is_forgotten_is_not_left(
    running: DockerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, _ = await run(running, running.printing("kept"))
    await output(running)
    containers = running.driver._containers
    alive = await containers.every()

    async def before() -> list[Container]:
        return alive

    await running.driver.remove(slot)
    monkeypatch.setattr(containers, "recent", before)
    await running.driver.forget(["o-1"])
    assert running.containers() == []
