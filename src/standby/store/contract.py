"""What a store promises. Two engines keep it (SQLite, PostgreSQL); one conformance suite proves it for both.

Every change of a row goes through `save`: it checks versions and guards, writes the rows and appends the event in one
transaction, and answers with a verdict after the commit. Changes that arrive while a transaction is under way share the
next one. Logs, leases and keys are not changes: they have no version and no event.
"""

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import Final, Protocol

from msgspec import Struct

from standby.core.errors import StandbyError
from standby.core.model import (
    Change,
    Event,
    Host,
    Idempotency,
    Lease,
    Order,
    OrderState,
    Pool,
    Project,
    Run,
    Schedule,
    Slot,
    Spec,
    Tick,
)
from standby.core.sighting import ImageState
from standby.core.work import Report

Wanted = tuple[int, int | None]  # how many ready orders of a project want a key, and since when a run has it


class StoreDown(StandbyError):
    """The database cannot be reached, or did not answer in time; nothing is known about what was asked."""


class Answer(StrEnum):
    SAVED = "saved"
    CONFLICT = "conflict"
    """A row is missing, has another version, or a guard no longer holds: read again and decide again."""
    DEPOSED = "deposed"
    """The writer no longer leads the host it wrote for: stop acting at once."""
    FULL = "full"
    """A limit wider than one host leaves no room."""
    DUPLICATE = "duplicate"
    """An unfinished order has this dedupe key, or the idempotency key was used: `order_id` names that order."""
    HELD_BACK = "held_back"
    """Nothing is wrong with it, but another change that was to be saved together with it was refused."""


SAVED: Final = Answer.SAVED
"""Before Python 3.12 a member of an enum costs as much as a call each time it is named: on the hot path it has a name
of its own."""


class Verdict(Struct, gc=False, frozen=True):
    """What became of a change."""

    answer: Answer
    seq: int | None = None
    """Of its event, when saved."""
    order_id: str | None = None
    """Of the order that was there first, when duplicate."""

    @property
    def saved(self) -> bool:
        return self.answer is SAVED


class Work(Struct, gc=False, frozen=True):
    """An order with the part that never changes."""

    order: Order
    spec: Spec


class Listed(Struct, frozen=True):
    """An order in a listing, with its place in commit order."""

    order: Order
    spec: Spec
    seq: int


class Heard(Struct, frozen=True):
    """What is told of a commit."""

    pools: frozenset[str]
    """Pools that requests or the configuration touched."""
    added: Sequence[Work] = ()
    """Orders that were taken in by this process: their pools are not named for that alone."""
    handed: frozenset[str] = frozenset()
    """Slots whose workers have got a run."""
    reported: frozenset[str] = frozenset()
    """Runs of which a worker said something new."""


class OrderFilter(Struct, frozen=True, kw_only=True):
    """Nothing set means all; what is set must all hold."""

    states: frozenset[OrderState] = frozenset()
    pool: str | None = None
    project: str | None = None
    labels: Mapping[str, str] = {}
    id_prefix: str | None = None
    ids: Sequence[str] = ()


class Page(Struct, frozen=True):
    """Some orders, newest first. `next` is where to go on below, null at the end; a page may be short of what was
    asked for when few of many orders match."""

    orders: Sequence[Listed]
    next: int | None


class History(Struct, frozen=True):
    """How far back the events go."""

    pruned_to: int
    """Events up to this one are gone; 0 when none are."""
    orders_pruned: int
    events_pruned: int
    """How many of each were ever removed because of their age."""
    oldest_at: int | None
    last_seq: int


class Length(Struct, frozen=True):
    """How long something took in a pool."""

    pool: str
    length_ms: int
    """Of a run from its command to its end, or of the making of a slot."""
    start_ms: int | None
    """Until the run was seen at work."""
    made: bool
    """It is of a slot."""
    at: int
    project: str | None
    """Of a run."""
    labels: Mapping[str, str] = {}


class Queued(Struct, frozen=True):
    """Ready orders of one lane."""

    ready: int
    urgent: int


class LogChunk(Struct, frozen=True, kw_only=True):
    """Some lines of one run's log, stored together. `body` is the lines as JSON: [[at, stream, text], ...]."""

    run_id: str
    first: int
    """Number of its first line, counted from 0 over the whole run, dropped lines included."""
    count: int
    body: str
    cursor: str
    """Where the driver goes on reading after this chunk."""
    closed: bool
    bytes: int
    """Length of its texts: what the cap of a run counts."""


class LogTail(Struct, frozen=True, kw_only=True):
    """How far a run's log is stored."""

    run_id: str
    next_line: int
    cursor: str
    closed: bool


class Key(Struct, frozen=True, kw_only=True):
    """An API key, known by its hash."""

    name: str
    hash: str
    created_at: int
    last4: str | None = None
    """Its last letters, for people to tell keys apart."""


class Peaks(Struct, frozen=True):
    """What the last ended runs of a pool took of the memory."""

    runs: int
    """Those of which it is known."""
    above: int
    """Those of them that took more than they had declared."""
    most_kb: int


class Store(Protocol):
    """The truth. All reads are short snapshots; every list is bounded by `most`."""

    incarnation: str
    """Random, made with the database: a cursor from another store is refused."""

    async def now(self) -> int:
        """The store's clock, in milliseconds."""

    async def schema_refusal(self) -> str | None:
        """Why the schema is not the one this code was written for; null when it is."""

    async def save(self, changes: Sequence[Change], *, together: bool = False) -> Sequence[Verdict]:
        """Save each change or say why not, one verdict each, in order. Raises StoreDown when the outcome is unknown
        even after looking for the changes' events; a change is then wholly there or not at all. With `together` all
        are saved or none is; they must not touch the same rows. Changes of schedules are always saved so."""

    # orders
    async def order(self, order_id: str) -> Work | None: ...
    async def orders(self, only: OrderFilter, before: int | None, most: int) -> Page:
        """Newest first by commit order of their submit; `before` is the `next` of the page before."""

    async def open_orders(self, host: str, *, brief: bool = False) -> Sequence[Work]:
        """All orders with an open run on this host's slots; `brief`: of long specs nothing is read."""

    async def candidates(
        self,
        pool: str,
        per_lane: int,
        memory_max: int | None,
        after: Mapping[str, tuple[int, str]] | None = None,
        cpus_max: float | None = None,
        *,
        brief: bool = False,
    ) -> Sequence[Work]:
        """Ready orders that need no more than `memory_max` and ask for no more than `cpus_max`: the first `per_lane` of
        each lane, by (rank, id); or of the lanes in `after` only, each from the (rank, id) given there on. A spec that
        cannot be read is left out (`brief`: of long ones nothing is read), and so is whoever waits for its concurrency
        key: another run has it, or an order before it in the pool wants it."""

    async def expired(self, pool: str, limit_at: int, most: int, spared: Sequence[str] = ()) -> Sequence[Order]:
        """Pending orders with queue_due <= limit_at, oldest first; none of the projects that are spared."""

    async def due(self, pool: str, now: int, most: int) -> Sequence[Work]:
        """Pending or waiting_retry orders whose due_at has come."""

    async def waiting(self, pools: Sequence[str]) -> bool:
        """Whether any order of these pools is ready or has a time to become ready."""

    async def position(self, order: Order) -> int | None:
        """1 for the next one in its lane, never more than 10,001; null when it has no rank."""

    async def queues(self, pool: str) -> Mapping[str, Queued]:
        """How many ready orders each project has in a pool: of 1,000 projects at the most, about 10,000 in all."""

    async def wanted_keys(self, pool: str, before: Order | None = None) -> Mapping[str, Sequence[Wanted]]:
        """Of each concurrency key that ready orders have to wait for, by project: who wants and has it. With `before`,
        of its own project only orders before that one count; 1,000 at the most."""

    async def lengths(self, after: int, last: int) -> Sequence[Length]:
        """What the events after one and up to another say of how long runs and the making of slots took, oldest first.
        Runs that were cancelled do not count."""

    async def peaks(self) -> Mapping[str, Peaks]:
        """By pool, how much memory its last ended runs took, where that is known."""

    async def contenders(self, project: str, key: str, most: int) -> Sequence[Listed]:
        """Unfinished orders of a project with this concurrency key, oldest first."""

    async def lanes(self, pool: str, most: int) -> Sequence[str]:
        """Projects with a ready order in the pool, by name."""

    async def last_start(self, pool: str) -> int | None:
        """When a run last began in the pool, as far as the last 5,000 events tell."""

    async def depth(self, pool: str | None, project: str | None, most: int) -> int:
        """How many ready orders wait in a pool, or (without one) of a project in all pools; at most `most`."""

    async def position_at(self, pool: str, project: str, rank: int, order_id: str) -> int:
        """The place of such an order, whether it is saved already or not yet; never more than 10,001."""

    async def sealed_env(self, order_ids: Sequence[str]) -> Mapping[str, bytes]: ...
    async def runs(self, order_id: str) -> Sequence[Run]: ...
    async def ended_runs(self, run_ids: Sequence[str]) -> frozenset[str]:
        """Those of these runs (ids as `model.run_id` makes them) that have a row of history."""

    async def open_by_project(self) -> Mapping[str, int]:
        """How many open runs each project has, over all hosts."""

    async def counts(self) -> Mapping[tuple[str, OrderState], int]:
        """Unfinished orders by pool and state (never counts history)."""

    # places
    async def slots(self, *, host: str | None = None, pool: str | None = None) -> Sequence[Slot]: ...
    async def holders(self, *, host: str | None = None, pool: str | None = None) -> Mapping[str, Order]:
        """Slot name -> the order that holds it."""

    async def seat(self, name: str) -> tuple[Slot, Work | None] | None:
        """One slot, and the order that holds it."""

    async def pools(self) -> Sequence[Pool]: ...
    async def pool(self, name: str) -> Pool | None: ...
    async def hosts(self) -> Sequence[Host]: ...
    async def host(self, name: str) -> Host | None: ...
    async def projects(self) -> Sequence[Project]: ...

    # schedules
    async def schedules(self) -> Sequence[Schedule]: ...
    async def schedule(self, name: str) -> Schedule | None: ...
    async def due_schedules(self, now: int, most: int) -> Sequence[Schedule]:
        """Those whose next tick has come, the longest overdue first."""

    async def ticks(self, name: str, most: int) -> Sequence[Tick]:
        """The last ticks of a schedule for which orders were made, newest first."""

    async def schedule_env(self, name: str) -> bytes | None:
        """The env values of a schedule's orders, sealed."""

    # history
    async def events(self, after: int, most: int, subject: str | None = None) -> Sequence[Event]:
        """Events with seq > after, oldest first."""

    async def events_before(self, before: int | None, most: int, subject: str | None = None) -> Sequence[Event]:
        """Events with seq < before (null: all), newest first."""

    async def last_seq(self) -> int: ...
    async def mark(self, seq: int) -> str | None:
        """What tells this event from another one with its number: the beginning of its change's id."""

    async def history(self) -> History: ...

    # leases
    async def take_lease(self, host: str, owner: str, ttl_ms: int) -> tuple[Lease, Lease | None] | None:
        """Lead the host if nobody else does: the new lease (with a higher epoch) and the one before; else null. It
        keeps `renewed_at` of the one before: only a renewal says that somebody leads."""

    async def renew_leases(self, owner: str, hosts: Sequence[str], ttl_ms: int) -> Sequence[Lease]:
        """Prolong this owner's unexpired leases of these hosts and return them."""

    async def resign_leases(self, owner: str, hosts: Sequence[str]) -> None:
        """Let this owner's leases of these hosts end now."""

    async def leases(self) -> Sequence[Lease]: ...

    # logs
    async def append_logs(self, chunks: Sequence[LogChunk], cap_bytes: int) -> Mapping[str, LogTail]:
        """Store each chunk that begins where the stored log of its run ends; any other is ignored. Oldest chunks of a
        run over the cap are dropped. Returns how far these runs are stored now."""

    async def log_tails(self, run_ids: Sequence[str]) -> Mapping[str, LogTail]: ...
    async def remove_logs(self, run_ids: Sequence[str]) -> None:
        """Drop the stored output of these runs."""

    async def read_log(self, run_id: str, from_line: int, most_bytes: int) -> Sequence[LogChunk]:
        """Chunks that hold lines >= from_line, oldest first; at least one if there is any."""

    # keys and idempotency
    async def keys(self) -> Sequence[Key]: ...
    async def add_key(self, key: Key) -> bool:
        """Keep a key; false when its name is taken."""

    async def remove_key(self, name: str) -> bool:
        """Forget a key; false when it is not there, or the last one."""

    async def idempotency(self, project: str, key: str) -> Idempotency | None: ...
    async def prune_idempotency(self, before: int, most: int) -> int:
        """Forget first answers older than `before`, at most so many; returns how many."""

    # history that is given up
    async def purge(self, changes: Sequence[Change]) -> Sequence[Verdict]:
        """Remove ended orders with everything of them (spec, env, runs, logs, kept answers, events); what stays is the
        event of each change. Conflict for an order that is gone already."""

    async def prune_orders(self, before: int, after: int, most: int) -> tuple[int, int | None]:
        """Remove those of the next `most` orders after a seq that ended before a time, with everything of them but
        their events; how many, and the seq to go on after (null: these were all)."""

    async def prune_events(self, before: int, most: int) -> int:
        """Remove the oldest events, at most so many, if they happened before a time; returns how many. The last event
        stays."""

    # what workers say
    async def put_report(self, report: Report, *, news: bool) -> Report:
        """Keep what a worker says of its run: what it leaves out stays as it was, its first result is the one that
        counts, and what began is not given back. `news` are told to whoever leads. Returns what is kept."""

    async def reports(self, run_ids: Sequence[str]) -> Mapping[str, Report]:
        """What is known of these runs by their workers' word."""

    # readings
    async def put_reading(self, host: str, at: int, body: str) -> None:
        """Keep the last measurement of a host."""

    async def reading(self, host: str) -> tuple[int, str] | None:
        """When a host was measured last, and what."""

    # images
    async def put_image(self, state: ImageState) -> None:
        """Keep what is known of an image on a host."""

    async def images(self, host: str) -> Sequence[ImageState]:
        """What is known of the images on a host, by name."""

    # hints
    def listen(self, hear: Callable[[Heard], None]) -> Callable[[], None]:
        """Call `hear` on the event loop after each commit of this process, and for those of other instances where the
        engine can tell. Only a hint, silent when hints are switched off. Returns what ends the subscription."""

    async def close(self) -> None: ...
