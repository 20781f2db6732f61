"""Slots as applications of a Coolify server. Its status says little, and late: the worker's word counts."""

from collections.abc import Callable, Sequence
from datetime import datetime
from typing import Final

from standby.core.model import Slot
from standby.drivers.contract import CommandRefused, Making, OpenRun, Place, Seen, Sighting, Start
from standby.drivers.coolify.answers import EXITED, RUNNING, Application
from standby.drivers.coolify.client import Client, Missing
from standby.drivers.coolify.fleet import NEWEST, POLL_MS, Fleet
from standby.drivers.coolify.marks import Mark, incarnation_of
from standby.drivers.coolify.workshop import CoolifyHost as CoolifyHost
from standby.drivers.coolify.workshop import Workshop

LAG_MS: Final = 180_000
"""An agent tells Coolify each minute what runs, or is asked after two minutes of silence: older is no status."""
STOP_AGAIN_MS: Final = 30_000


class CoolifyDriver:
    """Driver, Places, Resets and Caption. Coolify has no fence: only the worker protocol refuses a late start."""

    seats = False

    def __init__(
        self,
        client: Client,
        host: CoolifyHost,
        *,
        installation: str,
        now: Callable[[], int],
        lag_ms: int = LAG_MS,
    ) -> None:
        tag = f"standby-{installation}"
        self.lag_ms = lag_ms
        self._client, self._host, self._now = client, host, now
        self._fleet = Fleet(client, tag=tag, prefix=f"{installation}-pool-", project=host.project, now=now)
        self._shop = Workshop(client, self._fleet, host, tag, now, lag_ms)
        self._runs: dict[str, str] = {}
        """Incarnation -> the run that was started in it."""
        self._stops: dict[tuple[str, bool], int] = {}
        self._known = False

    async def open(self) -> None:
        """See that this is the Coolify that was meant."""
        await self.identity()

    async def close(self) -> None:
        """Hang up."""
        await self._fleet.close()
        await self._client.close()

    async def identity(self) -> str:
        """The server and the project: both ids are unique in the world, and the token must see the project."""
        if not self._known:
            await self._fleet.check_project()
            self._known = True
        return f"coolify:{self._host.server}:{self._host.project}"

    async def create(self, slot: Slot, making: Making) -> str | None:
        """An application of this name, found or made, and clean."""
        return await self._shop.make(slot, making)

    async def reset(self, slot: Slot, making: Making) -> str | None:
        """The same application, made clean: stopped, and seen so."""
        return await self._shop.make(slot, making)

    async def remove(self, slot: Slot) -> None:
        """Delete the application once it is seen stopped; raises Unreachable until it is gone."""
        await self._shop.remove(slot)

    async def start(self, slot: Slot, start: Start) -> Sighting:
        """Deploy, unless this life of the application was deployed before: then it is what was started."""
        asked_at = self._now()
        incarnation = start.order.incarnation or slot.incarnation or ""
        mark = Mark.parse(incarnation)
        if mark is None:
            raise CommandRefused(f"there is no place {incarnation}")
        if self._runs.setdefault(incarnation, start.run_id) != start.run_id:
            raise CommandRefused(f"{incarnation} was used before")
        if mark.live:
            return self._sighting(start.run_id, mark, asked_at)
        await self._check_place(mark)
        try:
            found = await self._shop.deploy(mark, asked_at + start.valid_for_ms)
        except Missing:
            raise CommandRefused(f"there is no place {incarnation}") from None
        if found is None:
            raise CommandRefused(f"Coolify queued no deployment of {slot.name}")
        return self._sighting(start.run_id, mark, asked_at)

    async def stop(self, slot: Slot, run_id: str, incarnation: str, *, force: bool, epoch: int) -> None:
        """Cancel its deployment and end its container: asked with its grace, which Coolify forces by itself."""
        mark = Mark.parse(incarnation)
        now, key = self._now(), (run_id, force)
        if mark is None or now - self._stops.get(key, -STOP_AGAIN_MS) < STOP_AGAIN_MS:
            return
        try:
            await self._check_place(mark)
            rows = await self._client.deployments_of(mark.app, NEWEST)
            for row in rows:
                if row.id > mark.base and not row.ended:
                    await self._client.cancel(row.deployment_uuid)
            await self._client.stop(mark.app)
        except (Missing, CommandRefused):
            return  # it is not there (any more)
        self._stops = {each: at for each, at in self._stops.items() if now - at < STOP_AGAIN_MS} | {key: now}

    async def observe(self, runs: Sequence[OpenRun]) -> Sequence[Sighting]:
        """What the newest look says; the next one begins when it is time, and nobody waits for it."""
        marks = {run.incarnation: Mark.parse(run.incarnation) for run in runs}
        self._fleet.know(mark.app for mark in marks.values() if mark is not None)
        for mark in marks.values():
            if mark is not None:
                self._fleet.life(mark)
        self._runs = {key: run_id for key, run_id in self._runs.items() if key in marks}
        self._fleet.begin()
        if self._fleet.asked_at is None:
            await self._fleet.since(0)
        self._fleet.check()
        return [self._observe(run, marks[run.incarnation]) for run in runs]

    async def places(self) -> Sequence[Place]:
        """Every application with this installation's tag and name."""
        await self._fleet.since(self._now() - POLL_MS + 1)
        asked_at = self._fleet.asked_at or 0
        return [_place(row, asked_at) for row in self._fleet.rows.values()]

    async def remove_stray(self, place: Place) -> None:
        """Take it away, if it is still what was seen: one step at a time, so this is asked again."""
        row = self._fleet.rows.get(place.incarnation.partition(":")[0])
        if row is None:
            return
        try:
            now = await self._client.application(row.uuid)
        except Missing:
            return
        if now.name == place.slot and incarnation_of(now) == place.incarnation:
            await self._shop.remove_stray(now)

    async def caption(self, slot: Slot, text: str) -> None:
        """The application's description, when there are requests to spare."""
        mark = Mark.parse(slot.incarnation)
        row = self._fleet.named(slot.name) if mark is None else self._fleet.rows.get(mark.app)
        if row is None or not self._client.budget.spare():
            return
        try:
            await self._client.update(row.uuid, {"description": text})
        except Missing:
            return

    async def _check_place(self, mark: Mark) -> None:
        """Raises CommandRefused unless the application is in the life that is meant."""
        row = self._fleet.rows.get(mark.app)
        if row is None or Mark.of(row) != mark:
            try:
                row = await self._client.application(mark.app)
            except Missing:
                raise CommandRefused(f"there is no place {mark.incarnation}") from None
        if Mark.of(row) != mark:
            raise CommandRefused(f"{mark.incarnation} is over: it is {incarnation_of(row)} now")

    def _observe(self, run: OpenRun, mark: Mark | None) -> Sighting:
        asked_at = self._fleet.asked_at or 0
        if mark is None:
            return Sighting(run_id=run.run_id, incarnation=run.incarnation, seen=Seen.ABSENT, asked_at=asked_at)
        return self._sighting(run.run_id, mark, asked_at)

    def _sighting(self, run_id: str, mark: Mark, asked_at: int) -> Sighting:
        life = self._fleet.life(mark)
        seen, ending = self._fleet.seen(life, self.lag_ms)
        return Sighting(
            run_id=run_id,
            incarnation=mark.incarnation,
            seen=seen,
            asked_at=min(asked_at, life.asked_at or asked_at),
            handle=None if life.deployment is None else life.deployment.deployment_uuid,
            exit=ending,
        )


def _place(row: Application, asked_at: int) -> Place:
    mark = Mark.of(row)
    usable = mark is not None and row.word == (RUNNING if mark.live else EXITED)
    return Place(
        slot=row.name,
        incarnation=incarnation_of(row),
        usable=usable,
        made_at=_ms(row.created_at) or asked_at,
        asked_at=asked_at,
    )


def _ms(text: str | None) -> int | None:
    try:
        return None if text is None else int(datetime.fromisoformat(text).timestamp() * 1000)
    except ValueError:
        return None
