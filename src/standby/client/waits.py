"""What the server answers about an order that waits."""

from collections.abc import Mapping
from datetime import datetime

from msgspec import Struct


class Answer(Struct, frozen=True):
    """Anything the server says."""


class Gate(Answer, frozen=True, kw_only=True):
    """What holds an order back, in words; how much it needs and how much of that is free; which orders hold it."""

    name: str
    text: str
    opens_at: datetime | None = None
    needed: int | None = None
    free: int | None = None
    holders: tuple[str, ...] = ()
    stuck: bool = False
    """It never opens by itself: a person has to do something."""


class Estimate(Answer, frozen=True, kw_only=True):
    """What an estimated wait is worth: eight of ten such orders wait from `low_ms` to `high_ms`."""

    low_ms: int | None = None
    high_ms: int | None = None
    confidence: str
    why_none: str | None = None


class Why(Answer, frozen=True, kw_only=True):
    """Why an order waits, and what happens next."""

    id: str
    state: str
    waiting_since: datetime | None = None
    gate: Gate | None = None
    position: int | None = None
    estimated_wait_ms: int | None = None
    estimate: Estimate | None = None
    gives_up_in_ms: int | None = None
    next: str


class Estimates(Answer, frozen=True, kw_only=True):
    """How right the waits estimated at submit were."""

    started: int
    off_ms: int
    held: float


class Lengths(Answer, frozen=True, kw_only=True):
    """How long the last runs of a pool took, and by the values of a label where one tells it."""

    count: int
    usual_ms: int
    label: str | None = None
    usual_ms_by_label: Mapping[str, int] = {}
