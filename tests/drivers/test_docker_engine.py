"""An engine that is away, comes back, or is another one: nothing is concluded from that. And what it says of itself."""

import asyncio
import json
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path

import anyio
import pytest
from anyio.to_thread import run_sync

from standby.core.errors import ConfigError, Unreachable
from standby.core.model import Json, Warmth
from standby.drivers.contract import Gauge, Images, Logs, Making, Places, Seen, Watch
from standby.drivers.docker import DockerDriver
from standby.drivers.docker.engine import Engine
from tests.engine import RunningEngine, make_certificates, own_engine, shared_engine

from .docker_rig import DockerRig, output, template
from .rigs import look, now_ms, open_run, place, script, slot_named, start_of, wait_for

pytestmark = [pytest.mark.anyio, pytest.mark.docker]

GOES_ON = "echo begun; while [ ! -e /tmp/go ]; do sleep 0.05; done; echo ended; exit 6"


@pytest.fixture
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """One to stop and to kill."""
    with own_engine(tmp_path_factory.mktemp("e")) as made:
        yield made


@pytest.fixture
def restoring(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RunningEngine]:
    """One whose containers live on without it."""
    with own_engine(tmp_path_factory.mktemp("e"), "--live-restore") as made:
        yield made


async def test_it_keeps_every_optional_protocol() -> None:
    driver = DockerRig(shared_engine(), Warmth.CREATED).driver
    assert all(isinstance(driver, each) for each in (Logs, Watch, Gauge, Places, Images))


async def test_an_engine_that_is_away_is_unreachable_for_every_verb(tmp_path: Path) -> None:
    driver = DockerDriver(f"unix://{tmp_path}/none.sock", installation="i", host="h", now=now_ms)
    slot = slot_named("s", "some-container")
    asks: list[Callable[[], Awaitable[object]]] = [
        driver.open,
        driver.identity,
        lambda: driver.create(slot, Making()),
        lambda: driver.start(slot, start_of(slot, "o", script("exit 0"))),
        lambda: driver.stop(slot, "o-1", "some-container", force=True, epoch=1),
        lambda: driver.remove(slot),
        lambda: driver.observe([open_run(slot, "o-1")]),
        lambda: driver.observe([]),
        lambda: driver.logs({"o-1": ""}),
        driver.unstored,
        lambda: driver.forget(["o-1"]),
        driver.places,
        lambda: driver.has_image("box"),
    ]
    for ask in asks:
        with pytest.raises(Unreachable):
            await ask()
    await driver.close()


async def test_an_engine_that_was_started_again_is_the_same(engine: RunningEngine) -> None:
    rig = DockerRig(engine, Warmth.CREATED)
    before = await rig.driver.identity()
    slot = await place(rig.driver)
    await run_sync(engine.stop)
    with pytest.raises(Unreachable):
        await rig.driver.observe([])
    await run_sync(engine.start)
    assert await rig.driver.identity() == before
    assert (await look(rig.driver, slot, "o-1")).seen is Seen.FRESH
    await rig.end()


async def test_another_engine_at_the_same_place_is_noticed(engine: RunningEngine) -> None:
    rig = DockerRig(engine, Warmth.CREATED)
    before = await rig.driver.identity()
    slot = await place(rig.driver)
    engine.stop()
    engine.data = engine.home / "other"
    engine.start()
    with pytest.raises(Unreachable):  # not absent, although nothing is there
        await look(rig.driver, slot, "o-1")
    assert await rig.driver.identity() != before
    await rig.end()


@pytest.mark.parametrize("warmth", list(Warmth))
async def test_a_run_that_dies_with_its_engine_is_lost_and_its_output_is_kept(
    engine: RunningEngine, warmth: Warmth
) -> None:
    rig = DockerRig(engine, warmth)
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", script(GOES_ON)))
    await wait_for(rig, rig.driver, slot, "o-1", Seen.READY)
    await rig.wait(lambda: _has_said(rig, "begun"))
    await run_sync(engine.stop)
    await run_sync(engine.start)
    sighting = await wait_for(rig, rig.driver, slot, "o-1")
    assert sighting.exit is not None
    assert (sighting.exit.lost, sighting.exit.start_error) == (True, None)
    assert await output(rig) == ["begun"]
    await rig.end()


@pytest.mark.parametrize("warmth", list(Warmth))
async def test_a_run_that_outlives_its_engine_is_found_again_with_its_exit_code(
    restoring: RunningEngine, warmth: Warmth
) -> None:
    rig = DockerRig(restoring, warmth)
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", script(GOES_ON)))
    await wait_for(rig, rig.driver, slot, "o-1", Seen.READY)
    (container,) = rig.containers()
    with restoring.client() as client:
        pid = client.get(f"/containers/{container['Id']}/json").json()["State"]["Pid"]
    await run_sync(restoring.stop)
    with pytest.raises(Unreachable):
        await look(rig.driver, slot, "o-1")
    await run_sync(restoring.start)
    assert (await look(rig.driver, slot, "o-1")).seen is Seen.READY
    await anyio.Path("/proc", str(pid), "root", "tmp", "go").touch()
    sighting = await wait_for(rig, rig.driver, slot, "o-1")
    assert sighting.exit is not None
    assert sighting.exit.code == 6
    assert await output(rig) == ["begun", "ended"]
    await rig.end()


async def _has_said(rig: DockerRig, text: str) -> bool:
    with rig.engine.client() as client:
        said = client.get(f"/containers/{rig.containers()[0]['Id']}/logs", params={"stdout": 1})
        return text in said.text


async def test_beginnings_and_ends_are_heard(tier: DockerRig) -> None:
    heard: list[float] = []

    async def listen() -> None:
        async for _ in tier.driver.changes():
            heard[:] = [*heard, time.monotonic()]

    listening = asyncio.create_task(listen())
    slot = await place(tier.driver)
    await tier.driver.start(slot, start_of(slot, "o", script("while [ ! -e /tmp/go ]; do sleep 0.05; done")))
    await wait_for(tier, tier.driver, slot, "o-1", Seen.READY)
    await _until_quiet(heard)
    before = len(heard)
    assert before > 0
    await tier.driver.stop(slot, "o-1", slot.incarnation or "", force=True, epoch=1)
    with anyio.fail_after(20):
        while len(heard) == before:
            await anyio.lowlevel.checkpoint()
    listening.cancel()


async def _until_quiet(heard: list[float]) -> None:
    """Nothing was heard for a while."""
    with anyio.fail_after(20):
        while not heard or time.monotonic() - heard[-1] < 0.3:  # noqa: ASYNC110 - silence is no event
            await anyio.sleep(0.05)


async def test_a_listener_is_told_when_the_engine_goes(engine: RunningEngine) -> None:
    rig = DockerRig(engine, Warmth.CREATED)
    changes = rig.driver.changes()
    await anext(changes)
    engine.kill()
    with anyio.fail_after(20):
        with pytest.raises(Unreachable):
            while True:
                await anext(changes)
    await rig.end_drivers()


async def test_an_engine_elsewhere_says_how_large_it_is() -> None:
    rig = DockerRig(shared_engine(), Warmth.CREATED, tls=True)
    reading = await rig.driver.measure()
    assert (reading.memory_total_mb or 0) > 0 and (reading.cpu_count or 0) > 0
    assert reading.memory_available_mb is None
    await rig.end()


async def test_this_machines_engine_says_how_full_it_is(created: DockerRig) -> None:
    assert (await created.driver.measure()).memory_available_mb is not None


async def test_an_engine_by_tls_needs_certificates(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="tls"):
        Engine("tcp://127.0.0.1:1")
    with pytest.raises(ConfigError, match="cannot be used"):
        Engine("tcp://127.0.0.1:1", tmp_path)


async def test_an_engine_does_not_answer_whom_it_does_not_know(tmp_path: Path) -> None:
    make_certificates(tmp_path / "others")
    driver = DockerDriver(shared_engine().tcp, installation="i", host="h", now=now_ms, tls=tmp_path / "others")
    with pytest.raises(Unreachable):
        await driver.identity()
    await driver.close()


class Told:
    """A server in the place of an engine that says what a test wants."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.answers: dict[str, tuple[int, Json]] = {
            "/version": (200, {"ApiVersion": "1.41", "MinAPIVersion": "1.12"}),
            "/info": (200, {"ID": "told", "DockerRootDir": "/d", "Driver": "overlay2"}),
        }
        self.asked: dict[str, asyncio.StreamWriter] = {}
        """Who asked for this last."""
        self.gates: dict[str, asyncio.Event] = {}
        """Answers that wait."""

    async def until_asked(self, path: str) -> asyncio.StreamWriter:
        with anyio.fail_after(20):
            while path not in self.asked:  # noqa: ASYNC110 - asked, not heard
                await anyio.sleep(0.005)
        return self.asked.pop(path)

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            path = head.split()[1].decode().partition("?")[0].removeprefix("/v1.41")
            self.asked[path] = writer
            if path in self.gates:
                await self.gates[path].wait()
            if path == "/events":
                writer.write(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")
            else:
                status, body = self.answers.get(path, (404, {"message": "no such thing"}))
                data = json.dumps(body).encode()
                writer.write(f"HTTP/1.1 {status} X\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
            await writer.drain()


@pytest.fixture
async def told(tmp_path: Path) -> AsyncIterator[Told]:
    made = Told(tmp_path / "engine.sock")
    server = await asyncio.start_unix_server(_quietly(made), made.path)
    yield made
    server.close()


def _quietly(told: Told) -> Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]:
    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            await told.serve(reader, writer)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()

    return serve


async def test_a_look_that_fails_while_another_connects_anew_spoils_nothing(told: Told) -> None:
    driver = DockerDriver(f"unix://{told.path}", installation="i", host="h", now=now_ms)
    changes = driver.changes()
    await anext(changes)
    told.gates = {"/info": asyncio.Event(), "/containers/json": asyncio.Event()}
    told.asked.pop("/info")
    looks = asyncio.create_task(driver.observe([]))
    line = await told.until_asked("/containers/json")
    (await told.until_asked("/events")).close()
    connects = asyncio.ensure_future(anext(changes))
    await told.until_asked("/info")
    line.close()
    with pytest.raises(Unreachable):
        await looks
    told.gates["/info"].set()
    await connects
    await driver.close()


@pytest.mark.parametrize("status", [400, 404, 409, 500, 503])
async def test_a_list_that_is_refused_is_unreachable_and_not_an_empty_one(told: Told, status: int) -> None:
    told.answers["/containers/json"] = (status, {"message": "not now"})
    driver = DockerDriver(f"unix://{told.path}", installation="i", host="h", now=now_ms)
    with pytest.raises(Unreachable):
        await driver.observe([open_run(slot_named("s", "c"), "o-1")])
    with pytest.raises(Unreachable):
        await driver.places()
    with pytest.raises(Unreachable):
        await driver.unstored()
    await driver.close()


async def test_an_engine_that_is_too_old_says_so(told: Told) -> None:
    told.answers["/version"] = (200, {"ApiVersion": "1.40", "MinAPIVersion": "1.12"})
    driver = DockerDriver(f"unix://{told.path}", installation="i", host="h", now=now_ms)
    with pytest.raises(Unreachable, match="too old"):
        await driver.identity()
    await driver.close()


@pytest.mark.parametrize("words", ["create x: database not open", "Container cannot be created: shutting down"])
async def test_what_an_engine_refuses_while_it_goes_down_is_unreachable_and_no_fault_of_a_place(
    told: Told, words: str
) -> None:
    told.answers["/containers/json"] = (200, [])
    told.answers["/containers/create"] = (500, {"message": words})
    driver = DockerDriver(f"unix://{told.path}", installation="i", host="h", now=now_ms)
    with pytest.raises(Unreachable):
        await driver.create(slot_named("s"), Making(template=template(Warmth.CREATED)))
    await driver.close()
