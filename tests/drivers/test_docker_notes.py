"""Whatever an engine says of the notes in a container while it goes down, no output is deleted because of it."""

import pytest

from standby.core.errors import Unreachable
from standby.core.model import Slot, Warmth
from standby.drivers.contract import Seen
from standby.drivers.docker.engine import EngineRefused, Params
from tests.engine import shared_engine

from .docker_rig import DockerRig, RigDriver, output, run
from .rigs import look, place, start_of, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

EMPTY = bytes(1024)
"""All that an engine sends, as an answer like any other, when the mount goes away after it looked."""
BROKEN_OFF = b'{"message":"write: broken pipe"}\n'
"""What it appends to an archive that it could not finish."""


def answering(driver: RigDriver, patched: pytest.MonkeyPatch, *answers: int | str) -> None:
    """Let the first questions for notes be answered so: `empty`, `cut` or `refused`, or a status."""
    call, left = driver._engine.call, list(answers)

    async def lying(method: str, path: str, params: Params | None = None, body: object = None) -> bytes:
        if method != "GET" or not path.endswith("/archive") or not left:
            return await call(method, path, params, body)
        match left.pop(0):
            case "empty":
                return EMPTY
            case "cut":
                return (await call(method, path, params, body))[:512] + BROKEN_OFF
            case "refused":
                return BROKEN_OFF
            case status:
                raise EngineRefused(int(status), "Could not find the file")

    patched.setattr(driver._engine, "call", lying)


@pytest.mark.parametrize("answer", ["empty", "cut", "refused"])
async def test_notes_that_are_not_whole_are_asked_for_again(
    running: DockerRig, monkeypatch: pytest.MonkeyPatch, answer: str
) -> None:
    slot, _ = await run(running, running.printing("kept"))
    next_server = running.another_driver()
    answering(next_server, monkeypatch, answer, answer)
    assert await next_server.unstored() == []
    with pytest.raises(Unreachable, match="cannot be read"):
        await next_server.remove(slot)
    await _is_kept(running, next_server, slot)


async def test_the_end_of_a_run_is_unknown_while_its_notes_are_not_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rig = DockerRig(shared_engine(), Warmth.CREATED)
    try:
        slot, end = await run(rig, rig.ending(130))
        assert end.signal == 2
        next_server = rig.another_driver()
        answering(next_server, monkeypatch, "empty")
        assert (await look(next_server, slot, "o-1")).seen is Seen.UNKNOWN
        assert (await look(next_server, slot, "o-1")).exit == end
    finally:
        await rig.end()


async def test_that_nothing_was_noted_must_be_said_twice_before_a_container_is_deleted(
    running: DockerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, _ = await run(running, running.printing("kept"))
    next_server = running.another_driver()
    answering(next_server, monkeypatch, 404)
    await next_server.remove(slot)
    await _is_kept(running, next_server, slot)


async def test_a_container_that_another_server_used_since_this_one_made_it_keeps_its_output(running: DockerRig) -> None:
    slot = await place(running.driver)
    assert await running.driver.unstored() == []
    other = running.another_driver()
    await other.start(slot, start_of(slot, "o", running.printing("kept")))
    await wait_for(running, other, slot, "o-1")
    await running.driver.remove(slot)
    await _is_kept(running, running.driver, slot)


async def test_an_ended_container_whose_notes_were_not_found_once_is_no_stray(
    running: DockerRig, monkeypatch: pytest.MonkeyPatch
) -> None:
    slot, _ = await run(running, running.printing("kept"))
    await running.driver.remove(slot)
    next_server = running.another_driver()
    answering(next_server, monkeypatch, 404)
    assert await next_server.places() == []


async def _is_kept(rig: DockerRig, driver: RigDriver, slot: Slot) -> None:
    await driver.remove(slot)
    assert [each["State"] for each in rig.containers()] == ["exited"]
    assert await driver.unstored() == ["o-1"]
    assert await output(rig) == ["kept"]
    assert (await look(driver, slot, "o-1")).seen is Seen.STOPPED
    await driver.forget(["o-1"])
    assert rig.containers() == []
