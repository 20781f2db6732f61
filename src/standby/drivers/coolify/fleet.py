"""What is known of all applications of this installation: two lists each 15 s, not a question for each slot.

Nothing here is needed after a restart: it is asked again. A list that lacks what is there is not believed.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from standby.core.errors import Unreachable
from standby.drivers.contract import Exit, Seen
from standby.drivers.coolify.answers import DEGRADED, EXITED, RUNNING, Application, Deployment
from standby.drivers.coolify.client import Client, Missing
from standby.drivers.coolify.marks import Mark

POLL_MS: Final = 15_000
RETRY_MS: Final = 5_000
"""After a look that failed."""
LACKING_MAX: Final = 5
"""A list that lacks more applications than this, although they are there, is not believed at all."""
ASKED_MAX: Final = 20
"""So many applications (or lives) are asked for one by one in each look; the others wait for the next."""
NEWEST: Final = 10
FORGET_MS: Final = 600_000


class Life(Struct, kw_only=True):
    """What was seen of one life of an application."""

    mark: Mark
    wanted_at: int
    asked_at: int | None = None
    """When it was last asked about; null: never."""
    deployment: Deployment | None = None
    ended_at: int | None = None
    """When its deployment was first seen to have ended."""
    alive_at: int | None = None
    """When it was last seen to have a container. Before its mark was written it had none, so this is its own."""
    ran: bool = False
    """Its container was seen at work, not only beginning again and again."""


class Fleet:
    """The newest look, and the one under way."""

    def __init__(self, client: Client, *, tag: str, prefix: str, project: str, now: Callable[[], int]) -> None:
        self._client, self._tag, self._prefix, self._project, self._now = client, tag, prefix, project, now
        self.asked_at: int | None = None
        """When the newest look was asked."""
        self.rows: dict[str, Application] = {}
        self._lives: dict[str, Life] = {}
        self._known: set[str] = set()
        """Applications that are there as far as we know: a list must have them, or they are asked for."""
        self._gone: set[str] = set()
        """Applications that are certainly gone."""
        self._tried_at: int | None = None
        self._failure: Unreachable | None = None
        self._looking: asyncio.Task[None] | None = None

    # asking

    def begin(self) -> None:
        """Begin a look if it is time for one; nobody waits for it."""
        every = POLL_MS if self._failure is None else RETRY_MS
        if self._tried_at is None or self._now() - self._tried_at >= every:
            self._launch()

    async def since(self, at: int) -> None:
        """Wait until there is a look that was asked at this time or later; raises Unreachable when there is none."""
        while self.asked_at is None or self.asked_at < at:
            if self._failure is not None and self._tried_at is not None and self._now() - self._tried_at < RETRY_MS:
                self.check()
            await asyncio.shield(self._launch())
            self.check()

    def check(self) -> None:
        """Raises Unreachable when the newest look failed."""
        if self._failure is not None:
            raise Unreachable(str(self._failure))

    async def close(self) -> None:
        """Give up the look under way."""
        looking, self._looking = self._looking, None
        if looking is not None:
            looking.cancel()
            await asyncio.gather(looking, return_exceptions=True)

    def _launch(self) -> "asyncio.Task[None]":
        if self._looking is None or self._looking.done():
            self._looking = asyncio.create_task(self._look())
        return self._looking

    async def _look(self) -> None:
        self._tried_at = at = self._now()
        try:
            await self._ask(at)
            self._failure = None
        except Missing as error:
            self._failure = Unreachable(f"Coolify has no such list: {error}")
        except Unreachable as error:
            self._failure = error

    async def _ask(self, at: int) -> None:
        listed = await self._client.applications(self._tag)
        rows = {row.uuid: row for row in listed if row.name.startswith(self._prefix)}
        live = await self._client.live_deployments()
        await self._complete(rows)
        self.rows, self.asked_at = rows, at
        self._known = set(rows)
        self._gone &= {life.mark.app for life in self._lives.values()}
        lives = {key: life for key, life in self._lives.items() if life.wanted_at > at - FORGET_MS}
        self._lives = lives
        asks = 0
        for life in sorted(lives.values(), key=lambda each: each.asked_at or 0):
            row = rows.get(life.mark.app)
            if row is not None and row.alive and Mark.of(row) == life.mark:
                life.alive_at, life.ran = at, life.ran or row.word == RUNNING
            asks += await self._follow(life, live, at, ask=asks < ASKED_MAX)

    async def _complete(self, rows: dict[str, Application]) -> None:
        """Ask for what the list lacks, one by one. What is really gone is so only by a token that sees our project."""
        self._gone -= set(rows)
        wanted = self._known | {life.mark.app for life in self._lives.values()}
        lacking = sorted(wanted - set(rows) - self._gone)
        gone: set[str] = set()
        for asked, uuid in enumerate(lacking[:ASKED_MAX]):
            if asked - len(gone) >= LACKING_MAX:
                raise Unreachable(f"Coolify's list of applications lacks {len(lacking)} that were there")
            try:
                rows[uuid] = await self._client.application(uuid, reserved=0)
            except Missing:
                gone.add(uuid)
        if gone:
            await self.check_project()
            self._gone |= gone
        if len(lacking) > ASKED_MAX:
            raise Unreachable(f"of {len(lacking)} applications it is not known yet whether they are gone")

    async def check_project(self) -> None:
        """Raises Unreachable unless this is the Coolify that we know, and the token still counts there."""
        try:
            await self._client.project(self._project)
        except Missing:
            text = f"Coolify shows no project {self._project}: is the token one of another team, or another server?"
            raise Unreachable(text) from None

    async def _follow(self, life: Life, live: dict[str, Deployment], at: int, *, ask: bool) -> int:
        """How far the deployment of this life is. Returns how many requests that took."""
        known = life.deployment
        if known is not None and (known.ended or known.deployment_uuid in live):
            life.deployment, life.asked_at = live.get(known.deployment_uuid, known), at
            return 0
        if life.mark.app not in self.rows:
            life.asked_at = at
            return 0
        if not ask:
            return 0
        try:
            found = life.mark.mine(await self._client.deployments_of(life.mark.app, NEWEST, reserved=0))
        except Missing:
            return 1  # it vanished meanwhile: the next look tells
        if found is None and known is not None:
            found = replace(known, status="deleted")  # it was there, so this life was deployed
        self._found(life, found, at)
        return 1

    # knowing

    def life(self, mark: Mark) -> Life:
        """What is known of this life; from now on it is followed."""
        life = self._lives.setdefault(mark.incarnation, Life(mark=mark, wanted_at=self._now()))
        life.wanted_at = self._now()
        return life

    def know(self, uuids: Iterable[str]) -> None:
        """These are there, or were: the next list must have them."""
        self._known.update(uuids)

    def put(self, row: Application) -> None:
        """What we have just made or changed."""
        self.rows[row.uuid] = row
        self._known.add(row.uuid)

    def named(self, name: str) -> Application | None:
        """The application of a slot; of two (a create whose answer was lost) always the same one."""
        found = [row for row in self.rows.values() if row.name == name]
        return min(found, key=lambda row: (Mark.of(row) is None, row.created_at or "", row.uuid), default=None)

    def _found(self, life: Life, deployment: Deployment | None, at: int) -> None:
        life.deployment, life.asked_at = deployment, at
        if deployment is not None and deployment.ended and life.ended_at is None:
            life.ended_at = self._now()

    def started(self, mark: Mark, deployment: Deployment) -> None:
        """A deployment of this life was just seen."""
        self._found(self.life(mark), deployment, self._now())

    def seen(self, life: Life, lag_ms: int) -> tuple[Seen, Exit | None]:
        """What the newest look says of this life."""
        return verdict(life, self.rows.get(life.mark.app), lag_ms)


def verdict(life: Life, row: Application | None, lag_ms: int) -> tuple[Seen, Exit | None]:
    """What is the case. Whether its work has begun, and how it ended, only its worker can say."""
    if life.asked_at is None:
        return Seen.UNKNOWN, None
    if row is None:
        return Seen.ABSENT, None
    deployment, lost = life.deployment, Exit(lost=True)
    if deployment is None:
        return (Seen.ABSENT if life.mark.live else Seen.FRESH), None
    if row.word == DEGRADED and deployment.status != "queued":
        looping = Exit(start_error="its container keeps ending (degraded)", place_failed=True)
        return Seen.STOPPED, lost if life.ran else looping
    if not deployment.ended or row.word != EXITED:
        return Seen.STARTING, None
    why = f"deployment {deployment.deployment_uuid} is {deployment.status}"
    if deployment.failed and not life.ran:
        return Seen.STOPPED, Exit(start_error=why, place_failed=True)
    if life.ended_at is None or life.asked_at - life.ended_at < lag_ms:
        return Seen.STARTING, None  # the status may be an old one
    return Seen.STOPPED, lost if life.ran or deployment.status == "finished" else Exit(start_error=why)
