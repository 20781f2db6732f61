"""`standby projects`: what is wanted of them, their limits and their share."""

import json
from typing import Annotated, Any

from cyclopts import App, Parameter

from standby.cli.places import Now, overrides_text
from standby.cli.table import print_facts, print_table
from standby.cli.talk import OK, Server, ServerNeed, Unusable, Why, ago, pair, print_json, say
from standby.client.project_plans import Project

ProjectName = Annotated[str, Parameter(help="Name of the project.")]

app = App(name="projects", help="List projects; show, set, pause, resume or drain one.")


@app.default
@app.command(name="list")
def list_projects(*, server: ServerNeed = None) -> int:
    """The projects of which somebody said something, and those with open runs."""
    asked = server or Server()
    found = asked.ask(lambda client: client.projects())
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
    print_json({"projects": found}) if asked.json else print_table(found, columns)
    return OK


@app.command(name="show")
def show_project(name: ProjectName, /, *, server: ServerNeed = None) -> int:
    """One project: its limits, and what was set by hand."""
    asked = server or Server()
    project = asked.ask(lambda client: client.project(name))
    if asked.json:
        print_json(project)
        return OK
    print_facts(
        {
            "project": project.name,
            "mode": f"{project.mode} {_note(project) or ''}".strip(),
            "weight": project.weight,
            "running_max": _limit(project.running_max),
            "queue_max": _limit(project.queue_max),
            "open": project.open,
            "pending": project.pending,
            "set by hand": overrides_text(project.overrides),
        }
    )
    return OK


@app.command(name="set")
def set_project(
    name: ProjectName,
    /,
    *settings: Annotated[str, Parameter(help="key=value: running_max=4, weight=3, queue_max=none.")],
    unset: Annotated[
        list[str] | None, Parameter(negative=(), help="A key whose configured value counts again.")
    ] = None,
    reason: Why = None,
    server: ServerNeed = None,
) -> int:
    """Change limits or the weight of a project at once. They win over its configuration until they are unset."""
    asked = server or Server()
    if not settings and not unset:
        raise Unusable("say what to set (key=value), or --unset KEY")
    chosen = {key: _value(text) for key, text in (pair(each, "settings") for each in settings)}
    project = asked.ask(lambda client: client.patch_project(name, chosen, unset or (), reason))
    words = [*settings, *(f"{key} as configured" for key in unset or [])]
    print_json(project) if asked.json else say(f"project {name}: {', '.join(words)}")
    return OK


def _value(text: str) -> Any:
    try:
        return None if text == "none" else json.loads(text)
    except ValueError:
        return text


def _limit(most: int | None) -> str:
    return "no limit" if most is None else str(most)


@app.command
def pause(name: ProjectName, /, *, reason: Why = None, server: ServerNeed = None) -> int:
    """None of its orders is started; what runs goes on, and what waits does not expire."""
    return _set_mode(server, name, "pause", reason)


@app.command
def resume(name: ProjectName, /, *, reason: Why = None, server: ServerNeed = None) -> int:
    """Its orders are started again."""
    return _set_mode(server, name, "resume", reason)


@app.command
def drain(name: ProjectName, /, *, now: Now = False, reason: Why = None, server: ServerNeed = None) -> int:
    """None of its orders is started any more; what runs goes on, or is stopped."""
    return _set_mode(server, name, "drain", reason, now=now)


def _set_mode(server: Server | None, name: str, verb: str, reason: str | None, *, now: bool = False) -> int:
    asked = server or Server()
    project = asked.ask(lambda client: client.set_project_mode(name, verb, reason, now=now))
    print_json(project) if asked.json else say(f"project {name} is {project.mode}")
    return OK


def _note(project: Project) -> str | None:
    if project.mode == "open":
        return None
    because = f": {project.mode_reason}" if project.mode_reason else ""
    return f"by {project.mode_actor}, {ago(project.mode_since)} ago{because}"
