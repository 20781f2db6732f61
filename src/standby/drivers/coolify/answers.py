"""What Coolify answers, as far as it is read. Statuses are words with a health behind a colon; the word counts."""

from typing import Any, Final

import msgspec
from msgspec import Struct

from standby.core.errors import Unreachable

EXITED: Final = "exited"
RUNNING: Final = "running"
DEGRADED: Final = "degraded"
_LIVE: Final = frozenset({"queued", "in_progress"})


class Application(Struct, frozen=True, kw_only=True):
    """One application: the place of a slot."""

    uuid: str
    name: str = ""
    status: str | None = None
    git_commit_sha: str | None = None
    """Means nothing for an image: it carries the place's mark (see `marks`)."""
    created_at: str | None = None

    @property
    def word(self) -> str:
        """`running` of `running:unhealthy`. An application without a status was never started."""
        return (self.status or EXITED).partition(":")[0]

    @property
    def alive(self) -> bool:
        """Whether Coolify thinks that it has a container."""
        return self.word != EXITED


class Deployment(Struct, frozen=True, kw_only=True):
    """One record of the deployment queue. Its states never change once it has ended."""

    id: int
    """Counts up, over all applications."""
    deployment_uuid: str
    status: str
    finished_at: str | None = None
    """When its job ended. Null with `failed`: Coolify was restarted, and nobody knows how far the job was."""

    @property
    def ended(self) -> bool:
        return self.status not in _LIVE

    @property
    def failed(self) -> bool:
        """Its own job says that it failed."""
        return self.status == "failed" and self.finished_at is not None


class Project(Struct, frozen=True):
    """What applications belong to."""

    uuid: str


def applications(answer: Any) -> list[Application]:
    """The rows of a list."""
    return _rows(answer, Application)


def deployments(answer: Any) -> list[Deployment]:
    """The rows of a list, newest first; it may be wrapped with a count, or an object keyed by number."""
    if isinstance(answer, dict):
        answer = answer["deployments"] if isinstance(answer.get("deployments"), list) else list(answer.values())
    return sorted(_rows(answer, Deployment), key=lambda each: each.id, reverse=True)


def one(answer: Any, kind: type[msgspec.Struct]) -> Any:
    """A single row of that kind; raises Unreachable when it is not one."""
    try:
        return msgspec.convert(answer, kind)
    except msgspec.ValidationError as error:
        raise Unreachable(f"Coolify's answer cannot be read: {error}") from None


def _rows(answer: Any, kind: type[msgspec.Struct]) -> list[Any]:
    if not isinstance(answer, list):
        raise Unreachable("Coolify's answer cannot be read: it is no list")
    return [one(row, kind) for row in answer]
