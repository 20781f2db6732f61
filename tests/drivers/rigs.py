"""What the driver suites need of a platform: work of known behaviour, a clock, and a way to wait."""

import json
import os
import signal
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

import anyio

from standby.core.errors import Unreachable
from standby.core.model import Json, Order, OrderState, Slot, SlotState, Spec, Warmth
from standby.drivers.contract import CommandRefused, Driver, Logs, Making, OpenRun, Seen, Sighting, Start
from standby.drivers.keeper import kernel, memory
from standby.drivers.process import BOOT_ID_PATH, ProcessDriver
from standby.drivers.scripted import ScriptedDriver, ScriptedPlatform

PATIENCE_S = 20.0
DOCKER = tuple(f"docker-{end}-{warmth}" for end in ("unix", "tls") for warmth in Warmth)
KINDS = ("process", "scripted", "scripted-places", "coolify", *DOCKER)
NO_EPOCHS = {"epochs": "an engine remembers none: a start that was not seen is settled by removing its container"}
COLD = {**NO_EPOCHS, "memory": "it has no place before a run: a forgotten one is refused by its command's time alone"}
CANNOT = {
    "coolify": {
        "logs": "the output of a container is gone with it; what its worker tells (`standby.worker` tells all) is kept",
        "epochs": "it has no fence: a late command is refused by the worker protocol alone",
        "exits": "it knows no exit code and no signal: only the worker's word tells how a run ended",
    },
    **{kind: COLD if kind.endswith("cold") else NO_EPOCHS for kind in DOCKER},
}
"""What a platform cannot promise, and why. Each has its line in docs/drivers.md."""


class LogsDriver(Driver, Logs, Protocol):
    """A driver whose runs have output."""


class Rig(Protocol):
    """A platform with a driver."""

    @property
    def driver(self) -> Driver: ...
    @property
    def says_why(self) -> bool:
        """Whether the platform tells why something could not begin."""

    def another_driver(self) -> Driver:
        """A second server for the same platform."""

    def lasting(self) -> Spec:
        """Work that goes on until it is stopped."""

    def ending(self, code: int) -> Spec: ...
    def printing(self, *lines: str) -> Spec: ...
    def unstartable(self) -> Spec: ...
    async def wait(self, check: Callable[[], Awaitable[bool]]) -> None:
        """Let time pass until it is so."""

    async def end(self) -> None: ...


class LogsRig(Rig, Protocol):
    """A platform whose runs have output."""

    @property
    def driver(self) -> LogsDriver: ...


def now_ms() -> int:
    return int(time.time() * 1000)


def slot_named(name: str, incarnation: str | None = None) -> Slot:
    return Slot(
        name=name, host="h", pool="p", state=SlotState.IDLE, state_since=0, created_at=0, incarnation=incarnation
    )


async def place(driver: Driver, name: str = "seat-1") -> Slot:
    """A slot made on the platform."""
    return slot_named(name, await driver.create(slot_named(name), Making()))


def start_of(
    slot: Slot,
    order_id: str,
    spec: Spec,
    *,
    epoch: int = 1,
    valid_for_ms: int = 10_000,
    memory_mb: int = 1,
    env: Mapping[str, str] | None = None,
) -> Start:
    order = Order(
        id=order_id,
        project="ours",
        pool="p",
        memory_mb=memory_mb,
        submitted_at=0,
        state=OrderState.PREPARING,
        state_since=0,
        attempt=1,
        slot=slot.name,
        incarnation=slot.incarnation,
    )
    return Start(run_id=f"{order_id}-1", order=order, spec=spec, env=env or {}, epoch=epoch, valid_for_ms=valid_for_ms)


def open_run(slot: Slot, run_id: str) -> OpenRun:
    assert slot.incarnation is not None
    return OpenRun(run_id=run_id, slot=slot.name, incarnation=slot.incarnation, payload="null")


async def look(driver: Driver, slot: Slot, run_id: str) -> Sighting:
    (sighting,) = await driver.observe([open_run(slot, run_id)])
    return sighting


async def wait_for(rig: Rig, driver: Driver, slot: Slot, run_id: str, wanted: Seen = Seen.STOPPED) -> Sighting:
    """The first sighting of that kind."""
    found: list[Sighting] = []

    async def seen() -> bool:
        found.append(await look(driver, slot, run_id))
        return found[-1].seen is wanted

    await rig.wait(seen)
    return found[-1]


async def ended_when_asked(rig: Rig, slot: Slot, run_id: str) -> Sighting:
    """Asked again and again, as by the server: the first word may come before anybody in a container listens."""
    found: list[Sighting] = []

    async def seen() -> bool:
        await rig.driver.stop(slot, run_id, slot.incarnation or "", force=False, epoch=1)
        found.append(await look(rig.driver, slot, run_id))
        return found[-1].seen is Seen.STOPPED

    await rig.wait(seen)
    return found[-1]


async def until(check: Callable[[], bool]) -> None:
    """Poll a condition of the real world with a deadline."""
    with anyio.fail_after(PATIENCE_S):
        while not check():  # noqa: ASYNC110 - the real world sends no events
            await anyio.sleep(0.01)


def script(text: str) -> Spec:
    return Spec(order_id="any", script=text)


def alive(pid: int) -> bool:
    proc = kernel.read_proc(pid)
    return proc is not None and proc.alive


def pid_in(handle: str | None) -> int:
    assert handle is not None
    return int(handle.split(":")[0])


class ShellWork:
    """Work of known behaviour, for platforms that run commands."""

    def lasting(self) -> Spec:
        return Spec(order_id="any", command=("/bin/sleep", "600"))

    def ending(self, code: int) -> Spec:
        return script(f"exit {code}")

    def printing(self, *lines: str) -> Spec:
        return script("\n".join(f"echo '{line}'" for line in lines))

    def unstartable(self) -> Spec:
        return Spec(order_id="any", command=("no-such-command-anywhere",))


class ProcessRig(ShellWork):
    """A directory with a keeper of its own."""

    says_why = True

    def __init__(self, directory: Path, *, cgroups: str = "auto", boot_id_path: str = BOOT_ID_PATH) -> None:
        self.directory = directory
        self._cgroups = cgroups
        self._boot_id_path = boot_id_path
        self._drivers: list[ProcessDriver] = []
        self.driver = self.another_driver()

    def another_driver(self, *, disk_reserve_mb: int = 1) -> ProcessDriver:
        driver = ProcessDriver(
            self.directory,
            now=now_ms,
            cgroups=self._cgroups,
            disk_reserve_mb=disk_reserve_mb,
            boot_id_path=self._boot_id_path,
        )
        self._drivers.append(driver)
        return driver

    async def wait(self, check: Callable[[], Awaitable[bool]]) -> None:
        with anyio.fail_after(PATIENCE_S):
            while not await check():  # noqa: ASYNC110 - the real world sends no events
                await anyio.sleep(0.01)

    async def kill_keeper(self) -> None:
        """As the kernel would: SIGKILL, without a word."""
        pid = self.keeper_pid()
        os.kill(pid, signal.SIGKILL)
        await until(lambda: not alive(pid))

    def keeper_pid(self) -> int:
        return int((self.directory / "keeper.lock").read_text())

    def append_to_journal(self, *records: Json) -> None:
        with (self.directory / "journal").open("a") as journal:
            journal.writelines(json.dumps(record) + "\n" for record in records)

    async def end(self) -> None:
        """End all runs, then the keeper."""
        driver = self.another_driver()
        run_ids: Sequence[str] = ()

        async def forgotten() -> bool:
            nonlocal run_ids
            try:
                run_ids = await driver.unstored()
                await driver.forget(run_ids)
            except CommandRefused:
                return False
            return True

        await self.wait(_reachable(driver))
        identity = await driver.identity()
        for run_id in await driver.unstored():
            await driver.stop(slot_named("any"), run_id, identity, force=True, epoch=1 << 40)
        await self.wait(forgotten)
        for each in self._drivers:
            await each.close()
        await self.kill_keeper()
        _remove_cgroup_home(identity)


def _remove_cgroup_home(identity: str) -> None:
    home = kernel.make_cgroup_home(f"standby-{identity}")
    if home is not None:
        os.rmdir(home)
    memory.Memory(f"standby-{identity}").remove_all()


def _reachable(driver: Driver) -> Callable[[], Awaitable[bool]]:
    async def check() -> bool:
        try:
            await driver.open()
        except Unreachable:
            return False
        return True

    return check


class ScriptedRig:
    """A platform with a clock that only moves when a test waits."""

    says_why = True

    def __init__(self, *, seats: bool) -> None:
        self.at = 1_000_000
        self.platform = ScriptedPlatform("scripted-1", seats=seats)
        self.driver = self.another_driver()

    def another_driver(self) -> ScriptedDriver:
        return ScriptedDriver(self.platform, now=lambda: self.at)

    def lasting(self) -> Spec:
        return self.doing(start_ms=20, run_ms=None)

    def ending(self, code: int) -> Spec:
        return self.doing(start_ms=20, run_ms=50, exit=code)

    def printing(self, *lines: str) -> Spec:
        return self.doing(run_ms=50, log=lines)

    def unstartable(self) -> Spec:
        return self.doing(start_error="no such image")

    def doing(self, **what: Json) -> Spec:
        return Spec(order_id="any", payload=json.dumps({"script": what}))

    async def wait(self, check: Callable[[], Awaitable[bool]]) -> None:
        for _ in range(10_000):
            if await check():
                return
            self.at += 10
        raise TimeoutError

    async def end(self) -> None:
        await self.driver.close()
