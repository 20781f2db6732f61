"""Every legal change of an order, each once. Nobody else assigns a state (slots: `slots`; the rest: `places`).

A function takes the rows as they were read and returns a `Change`; `save` writes it if those rows are still the same.
`ORDER_MOVES` is the state machine: each change is checked against it, and the diagram in the docs is drawn from it.
"""

from collections.abc import Mapping
from typing import Final, TypedDict, Unpack

from msgspec import Struct
from msgspec.structs import replace

from standby.core import retry, wear
from standby.core.errors import IllegalMove
from standby.core.model import (
    ENDED,
    OPEN,
    Change,
    EventKind,
    Guards,
    Host,
    Idempotency,
    Json,
    Order,
    OrderState,
    Pool,
    Project,
    Reason,
    Run,
    Schedule,
    Slot,
    Spec,
    Tick,
    Trigger,
)
from standby.core.rank import rank
from standby.core.sighting import Exit

SILENT: Final[Mapping[str, Json]] = {"silent": True}
"""What the end of a run notes that wrote nothing: its log is closed without being stored."""

S = OrderState
K = EventKind
# what every order goes through: before Python 3.12 naming a member of an enum costs as much as a call
_PREPARING, _STOPPING, _COMPLETED, _LOST = S.PREPARING, S.STOPPING, S.COMPLETED, Reason.LOST
_NO_NOTE: Final[Mapping[str, Json]] = {}
Moves = Mapping[EventKind, Mapping[str | None, frozenset[str | None]]]
_NOWHERE: Final[frozenset[str | None]] = frozenset()

ORDER_MOVES: Final[Moves] = {
    K.ORDER_SUBMITTED: {None: frozenset({S.PENDING})},
    K.ORDER_QUEUED: {S.PENDING: frozenset({S.PENDING}), S.WAITING_RETRY: frozenset({S.PENDING})},
    K.ORDER_HELD: {S.PENDING: frozenset({S.PENDING})},
    K.ORDER_EXTENDED: {S.PENDING: frozenset({S.PENDING})},
    K.ORDER_CLAIMED: {S.PENDING: frozenset({S.PREPARING})},
    K.ORDER_RECOMMANDED: {S.PREPARING: frozenset({S.PREPARING})},
    K.ORDER_BOUND: {state: frozenset({state}) for state in (S.PREPARING, S.RUNNING)},
    K.ORDER_READY: {S.PREPARING: frozenset({S.RUNNING})},
    K.ORDER_STOPPING: {S.PREPARING: frozenset({S.STOPPING}), S.RUNNING: frozenset({S.STOPPING})},
    K.ORDER_STOP_CHANGED: {S.STOPPING: frozenset({S.STOPPING})},
    K.ORDER_RETRY_WAITING: {state: frozenset({S.WAITING_RETRY}) for state in sorted(OPEN)},
    K.ORDER_COMPLETED: {state: frozenset({S.COMPLETED}) for state in sorted(OPEN)},
    K.ORDER_FAILED: {state: frozenset({S.FAILED}) for state in [S.PENDING, *sorted(OPEN)]},
    K.ORDER_CANCELLED: {state: frozenset({S.CANCELLED}) for state in [S.PENDING, S.WAITING_RETRY, S.STOPPING]},
    K.ORDER_PURGED: {state: frozenset({None}) for state in sorted(ENDED)},
}


class Cause(Struct, gc=False, frozen=True, kw_only=True):
    """Who makes a change, when and why; a leader also names the host it leads and its epoch."""

    id: str
    at: int
    trigger: Trigger
    actor: str
    lease: tuple[str, int] | None = None


class Rows(TypedDict, total=False):
    """What any change may write: fields of `Change`."""

    spec: Spec | None
    sealed_env: bytes | None
    idempotency: Idempotency | None
    slot_was: Slot | None
    slot: Slot | None
    note: Mapping[str, Json]
    order_was: Order | None
    order: Order | None
    pool_was: Pool | None
    pool: Pool | None
    host_was: Host | None
    host: Host | None
    project_was: Project | None
    project: Project | None
    schedule_was: Schedule | None
    schedule: Schedule | None
    tick: Tick | None


def change(cause: Cause, kind: EventKind, *, guards: Guards | None = None, **rows: Unpack[Rows]) -> Change:
    """A change with its cause; a leader's is always guarded by its lease."""
    return Change(
        id=cause.id,
        kind=kind,
        at=cause.at,
        trigger=cause.trigger,
        actor=cause.actor,
        guards=guards or Guards(lease=cause.lease),
        **rows,
    )


def submit(
    cause: Cause, order: Order, spec: Spec, pool: Pool, sealed_env: bytes | None, idempotency: Idempotency | None
) -> Change:
    """nothing -> pending: ready at once, or when its `not_before` comes. `order` is a draft with its identity only."""
    if spec.not_before is not None and spec.not_before > cause.at:
        order = replace(order, due_at=spec.not_before)
    else:
        order = _ranked(order, spec, pool, cause.at)
    check_move(ORDER_MOVES, K.ORDER_SUBMITTED, "order", order.id, None, order.state)
    return change(cause, K.ORDER_SUBMITTED, order=order, spec=spec, sealed_env=sealed_env, idempotency=idempotency)


def queue(cause: Cause, order: Order, spec: Spec, pool: Pool) -> Change:
    """pending | waiting_retry -> pending, ready: its `not_before` or its retry time has come."""
    if order.due_at is None:
        raise IllegalMove("queue", "order", order.id, "already queued")
    after = _ranked(order, spec, pool, cause.at)
    if order.state is not S.PENDING:
        after = replace(after, state=S.PENDING, state_since=cause.at)
    return _order(cause, K.ORDER_QUEUED, order, after)


def hold(cause: Cause, order: Order, note: Mapping[str, Json]) -> Change:
    """pending, served but for a start: nothing of it changes, its history tells since when and behind how many."""
    return _order(cause, K.ORDER_HELD, order, order, note=note)


def extend(cause: Cause, order: Order, spec: Spec, deploy_timeout_ms: int) -> Change | None:
    """pending, its queue time over while it only waits for a start: once it gets until `deploy_timeout_ms` in all. Null
    when it had that already, or it would not be longer."""
    if order.deploy_since is not None or order.queue_due is None or spec.queue_timeout_ms is None:
        return None
    longer_ms = deploy_timeout_ms - spec.queue_timeout_ms
    if longer_ms <= 0:
        return None
    after = replace(order, deploy_since=cause.at, queue_due=order.queue_due + longer_ms)
    return _order(cause, K.ORDER_EXTENDED, order, after)


def claim(
    cause: Cause,
    order: Order,
    spec: Spec,
    slot: Slot,
    pool: Pool,
    host: Host,
    window_ms: int,
    note: Mapping[str, Json] = _NO_NOTE,
) -> Change:
    """pending -> preparing: it gets a slot and its start may be sent until `command_until`. Counts as an attempt."""
    after = replace(
        order,
        version=order.version + 1,
        state=_PREPARING,
        state_since=cause.at,
        attempt=order.attempt + 1,
        rank=None,
        queue_due=None,
        deploy_since=None,
        slot=slot.name,
        incarnation=slot.incarnation,
        boot=slot.boot,
        commanded_at=cause.at,
        command_until=cause.at + window_ms,
        deadline=cause.at + spec.start_timeout_ms,
    )
    told: dict[str, Json] = {
        "version": after.version,
        "attempt": after.attempt,
        "slot": after.slot,
        "incarnation": after.incarnation,
        "command_until": after.command_until,
        "deadline": after.deadline,
    }
    if order.deploy_since is not None:
        told["deploy_since"] = None
    if slot.boot is not None:
        told["boot"] = slot.boot
    guards = Guards(
        lease=cause.lease,
        pool_version=pool.version,
        host_version=host.version,
        slot_free=slot.name,
        slot_version=slot.version,
        project_limit=True,
    )
    return _order(cause, K.ORDER_CLAIMED, order, after, guards=guards, note=note, told=told)


def recommand(cause: Cause, order: Order, window_ms: int) -> Change:
    """preparing, seen fresh after its command could no longer arrive: the start may be sent once more."""
    return _order(cause, K.ORDER_RECOMMANDED, order, replace(order, command_until=cause.at + window_ms))


def bind(cause: Cause, order: Order, nonce: str) -> Change:
    """preparing | running, and nobody has it: the first worker that booted after its command does from now on."""
    if order.boot is not None:
        raise IllegalMove("bind", "order", order.id, f"bound to boot {order.boot}")
    return _order(cause, K.ORDER_BOUND, order, replace(order, boot=nonce))


def ready(cause: Cause, order: Order, spec: Spec, handle: str | None) -> Change:
    """preparing -> running: its own copy was seen at work."""
    deadline = None if spec.run_timeout_ms is None else cause.at + spec.run_timeout_ms
    told: dict[str, Json] = {"version": order.version + 1, "handle": handle, "deadline": deadline}
    after = replace(order, state=S.RUNNING, state_since=cause.at, ready_at=cause.at, **told)
    return _order(cause, K.ORDER_READY, order, after, told=told)


def stop(cause: Cause, order: Order, spec: Spec, reason: Reason) -> Change:
    """preparing | running -> stopping: asked now, forced after the grace."""
    after = replace(
        order,
        state=S.STOPPING,
        state_since=cause.at,
        stop_reason=reason,
        deadline=cause.at + spec.stop_grace_ms,
    )
    return _order(cause, K.ORDER_STOPPING, order, after, note={"reason": reason})


def cancel(cause: Cause, order: Order, spec: Spec) -> Change | None:
    """Any unfinished state towards cancelled; null when there is nothing left to do."""
    if order.state in ENDED or order.stop_reason is Reason.CANCELLED:
        return None
    if order.state is S.STOPPING:
        return _order(cause, K.ORDER_STOP_CHANGED, order, replace(order, stop_reason=Reason.CANCELLED))
    if order.state in OPEN:
        return stop(cause, order, spec, Reason.CANCELLED)
    return _order(cause, K.ORDER_CANCELLED, order, _over(order, S.CANCELLED, cause.at, Reason.CANCELLED, None))


def purge(cause: Cause, order: Order, said: str | None) -> Change:
    """An ended order -> gone: removed with everything of it; this event is what stays."""
    check_move(ORDER_MOVES, K.ORDER_PURGED, "order", order.id, order.state, None)
    return change(cause, K.ORDER_PURGED, order_was=order, note={"said": said} if said else {})


def expire(cause: Cause, order: Order) -> Change:
    """pending -> failed: it waited longer than it was willing to."""
    if order.rank is None:
        raise IllegalMove("expire", "order", order.id, "not waiting in the queue")
    reason = Reason.QUEUE_TIMEOUT if order.deploy_since is None else Reason.DEPLOY_TIMEOUT
    return _order(cause, K.ORDER_FAILED, order, _over(order, S.FAILED, cause.at, reason, None))


def finish(
    cause: Cause,
    order: Order,
    spec: Spec,
    slot: Slot,
    ending: Exit,
    *,
    handle: str | None,
    seats: bool,
    chance: float,
    counts: bool = True,
) -> Change:
    """preparing | running | stopping -> an end, or waiting_retry: its own copy was seen ended. The slot comes free;
    `counts`: each of its uses is written."""
    if order.state not in OPEN:
        raise IllegalMove("finish", "order", order.id, order.state)
    reason = outcome(order, ending)
    code = ending.code if ending.signal is None else 128 + ending.signal
    run = _run(order, ending, reason, code, cause.at, handle)
    used = wear.used(slot, ending, cause.at, seats=seats, lost=ending.lost or reason is _LOST, counts=counts)
    wait_ms = None if reason is None else retry.wait_ms(spec.retry, order.attempt, reason, chance, ending)
    if wait_ms is not None:
        kind, state = K.ORDER_RETRY_WAITING, S.WAITING_RETRY
    elif reason is None:
        kind, state = K.ORDER_COMPLETED, _COMPLETED
    elif reason is Reason.CANCELLED:
        kind, state = K.ORDER_CANCELLED, S.CANCELLED
    else:
        kind, state = K.ORDER_FAILED, S.FAILED
    after = _over(order, state, cause.at, reason, code, None if wait_ms is None else cause.at + wait_ms)
    check_move(ORDER_MOVES, kind, "order", order.id, order.state, state)
    return Change(
        id=cause.id,
        kind=kind,
        at=cause.at,
        trigger=cause.trigger,
        actor=cause.actor,
        guards=Guards(lease=cause.lease),
        order_was=order,
        order=after,
        run=run,
        slot_was=None if used is None else slot,
        slot=None if used is None else replace(slot, **used),
        note=SILENT if ending.silent else _NO_NOTE,
        told=_told(order, after),
        slot_columns=used,
    )


def outcome(order: Order, ending: Exit) -> Reason | None:
    """Why the run did not end well, or null: the exit code decides, unless an end was asked for."""
    if order.stop_reason is not None and order.stop_reason is not _LOST:
        return order.stop_reason
    if ending.start_error is not None:
        return Reason.START_FAILED
    if ending.lost or (order.stop_reason is _LOST and (ending.code != 0 or ending.signal is not None)):
        return Reason.LOST
    if ending.oom:
        return Reason.OOM
    if ending.error_name is not None:
        return Reason.ERROR
    return None if ending.code == 0 and ending.signal is None else Reason.EXIT


def blocked_total_ms(pool: Pool, now: int) -> int:
    """How long the pool's orders could not have been served, the present blockade included."""
    return pool.blocked_ms + (0 if pool.blocked_since is None else max(0, now - pool.blocked_since))


def _ranked(order: Order, spec: Spec, pool: Pool, now: int) -> Order:
    due = None if spec.queue_timeout_ms is None else now + spec.queue_timeout_ms - blocked_total_ms(pool, now)
    return replace(order, rank=rank(spec, now), due_at=None, queue_due=due)


def _over(
    order: Order, state: OrderState, at: int, reason: Reason | None, code: int | None, due_at: int | None = None
) -> Order:
    """The order without an open run: as it ended, or until it is run again at `due_at`."""
    after = replace(  # no more names: a call with more than fifteen takes three times as long
        order,
        version=order.version + 1,
        state=state,
        state_since=at,
        slot=None,
        incarnation=None,
        handle=None,
        commanded_at=None,
        command_until=None,
        ready_at=None,
        deadline=None,
        stop_reason=None,
        reason=reason,
        exit_code=code,
        ended_at=at if due_at is None else None,
    )
    if order.boot is not None:
        after = replace(after, boot=None)
    if due_at is not None:
        return replace(after, due_at=due_at)
    if order.slot is None:
        after = replace(after, rank=None, due_at=None, queue_due=None, deploy_since=None)
    return after if order.dedupe_live is None else replace(after, dedupe_live=None)


def _told(was: Order, after: Order) -> dict[str, Json]:
    """What an end writes besides what follows from it."""
    told: dict[str, Json] = {"version": after.version}
    if after.reason is not was.reason:
        told["reason"] = after.reason
    if after.exit_code != was.exit_code:
        told["exit_code"] = after.exit_code
    if after.due_at is not None:
        told["due_at"] = after.due_at
    if after.dedupe_live is not was.dedupe_live:
        told["dedupe_live"] = None
    if was.boot is not None:
        told["boot"] = None
    return told


def _run(order: Order, ending: Exit, reason: Reason | None, code: int | None, at: int, handle: str | None) -> Run:
    assert order.slot is not None and order.incarnation is not None and order.commanded_at is not None
    run = Run(
        order_id=order.id,
        number=order.attempt,
        slot=order.slot,
        incarnation=order.incarnation,
        handle=order.handle or handle,
        commanded_at=order.commanded_at,
        ready_at=order.ready_at,
        stop_asked_at=order.state_since if order.state is _STOPPING else None,
        ended_at=at,
        reason=reason,
        exit_code=code,
        signal=ending.signal,
        error=ending.start_error or ending.error,
        peak_memory_kb=ending.peak_memory_kb,
        cpu_ms=ending.cpu_ms,
    )
    if order.boot is None and ending.error_name is None:
        return run  # a call with more than fifteen names takes three times as long
    return replace(run, boot=order.boot, error_name=ending.error_name)


def _order(
    cause: Cause,
    kind: EventKind,
    was: Order,
    after: Order,
    *,
    guards: Guards | None = None,
    note: Mapping[str, Json] = _NO_NOTE,
    told: Mapping[str, Json] | None = None,
) -> Change:
    check_move(ORDER_MOVES, kind, "order", after.id, was.state, after.state)
    return Change(  # as `change` does, without a detour: every order goes through here several times
        id=cause.id,
        kind=kind,
        at=cause.at,
        trigger=cause.trigger,
        actor=cause.actor,
        guards=guards or Guards(lease=cause.lease),
        order_was=was,
        order=after,
        note=note,
        told=told,
    )


def check_move(moves: Moves, kind: EventKind, noun: str, name: str, was: str | None, to: str | None) -> None:
    """Raises IllegalMove unless the state machine has this edge."""
    if to not in moves[kind].get(was, _NOWHERE):
        raise IllegalMove(f"record {kind} of", noun, name, was or "not there")
