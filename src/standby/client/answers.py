"""What the server answers, as frozen values. Fields that this version does not know are ignored; lengths are named with
their unit, times are datetimes in UTC."""

from collections.abc import Mapping
from datetime import datetime
from typing import Any, Final

from msgspec import field

from standby.client.waits import Answer as Answer
from standby.client.waits import Estimate as Estimate
from standby.client.waits import Estimates as Estimates
from standby.client.waits import Gate as Gate
from standby.client.waits import Lengths as Lengths
from standby.client.waits import Why as Why

ENDED: Final = frozenset({"completed", "failed", "cancelled"})


class Retry(Answer, frozen=True, kw_only=True):
    """When a failed run is followed by another one."""

    retries: int
    base_s: float
    factor: float
    cap_s: float
    retry_on: tuple[str, ...] = ()
    no_retry_on: tuple[str, ...] = ()
    retry_errors: tuple[str, ...] = ()
    fatal_errors: tuple[str, ...] = ()


class WorkerError(Answer, frozen=True, kw_only=True):
    """Why a run failed, by its worker's word."""

    name: str
    text: str | None = None
    retryable: bool | None = None


class Said(Answer, frozen=True, kw_only=True):
    """What the worker of an order's last run said of it."""

    begun_at: datetime | None = None
    heartbeat_at: datetime
    progress: float | None = None
    text: str | None = None
    error: WorkerError | None = None
    result: Any = None


class Order(Answer, frozen=True, kw_only=True):
    """A work order: what was asked, and how far it is."""

    id: str
    project: str
    pool: str
    state: str
    state_since: datetime
    attempt: int
    retries_left: int
    queue_position: int | None = None
    estimated_wait_ms: int | None = None
    estimate: Estimate | None = None
    gives_up_in_ms: int | None = None
    gate: Gate | None = None
    slot: str | None = None
    reason: str | None = None
    exit_code: int | None = None
    submitted_at: datetime
    due_at: datetime | None = None
    commanded_at: datetime | None = None
    ready_at: datetime | None = None
    deadline: datetime | None = None
    ended_at: datetime | None = None
    memory_mb: int
    cpus: float | None = None
    command: tuple[str, ...] | None = None
    script: str | None = None
    env_names: tuple[str, ...] = ()
    payload: Any = None
    labels: Mapping[str, str] = {}
    priority: int
    queue_timeout_s: float | None = None
    start_timeout_s: float
    run_timeout_s: float | None = None
    stop_grace_s: float
    retry: Retry
    not_before: datetime | None = None
    dedupe_key: str | None = None
    concurrency_key: str | None = None
    on_conflict: str = "wait"
    urgent: bool = False
    rerun_of: str | None = None
    submitted_by: str
    schedule: str | None = None
    tick_at: datetime | None = None
    worker: Said | None = None
    deduplicated: bool = False
    """An unfinished order with the same dedupe key was there already: it is this one."""
    replayed: bool = False
    """The given idempotency key was used for this very order before."""

    @property
    def ended(self) -> bool:
        """Whether nothing will happen to it any more."""
        return self.state in ENDED


class OrderPage(Answer, frozen=True, kw_only=True):
    """Some orders, and the cursor of those that follow."""

    orders: tuple[Order, ...]
    next: str | None = None


class Run(Answer, frozen=True, kw_only=True):
    """One attempt at an order."""

    id: str
    number: int
    state: str
    slot: str | None = None
    handle: str | None = None
    commanded_at: datetime | None = None
    ready_at: datetime | None = None
    stop_asked_at: datetime | None = None
    ended_at: datetime | None = None
    reason: str | None = None
    exit_code: int | None = None
    signal: int | None = None
    error_name: str | None = None
    error: str | None = None
    peak_memory_kb: int | None = None
    cpu_ms: int | None = None


class Event(Answer, frozen=True, kw_only=True):
    """One change that was saved; `cursor` is the place to go on after it."""

    seq: int
    at: datetime
    kind: str
    subject: str
    from_state: str | None = field(default=None, name="from")
    to_state: str | None = field(default=None, name="to")
    trigger: str
    actor: str
    data: Mapping[str, Any] = {}
    cursor: str = ""


class LogLine(Answer, frozen=True, kw_only=True):
    """One line of output."""

    run: int
    line: int
    at: datetime
    stream: str
    text: str
    dropped: int = 0
    """So many lines before this one are no longer kept."""


class LogEnd(Answer, frozen=True, kw_only=True):
    """The end of a run's output; `closed` when that is all there will ever be."""

    run: int
    closed: bool


class LogPage(Answer, frozen=True, kw_only=True):
    """Some lines, and where to go on."""

    run: int | None
    next: int
    dropped: int
    closed: bool
    lines: tuple[Mapping[str, Any], ...]


class Verdict(Answer, frozen=True, kw_only=True):
    """What became of one order of many: submitted, deduplicated or refused."""

    index: int
    answer: str
    order: Order | None = None
    problem: dict[str, Any] | None = None


class Verdicts(Answer, frozen=True, kw_only=True):
    """What became of many orders."""

    verdicts: tuple[Verdict, ...]
    submitted: int
    deduplicated: int
    refused: int


class Touched(Answer, frozen=True, kw_only=True):
    """One order that a filter matched: its new state, its rerun's id, or null."""

    id: str
    became: str | None = None


class Bulk(Answer, frozen=True, kw_only=True):
    """What was done to the orders that a filter matched. `next` is the cursor of those that were not reached, null when
    all were."""

    matched: int
    done: int
    refused: int
    more: bool
    next: str | None = None
    orders: tuple[Touched, ...] = ()


class Override(Answer, frozen=True, kw_only=True):
    """What somebody set over a pool's configuration."""

    value: Any
    actor: str
    at: datetime
    reason: str | None = None


class Pool(Answer, frozen=True, kw_only=True):
    """A pool, its unfinished orders by state and its slots by word."""

    name: str
    host: str
    mode: str
    mode_since: datetime
    mode_reason: str | None = None
    mode_actor: str
    mode_stop_at: datetime | None = None
    pending: int
    open: int
    orders: Mapping[str, int] = {}
    slots: Mapping[str, int] = {}
    slots_max: int
    blocked_since: datetime | None = None
    blocked_s: float
    project: str | None = None
    warmth: str | None = None
    worker: bool = False
    reset: str = "recreate"
    failures: int = 0
    broken_since: datetime | None = None
    lengths: Lengths | None = None
    estimates: Estimates | None = None
    peaks: Mapping[str, int] | None = None
    settings: Mapping[str, Any]
    overrides: Mapping[str, Override] = {}


class Lease(Answer, frozen=True, kw_only=True):
    """Who leads a host."""

    owner: str
    epoch: int
    until: datetime
    live: bool


class Image(Answer, frozen=True, kw_only=True):
    """What is known of an image on a host."""

    image: str
    present: bool
    at: datetime
    pulling_since: datetime | None = None
    progress: str | None = None
    error: str | None = None


class Host(Answer, frozen=True, kw_only=True):
    """A host, who leads it and how full it is; the fields from `reading` on are only in a single host's answer."""

    name: str
    driver: str
    mode: str
    mode_since: datetime
    mode_reason: str | None = None
    mode_actor: str
    mode_stop_at: datetime | None = None
    lease: Lease | None = None
    memory_used_mb: int
    memory_mb: int | None = None
    cpus_used: float = 0.0
    cpus: float | None = None
    identity: str | None = None
    unreachable_since: datetime | None = None
    error: str | None = None
    dead_at: datetime | None = None
    measured: bool = False
    pressure: str = "none"
    pressure_since: datetime | None = None
    pressure_cause: str | None = None
    calm_since: datetime | None = None
    reading: Mapping[str, Any] | None = None
    slots: Mapping[str, int] | None = None
    slots_max: int | None = None
    queue_depth: int | None = None
    pools: tuple[str, ...] | None = None
    starts_max: int | None = None
    start_gap_s: float | None = None
    starting: int | None = None
    images: tuple[Image, ...] | None = None


class StartHolder(Answer, frozen=True, kw_only=True):
    """A start in flight: of a run, or of a slot that is being made."""

    order: str | None = None
    run: str | None = None
    slot: str
    pool: str | None = None
    since: datetime


class StartWaiter(Answer, frozen=True, kw_only=True):
    """An order that waits for nothing but a start."""

    order: str
    pool: str
    since: datetime
    position: int
    gives_up_in_s: float | None = None
    last_time: bool = False


class Starts(Answer, frozen=True, kw_only=True):
    """The starts on a host that are under way, and those that wait."""

    active: int
    queued: int
    maximum: int | None = None
    gap_s: float = 0.0
    holders: tuple[StartHolder, ...] = ()
    waiters: tuple[StartWaiter, ...] = ()


class Slot(Answer, frozen=True, kw_only=True):
    """One place to run."""

    name: str
    host: str
    pool: str
    state: str
    state_since: datetime
    order: str | None = None
    handle: str | None = None
    incarnation: str | None = None
    generation: int = 1
    uses: int
    created_at: datetime
    last_used_at: datetime | None = None
    error: str | None = None
    retry_at: datetime | None = None


class Check(Answer, frozen=True, kw_only=True):
    """One thing that was looked at: `ok` is null where it could not be known or is only worth a word."""

    name: str
    ok: bool | None
    says: str
    do: str | None = None


class Setting(Answer, frozen=True, kw_only=True):
    """One setting of the server, and where its value comes from."""

    name: str
    value: Any = None
    value_from: str = field(name="from")
    where: str
    default: Any = None
    over: tuple[str, ...] = ()


class Key(Answer, frozen=True, kw_only=True):
    """An API key; the key itself is only in the answer that made it."""

    name: str
    created_at: datetime
    last4: str | None = None
    key: str | None = None
