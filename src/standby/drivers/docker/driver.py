"""Containers as places: made and never started, alive, or made for each run. Every call names the container's id."""

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import structlog
from msgspec.structs import replace

from standby.core.model import Slot, SlotState, Warmth
from standby.drivers.contract import (
    CommandRefused,
    Exit,
    LogPiece,
    Making,
    OpenRun,
    Place,
    Reading,
    Seen,
    Sighting,
    Start,
)
from standby.drivers.docker import wrap
from standby.drivers.docker.containers import Containers
from standby.drivers.docker.engine import NOTHING_TO_DO, Anchor, Engine, EngineRefused, Unclear
from standby.drivers.docker.handover import Handover, Sight, in_time
from standby.drivers.docker.images import ImageStore
from standby.drivers.docker.output import Output
from standby.drivers.docker.shape import (
    ALIVE,
    LABEL,
    NEVER,
    OVER,
    REMOVING,
    Container,
    base_name,
    env_of,
    inspected,
    run_name,
    without_socket,
)
from standby.drivers.docker.sights import Sights
from standby.drivers.gauge import MachineGauge

log = structlog.get_logger()

SEAT: Final = "seat:"
"""What the incarnation of a cold slot begins with."""
BUFFERED: Final = 64 << 10
"""So much an engine's connection takes before anybody reads it."""
WRITE_S: Final = 0.02


class DockerDriver:
    """Driver, Logs, Watch, Gauge, Places and Images of one engine."""

    # A start is done when the engine has answered it; a look takes its list from memory. What is slower than this is
    # held by the container's own fence: a second start of it does nothing.
    lag_ms = 1_000
    seats = False

    def __init__(
        self,
        endpoint: str,
        *,
        installation: str,
        host: str,
        now: Callable[[], int],
        tls: Path | None = None,
        registries: Mapping[str, str] | None = None,
        timeout_s: float = 30.0,
    ) -> None:
        """`registries`: registry -> user:password, for pulls."""
        self._engine = Engine(endpoint, tls, timeout_s=timeout_s)
        self._now = now
        owner = {f"{LABEL}installation": installation, f"{LABEL}host": host}
        self._anchor = Anchor(self._engine, [f"{name}={value}" for name, value in owner.items()])
        self._containers = Containers(self._engine, self._anchor, owner)
        self._images = ImageStore(self._engine, registries or {})
        self._handover = Handover(self._engine, self._containers.kill)
        self._sights = Sights(self._engine, self._handover)
        self._output = Output(self._engine)
        self._said: deque[str] = deque(maxlen=100)
        self._local = endpoint.startswith("unix:")
        self._gauge = MachineGauge(Path("/"), confined=False)  # containers are in groups of their own

    async def open(self) -> None:
        """Connect to the engine."""
        await self._anchor.identity()

    async def close(self) -> None:
        """Hang up; containers go on."""
        await self._output.close()
        await self._anchor.close()
        await self._engine.close()

    async def identity(self) -> str:
        """The engine's id and where and how it keeps its containers: that stays when it is started again."""
        return await self._anchor.identity()

    def changes(self) -> AsyncIterator[None]:
        """Yields when a container of ours, or an exec in one, began or ended."""
        return self._anchor.changes()

    async def measure(self) -> Reading:
        """How full the machine is; of one that is elsewhere only how large it is."""
        if self._local:
            return self._gauge.read()
        about = await self._engine.get("/info")
        return Reading(memory_total_mb=int(about["MemTotal"]) >> 20, cpu_count=int(about["NCPU"]))

    async def has_image(self, image: str) -> bool:
        return await self._images.has(image)

    def pull(self, image: str) -> AsyncIterator[str]:
        return self._images.pull(image)

    # places

    async def create(self, slot: Slot, making: Making) -> str | None:
        """A container that was never started, or a live one; a cold slot is only the engine's word."""
        engine_id = await self.identity()
        if making.template.warmth is Warmth.COLD:
            return f"{SEAT}{engine_id}"
        place, new = await self._containers.make(slot, self._reachable(making), base_name(slot), None)
        if new and place.shared:
            self._handover.made(place.id)
        return await self._containers.enliven(place) if place.shared else place.id

    async def remove(self, slot: Slot) -> None:
        """Nothing of it is alive afterwards. What still has output that nobody stored stays until `forget`. While its
        next generation is being made, that stays: an earlier leader may have made it, and its worker may live there."""
        await self.identity()
        unknown = slot.incarnation is None or slot.incarnation.startswith(SEAT) or slot.state is SlotState.REMOVING
        for each in await self._containers.of(slot):
            # unknown: whatever was made under its name up to now; a later one is somebody else's
            if each.generation <= slot.generation if unknown else each.id == slot.incarnation:
                await self._take_away(each)

    async def places(self) -> Sequence[Place]:
        """All containers but those that only wait for their output to be stored; of cold slots, what never ran."""
        asked_at = self._now()
        async with self._anchor.same():
            return [
                Place(
                    slot=each.slot,
                    incarnation=each.id,
                    usable=each.state in ALIVE if each.shared else each.state == "created" and each.run_id is None,
                    made_at=each.made_at,
                    asked_at=asked_at,
                )
                for each in await self._containers.every()
                if await self._is_place(each)
            ]

    async def remove_stray(self, place: Place) -> None:
        """Take exactly this container away, with its output."""
        await self._containers.delete(place.incarnation)

    # runs

    async def start(self, slot: Slot, start: Start) -> Sighting:
        """Start the run in its place once; what ever ran serves no second run."""
        asked_at, until = self._now(), time.monotonic() + start.valid_for_ms / 1000
        start = start if self._local else replace(start, env=without_socket(start.env))
        engine_id = await self.identity()
        incarnation = start.order.incarnation or slot.incarnation or ""
        if incarnation.startswith(SEAT):
            if incarnation != f"{SEAT}{engine_id}":
                raise CommandRefused(f"{slot.name} belongs to another engine: {incarnation}")
            sight = await self._start_cold(slot, start, until)
        else:
            about = await self._engine.get(f"/containers/{incarnation}/json")
            if about is None:
                raise CommandRefused(f"the container of {slot.name} is gone, or its run was forgotten: {incarnation}")
            if inspected(about).slot != slot.name:
                raise CommandRefused(f"container {incarnation} does not belong to {slot.name}")
            sight = await self._start_in(about, start, until)
        return _sighting(start.run_id, incarnation, asked_at, sight)

    async def stop(self, slot: Slot, run_id: str, incarnation: str, *, force: bool, epoch: int) -> None:
        """SIGTERM, or SIGKILL until nothing is left. A worker hears of it by its heartbeats; here only force does."""
        await self.identity()
        if incarnation.startswith(SEAT):
            found = [each for each in await self._containers.every() if each.run_id == run_id]
        else:
            about = await self._engine.get(f"/containers/{incarnation}/json")
            found = [] if about is None else [inspected(about)]
        for each in found:
            if each.shared and not each.worker:
                await self._handover.stop(each, run_id, force=force)
            elif force or not each.shared:
                await self._containers.signal(each.id, "SIGKILL" if force else "SIGTERM")

    async def observe(self, runs: Sequence[OpenRun]) -> Sequence[Sighting]:
        """One list for all of them, and a closer look at those that ended or are shared."""
        asked_at = self._now()
        async with self._anchor.same() as engine_id:
            listing = await self._containers.every()
            by_id, by_run = {each.id: each for each in listing}, {each.run_id: each for each in listing}
            sightings = []
            for run in runs:
                cold = run.incarnation.startswith(SEAT)
                place = by_run.get(run.run_id) if cold else by_id.get(run.incarnation)
                sight: Sight = Seen.FRESH if run.incarnation == f"{SEAT}{engine_id}" else Seen.ABSENT, None, None
                if place is not None:
                    sight = Seen.UNKNOWN, place.id, None
                    with self._others():
                        sight = await self._sights.of(place, run.run_id)
                sightings.append(_sighting(run.run_id, run.incarnation, asked_at, sight))
        return sightings

    # output

    async def logs(self, cursors: Mapping[str, str]) -> Sequence[LogPiece]:
        """New whole lines of each run, followed as long as it lives."""
        async with self._anchor.same():
            places, pieces = await self._runs(), []
            for run, cursor in cursors.items():
                if run not in places:
                    pieces.append(LogPiece(run_id=run, lines=(), cursor=cursor, closed=True))
                    continue
                with self._others():
                    over = await self._is_over(places[run], run)
                    pieces.append(await self._output.read(run, places[run], cursor, over=over))
            return pieces

    async def unstored(self) -> Sequence[str]:
        """All runs that began in containers that are still there."""
        await self.identity()
        return list(await self._runs())

    async def forget(self, run_ids: Sequence[str]) -> None:
        """Remove what is over; a container that lives on only notes it, and what cannot be removed is kept."""
        await self.identity()
        self._containers.outdated()
        places = await self._runs()
        live = []
        for run_id in run_ids:
            place = places.get(run_id)
            if place is None or place.state == REMOVING:
                continue
            with self._others():
                if not await self._is_over(place, run_id):
                    live.append(run_id)
                    continue
                await self._output.drop(run_id)
                if not place.shared or await self._handover.forget(place, run_id) or await self._was_taken_away(place):
                    await self._containers.drop(place.id)
        self._containers.outdated()
        if live:
            raise CommandRefused(f"still alive: {', '.join(live)}")

    @contextmanager
    def _others(self) -> Iterator[None]:
        """What is wrong with one container keeps nobody from the others."""
        try:
            yield
        except Unclear as error:
            if str(error) not in self._said:  # once: it is asked again all the time
                self._said.append(str(error))
                log.info("a container is in trouble", error=str(error))

    async def _runs(self) -> dict[str, Container]:
        """The runs whose output is kept, with their containers."""
        found: dict[str, Container] = {}
        listing = await self._containers.recent()
        self._handover.keep_only({each.id for each in listing})
        for each in listing:
            if each.shared and not each.worker:
                if each.state == REMOVING:  # nothing can be read in it, now or ever; if that fails, it will be dead
                    continue
                with self._others():
                    found |= dict.fromkeys(await self._handover.runs(each), each)
            elif each.run_id is not None and each.state != "created":
                found[each.run_id] = each
        return found

    async def _is_over(self, place: Container, run_id: str) -> bool:
        if place.state in OVER:
            return True
        return place.shared and (await self._handover.sight(place, run_id))[0] in (Seen.STOPPED, Seen.ABSENT)

    async def _was_taken_away(self, place: Container) -> bool:
        """Whether a container that was alive when it was listed is not any more, and kept nothing but its output."""
        about = await self._engine.get(f"/containers/{place.id}/json")
        return about is not None and about["State"]["Status"] in OVER and not await self._handover.runs(place)

    async def _is_place(self, each: Container) -> bool:
        """Whether it is more than kept output, or might be: what cannot be read is not for the broom."""
        keeps = True
        with self._others():
            keeps = each.state in OVER and await self._keeps_output(each)
        return each.never_ran or (each.warmth != Warmth.COLD and not keeps)

    async def _keeps_output(self, place: Container) -> bool:
        if place.shared and not place.worker:
            return await self._handover.keeps(place)
        return place.run_id is not None

    # starting

    async def _start_in(self, about: Mapping[str, Any], start: Start, until: float) -> Sight:
        place = inspected(about)
        if place.worker:
            return Seen.STARTING, None, None
        if place.shared:
            return await self._handover.start(place, start, until)
        if place.state != "created" or about["State"]["StartedAt"] != NEVER or about["State"]["Error"]:
            if place.run_id == start.run_id:
                return await self._sights.of(place, start.run_id)
            raise CommandRefused(f"container {place.id} was used before")
        in_time(until)
        if place.run_id is None:
            await self._containers.bind(place, start.run_id)
        elif place.run_id != start.run_id:
            raise CommandRefused(f"container {place.id} was used before")
        return await self._begin(place, start, until)

    async def _start_cold(self, slot: Slot, start: Start, until: float) -> Sight:
        if time.monotonic() >= until:  # then it can only be told what was sent before
            there = [each for each in await self._containers.of(slot) if each.run_id == start.run_id]
            if there and there[0].state != "created":
                return await self._sights.of(there[0], start.run_id)
        in_time(until)
        name = run_name(slot.name, slot.generation, start.run_id)
        try:
            place, new = await self._containers.make(slot, self._reachable(start.making), name, start.run_id)
        except CommandRefused as refusal:
            return Seen.STOPPED, None, Exit(start_error=str(refusal), place_failed=True)
        if not new and place.state != "created":
            return await self._sights.of(place, start.run_id)
        return await self._begin(place, start, until)

    async def _begin(self, place: Container, start: Start, until: float) -> Sight:
        """Start a container that never ran and give it its order."""
        text = wrap.order_text(start.run_id, start.spec, env_of(start), alone=True)
        try:
            async with self._engine.pipe(f"/containers/{place.id}/attach", {"stream": 1, "stdin": 1}) as pipe:
                # it is with the engine before the start: from there on nobody need be alive for it
                writing = asyncio.create_task(pipe.write(text))
                await asyncio.wait([writing], timeout=None if len(text) < BUFFERED else WRITE_S)
                in_time(until)  # the container is there to be seen: from here on a look can settle it
                try:
                    begun = await self._engine.call("POST", f"/containers/{place.id}/start")
                    if begun is NOTHING_TO_DO:
                        return Seen.STARTING, place.id, None  # somebody else did, and gave it the order
                    await writing
                finally:
                    writing.cancel()
        except EngineRefused as refusal:
            if refusal.status == 404:
                raise CommandRefused(f"container {place.id} is gone") from refusal
            return Seen.STOPPED, place.id, Exit(start_error=str(refusal), place_failed=True)
        return Seen.READY if place.ready_at_once else Seen.STARTING, place.id, None

    def _reachable(self, making: Making) -> Making:
        """Without the server's socket where the engine is on another machine."""
        return making if self._local else replace(making, env=without_socket(making.env))

    async def _take_away(self, place: Container) -> None:
        if place.state in ALIVE:
            await self._containers.kill(place.id)
        if place.state == "created" or not await self._keeps_output(place):
            await self._containers.delete(place.id)
        elif place.name == f"{place.slot}.{place.generation}":  # which may be wanted by the next one
            with suppress(CommandRefused):  # its output was stored meanwhile, and it is gone
                await self._containers.bind(place, f"over-{place.id[:12]}")


def _sighting(run_id: str, incarnation: str, asked_at: int, sight: Sight) -> Sighting:
    seen, handle, end = sight
    return Sighting(run_id=run_id, incarnation=incarnation, seen=seen, asked_at=asked_at, handle=handle, exit=end)
