"""How many may wait: a pool and a project can have a limit, above which orders are refused until some have gone."""

from collections.abc import Sequence
from typing import Final, Protocol

from standby.api.problems import Problem
from standby.core import places
from standby.core.model import Change, Pool, Project, Trigger
from standby.world import World

COUNTED_S: Final = 0.5
"""So long a count serves; what this server takes in meanwhile is added to it."""
LIMITS_KEPT_S: Final = 5.0
"""So late a limit counts that was set at another server."""
RETRY_AFTER_S: Final = 5
TOLD_S: Final = 60.0
"""So seldom a server tells in the history that orders are refused."""
_LIMITED: Final = ("queues",)
"""Where the projects that have a limit are shared."""


class Wanted(Protocol):
    """What is known of an order before it is taken in."""

    @property
    def project(self) -> str: ...
    @property
    def pool(self) -> Pool: ...


class Queue:
    """A queue that has a limit, and how many wait in it."""

    def __init__(self, noun: str, name: str, most: int, depth: int) -> None:
        self.noun, self.name, self.most, self.depth = noun, name, most, depth

    def problem(self) -> Problem:
        """429: the queue is full."""
        return Problem(
            429,
            "queue_full",
            f"{self.noun} {self.name} has {self.most} waiting orders, its queue_max; this one was not taken in",
            f"send it again in {RETRY_AFTER_S} s, or raise queue_max of the {self.noun}",
            headers={"Retry-After": str(RETRY_AFTER_S)},
        )


def unlimited(world: World, wanted: Sequence[Wanted]) -> bool:
    """Whether no limit counts for any of these, as far as that was read a moment ago."""
    projects = world.shared.at_hand(_LIMITED)
    if projects is None:
        return False
    return not [each for each in wanted if each.pool.settings.queue_max is not None or each.project in projects]


async def refusals(world: World, wanted: Sequence[Wanted]) -> Sequence[Problem | None]:
    """Which of these orders are refused because too many wait, each counted as if those before it had been taken in."""
    found: list[Problem | None] = []
    projects = await _projects(world)
    for each in wanted:
        project = projects.get(each.project)
        if project is None and each.pool.settings.queue_max is None:
            found.append(None)
            continue
        queues = await _queues(world, each.pool, project)
        full = next((queue for queue in queues if queue.depth >= queue.most), None)
        if full is None:
            for queue in queues:
                queue.depth += 1
        else:
            await _tell(world, full)
        found.append(None if full is None else full.problem())
    return found


async def started(world: World, wanted: Wanted) -> None:
    """One that was counted did not wait at all."""
    for queue in await _queues(world, wanted.pool, (await _projects(world)).get(wanted.project)):
        queue.depth = max(0, queue.depth - 1)


async def _queues(world: World, pool: Pool, project: Project | None) -> list[Queue]:
    """Those of its queues that have a limit."""
    found = []
    if pool.settings.queue_max is not None:
        found.append(await _queue(world, "pool", pool.name, pool.settings.queue_max))
    if project is not None and project.queue_max is not None:
        found.append(await _queue(world, "project", project.name, project.queue_max))
    return found


async def _projects(world: World) -> dict[str, Project]:
    async def read() -> dict[str, Project]:
        return {project.name: project for project in await world.store.projects() if project.queue_max is not None}

    return await world.shared.ask(_LIMITED, read, keep_s=LIMITS_KEPT_S)


async def _queue(world: World, noun: str, name: str, most: int) -> Queue:
    async def count() -> Queue:
        pool, project = (name, None) if noun == "pool" else (None, name)
        return Queue(noun, name, most, await world.store.depth(pool, project, most))

    return await world.shared.ask(("queue", noun, name, most), count, keep_s=COUNTED_S)


async def _tell(world: World, full: Queue) -> None:
    """Note in the history, now and then, that orders are refused; whoever changes the row at the same moment wins."""

    async def tell() -> None:
        change = await _change(world, full)
        if change is not None:
            await world.store.save([change])

    await world.shared.ask(("backpressure", full.noun, full.name), tell, keep_s=TOLD_S)


async def _change(world: World, full: Queue) -> Change | None:
    cause = world.cause(Trigger.REQUEST, "intake")
    if full.noun == "pool":
        pool = await world.store.pool(full.name)
        return None if pool is None else places.refuse_for_pool(cause, pool)
    project = next((each for each in await world.store.projects() if each.name == full.name), None)
    return None if project is None else places.refuse_for_project(cause, project)
