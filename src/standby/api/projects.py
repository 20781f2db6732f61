"""Projects: what operators want of them, their limits and their share."""

from collections.abc import Mapping, Sequence
from typing import Final

from fastapi import APIRouter, Request, Response
from msgspec import Struct

from standby.api.needs import ActorNeed, WorldNeed
from standby.api.place_views import ModeView
from standby.api.places import TRIES, busy, given_settings, parse_mode
from standby.api.pool_views import OverrideView, override_views
from standby.api.problems import not_found
from standby.api.views import answer, tagged, view_of
from standby.api.wire import Name, PatchProjectBody, parse
from standby.core import places
from standby.core.model import Mode, Override, Project, Trigger
from standby.store.contract import OrderFilter
from standby.world import World

COUNT_MOST: Final = 10_000

router = APIRouter(tags=["places"])


class ProjectView(ModeView, frozen=True):
    """A project with its limits; null is no limit."""

    name: str
    running_max: int | None
    """While it is open."""
    weight: int
    """Its share of the turns where several projects wait."""
    queue_max: int | None
    open: int
    """Its open runs, over all hosts."""
    pending: int
    """Its ready orders, over all pools; counted no further than 10,000."""
    overrides: Mapping[str, OverrideView]


class ProjectsView(Struct, frozen=True):
    """The projects of which somebody said something, and those with open runs."""

    projects: Sequence[ProjectView]


@router.get("/projects")
async def list_projects(request: Request, world: WorldNeed) -> Response:
    """The projects of which somebody said something, and those with open runs."""
    opened = await world.store.open_by_project()
    known = {project.name: project for project in await world.store.projects()}
    names = sorted({*known, *opened})
    views = [await _view(world, known.get(name) or Project(name=name), opened.get(name, 0)) for name in names]
    return tagged(request, ProjectsView(projects=views))


@router.get("/projects/{name}")
async def show_project(request: Request, world: WorldNeed, name: str) -> Response:
    """One project."""
    return tagged(request, await _project_view(world, name))


@router.patch("/projects/{name}")
async def override_project(request: Request, world: WorldNeed, actor: ActorNeed, name: Name) -> Response:
    """Set limits or the weight of a project over the configuration, until they are unset; at once, and also after a
    restart."""
    body, _ = await parse(request, PatchProjectBody, world.config.request_max_kb)
    given = given_settings(body.set, body.unset)
    for _ in range(TRIES):
        cause = world.cause(Trigger.REQUEST, actor)
        wanted = {
            key: Override(value=value, actor=actor, at=cause.at, reason=body.reason) for key, value in given.items()
        }
        was = next((project for project in await world.store.projects() if project.name == name), None)
        change = places.override_project(
            cause, was, world.config.project(name), {**wanted, **dict.fromkeys(body.unset)}
        )
        if change is None or (await world.store.save([change]))[0].saved:
            world.shared.forget(("queues",))
            return answer(await _project_view(world, name))
    raise busy("project", name)


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
    return await _view(world, project, (await world.store.open_by_project()).get(name, 0))


async def _view(world: World, project: Project, opened: int) -> ProjectView:
    return view_of(
        ProjectView,
        project,
        running_max=project.configured_max,
        open=opened,
        pending=await world.store.depth(None, project.name, COUNT_MOST),
        overrides=override_views(project.overrides),
    )
