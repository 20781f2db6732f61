"""Hosts of the simulated world, and each instance's driver to them: calls are slow, late, lost, or hang."""

import asyncio
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from random import Random
from typing import Any, NamedTuple, Protocol, TypeVar

from msgspec.structs import replace

from sim.loop import VirtualLoop, at_once
from sim.plan import HostShape
from sim.readings import CALM
from standby.core.errors import Unreachable
from standby.core.model import Slot
from standby.core.sighting import Exit, Reading, Seen
from standby.drivers.contract import CommandRefused, Making, OpenRun, Place, Sighting, Start
from standby.drivers.scripted import ScriptedDriver, ScriptedPlatform
from standby.drivers.scripted_places import Made
from standby.drivers.scripted_run import Copy

T = TypeVar("T")


class Birth(NamedTuple):
    """A copy that really began, wherever the platform it began on may be by now."""

    copy: Copy
    host: str
    slot: str


class SimHost:
    """A place in the world: which platform answers there now, and what ever began there."""

    def __init__(self, shape: HostShape, loop: VirtualLoop) -> None:
        self.shape, self.loop = shape, loop
        self.name = shape.name
        self.births: dict[str, Birth] = {}
        """Run id -> what began."""
        self.no_evidence: set[str] = set()
        """Runs whose end nobody can ask for any more: their platform is gone."""
        self.used: set[str] = set()
        """Incarnations in which something began."""
        self.sightings: Counter[str] = Counter()
        """Incarnation -> how many lists of places told of it."""
        self.ended_places: dict[str, Exit] = {}
        """Places that are there and whose worker was seen to end, with how."""
        self.reading = CALM if shape.measured else Reading()
        """What is measured there now."""
        self._lives = 0
        self.driver = self._platform(f"{self.name}-a")

    def reborn(self, name: str | None = None) -> None:
        """Everything there is gone; a new platform answers, under the same name or another one."""
        for birth in self.births.values():
            copy = birth.copy
            if copy.alive(self.loop.ms):
                copy.removed_at = self.loop.ms
        self.no_evidence |= set(self.births)
        self.driver = self._platform(name or self.driver.platform.name)

    def unreachable(self, ms: int) -> None:
        platform = self.driver.platform
        platform.unreachable_until = max(platform.unreachable_until, self.loop.ms + ms)

    def end_place(self, place: Made, ending: Exit) -> None:
        """The process that a place lives by ends, and everything in it."""
        place.sound = False
        self.ended_places[place.incarnation] = ending

    def note(self, slot: Slot, run: str) -> None:
        """Keep in mind what began, even if the answer does not say so."""
        copy = self.driver.platform.copies.get(run)
        if copy is not None and run not in self.births:
            self.births[run] = Birth(copy, self.name, slot.name)
            self.used.add(copy.incarnation)

    def _platform(self, name: str) -> ScriptedDriver:
        self._lives += 1
        platform = ScriptedPlatform(f"{self.name}#{self._lives}", seats=self.shape.seats, name=name)
        platform.yard.create_ms = defaultdict(lambda: self.shape.create_ms)
        if self.shape.pull_ms is not None:
            platform.yard.images, platform.yard.pull_ms = set(), self.shape.pull_ms
        pause = partial(asyncio.sleep, 0.5)
        return ScriptedDriver(platform, now=lambda: self.loop.ms, lag_ms=self.shape.lag_ms, pause=pause)


class Caller(Protocol):
    """The instance that makes a call."""

    async def pass_gate(self) -> None: ...
    async def suffer(self, *, store: bool) -> None: ...
    def now(self) -> int: ...
    def parted_from(self, host: str) -> bool: ...


class Fates(Protocol):
    """What shall happen to calls, and who is told what was sent and what was seen."""

    chance: Random

    def fault(self, *names: str) -> str | None:
        """One of these faults, or none."""

    def sent(self, verb: str, host: SimHost, caller: Any, run: str | None) -> None: ...
    def seen(self, sightings: Sequence[Sighting]) -> None: ...
    def began(self, host: SimHost) -> None: ...
    def sweeps(self, host: SimHost, place: Place) -> None: ...
    def made(self, host: SimHost) -> None: ...


class SimDriver:
    """What an instance has of a host. A command that is under way arrives, whatever becomes of its caller."""

    def __init__(self, host: SimHost, caller: Caller, fates: Fates) -> None:
        self.lag_ms, self.seats = host.shape.lag_ms, host.shape.seats
        self._host, self._caller, self._fates = host, caller, fates
        self._loop = host.loop

    async def open(self) -> None:
        """There is nothing to connect to."""

    async def close(self) -> None:
        """There is nothing to let go of."""

    async def identity(self) -> str:
        await self._caller.pass_gate()
        await self._caller.suffer(store=False)
        self._reach()
        return await self._host.driver.identity()

    async def create(self, slot: Slot, making: Making) -> str | None:
        if self.seats:
            self._reach()
            return await self._host.driver.create(slot, making)  # a seat is nothing: nobody is asked far away
        return await self._command("create", None, lambda: self._create(slot, making))

    def _create(self, slot: Slot, making: Making) -> str | None:
        platform = self._host.driver.platform
        place = platform.yard.find(slot.name, slot.generation)
        if place is not None and not place.sound:
            platform.remove(place.incarnation, self._loop.ms)
            raise CommandRefused("it ended at once")
        made = at_once(self._host.driver.create(slot, making))
        self._fates.made(self._host)
        return made

    async def start(self, slot: Slot, start: Start) -> Sighting:
        asked_at, sent_at = self._caller.now(), self._loop.ms
        until = sent_at + start.valid_for_ms

        def deliver() -> Sighting:
            left = replace(start, valid_for_ms=until - self._loop.ms)
            try:
                return at_once(self._host.driver.start(slot, left))
            finally:
                self._host.note(slot, start.run_id)
                self._fates.began(self._host)

        sighting = await self._command("start", start.run_id, deliver)
        if self._loop.ms > sent_at:
            sighting = self._as_it_is_now(slot, sighting)
        sighting = replace(sighting, asked_at=asked_at)
        self._fates.seen([sighting])
        return sighting

    def _as_it_is_now(self, slot: Slot, sighting: Sighting) -> Sighting:
        """A slow platform answers a start with what has become of it meanwhile."""
        run = OpenRun(run_id=sighting.run_id, slot=slot.name, incarnation=sighting.incarnation, payload="")
        try:
            return at_once(self._host.driver.observe([run]))[0]
        except Unreachable:
            return sighting

    async def stop(self, slot: Slot, run: str, incarnation: str, *, force: bool, epoch: int) -> None:
        def deliver() -> None:
            at_once(self._host.driver.stop(slot, run, incarnation, force=force, epoch=epoch))

        await self._command("stop", run, deliver)

    async def remove(self, slot: Slot) -> None:
        await self._command("remove", None, lambda: at_once(self._host.driver.remove(slot)))

    async def places(self) -> Sequence[Place]:
        await self._caller.pass_gate()
        self._reach()
        fault = self._fates.fault("slow look", "failed look")
        if fault == "failed look":
            raise Unreachable("the list could not be had")
        found = await self._host.driver.places()
        if fault == "slow look":
            await asyncio.sleep(self._fates.chance.choice([0.1, 5.0, 15.0]))
            await self._caller.pass_gate()
        self._host.sightings.update(place.incarnation for place in found)
        return found

    async def remove_stray(self, place: Place) -> None:
        self._fates.sweeps(self._host, place)
        await self._command("remove_stray", None, lambda: at_once(self._host.driver.remove_stray(place)))

    async def has_image(self, image: str) -> bool:
        await self._caller.pass_gate()
        self._reach()
        return await self._host.driver.has_image(image)

    async def pull(self, image: str) -> AsyncIterator[str]:
        await self._caller.pass_gate()
        self._reach()
        async for progress in self._host.driver.pull(image):
            await self._caller.pass_gate()
            yield progress

    async def measure(self) -> Reading:
        await self._caller.pass_gate()
        self._reach()
        if self._host.shape.measured and (fault := self._fates.fault("slow reading", "lost reading")) is not None:
            await asyncio.sleep(self._fates.chance.choice([0.5, 5.0, 20.0]))
            await self._caller.pass_gate()
            if fault == "lost reading":
                raise Unreachable("the reading was lost")
        return self._host.reading

    async def observe(self, runs: Sequence[OpenRun]) -> Sequence[Sighting]:
        asked_at = self._caller.now()
        await self._caller.pass_gate()
        await self._caller.suffer(store=False)
        self._reach()
        fault = self._fates.fault("slow look", "failed look", "old runs too")
        if fault == "failed look":
            raise Unreachable("the look failed")
        seen = await self._look([*self._old(runs), *runs] if fault == "old runs too" else runs)
        if fault == "slow look":
            early = self._fates.chance.random() < 0.6
            await asyncio.sleep(self._fates.chance.choice([0.1, 1.0, 5.0, 15.0]))
            await self._caller.pass_gate()
            seen = seen if early else await self._look(runs)
        seen = [replace(sighting, asked_at=asked_at) for sighting in seen]
        await self._caller.suffer(store=False)
        self._fates.seen(seen)
        return seen

    def _old(self, runs: Sequence[OpenRun]) -> Sequence[OpenRun]:
        """Earlier attempts of the same orders: a platform may tell more than it was asked."""
        orders, asked = {run.run_id.rpartition("-")[0] for run in runs}, {run.run_id for run in runs}
        copies = self._host.driver.platform.copies.values()
        return [
            OpenRun(run_id=copy.run_id, slot="", incarnation=copy.incarnation, payload="")
            for copy in copies
            if copy.order_id in orders and copy.run_id not in asked
        ]

    async def _look(self, runs: Sequence[OpenRun]) -> Sequence[Sighting]:
        seen = await self._host.driver.observe(runs)
        return [self._ended(sighting) for sighting in seen]

    def _ended(self, sighting: Sighting) -> Sighting:
        """Of a place that lived by a worker the platform knows how that ended."""
        ending = self._host.ended_places.get(sighting.incarnation)
        if ending is None or sighting.seen is not Seen.FRESH:
            return sighting
        return replace(sighting, seen=Seen.STOPPED, exit=ending)

    async def _command(self, verb: str, run: str | None, effect: Callable[[], T]) -> T:
        self._fates.sent(verb, self._host, self._caller, run)
        await self._caller.pass_gate()
        self._reach()
        chance = self._fates.chance
        fault = self._fates.fault("slow answer", "late", "twice", "lost answer", "lost request", "hang")
        answer: asyncio.Future[tuple[T | None, Exception | None]] = self._loop.create_future()
        if fault == "late" or (fault in ("hang", "lost answer") and chance.random() < 0.5):
            self._loop.call_later(chance.choice([0.02, 0.3, 1.9, 2.1, 6.0, 20.0]), _deliver, effect, answer)
        elif fault != "lost request" and (fault != "hang" or chance.random() < 0.5):
            _deliver(effect, answer)
        if fault == "twice":
            self._loop.call_later(chance.choice([0.3, 1.9, 4.0, 9.0]), _deliver, effect, answer)
        if fault in ("lost answer", "lost request"):
            raise Unreachable(f"the {fault.removeprefix('lost ')} was lost")
        if fault == "hang":
            await self._loop.create_future()
        if fault == "slow answer":
            await asyncio.sleep(chance.choice([0.1, 3.0, 8.0, 15.0, 25.0, 40.0, 70.0]))
        result, error = await answer
        await self._caller.pass_gate()
        if error is not None:
            raise error
        return result  # type: ignore[return-value]

    def _reach(self) -> None:
        if self._caller.parted_from(self._host.name):
            raise Unreachable("the way to this host is broken")


def _deliver(effect: Callable[[], T], answer: "asyncio.Future[tuple[T | None, Exception | None]]") -> None:
    """Let it happen; the caller may be gone."""
    outcome: tuple[T | None, Exception | None]
    try:
        outcome = effect(), None
    except (Unreachable, CommandRefused) as error:
        outcome = None, error
    if not answer.done():
        answer.set_result(outcome)
