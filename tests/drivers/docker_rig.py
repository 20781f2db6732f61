"""A Docker engine as a platform of the driver suites: an installation of its own for each test."""

import io
import shutil
import tarfile
import uuid
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

import anyio
from msgspec.structs import replace

from standby.core.model import Slot, Spec, Template, Warmth
from standby.drivers.contract import Exit, LogLine, Making, Sighting, Start
from standby.drivers.docker import DockerDriver
from tests.engine import BOX, RunningEngine

from .rigs import PATIENCE_S, ShellWork, now_ms, place, start_of, wait_for

SLEEPS = ("/bin/sleep", "1000000")


class RigDriver(DockerDriver):
    """Makes places from the rig's template where a test names none, under names of the rig's own installation."""

    usual = Making()
    prefix = ""

    async def create(self, slot: Slot, making: Making) -> str | None:
        return await super().create(self._own(slot), self.usual if making == Making() else making)

    async def start(self, slot: Slot, start: Start) -> Sighting:
        start = replace(start, making=self.usual) if start.making == Making() else start
        return await super().start(self._own(slot), start)

    async def remove(self, slot: Slot) -> None:
        await super().remove(self._own(slot))

    def _own(self, slot: Slot) -> Slot:
        return replace(slot, name=f"{self.prefix}-{slot.name}")


def template(warmth: Warmth, **parts: object) -> Template:
    """A container of the test image without a network; a live one sleeps."""
    command = SLEEPS if warmth is Warmth.RUNNING else ()
    return replace(Template(image=BOX, warmth=warmth, command=command, network="none"), **parts)


def bare_image() -> bytes:
    """A packed root with nothing but a program: no shell."""
    busybox = shutil.which("busybox")
    assert busybox is not None
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as tar:
        tar.add(busybox, "busybox")
    return packed.getvalue()


class DockerRig(ShellWork):
    """An installation on an engine."""

    says_why = True

    def __init__(self, engine: RunningEngine, warmth: Warmth, *, tls: bool = False) -> None:
        self.engine, self._tls = engine, tls
        self.installation = f"t-{uuid.uuid4().hex[:12]}"
        self.shared = warmth is Warmth.RUNNING
        self.making = Making(template=template(warmth), memory_mb=64)
        self._drivers: list[DockerDriver] = []
        self.driver = self.another_driver()

    def another_driver(self) -> RigDriver:
        driver = RigDriver(
            self.engine.tcp if self._tls else self.engine.unix,
            installation=self.installation,
            host="h",
            now=now_ms,
            tls=self.engine.tls if self._tls else None,
        )
        driver.usual, driver.prefix = self.making, self.installation
        self._drivers.append(driver)
        return driver

    async def wait(self, check: Callable[[], Awaitable[bool]]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not await check():  # noqa: ASYNC110 - asked, not heard: what is heard has tests of its own
                await anyio.sleep(0.02)

    def containers(self) -> list[dict[str, object]]:
        """What the engine has of this installation, by another client."""
        filters = f'{{"label":["standby.installation={self.installation}"]}}'
        with self.engine.client() as client:
            found: list[dict[str, object]] = client.get(
                "/containers/json", params={"all": 1, "filters": filters}
            ).json()
            return found

    async def end_drivers(self) -> None:
        for driver in self._drivers:
            await driver.close()

    async def end(self) -> None:
        await self.end_drivers()
        with self.engine.client() as client:
            for each in self.containers():
                client.delete(f"/containers/{each['Id']}", params={"force": 1, "v": 1})


async def run(rig: DockerRig, spec: Spec, **parts: Any) -> tuple[Slot, Exit]:
    """Run it in a place of its own to its end."""
    slot = await place(rig.driver)
    await rig.driver.start(slot, start_of(slot, "o", spec, **parts))
    sighting = await wait_for(rig, rig.driver, slot, "o-1")
    assert sighting.exit is not None
    return slot, sighting.exit


async def output(rig: DockerRig, run_id: str = "o-1") -> list[str]:
    """All of a run's output, once it is closed."""
    return [line.text for line in await lines(rig.driver, run_id)]


async def lines(driver: DockerDriver, run_id: str = "o-1", others: Sequence[str] = ()) -> list[LogLine]:
    """The same, as this server tells it when it is asked for others, too."""
    found: list[LogLine] = []
    cursor = ""
    with anyio.fail_after(20):
        while True:
            pieces = await driver.logs({**dict.fromkeys(others, ""), run_id: cursor})
            (piece,) = (each for each in pieces if each.run_id == run_id)
            found += piece.lines
            cursor = piece.cursor
            if piece.closed:
                return found


def inspect(rig: DockerRig, container: object) -> dict[str, Any]:
    with rig.engine.client() as client:
        about: dict[str, Any] = client.get(f"/containers/{container}/json").json()
        return about


def only(rig: DockerRig) -> dict[str, Any]:
    (one,) = rig.containers()
    return inspect(rig, one["Id"])


def beside(rig: DockerRig, container: object, *command: str, env: Sequence[str] = ()) -> int:
    """Run something in a container, past the driver, to its end."""
    with rig.engine.client() as client:
        body = {"Cmd": command, "Env": env, "AttachStdout": True}
        made = client.post(f"/containers/{container}/exec", json=body).json()["Id"]
        client.post(f"/exec/{made}/start", json={"Detach": False}).read()
        code: int = client.get(f"/exec/{made}/json").json()["ExitCode"]
        return code
