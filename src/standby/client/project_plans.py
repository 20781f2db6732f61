"""What can be asked of a server about projects, and what it answers."""

from collections.abc import Iterable, Mapping
from datetime import datetime
from typing import Any

from standby.client.answers import Answer, Override
from standby.client.plans import why_body
from standby.client.talk import Plan, ask, get, post, rows


class Project(Answer, frozen=True, kw_only=True):
    """A project: what is wanted of it, its limits (null is no limit), and how much of them is taken."""

    name: str
    mode: str
    mode_since: datetime
    mode_reason: str | None = None
    mode_actor: str
    mode_stop_at: datetime | None = None
    running_max: int | None = None
    weight: int = 1
    queue_max: int | None = None
    open: int
    pending: int
    overrides: Mapping[str, Override] = {}


def projects() -> Plan[tuple[Project, ...]]:
    """The projects of which somebody said something, and those with open runs."""
    return rows(get("projects"), "projects", Project)


def project(name: str) -> Plan[Project]:
    """One project, with what was changed by hand."""
    return ask(get("projects", name), Project)


def patch_project(
    name: str,
    set: Mapping[str, Any] | None = None,  # noqa: A002 (as it is sent)
    unset: Iterable[str] = (),
    reason: str | None = None,
) -> Plan[Project]:
    """Change limits or the weight of a project; they win over its configuration until they are unset."""
    body = {"set": dict(set or {}), "unset": list(unset), "reason": reason}
    return ask(post("projects", name, body=body, method="PATCH"), Project)


def set_project_mode(name: str, verb: str, reason: str | None = None, *, now: bool = False) -> Plan[Project]:
    """pause, resume or drain a project; with `now` what runs is stopped."""
    return ask(post("projects", name, verb, body={**why_body(reason), **({"now": True} if now else {})}), Project)
