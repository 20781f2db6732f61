"""What a platform can answer about one run, and about itself."""

from enum import StrEnum

from msgspec import Struct


class Seen(StrEnum):
    """What a look found. There is no word for "could not look": that is `Unreachable`, or `UNKNOWN` for one run."""

    ABSENT = "absent"
    """Nothing of it is there (any more)."""
    FRESH = "fresh"
    """The place is there and this run never started in it."""
    STARTING = "starting"
    READY = "ready"
    STOPPED = "stopped"
    """It ran (or failed to start) and is over, its whole tree included."""
    UNKNOWN = "unknown"


class Exit(Struct, gc=False, frozen=True, kw_only=True):
    """How a run ended, as far as the platform knows."""

    code: int | None = None
    signal: int | None = None
    oom: bool = False
    start_error: str | None = None
    """Set when it never began: what the platform said (no such command, no such image)."""
    place_failed: bool = False
    """With `start_error`: the place is to blame, not what was asked to run in it."""
    error_name: str | None = None
    """What its worker called the error; the run ended badly by its own word."""
    error: str | None = None
    """What its worker said about it."""
    retryable: bool | None = None
    """Whether another try may go better: what its worker thinks; false with a `start_error` that would come again."""
    lost: bool = False
    """It is over, but nobody can say how."""
    peak_memory_kb: int | None = None
    cpu_ms: int | None = None
    silent: bool = False
    """It certainly wrote nothing: there is no output to wait for."""


class Sighting(Struct, gc=False, frozen=True, kw_only=True):
    """One answer about one run in one place."""

    run_id: str
    incarnation: str
    seen: Seen
    asked_at: int
    """When the question was asked, by the store's clock: an answer says nothing about anything later."""
    handle: str | None = None
    exit: Exit | None = None
    """Set exactly when seen is STOPPED."""


class Place(Struct, frozen=True, kw_only=True):
    """Something of this installation that the platform has."""

    slot: str
    incarnation: str
    usable: bool
    """Whether an idle slot could serve with it: never started (created), or alive (running)."""
    made_at: int
    asked_at: int


class Pressure(Struct, frozen=True, kw_only=True):
    """How much of the last ten seconds work stood still for lack of something, in percent."""

    memory_some_avg10: float | None = None
    memory_full_avg10: float | None = None
    cpu_some_avg10: float | None = None
    cpu_full_avg10: float | None = None
    io_some_avg10: float | None = None
    io_full_avg10: float | None = None


class Reading(Struct, frozen=True, kw_only=True):
    """How full a machine is; null where it does not say."""

    memory_total_mb: int | None = None
    memory_available_mb: int | None = None
    cpu_count: int | None = None
    cpu_used: float | None = None
    """Of all processors, 0 to 1, since the reading before."""
    load_1m: float | None = None
    pressure: Pressure | None = None
    disk_free_mb: int | None = None


class ImageState(Struct, frozen=True, kw_only=True):
    """What is known of an image on a host: a row without version or event."""

    host: str
    image: str
    at: int
    present: bool
    pulling_since: int | None = None
    progress: str | None = None
    error: str | None = None
    """Why the last pull failed."""
