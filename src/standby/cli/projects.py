"""`standby projects`: what is wanted of them."""

from typing import Annotated

from cyclopts import App, Parameter

from standby.cli.places import Now
from standby.cli.table import print_table
from standby.cli.talk import OK, Server, ServerNeed, Why, ago, print_json, say

ProjectName = Annotated[str, Parameter(help="Name of the project.")]

app = App(name="projects", help="List projects; pause, resume or drain one.")


@app.default
@app.command(name="list")
def list_projects(*, server: ServerNeed = None) -> int:
    """The projects that somebody limited or closed, and those with open runs."""
    asked = server or Server()
    found = asked.ask(lambda client: client.projects())
    columns = {
        "PROJECT": lambda each: each.name,
        "MODE": lambda each: each.mode,
        "OPEN": lambda each: each.open,
        "MAX": lambda each: each.running_max,
        "BY": lambda each: f"{each.mode_actor}, {ago(each.mode_since)} ago" if each.mode != "open" else None,
        "NOTE": lambda each: each.mode_reason if each.mode != "open" else None,
    }
    print_json({"projects": found}) if asked.json else print_table(found, columns)
    return OK


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
