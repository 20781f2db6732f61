"""Coolify for the contract suite: the fake, and the word of workers laid over what it says, as a leader does."""

import json
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack

from msgspec.structs import replace

from standby.core.errors import Unreachable
from standby.core.model import Json, Slot, Spec
from standby.drivers.contract import Exit, Making, OpenRun, Seen, Sighting, Start
from standby.drivers.coolify import CoolifyDriver
from tests.drivers.coolify_yard import LOOK_MS, making, yard


class CoolifyRig:
    """A fake Coolify under a clock that only moves when a test waits."""

    says_why = False
    """Why a deployment failed stands in its log, which few tokens may read."""

    def __init__(self) -> None:
        self._stack = ExitStack()
        self.yard = self._stack.enter_context(yard())
        self.work: dict[str, tuple[str, Json]] = {}
        """Application -> the run that its worker gets, and what that does."""
        self.told: dict[str, Sighting] = {}
        """What workers said of their runs."""
        self.driver = self.another_driver()

    def another_driver(self) -> "WithWorkers":
        return WithWorkers(self, self.yard.driver())

    def lasting(self) -> Spec:
        return _doing()

    def ending(self, code: int) -> Spec:
        return _doing(exit=code)

    def printing(self, *lines: str) -> Spec:
        return _doing(exit=0)

    def unstartable(self) -> Spec:
        return _doing(fails=True)

    async def wait(self, check: Callable[[], Awaitable[bool]]) -> None:
        for _ in range(100):
            if await check():
                return
            self.yard.at += LOOK_MS
        raise TimeoutError

    async def end(self) -> None:
        await self.yard.close()
        self._stack.close()


class WithWorkers:
    """The driver, waited for, with what the workers of its runs said."""

    seats = False

    def __init__(self, rig: CoolifyRig, driver: CoolifyDriver) -> None:
        self._rig, self._driver = rig, driver
        self.lag_ms = driver.lag_ms
        self.open, self.close, self.identity = driver.open, driver.close, driver.identity

    async def create(self, slot: Slot, what: Making) -> str | None:
        return (await self._rig.yard.made(self._driver, _named(slot), making())).incarnation

    async def start(self, slot: Slot, start: Start) -> Sighting:
        work = json.loads(start.spec.payload)
        self._rig.yard.fake.failures += bool(work.get("fails"))
        app = _named(slot).name
        sighting = await self._driver.start(_named(slot), start)
        self._rig.work.setdefault(app, (start.run_id, work))
        return self._heard(slot.name, sighting)

    async def stop(self, slot: Slot, run_id: str, incarnation: str, *, force: bool, epoch: int) -> None:
        await self._driver.stop(_named(slot), run_id, incarnation, force=force, epoch=epoch)

    async def remove(self, slot: Slot) -> None:
        async def gone() -> bool:
            try:
                await self._driver.remove(_named(slot))
            except Unreachable:
                await self._driver.places()
                return False
            return True

        await self._rig.wait(gone)

    async def observe(self, runs: Sequence[OpenRun]) -> Sequence[Sighting]:
        await self._driver.observe(runs)
        self._rig.yard.at += LOOK_MS
        await self._driver.places()
        seen = await self._driver.observe(runs)
        return [self._heard(run.slot, sighting) for run, sighting in zip(runs, seen, strict=True)]

    def _heard(self, slot: str, sighting: Sighting) -> Sighting:
        """Let the worker speak if its container is up; then its word counts."""
        fake = self._rig.yard.fake
        app = next((each for each in fake.apps.values() if each.name == _name(slot)), None)
        nobody: tuple[str, Json] = ("", {})
        run_id, work = self._rig.work.get(_name(slot), nobody)
        if app is not None and app.container is not None and run_id == sighting.run_id:
            ending = Exit(code=work["exit"]) if "exit" in work else None
            seen = Seen.READY if ending is None else Seen.STOPPED
            self._rig.told[sighting.run_id] = replace(sighting, seen=seen, exit=ending)
        told = self._rig.told.get(sighting.run_id)
        return sighting if told is None else replace(told, asked_at=sighting.asked_at)


def _doing(**what: Json) -> Spec:
    return Spec(order_id="any", payload=json.dumps(what))


def _name(slot: str) -> str:
    return f"ours-pool-p-{slot}"


def _named(slot: Slot) -> Slot:
    return replace(slot, name=_name(slot.name))
