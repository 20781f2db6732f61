"""How rows are shown: plain words, times as RFC 3339 in UTC, lengths in seconds, never a secret.

The views are the answers' schema too: what is declared here is what is sent.
"""

import hashlib
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from functools import lru_cache
from typing import Annotated, Any, Final, Literal, TypeVar

import msgspec
from fastapi import Request, Response
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field
from msgspec.structs import fields

from standby.core.estimate import Wait
from standby.core.explain import Gate, GateName
from standby.core.model import (
    ENDED,
    Event,
    EventKind,
    Json,
    OnConflict,
    Order,
    OrderState,
    Reason,
    Retry,
    Spec,
    Trigger,
)
from standby.core.retry import retries_left
from standby.core.work import Report

Time = Annotated[str, Meta(extra_json_schema={"format": "date-time"})]
Seconds = float | int
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)
_JSON_TYPE: Final = (b"content-type", b"application/json")
V = TypeVar("V", bound=Struct)


class RetryView(Struct, frozen=True):
    """When a failed run is followed by another one."""

    retries: int
    base_s: Seconds
    factor: float
    cap_s: Seconds
    retry_on: Sequence[Reason]
    no_retry_on: Sequence[Reason]
    retry_errors: Sequence[str]
    fatal_errors: Sequence[str]


class GateView(Struct, frozen=True):
    """Why an order waits, and until when where that is known."""

    name: GateName
    text: str
    opens_at: Time | None
    needed: int | None
    """How much of what it waits for it needs (MB, slots, starts, runs); null where that cannot be counted."""
    free: int | None
    """How much of that is free."""
    holders: Sequence[str]
    """The orders that hold it, the longest-running first; at most 20, and none in listings."""
    stuck: bool
    """It never opens by itself: a person has to do something."""


class EstimateView(Struct, frozen=True):
    """What the estimated wait is worth: eight of ten such orders wait from `low_ms` to `high_ms`. Where there is none,
    `why_none` says why."""

    low_ms: int | None
    high_ms: int | None
    confidence: Literal["good", "fair", "poor", "none"]
    why_none: str | None


class ErrorView(Struct, frozen=True):
    """Why a run failed, by its worker's word."""

    name: str
    text: str | None
    retryable: bool | None


class WorkerView(Struct, frozen=True):
    """What the worker of the last run said of it."""

    begun_at: Time | None
    heartbeat_at: Time
    progress: float | None
    """From 0 to 1."""
    text: str | None
    error: ErrorView | None
    result: Raw | None
    """Any JSON."""


class OrderView(Struct, frozen=True):
    """A work order. Env values are never shown, only their names."""

    id: str
    project: str
    pool: str
    state: OrderState
    state_since: Time
    attempt: int
    retries_left: int
    queue_position: int | None
    """Its place in its lane, counted only where one order is shown."""
    estimated_wait_ms: int | None
    """Until it probably gets a slot; null when it does not wait, or nobody can say, or in listings."""
    estimate: EstimateView | None
    """What that is worth; null when it does not wait for a slot, or in listings."""
    gives_up_in_ms: int | None
    """Until it fails for want of a slot (`queue_timeout`); null when never, when it does not wait for one, or in
    listings. It stands still while its pool is paused, unled or unreachable."""
    gate: GateView | None
    slot: str | None
    reason: Reason | None
    exit_code: int | None
    submitted_at: Time
    due_at: Time | None
    commanded_at: Time | None
    ready_at: Time | None
    deadline: Time | None
    ended_at: Time | None
    memory_mb: int
    cpus: float | None
    """Null where its pool says how many."""
    command: Sequence[str] | None
    script: str | None
    env_names: Sequence[str]
    payload: Raw
    labels: Mapping[str, str]
    priority: int
    queue_timeout_s: Seconds | None
    start_timeout_s: Seconds
    run_timeout_s: Seconds | None
    stop_grace_s: Seconds
    retry: RetryView
    not_before: Time | None
    dedupe_key: str | None
    concurrency_key: str | None
    on_conflict: OnConflict
    urgent: bool
    rerun_of: str | None
    submitted_by: str
    schedule: str | None
    """The schedule that made it, and for which tick."""
    tick_at: Time | None
    worker: WorkerView | None
    """Null when its run says nothing of itself, and in listings."""
    deduplicated: bool | UnsetType = UNSET
    """True when this order was there first and has the dedupe key that was asked for."""


class OrdersView(Struct, frozen=True):
    """A page of orders, newest first; `next` is the cursor of the following page, null on the last one."""

    orders: Sequence[OrderView]
    next: str | None


class WhyView(Struct, frozen=True):
    """Why an order waits, where it stands, and what happens next."""

    id: str
    state: OrderState
    waiting_since: Time | None
    gate: GateView | None
    position: int | None
    estimated_wait_ms: int | None
    estimate: EstimateView | None
    gives_up_in_ms: int | None
    """As in the order."""
    next: str


class EventView(Struct, frozen=True):
    """One change as it was saved."""

    seq: int
    at: Time
    kind: EventKind
    subject: str
    from_state: str | None = field(name="from")
    to_state: str | None = field(name="to")
    trigger: Trigger
    actor: str
    data: Mapping[str, Json]


class EventsView(Struct, frozen=True):
    """Events, oldest first, and the cursor after them."""

    events: Sequence[EventView]
    next: str | None


class JsonResponse(Response):
    """A body that is JSON already, with its headers made in the shortest way: every submit is answered with one."""

    def __init__(self, body: bytes, status: int, headers: Mapping[str, str] | None) -> None:
        self.status_code, self.background, self.body = status, None, body
        own = {} if headers is None else headers
        self.raw_headers = [(name.lower().encode("latin-1"), value.encode("latin-1")) for name, value in own.items()]
        self.raw_headers += [(b"content-length", b"%d" % len(body)), _JSON_TYPE]


def answer(view: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A view, or a body that is JSON already."""
    return JsonResponse(view if isinstance(view, bytes) else msgspec.json.encode(view), status, headers)


def tagged(request: Request, view: Any) -> Response:
    """A view with an ETag; 304 when the client has this very body."""
    body = msgspec.json.encode(view)
    tag = f'"{hashlib.blake2b(body, digest_size=12).hexdigest()}"'
    known = [each.strip().removeprefix("W/") for each in request.headers.get("if-none-match", "").split(",")]
    if tag in known or "*" in known:
        return Response(status_code=304, headers={"ETag": tag})
    return answer(body, headers={"ETag": tag})


def time(ms: int) -> Time:
    """2030-01-31T12:00:00.000Z"""
    second, rest = divmod(ms, 1000)
    return f"{_second(second)}.{rest:03}Z"


@lru_cache(1024)
def _second(since_epoch: int) -> str:
    return (_EPOCH + timedelta(seconds=since_epoch)).isoformat().removesuffix("+00:00")


def shown_time(ms: int | None) -> Time | None:
    """The same, null for null."""
    return None if ms is None else time(ms)


@lru_cache(1024)
def length(ms: int) -> Seconds:
    """Milliseconds as seconds, whole where they are."""
    return ms // 1000 if ms % 1000 == 0 else ms / 1000


def seconds(ms: int | None) -> Seconds | None:
    """The same, null for null."""
    return None if ms is None else length(ms)


def view_of(view: type[V], row: Struct, **more: Any) -> V:
    """A row as it is shown: what is not given is the row's own, times as text, lengths (`_ms`) in seconds (`_s`)."""
    own = {name: show(getattr(row, column)) for name, column, show in _own(view, type(row)) if name not in more}
    return view(**own, **more)


@lru_cache(256)
def _own(view: type[Struct], row: type[Struct]) -> Sequence[tuple[str, str, Callable[[Any], Any]]]:
    """The fields of a view that such a row has, the columns they are in there, and how those are shown."""
    columns = row.__struct_fields__
    found: list[tuple[str, str, Callable[[Any], Any]]] = []
    for each in fields(view):
        if each.name in columns:
            found.append((each.name, each.name, shown_time if each.type in (Time, Time | None) else _as_it_is))
        elif (length_of := f"{each.name.removesuffix('_s')}_ms") in columns:
            found.append((each.name, length_of, seconds))
    return found


def _as_it_is(value: Any) -> Any:
    return value


def order_view(
    order: Order,
    spec: Spec,
    *,
    position: int | None = None,
    gate: Gate | None = None,
    wait: Wait | str | None = None,
    gives_up_in_ms: int | None = None,
    report: Report | None = None,
) -> OrderView:
    """One order as people see it."""
    wait_ms, estimate = wait_views(wait)
    since = time(order.state_since)
    return OrderView(  # every submit is answered with one: what there is not is not asked how it is shown
        id=order.id,
        project=order.project,
        pool=order.pool,
        state=order.state,
        state_since=since,
        attempt=order.attempt,
        retries_left=0 if order.state in ENDED else retries_left(order, spec),
        queue_position=position,
        estimated_wait_ms=wait_ms,
        estimate=estimate,
        gives_up_in_ms=gives_up_in_ms,
        gate=None if gate is None else gate_view(gate),
        slot=order.slot,
        reason=order.stop_reason or order.reason,
        exit_code=order.exit_code,
        submitted_at=since if order.submitted_at == order.state_since else time(order.submitted_at),
        due_at=None if order.due_at is None else time(order.due_at),
        commanded_at=None if order.commanded_at is None else time(order.commanded_at),
        ready_at=None if order.ready_at is None else time(order.ready_at),
        deadline=None if order.deadline is None else time(order.deadline),
        ended_at=None if order.ended_at is None else time(order.ended_at),
        memory_mb=order.memory_mb,
        cpus=order.cpus,
        command=list(spec.command) or None,
        script=spec.script,
        env_names=spec.env_names,
        payload=Raw(spec.payload.encode()),
        labels=spec.labels,
        priority=spec.priority,
        queue_timeout_s=seconds(spec.queue_timeout_ms),
        start_timeout_s=length(spec.start_timeout_ms),
        run_timeout_s=seconds(spec.run_timeout_ms),
        stop_grace_s=length(spec.stop_grace_ms),
        retry=retry_view(spec.retry),
        not_before=None if spec.not_before is None else time(spec.not_before),
        dedupe_key=spec.dedupe_key,
        concurrency_key=spec.concurrency_key,
        on_conflict=spec.on_conflict,
        urgent=spec.urgent,
        rerun_of=spec.rerun_of,
        submitted_by=spec.submitted_by,
        schedule=spec.schedule,
        tick_at=None if spec.tick_at is None else time(spec.tick_at),
        worker=None if report is None else worker_view(report),
    )


def wait_views(wait: Wait | str | None) -> tuple[int | None, EstimateView | None]:
    """The wait in one number, and what that is worth."""
    if wait is None:
        return None, None
    if isinstance(wait, str):
        return None, EstimateView(None, None, "none", wait)
    return wait.usual_ms, EstimateView(wait.low_ms, wait.high_ms, wait.confidence.value, None)


def worker_view(report: Report) -> WorkerView:
    """What a worker said of its run."""
    named = report.error_name is not None
    return view_of(
        WorkerView,
        report,
        error=ErrorView(report.error_name or "", report.error, report.retryable) if named else None,
        result=None if report.result is None else Raw(report.result.encode()),
    )


def gate_view(gate: Gate) -> GateView:
    """Why it waits, and until when where that is known."""
    until = f" until {time(gate.opens_at)}" if gate.name is GateName.NOT_BEFORE and gate.opens_at is not None else ""
    return view_of(GateView, gate, text=gate.text + until)


@lru_cache(1024)
def retry_view(retry: Retry) -> RetryView:
    return view_of(RetryView, retry)


def event_view(event: Event) -> EventView:
    return view_of(EventView, event)
