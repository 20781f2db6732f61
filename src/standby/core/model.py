"""The nouns of Standby as frozen values. A field of a row type is a column of its table.

Times are integers: milliseconds since the epoch by the store's clock (`_at`, `_until`, `_by`), or a length (`_ms`).
Null means unlimited or not there; 0 means zero.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec import Struct

from standby.core.kinds import EventKind as EventKind
from standby.core.settings import NEVER_RETRIED as NEVER_RETRIED
from standby.core.settings import RETRIED_BY_DEFAULT as RETRIED_BY_DEFAULT
from standby.core.settings import Json as Json
from standby.core.settings import Level as Level
from standby.core.settings import Override as Override
from standby.core.settings import PoolSettings as PoolSettings
from standby.core.settings import PressureLimits as PressureLimits
from standby.core.settings import Reason as Reason
from standby.core.settings import Reset as Reset
from standby.core.settings import Retry as Retry
from standby.core.settings import Template as Template
from standby.core.settings import Warmth as Warmth


class OrderState(StrEnum):
    PENDING = "pending"
    PREPARING = "preparing"
    RUNNING = "running"
    STOPPING = "stopping"
    WAITING_RETRY = "waiting_retry"
    COMPLETED = "completed"
    FAILED = "failed"
    CANCELLED = "cancelled"


OPEN: Final = frozenset({OrderState.PREPARING, OrderState.RUNNING, OrderState.STOPPING})
ENDED: Final = frozenset({OrderState.COMPLETED, OrderState.FAILED, OrderState.CANCELLED})


class SlotState(StrEnum):
    """`deploying` and `busy` are not here: they are an idle slot with an open run (see `slot_word`)."""

    CREATING = "creating"
    IDLE = "idle"
    CLEANING = "cleaning"
    ERROR = "error"
    REMOVING = "removing"


class Mode(StrEnum):
    """What an operator wants of a pool, a host, a project or a schedule (which is never drained)."""

    OPEN = "open"
    PAUSED = "paused"
    DRAINING = "draining"


class Missed(StrEnum):
    """What becomes of the ticks of a schedule that nobody could make in time."""

    SKIP = "skip"
    ONCE = "once"
    """One order for all of them."""
    ALL = "all"
    """One each, for the last `ticks.ALL_MOST` of them."""


class OnConflict(StrEnum):
    """What becomes of an order whose concurrency key another unfinished one has, when it is submitted."""

    WAIT = "wait"
    CANCEL_NEW = "cancel_new"
    CANCEL_OLD = "cancel_old"


class Trigger(StrEnum):
    """What made a change happen."""

    REQUEST = "request"
    CONFIG = "config"
    ADMIT = "admit"
    LOOK = "look"
    DEADLINE = "deadline"
    DUE = "due"
    SIZE = "size"
    LEASE = "lease"


class Order(Struct, gc=False, frozen=True, kw_only=True):
    """What was asked and how far it is: one narrow row that carries its open run too."""

    id: str
    version: int = 1
    project: str
    pool: str
    memory_mb: int
    submitted_at: int
    state: OrderState
    state_since: int
    attempt: int = 0
    """Runs claimed so far, the open one included. The open run's id is `run_id(order)`."""
    rank: int | None = None
    """Place in the queue, smallest first; null unless it is pending and ready."""
    due_at: int | None = None
    """When a pending or waiting_retry order becomes ready."""
    queue_due: int | None = None
    """It expires when this is <= now - pool.blocked_ms (see `lifecycle.queue`)."""
    dedupe_live: str | None = None
    """The dedupe key with its project while the order is unfinished; unique."""

    slot: str | None = None
    incarnation: str | None = None
    handle: str | None = None
    commanded_at: int | None = None
    command_until: int | None = None
    """The last moment at which this run's start may be sent."""
    ready_at: int | None = None
    deadline: int | None = None
    """preparing: it must be ready by then; running: it must have ended by then; stopping: it is forced from then on."""
    stop_reason: Reason | None = None

    reason: Reason | None = None
    """Why the last ended run did not end well."""
    exit_code: int | None = None
    ended_at: int | None = None

    boot: str | None = None
    """Which boot of the slot's worker has the open run; null until one fetched it."""
    deploy_since: int | None = None
    """When its queue time was over and it waited only for a start: it got longer, once (see `lifecycle.extend`)."""
    concurrency_key: str | None = None
    """At most one order with this key has an open run in its project."""
    cpus: float | None = None
    """Processors it takes; null is what its pool says."""


class Spec(Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """The part of an order that never changes, stored beside it. Env values are elsewhere, sealed. What is the default
    is not stored: another default would change the orders that are there."""

    order_id: str
    command: tuple[str, ...] = ()
    """Argument list; empty when `script` is given."""
    script: str | None = None
    env_names: tuple[str, ...] = ()
    payload: str = "null"
    """Any JSON as it was submitted."""
    labels: Mapping[str, str] = {}
    priority: int = 100
    queue_timeout_ms: int | None = 300_000
    start_timeout_ms: int = 1_500_000
    run_timeout_ms: int | None = 3_600_000
    stop_grace_ms: int = 30_000
    retry: Retry = Retry()
    not_before: int | None = None
    dedupe_key: str | None = None
    rerun_of: str | None = None
    submitted_by: str = "admin"
    schedule: str | None = None
    """The schedule that made it, and for which of its ticks."""
    tick_at: int | None = None
    concurrency_key: str | None = None
    on_conflict: OnConflict = OnConflict.WAIT
    urgent: bool = False
    """It goes before all lanes."""
    cpus: float | None = None


class Run(Struct, gc=False, frozen=True, kw_only=True, omit_defaults=True):
    """One ended attempt: a row of history."""

    order_id: str
    number: int
    slot: str
    incarnation: str
    handle: str | None = None
    commanded_at: int
    ready_at: int | None = None
    stop_asked_at: int | None = None
    ended_at: int
    reason: Reason | None = None
    exit_code: int | None = None
    signal: int | None = None
    error: str | None = None
    peak_memory_kb: int | None = None
    cpu_ms: int | None = None
    boot: str | None = None
    error_name: str | None = None
    """What its worker called the error."""


class Slot(Struct, gc=False, frozen=True, kw_only=True):
    """One named, reusable place to run. Whether it is busy is derived from the orders."""

    name: str
    version: int = 1
    host: str
    pool: str
    state: SlotState
    state_since: int
    incarnation: str | None = None
    uses: int = 0
    created_at: int
    last_used_at: int | None = None
    error: str | None = None
    failures: int = 0
    retry_at: int | None = None
    generation: int = 1
    """Counts what was made under this name: each is told apart by it, also before the platform gave it an id."""
    template: str = ""
    """Fingerprint of the template it is made from (see `places.fingerprint`)."""
    boot: str | None = None
    """The worker that lives in this generation, by the nonce it drew; null before it reported."""


class Pool(Struct, frozen=True, kw_only=True):
    name: str
    version: int = 1
    host: str
    settings: PoolSettings = PoolSettings()
    mode: Mode = Mode.OPEN
    mode_since: int
    mode_reason: str | None = None
    mode_actor: str = "config"
    blocked_ms: int = 0
    """How long, all in all, its orders could not have been served: no leader, unreachable, paused."""
    blocked_since: int | None = None
    overrides: Mapping[str, Override] = {}
    """By setting, as the API names it (see `places.OVERRIDABLE`); `settings` has them already."""
    failures: int = 0
    """Slots that could not be made, or could not start, since the last that could."""
    broken_at: int | None = None
    """Since when its breaker is open: now and then one slot is tried, until that serves or an operator resets it."""
    mode_stop_at: int | None = None
    """While it drains: from then on what still runs is stopped."""


class Host(Struct, frozen=True, kw_only=True):
    name: str
    version: int = 1
    driver: str
    memory_mb: int | None = None
    """Budget for everything on it; null is no limit."""
    identity: str | None = None
    """Which keeper or engine this host is; another one under the same name is not trusted."""
    mode: Mode = Mode.OPEN
    mode_since: int
    mode_reason: str | None = None
    mode_actor: str = "config"
    unreachable_since: int | None = None
    error: str | None = None
    dead_at: int | None = None
    """An operator's word that nothing whose command was over by this moment is alive."""
    starts_max: int | None = None
    """Platform starts in flight at once; null is no limit."""
    start_gap_ms: int = 0
    """Between two starts."""
    cpus: float | None = None
    """Budget of processors for everything on it; null is no limit."""
    limits: PressureLimits = PressureLimits()
    pressure: Level = Level.NONE
    pressure_since: int | None = None
    pressure_cause: str | None = None
    """What was measured when it came to this level."""
    calm_since: int | None = None
    """Since when every reading was below the limits of its level; null while it is at none."""
    mode_stop_at: int | None = None


class Project(Struct, frozen=True, kw_only=True):
    name: str
    version: int = 1
    running_max: int | None = None
    """Open runs at once, over all hosts; none while it is closed, so that the guard of a claim needs nothing else."""
    weight: int = 1
    """Its share of the turns where several projects wait."""
    queue_max: int | None = None
    """Ready orders that wait at once, over all pools."""
    overrides: Mapping[str, Override] = {}
    """What operators set over the configuration, by setting; the columns have it already."""
    mode: Mode = Mode.OPEN
    mode_since: int = 0
    mode_reason: str | None = None
    mode_actor: str = "config"
    mode_stop_at: int | None = None
    configured_max: int | None = None
    """What `running_max` is while it is open."""


class Schedule(Struct, frozen=True, kw_only=True):
    """Makes the same order again and again. Its env values are beside it, sealed."""

    name: str
    version: int = 1
    project: str
    pool: str
    cron: str
    zone: str = "UTC"
    missed: Missed = Missed.ONCE
    memory_mb: int
    spec: Spec
    """Of its orders; what was left out is the pool's as of when this was set."""
    mode: Mode = Mode.OPEN
    mode_since: int
    mode_reason: str | None = None
    mode_actor: str
    next_at: int | None = None
    """When its next tick is; null while it is paused."""
    last_at: int | None = None
    last_order: str | None = None


class Tick(Struct, frozen=True, kw_only=True):
    """That an order was made for a tick: one row each, so that there is no second one."""

    schedule: str
    at: int
    order_id: str


class Lease(Struct, frozen=True, kw_only=True):
    """Who leads a host right now. `renewed_at` tells the next leader since when nobody did."""

    host: str
    owner: str
    epoch: int
    until: int
    renewed_at: int


class Event(Struct, gc=False, frozen=True, kw_only=True):
    """One change as it was saved; `data` holds every changed column, so that the events fold back to the rows."""

    seq: int
    at: int
    kind: EventKind
    subject: str
    """Id of the order, name of the slot, pool, host, project or schedule."""
    from_state: str | None
    to_state: str | None
    trigger: Trigger
    actor: str
    data: Mapping[str, Json]
    change: str
    """Id of the change, by which a commit of unknown outcome is found again."""


class Guards(Struct, gc=False, frozen=True, kw_only=True):
    """What must still hold inside the transaction, besides the versions of the rows that are written."""

    lease: tuple[str, int] | None = None
    """(host, epoch) of the leader who writes; else Deposed."""
    pool_version: int | None = None
    """Version of the order's (or slot's) pool on which this was decided; else Conflict."""
    host_version: int | None = None
    """Version of the host named in `lease` on which this was decided; else Conflict."""
    slot_free: str | None = None
    """This slot must be idle, have `slot_version`, and be held by no order; else Conflict."""
    slot_version: int | None = None
    project_limit: bool = False
    """The project's `running_max` must leave room, and no other open run of it may have the order's concurrency key,
    earlier changes of the same batch counted; else Full."""


class Idempotency(Struct, gc=False, frozen=True, kw_only=True):
    """The first answer to a submit, kept to be given again."""

    project: str
    key: str
    fingerprint: str
    order_id: str
    answer: str
    at: int


class Change(Struct, gc=False, frozen=True, kw_only=True):
    """One legal change: rows as they were and as they shall be. Made only by `lifecycle`, written only by `save`.

    A row without its `_was` is inserted; a `_was` without its row is deleted.
    """

    id: str
    kind: EventKind
    at: int
    trigger: Trigger
    actor: str
    order_was: Order | None = None
    order: Order | None = None
    spec: Spec | None = None
    sealed_env: bytes | None = None
    run: Run | None = None
    slot_was: Slot | None = None
    slot: Slot | None = None
    pool_was: Pool | None = None
    pool: Pool | None = None
    host_was: Host | None = None
    host: Host | None = None
    project_was: Project | None = None
    project: Project | None = None
    schedule_was: Schedule | None = None
    schedule: Schedule | None = None
    """Saved together with whatever goes with it (see `Store.save`), also when that is nothing. Its `sealed_env`: null
    leaves what is there, and empty is none."""
    tick: Tick | None = None
    idempotency: Idempotency | None = None
    note: Mapping[str, Json] = {}
    """More facts for the event that are no column."""
    guards: Guards = Guards()
    told: Mapping[str, Json] | None = None
    """Of a claim, a ready or an end, which write nothing but the order, its run and its slot: the columns of the order
    that follow neither from the kind nor from the time and the state, its version included."""
    slot_columns: Mapping[str, Json] | None = None
    """All columns of the slot that differ there."""

    @property
    def noun(self) -> str:
        """Whose row this change is about: order, slot, pool, host, project or schedule."""
        return _NOUNS[self.kind]

    @property
    def subject(self) -> str:
        if _NOUNS[self.kind] == "order":
            order = self.order or self.order_was
            assert order is not None, self.kind
            return order.id
        was, place = self._places
        row = place or was
        assert row is not None, self.kind
        return row.name

    @property
    def states(self) -> tuple[str | None, str | None]:
        """State (or mode) before and after, of the row that this change is about."""
        was, row = (self.order_was, self.order) if self.noun == "order" else self._places
        return _state(was), _state(row)

    @property
    def _places(self) -> "tuple[Place | None, Place | None]":
        """The row that this change is about before and after, where that is no order."""
        return getattr(self, f"{self.noun}_was"), getattr(self, self.noun)


Place = Slot | Pool | Host | Project | Schedule
_NOUNS: Final = {kind: kind.partition(".")[0] for kind in EventKind}


def _state(row: Order | Place | None) -> str | None:
    return None if row is None else row.state if isinstance(row, (Order, Slot)) else row.mode


def run_id(order: Order) -> str:
    """The id of the order's open (or last) run."""
    return f"{order.id}-{order.attempt}"


def order_of(run_id: str) -> str:
    """The id of the order whose run this is."""
    return run_id.rpartition("-")[0]


def slot_word(slot: Slot, held_by: Order | None) -> str:
    """The slot's state in the words people use: `deploying` and `busy` instead of an idle slot with an open run."""
    if held_by is None:
        return slot.state
    return "deploying" if held_by.state is OrderState.PREPARING else "busy"
