"""How applications are made, made clean and taken away. Each call does the next thing that is due and can be repeated.

Nobody waits here for a platform that takes minutes: what is not finished is asked again, and acted on when a newer look
is there.
"""

from collections.abc import Callable, Mapping
from typing import Any, Final

from msgspec import Struct
from msgspec.structs import replace

from standby.core.errors import Unreachable
from standby.core.model import Slot, Template, Warmth
from standby.core.work import SOCKET
from standby.drivers.contract import CommandRefused, Making, Seen
from standby.drivers.coolify.answers import EXITED, RUNNING, Application, Deployment
from standby.drivers.coolify.client import Client, Missing, QueueFull
from standby.drivers.coolify.fleet import NEWEST, Fleet
from standby.drivers.coolify.marks import Mark

RESTARTS_MAX: Final = 2
"""Coolify starts a container that ended again and again; after so many times it stops it."""
STOP_AGAIN_MS: Final = 60_000


class CoolifyHost(Struct, frozen=True, kw_only=True):
    """Where the applications of a host belong."""

    project: str
    server: str
    environment: str = "production"
    destination: str | None = None


class Workshop:
    """Makes and removes applications. What it remembers only saves requests."""

    def __init__(
        self, client: Client, fleet: Fleet, host: CoolifyHost, tag: str, now: Callable[[], int], lag_ms: int
    ) -> None:
        self._client, self._fleet, self._host, self._tag, self._now = client, fleet, host, tag, now
        self._lag_ms = lag_ms
        self._begun: dict[str, tuple[int, int]] = {}
        """Slot -> since when it is in this state, and when we began with it."""
        self._waits: dict[str, int] = {}
        """Slot -> it is worth a look that was asked after this."""
        self._stops: dict[str, int] = {}
        self._made: dict[str, tuple[int, Mark]] = {}
        """Slot -> what was made of it in the state that it is in: asked again while its worker has not reported."""

    async def make(self, slot: Slot, making: Making) -> str | None:
        """The place, clean for this generation of its slot; null while it takes its time."""
        check_template(making.template)
        if (made := self._still_there(slot)) is not None:
            return made.incarnation
        self._know(slot)
        began = self._begin(slot)
        if await self._waiting(slot, began):
            return None
        row = self._find(slot)
        if row is None:
            self._begun[slot.name] = (
                slot.state_since,
                self._now() + 1,
            )  # if the answer is lost, a look after this finds it
            body = {**self._where(), **made_from(making), "name": slot.name, "tags": [self._tag]}
            uuid = await self._client.create({**body, "instant_deploy": False, "autogenerate_domain": False})
            row = Application(uuid=uuid, name=slot.name, status=EXITED)
            self._fleet.put(row)
        mark = await self._made_before(slot, row, making, began) or await self._clean(slot, row, making)
        if mark is None or (mark.live and not await self._up(slot, mark)):
            return None
        self._forget(slot)
        self._made[slot.name] = slot.state_since, mark
        return mark.incarnation

    async def remove(self, slot: Slot) -> None:
        """Take the application away, and any other of its name; raises Unreachable until they are seen gone."""
        self._know(slot)
        if not await self._waiting(slot, self._begin(slot)):
            row = self._find(slot)
            if row is None:
                self._forget(slot)
                return
            newest = await self._newest(row)
            if newest is None or await self._stopped(slot, row, newest):
                await self._client.delete(row.uuid)
                self._wait(slot)
        raise Unreachable(f"application {slot.name} is not gone yet")

    async def remove_stray(self, row: Application) -> None:
        """The next thing that is due to take it away: it is stopped, and deleted once it is seen stopped."""
        newest = await self._newest(row)
        if newest is not None and not newest.ended:
            await self._client.cancel(newest.deployment_uuid)
        elif row.word != EXITED:
            await self._client.stop(row.uuid)
        else:
            await self._client.delete(row.uuid)

    async def deploy(self, mark: Mark, by: int | None = None) -> Deployment | None:
        """The deployment of this life: the one that is there, else one that is asked for now and read back, because the
        id that Coolify answers may be of none. Null when it queued none."""
        found = mark.mine(await self._client.deployments_of(mark.app, NEWEST))
        if found is None:
            if by is not None and self._now() > by:
                raise CommandRefused(f"the start came {self._now() - by} ms too late")
            found = await self._confirmed(mark, await self._client.deploy(mark.app))
        if found is not None:
            self._fleet.started(mark, found)
        return found

    async def _confirmed(self, mark: Mark, uuid: str | None) -> Deployment | None:
        if uuid is not None:
            try:
                return await self._client.deployment(uuid)
            except Missing:
                pass
        return mark.mine(await self._client.deployments_of(mark.app, NEWEST))

    # one thing at a time

    def _begin(self, slot: Slot) -> int:
        """When we began with what the slot is in now."""
        since, began = self._begun.get(slot.name, (None, 0))
        if since != slot.state_since:
            self._begun[slot.name] = slot.state_since, (began := self._now())
            self._waits.pop(slot.name, None)
        return began

    async def _waiting(self, slot: Slot, began: int) -> bool:
        """Whether only a newer look can bring anything on. The first one is waited for."""
        if slot.name in self._waits:
            asked = self._fleet.asked_at
            return asked is None or asked <= self._waits[slot.name]
        await self._fleet.since(began)
        return False

    def _wait(self, slot: Slot) -> None:
        self._waits[slot.name] = self._now()

    def _forget(self, slot: Slot) -> None:
        self._begun.pop(slot.name, None)
        self._waits.pop(slot.name, None)

    def _still_there(self, slot: Slot) -> Mark | None:
        """What was made of the slot already, as long as the newest look does not say that it is over."""
        since, mark = self._made.get(slot.name, (None, None))
        if mark is None or since != slot.state_since:
            self._made.pop(slot.name, None)
            return None
        seen, _ = self._fleet.seen(self._fleet.life(mark), self._lag_ms)
        if seen in (Seen.ABSENT, Seen.STOPPED):
            del self._made[slot.name]
            raise CommandRefused(f"application {slot.name} ended before its worker reported")
        return mark

    def _know(self, slot: Slot) -> None:
        """A list that lacks the application of this slot is not believed."""
        used = Mark.parse(slot.incarnation)
        if used is not None:
            self._fleet.know([used.app])

    def _find(self, slot: Slot) -> Application | None:
        used = Mark.parse(slot.incarnation)
        row = None if used is None else self._fleet.rows.get(used.app)
        return row or self._fleet.named(slot.name)

    async def _made_before(self, slot: Slot, row: Application, making: Making, began: int) -> Mark | None:
        """The life that was begun for this generation already, unless it was used, or failed before we began."""
        mark = Mark.of(row)
        if mark is None or mark.generation != slot.generation or mark.live != _live(making):
            return None
        if mark.incarnation == slot.incarnation:
            return None
        if not mark.live:
            newest = await self._newest(row)
            return mark if newest is None or newest.id <= mark.base else None
        life = self._fleet.life(mark)
        over = self._fleet.seen(life, self._lag_ms)[0] is Seen.STOPPED
        return None if over and life.ended_at is not None and life.ended_at < began else mark

    async def _clean(self, slot: Slot, row: Application, making: Making) -> Mark | None:
        """Begin a new life, once nothing of the last one can be alive."""
        newest = await self._newest(row)
        if newest is not None and not await self._stopped(slot, row, newest):
            return None
        env = {name: value for name, value in making.env.items() if name != SOCKET}  # nothing of ours can be mounted
        if env:
            await self._client.set_env(row.uuid, env)
        mark = Mark(row.uuid, _live(making), slot.generation, 0 if newest is None else newest.id)
        await self._client.update(row.uuid, {**made_from(making), "git_commit_sha": mark.text})
        self._fleet.put(replace(row, git_commit_sha=mark.text))
        self._stops.pop(row.uuid, None)
        return mark

    async def _newest(self, row: Application) -> Deployment | None:
        try:
            rows = await self._client.deployments_of(row.uuid, 1)
        except Missing:
            raise Unreachable(f"application {row.name} has just gone") from None
        return rows[0] if rows else None

    async def _stopped(self, slot: Slot, row: Application, newest: Deployment) -> bool:
        """Whether its container is certainly gone; does what is due to get there."""
        now, asked_at = self._now(), self._fleet.asked_at or 0
        self._wait(slot)
        if not newest.ended:
            await self._client.cancel(newest.deployment_uuid)
            return False
        mark = Mark.of(row)
        life = None if mark is None else self._fleet.life(mark)
        if life is not None and row.alive:
            life.alive_at = asked_at
        stopped_at = self._stops.get(row.uuid)
        if stopped_at is None or (row.alive and now - stopped_at >= STOP_AGAIN_MS):
            await self._client.stop(row.uuid)
            self._stops[row.uuid] = now
            return False
        if row.alive or asked_at <= stopped_at:
            return False
        # it was seen alive and then ended by our stop; or the status had the time to become true
        seen_alive = life is not None and life.alive_at is not None
        return seen_alive or asked_at - stopped_at >= self._lag_ms

    async def _up(self, slot: Slot, mark: Mark) -> bool:
        """Whether the container of an idle place runs; deploys it when it was not."""
        self._wait(slot)
        life = self._fleet.life(mark)
        if life.deployment is None:
            try:
                await self.deploy(mark)
            except QueueFull:
                pass
            return False
        seen, ending = self._fleet.seen(life, self._lag_ms)
        if seen is Seen.STOPPED:
            raise CommandRefused((ending and ending.start_error) or "its container ended")
        row = self._fleet.rows.get(mark.app)
        return life.deployment.status == "finished" and row is not None and row.word == RUNNING

    def _where(self) -> dict[str, Any]:
        host = self._host
        where = {"project_uuid": host.project, "server_uuid": host.server, "environment_name": host.environment}
        return where if host.destination is None else {**where, "destination_uuid": host.destination}


def _live(making: Making) -> bool:
    return making.template.warmth is Warmth.RUNNING


def check_template(template: Template) -> None:
    """Raises CommandRefused for what Coolify cannot do."""
    if template.image is None:
        raise CommandRefused("a pool on Coolify needs an image")
    if not template.worker:
        raise CommandRefused("a pool on Coolify needs worker = true: only the worker can say how a run ended")
    if template.warmth is Warmth.COLD:
        raise CommandRefused("Coolify has no cold slots: choose created or running")
    for name, value in (("command", template.command), ("mounts", template.mounts), ("user", template.user)):
        if value:
            raise CommandRefused(f"Coolify cannot set {name} for an application from an image")


def made_from(making: Making) -> Mapping[str, Any]:
    """The fields of an application that its template decides."""
    template = making.template
    name, tag = split_image(template.image or "")
    memory = f"{making.memory_mb}m"
    options = ["--init", f"--shm-size={template.shm_mb}m", "--cap-drop=ALL"]
    return {
        "docker_registry_image_name": name,
        "docker_registry_image_tag": tag,
        "limits_memory": memory,
        "limits_memory_swap": memory,
        "limits_cpus": "0" if template.cpus is None else f"{template.cpus:g}",
        "custom_docker_run_options": " ".join([*options, *(f"--cap-add={each}" for each in template.cap_add)]),
        "is_consistent_container_name_enabled": True,
        "max_restart_count": RESTARTS_MAX,
    }


def split_image(image: str) -> tuple[str, str]:
    """Name and tag as Coolify wants them; of a digest the tag is its hexadecimal part."""
    name, at, digest = image.partition("@")
    if at:
        kind, _, value = digest.partition(":")
        return f"{name}@{kind}", value
    head, slash, last = image.rpartition("/")
    name, _, tag = last.partition(":")
    return f"{head}{slash}{name}", tag or "latest"
