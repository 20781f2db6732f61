"""What can be set of a pool, of its slots and of retries. Null is unlimited or not there; 0 is zero."""

from enum import StrEnum
from typing import Any, Final

from msgspec import Struct

Json = Any  # what json.loads can return; the one place where Any is honest


class Reason(StrEnum):
    """Why a run did not end well."""

    EXIT = "exit"
    OOM = "oom"
    TIMEOUT = "timeout"
    START_FAILED = "start_failed"
    LOST = "lost"
    CANCELLED = "cancelled"
    QUEUE_TIMEOUT = "queue_timeout"
    DEPLOY_TIMEOUT = "deploy_timeout"
    """It could have been served, but no start was allowed, or none came through, for too long."""
    ERROR = "error"
    """Its worker said so."""
    DRAINED = "drained"
    """Its pool, host or project was drained at once."""


RETRIED_BY_DEFAULT: Final = frozenset({Reason.START_FAILED, Reason.LOST, Reason.DRAINED})
NEVER_RETRIED: Final = frozenset({Reason.CANCELLED, Reason.QUEUE_TIMEOUT, Reason.DEPLOY_TIMEOUT})


class Warmth(StrEnum):
    """What an idle slot of a container pool is."""

    COLD = "cold"
    """Nothing: each run makes its container and starts it."""
    CREATED = "created"
    """A container that was made and never started, one for each run."""
    RUNNING = "running"
    """A live container: work is handed over to it."""


class Reset(StrEnum):
    """How a used slot is made ready for the next order."""

    RECREATE = "recreate"
    NONE = "none"


class Level(StrEnum):
    """How hard a host is pressed, by what was measured on it."""

    NONE = "none"
    WARNING = "warning"
    """Starts are fewer and further apart."""
    CRITICAL = "critical"
    """It takes nothing new."""


class PressureLimits(Struct, frozen=True, kw_only=True):
    """From where on a host counts as pressed, and how long it must be calm to be less so."""

    warning: float = 0.80
    """Share of the memory that is used."""
    critical: float = 0.90
    psi_warning: float = 10.0
    """Percent of the last ten seconds in which some work stood still for lack of memory."""
    psi_critical: float = 5.0
    """The same, of all work at once."""
    calm_ms: int = 30_000
    disk_reserve_mb: int = 1_024
    """With less free disk it is critical."""


class Retry(Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """When a failed run is followed by another one."""

    retries: int = 3
    base_ms: int = 5_000
    factor: float = 2.0
    cap_ms: int = 300_000
    retry_on: tuple[Reason, ...] = ()
    """Reasons retried beside the default ones."""
    no_retry_on: tuple[Reason, ...] = ()
    """Reasons not retried although they would be by default."""
    retry_errors: tuple[str, ...] = ()
    """Error names of workers that are retried, whatever the worker says."""
    fatal_errors: tuple[str, ...] = ()
    """Error names that are never retried."""


class Template(Struct, gc=False, frozen=True, kw_only=True):
    """What the slots of a container pool are made of. With the pool's memory it is their identity."""

    image: str | None = None
    command: tuple[str, ...] = ()
    """What a container runs; empty: what the image says. In a `running` pool: the worker, or anything that stays."""
    warmth: Warmth = Warmth.CREATED
    worker: bool = False
    """Its containers have a resident worker that fetches its work; else work is handed over by exec."""
    ready: str = "running"
    """When a container is ready: `running`, `healthy` (its own health check) or `heartbeat` (its worker says so)."""
    cpus: float | None = None
    pids_max: int | None = 1_024
    shm_mb: int = 64
    network: str = "bridge"
    mounts: tuple[str, ...] = ()
    """`source:target` or `source:target:ro`."""
    user: str | None = None
    read_only: bool = True
    """The root file system; /tmp stays writable."""
    cap_add: tuple[str, ...] = ()
    """Capabilities it keeps; all others are dropped."""


class PoolSettings(Struct, frozen=True, kw_only=True):
    """What the configuration says of a pool; defaults for its orders."""

    project: str | None = None
    """Only this project's orders may use it; null: anybody's."""
    slots_max: int = 100
    slots_warm: int = 0
    """So many idle, ready slots are kept."""
    idle_ttl_ms: int | None = 600_000
    """An idle slot above `slots_warm` is given up after this."""
    max_uses: int | None = None
    max_age_ms: int | None = None
    pick: str = "lru"
    """Which idle slot is taken: `lru`, never-used ones before all, or `mru`."""
    reset: Reset = Reset.RECREATE
    deploy_timeout_ms: int = 1_800_000
    """How long an order waits in all when it only waits for a start."""
    silence_ms: int | None = None
    """A worker of this pool ends itself so long after its last answered heartbeat; null: its silence means nothing."""
    template: Template = Template()
    running_max: int | None = None
    """Open runs at once."""
    starts_per_minute: int | None = None
    """Runs that may begin in a minute, evenly spaced."""
    queue_max: int | None = None
    """Ready orders that wait at once."""
    memory_mb: int = 256
    queue_timeout_ms: int | None = 300_000
    queue_timeout_max_ms: int | None = 600_000
    start_timeout_ms: int = 1_500_000
    run_timeout_ms: int | None = 3_600_000
    stop_grace_ms: int = 30_000
    retry: Retry = Retry()


class Override(Struct, frozen=True, kw_only=True):
    """What an operator set over the configuration, in the unit of the API."""

    value: Json
    actor: str
    at: int
    reason: str | None = None
