"""`standby projects`: what is wanted of them, their limits and their share."""

import json
from typing import Annotated, Any

from cyclopts import App, Parameter

from standby.cli.places import Now, Unset, overrides_text
from standby.cli.table import print_facts, print_table
from standby.cli.talk import HERE, ServerNeed, Unusable, Why, ago, pair
from standby.client.project_plans import Project

ProjectName = Annotated[str, Parameter(help="Name of the project.")]

app = App(name="projects", help="List projects; show, set, pause, resume or drain one.")


@app.default
@app.command(name="list")
def list_projects(*, server: ServerNeed = HERE) -> int:
    """The projects of which somebody said something, and those with open runs."""
    found = server.ask(lambda client: client.projects())
    columns = {
        "PROJECT": lambda project: project.name,
        "MODE": lambda project: project.mode,
        "WEIGHT": lambda project: project.weight,
        "PENDING": lambda project: project.pending,
        "MAX PENDING": lambda project: _limit(project.queue_max),
        "OPEN": lambda project: project.open,
        "MAX OPEN": lambda project: _limit(project.running_max),
        "NOTE": _note,
    }
    return server.show({"projects": found}, lambda: print_table(found, columns))


@app.command(name="show")
def show_project(name: ProjectName, /, *, server: ServerNeed = HERE) -> int:
    """One project: its limits, and what was set by hand."""
    project = server.ask(lambda client: client.project(name))
    facts = {
        "project": project.name,
        "mode": f"{project.mode} {_note(project) or ''}".strip(),
        "weight": project.weight,
        "running_max": _limit(project.running_max),
        "queue_max": _limit(project.queue_max),
        "open": project.open,
        "pending": project.pending,
        "set by hand": overrides_text(project.overrides),
    }
    return server.show(project, lambda: print_facts(facts))


@app.command(name="set")
def set_project(
    name: ProjectName,
    /,
    *settings: Annotated[str, Parameter(help="key=value: running_max=4, weight=3, queue_max=none.")],
    unset: Unset = None,
    reason: Why = None,
    server: ServerNeed = HERE,
) -> int:
    """Change limits or the weight of a project at once. They win over its configuration until they are unset."""
    if not settings and not unset:
        raise Unusable("say what to set (key=value), or --unset KEY")
    chosen = {key: _value(text) for key, text in (pair(each, "settings") for each in settings)}
    project = server.ask(lambda client: client.patch_project(name, chosen, unset or (), reason))
    words = [*settings, *(f"{key} as configured" for key in unset or [])]
    return server.tell(project, f"project {name}: {', '.join(words)}")


def _value(text: str) -> Any:
    try:
        return None if text == "none" else json.loads(text)
    except ValueError:
        return text


def _limit(most: int | None) -> str:
    return "no limit" if most is None else str(most)


@app.command
def pause(name: ProjectName, /, *, reason: Why = None, server: ServerNeed = HERE) -> int:
    """None of its orders is started; what runs goes on, and what waits does not expire."""
    return server.set_mode(f"project {name}", lambda client: client.set_project_mode(name, "pause", reason))


@app.command
def resume(name: ProjectName, /, *, reason: Why = None, server: ServerNeed = HERE) -> int:
    """Its orders are started again."""
    return server.set_mode(f"project {name}", lambda client: client.set_project_mode(name, "resume", reason))


@app.command
def drain(name: ProjectName, /, *, now: Now = False, reason: Why = None, server: ServerNeed = HERE) -> int:
    """None of its orders is started any more; what runs goes on, or is stopped."""
    return server.set_mode(f"project {name}", lambda client: client.set_project_mode(name, "drain", reason, now=now))


def _note(project: Project) -> str | None:
    if project.mode == "open":
        return None
    because = f": {project.mode_reason}" if project.mode_reason else ""
    return f"by {project.mode_actor}, {ago(project.mode_since)} ago{because}"
