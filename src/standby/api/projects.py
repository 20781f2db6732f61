"""Projects: what operators want of them, and how many runs they have open."""

from collections.abc import Sequence

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from standby.api.needs import ActorNeed, WorldNeed
from standby.api.place_views import ModeView
from standby.api.places import TRIES, busy, parse_mode
from standby.api.problems import not_found
from standby.api.views import answer, shown_time, tagged, time
from standby.core import places
from standby.core.model import Mode, Project, Trigger
from standby.store.contract import OrderFilter
from standby.world import World

router = APIRouter(tags=["places"])


class ProjectView(ModeView, frozen=True):
    """A project, how many open runs it has, and how many it may have."""

    name: str
    open: int
    running_max: int | None


class ProjectsView(Struct, frozen=True):
    """The projects that somebody limited or closed, and those with open runs."""

    projects: Sequence[ProjectView]


@router.get("/projects")
async def list_projects(request: Request, world: WorldNeed) -> Response:
    """The projects that somebody limited or closed, and those with open runs."""
    opened = await world.store.open_by_project()
    known = {project.name: project for project in await world.store.projects()}
    names = sorted({*known, *opened})
    views = [_view(known.get(name) or Project(name=name), opened.get(name, 0)) for name in names]
    return tagged(request, ProjectsView(projects=views))


@router.get("/projects/{name}")
async def show_project(request: Request, world: WorldNeed, name: str) -> Response:
    """One project."""
    return tagged(request, await _project_view(world, name))


@router.post("/projects/{name}/pause")
async def pause_project(request: Request, world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """None of its orders is started; what runs goes on, and what waits does not expire."""
    return await _set_project(request, world, actor, name, Mode.PAUSED)


@router.post("/projects/{name}/resume")
async def resume_project(request: Request, world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """Its orders are started again."""
    return await _set_project(request, world, actor, name, Mode.OPEN)


@router.post("/projects/{name}/drain")
async def drain_project(request: Request, world: WorldNeed, actor: ActorNeed, name: str) -> Response:
    """None of its orders is started any more; with `now` what runs is stopped, and runs again once it is resumed if its
    policy allows."""
    return await _set_project(request, world, actor, name, Mode.DRAINING)


async def _set_project(request: Request, world: World, actor: str, name: str, mode: Mode) -> Response:
    reason, stop = await parse_mode(request, world, mode)
    for _ in range(TRIES):
        was = await _project(world, name)
        cause = world.cause(Trigger.REQUEST, actor)
        change = places.set_project_mode(cause, was, name, mode, reason, stop=stop)
        if change is None or (await world.store.save([change]))[0].saved:
            return answer(await _project_view(world, name))
    raise busy("project", name)


async def _project(world: World, name: str) -> Project | None:
    """Its row, if it has one; 404 for a project that nobody ever used, because a typing error would pause nothing."""
    known = {project.name: project for project in await world.store.projects()}
    if name in known:
        return known[name]
    used = bool((await world.store.orders(OrderFilter(project=name), None, 1)).orders)
    if not used and all(schedule.project != name for schedule in await world.store.schedules()):
        raise not_found("project", name, sorted({*known, *await world.store.open_by_project()}))
    return None


async def _project_view(world: World, name: str) -> ProjectView:
    project = await _project(world, name) or Project(name=name)
    return _view(project, (await world.store.open_by_project()).get(name, 0))


def _view(project: Project, opened: int) -> ProjectView:
    return ProjectView(
        name=project.name,
        mode=project.mode,
        mode_since=time(project.mode_since),
        mode_reason=project.mode_reason,
        mode_actor=project.mode_actor,
        mode_stop_at=shown_time(project.mode_stop_at),
        open=opened,
        running_max=project.running_max,
    )
