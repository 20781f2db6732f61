"""Containers whose removal came to no end: they are still there, and can only be removed again."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from anyio.to_thread import run_sync
from msgspec.structs import replace

from standby.core.errors import Unreachable
from standby.core.model import Slot, Spec, Warmth
from standby.drivers.contract import Seen
from standby.drivers.docker import containers, handover
from standby.drivers.docker.ending import Record, records
from standby.drivers.docker.engine import EngineRefused, Params
from tests.engine import RunningEngine, own_engine

from .docker_rig import DockerRig, lines, output, run
from .rigs import look, place, start_of, until, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.docker]


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """One to kill."""
    with own_engine(tmp_path_factory.mktemp("e")) as made:
        yield made


@pytest.fixture(params=list(Warmth))
async def tier(request: pytest.FixtureRequest, engine: RunningEngine) -> AsyncIterator[DockerRig]:
    made = DockerRig(engine, request.param)
    yield made
    await made.end()


@pytest.fixture
async def created(engine: RunningEngine) -> AsyncIterator[DockerRig]:
    made = DockerRig(engine, Warmth.CREATED)
    yield made
    await made.end()


async def kill(rig: DockerRig) -> None:
    """Kill the engine while it removes what is there, and start it again."""
    found = [str(each["Id"]) for each in rig.containers()]
    await run_sync(rig.engine.kill)
    with pytest.raises(Unreachable):
        await rig.driver.observe([])
    for each in found:
        rig.engine.killed_while_it_removed(each)
    await run_sync(rig.engine.start)
    assert {each["State"] for each in rig.containers()} == {"dead"}


async def ended(rig: DockerRig, order: str, spec: Spec) -> Slot:
    """The place of an order that ran there to its end."""
    slot = await place(rig.driver, f"seat-{order}")
    await rig.driver.start(slot, start_of(slot, order, spec))
    await wait_for(rig, rig.driver, slot, f"{order}-1")
    return slot


async def at_work(rig: DockerRig) -> tuple[Slot, str]:
    """The place of an order "o" that runs there until it is stopped, and its container."""
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", rig.lasting()))
    await wait_for(rig, rig.driver, slot, "o-1", Seen.READY)
    (container,) = [str(each["Id"]) for each in rig.containers()]
    return slot, container


async def test_its_output_is_over_and_that_of_others_is_read(tier: DockerRig) -> None:
    await ended(tier, "o", tier.printing("gone with it"))
    await kill(tier)
    await ended(tier, "p", tier.printing("kept"))
    assert set(await tier.driver.unstored()) == {"o-1", "p-1"}
    assert await output(tier, "o-1") == []
    assert await output(tier, "p-1") == ["kept"]
    await tier.driver.forget(["o-1"])
    assert await tier.driver.unstored() == ["p-1"]
    assert len(tier.containers()) == 1


async def test_its_slot_can_be_given_up(tier: DockerRig) -> None:
    slot = await ended(tier, "o", tier.ending(0))
    await kill(tier)
    next_server = tier.another_driver()
    await next_server.remove(slot)
    await next_server.forget(["o-1"])
    assert tier.containers() == []


async def test_what_cannot_be_read_of_it_leaves_nothing_unknown(
    tier: DockerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, _ = await at_work(tier)
    await kill(tier)
    next_server = tier.another_driver()
    call = next_server._engine.call

    async def torn(method: str, path: str, params: Params | None = None, body: object = None) -> bytes:
        if path.endswith("/archive"):
            raise EngineRefused(500, "RWLayer of container is unexpectedly nil")
        return await call(method, path, params, body)

    monkeypatch.setattr(next_server._engine, "call", torn)
    seen = await look(next_server, slot, "o-1")
    assert seen.seen is Seen.ABSENT or (seen.exit is not None and seen.exit.lost)
    await next_server.remove(slot)
    await next_server.forget(await next_server.unstored())
    assert tier.containers() == []


async def test_one_that_could_not_be_removed_when_its_run_was_forgotten_is_removed_the_next_time(
    tier: DockerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, _ = await run(tier, tier.printing("kept"))
    await tier.driver.remove(slot)

    async def away(_: str) -> None:
        raise Unreachable("the engine is away")

    with monkeypatch.context() as patched, pytest.raises(Unreachable):
        patched.setattr(tier.driver._containers, "delete", away)
        await tier.driver.forget(["o-1"])
    assert await tier.driver.unstored() == ["o-1"]
    await tier.driver.forget(["o-1"])
    assert tier.containers() == []


async def test_one_that_its_engine_fails_to_remove_leaves_nothing_unknown_and_is_removed_when_it_can(
    tier: DockerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, container = await at_work(tier)
    with tier.engine.kept_busy(container):
        with pytest.raises(Unreachable, match=r"cannot be removed.*device or resource busy"):
            await tier.driver._containers.delete(container)
        monkeypatch.setattr(containers, "REMOVED_S", 0)
        seen = await look(tier.driver, slot, "o-1")
        assert seen.seen is Seen.ABSENT or (seen.exit is not None and seen.exit.lost)
    await tier.driver.remove(slot)
    await tier.driver.forget(await tier.driver.unstored())
    assert tier.containers() == []


async def test_what_is_wrong_with_one_container_hides_nothing_of_the_others(
    tier: DockerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    broken = await ended(tier, "o", tier.ending(130))
    (container,) = [str(each["Id"]) for each in tier.containers()]
    other = await ended(tier, "p", tier.printing("of p"))
    next_server = tier.another_driver()
    call, stream = next_server._engine.call, next_server._engine.stream

    async def torn(method: str, path: str, params: Params | None = None, body: object = None) -> bytes:
        if container in path and path.endswith("/archive"):
            raise EngineRefused(500, "input/output error")
        return await call(method, path, params, body)

    def torn_stream(method: str, path: str, params: Params) -> Any:
        if container in path:
            raise EngineRefused(500, "input/output error")
        return stream(method, path, params)

    monkeypatch.setattr(next_server._engine, "call", torn)
    monkeypatch.setattr(next_server._engine, "stream", torn_stream)
    assert (await look(next_server, broken, "o-1")).seen is Seen.UNKNOWN
    await next_server.places()
    assert (await look(next_server, other, "p-1")).exit is not None
    kept = await next_server.unstored()
    assert "p-1" in kept
    assert [line.text for line in await lines(next_server, "p-1", kept)] == ["of p"]
    await next_server.forget(kept)
    assert "p-1" not in await next_server.unstored()


async def test_a_run_is_forced_to_its_end_also_where_its_container_cannot_be_read(
    engine: RunningEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    rig = DockerRig(engine, Warmth.RUNNING)
    try:
        slot, _ = await at_work(rig)
        next_server = rig.another_driver()

        async def torn(_: object, __: str) -> dict[str, Record]:
            raise EngineRefused(500, "input/output error")

        monkeypatch.setattr(handover, "records", torn)
        with pytest.raises(Unreachable, match="could not be asked"):
            await next_server.stop(slot, "o-1", slot.incarnation or "", force=False, epoch=1)
        await next_server.stop(slot, "o-1", slot.incarnation or "", force=True, epoch=1)
        assert [each["State"] for each in rig.containers()] == ["exited"]
    finally:
        await rig.end()


async def test_while_one_is_being_removed_it_is_unknown_and_the_others_are_read(tier: DockerRig) -> None:
    slot, container = await at_work(tier)
    other = await ended(tier, "p", tier.printing("kept"))
    next_server = tier.another_driver()
    with tier.engine.kept_busy(container):
        removal = asyncio.create_task(tier.driver._containers.delete(container))  # which takes the engine five seconds
        await until(lambda: "removing" in {each["State"] for each in tier.containers()})
        assert (await look(next_server, slot, "o-1")).seen is Seen.UNKNOWN
        assert (await look(next_server, other, "p-1")).seen is Seen.STOPPED
        assert "p-1" in await next_server.unstored()
        with pytest.raises(Unreachable):
            await removal


@pytest.fixture
async def mounted(engine: RunningEngine, tmp_path: Path) -> AsyncIterator[tuple[DockerRig, Path]]:
    """Containers with a directory of this machine mounted into them, and a file in it."""
    made = DockerRig(engine, Warmth.RUNNING)
    mounts = (*made.making.template.mounts, f"{tmp_path}:/ours")
    made.making = replace(made.making, template=replace(made.making.template, mounts=mounts))
    made.driver.usual = made.making
    kept = tmp_path / "kept"
    kept.touch()
    yield made, kept
    await made.end()


@pytest.mark.parametrize("who", ["the same server", "the next one"])
async def test_files_mounted_into_one_outlive_a_question_for_its_notes_while_it_is_removed(
    mounted: tuple[DockerRig, Path], who: str
) -> None:
    rig, kept = mounted
    _, container = await at_work(rig)
    asking = rig.driver._engine if who == "the same server" else rig.another_driver()._engine
    with rig.engine.kept_busy(container):
        removal = asyncio.create_task(rig.driver._containers.delete(container))  # which takes the engine five seconds
        await until(lambda: "removing" in {each["State"] for each in rig.containers()})
        for _ in range(5):
            with pytest.raises(EngineRefused, match="remov"):
                await records(asking, container)
        with pytest.raises(Unreachable):
            await removal
        assert kept.exists()  # an engine before version 23 would have mounted it where it was deleting, and deleted it
        with pytest.raises(EngineRefused, match="dead"):
            await records(asking, container)


async def test_one_is_told_to_go_once_its_notes_are_read_and_nobody_asks_for_them_after(
    created: DockerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await ended(created, "o", created.ending(0))
    (container,) = [str(each["Id"]) for each in created.containers()]
    engine = created.driver._engine
    asked, answer, sent = asyncio.Event(), asyncio.Event(), []
    call = engine.call

    async def slow(method: str, path: str, params: Params | None = None, body: object = None) -> bytes:
        sent.append(f"{method} {path.rpartition('/')[2]}")
        if path.endswith("/archive"):
            asked.set()
            await answer.wait()
        return await call(method, path, params, body)

    monkeypatch.setattr(engine, "call", slow)
    reading = asyncio.create_task(records(engine, container))
    await asked.wait()
    removal = asyncio.create_task(engine.remove(container))
    await asyncio.sleep(0)
    with pytest.raises(EngineRefused, match="being removed"):
        await records(engine, container)
    assert sent == ["GET json", "GET archive"]
    answer.set()
    assert "run" in await reading
    await removal
    assert sent == ["GET json", "GET archive", f"DELETE {container}"]


async def test_one_that_its_engine_fails_to_remove_keeps_nobody_from_being_forgotten(
    created: DockerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, container = await at_work(created)
    with created.engine.kept_busy(container):
        await created.driver.stop(slot, "o-1", slot.incarnation or "", force=True, epoch=1)
        await wait_for(created, created.driver, slot, "o-1")
        await ended(created, "p", created.printing("stored"))
        await created.driver.forget(["o-1", "p-1"])
        assert await created.driver.unstored() == ["o-1"]
        with monkeypatch.context() as patched:
            patched.setattr(created.driver._containers, "delete", None)
            await created.driver.forget(["o-1"])  # which was tried a moment ago, and takes its engine seconds
    monkeypatch.setattr(containers, "AGAIN_S", 0)
    monkeypatch.setattr(containers, "REMOVED_S", 0)
    await created.driver.forget(["o-1"])
    assert created.containers() == []


async def test_a_run_that_had_not_begun_there_did_not_end_well(created: DockerRig) -> None:
    slot = await place(created.driver)
    await kill(created)
    assert (await look(created.driver, slot, "o-1")).seen is Seen.ABSENT
