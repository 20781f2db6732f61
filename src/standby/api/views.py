"""How rows are shown: plain words, times as RFC 3339 in UTC, lengths in seconds, never a secret."""

from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import msgspec
from fastapi import Response

from standby.core.explain import Gate
from standby.core.model import (
    ENDED,
    OPEN,
    Event,
    Host,
    Lease,
    Mode,
    Order,
    OrderState,
    Pool,
    Retry,
    Run,
    Slot,
    Spec,
    run_id,
    slot_word,
)
from standby.core.retry import retries_left

View = dict[str, Any]
_EPOCH: Final = datetime(1970, 1, 1, tzinfo=UTC)


def answer(view: Mapping[str, Any] | bytes, status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    """A view as JSON."""
    body = view if isinstance(view, bytes) else msgspec.json.encode(view)
    return Response(body, status, dict(headers or {}), media_type="application/json")


def shown_time(ms: int | None) -> str | None:
    """2030-01-31T12:00:00.000Z"""
    if ms is None:
        return None
    return (_EPOCH + timedelta(milliseconds=ms)).isoformat(timespec="milliseconds").removesuffix("+00:00") + "Z"


def seconds(ms: int | None) -> float | int | None:
    """Milliseconds as seconds, whole where they are."""
    if ms is None:
        return None
    return ms // 1000 if ms % 1000 == 0 else ms / 1000


def order_view(order: Order, spec: Spec, *, position: int | None = None, gate: Gate | None = None) -> View:
    """One order as people see it."""
    return {
        "id": order.id,
        "project": order.project,
        "pool": order.pool,
        "state": order.state,
        "state_since": shown_time(order.state_since),
        "attempt": order.attempt,
        "retries_left": 0 if order.state in ENDED else retries_left(order, spec),
        "queue_position": position,
        "gate": None if gate is None else gate_view(gate),
        "slot": order.slot,
        "reason": order.stop_reason or order.reason,
        "exit_code": order.exit_code,
        "submitted_at": shown_time(order.submitted_at),
        "due_at": shown_time(order.due_at),
        "commanded_at": shown_time(order.commanded_at),
        "ready_at": shown_time(order.ready_at),
        "deadline": shown_time(order.deadline),
        "ended_at": shown_time(order.ended_at),
        "memory_mb": order.memory_mb,
        **spec_view(spec),
    }


def gate_view(gate: Gate) -> View:
    """Why it waits, and until when where that is known."""
    until = "" if gate.opens_at is None else f" until {shown_time(gate.opens_at)}"
    return {"name": gate.name, "text": gate.text + until, "opens_at": shown_time(gate.opens_at)}


def spec_view(spec: Spec) -> View:
    """The part of an order that never changes, named as it was sent; env values are not shown, ever."""
    return {
        "command": list(spec.command) or None,
        "script": spec.script,
        "env_names": spec.env_names,
        "payload": msgspec.Raw(spec.payload.encode()),
        "labels": spec.labels,
        "priority": spec.priority,
        "queue_timeout_s": seconds(spec.queue_timeout_ms),
        "start_timeout_s": seconds(spec.start_timeout_ms),
        "run_timeout_s": seconds(spec.run_timeout_ms),
        "stop_grace_s": seconds(spec.stop_grace_ms),
        "retry": retry_view(spec.retry),
        "not_before": shown_time(spec.not_before),
        "dedupe_key": spec.dedupe_key,
        "rerun_of": spec.rerun_of,
        "submitted_by": spec.submitted_by,
    }


def retry_view(retry: Retry) -> View:
    return {
        "retries": retry.retries,
        "base_s": seconds(retry.base_ms),
        "factor": retry.factor,
        "cap_s": seconds(retry.cap_ms),
        "retry_on": retry.retry_on,
        "no_retry_on": retry.no_retry_on,
    }


def run_view(run: Run) -> View:
    """One ended run."""
    return {
        "id": f"{run.order_id}-{run.number}",
        "number": run.number,
        "state": "ended",
        "slot": run.slot,
        "handle": run.handle,
        "commanded_at": shown_time(run.commanded_at),
        "ready_at": shown_time(run.ready_at),
        "stop_asked_at": shown_time(run.stop_asked_at),
        "ended_at": shown_time(run.ended_at),
        "reason": run.reason,
        "exit_code": run.exit_code,
        "signal": run.signal,
        "error": run.error,
        "peak_memory_kb": run.peak_memory_kb,
        "cpu_ms": run.cpu_ms,
    }


def open_run_view(order: Order) -> View | None:
    """The open run, which is part of its order's row; null when there is none."""
    if order.state not in OPEN:
        return None
    stopping = order.state is OrderState.STOPPING
    return {
        "id": run_id(order),
        "number": order.attempt,
        "state": order.state,
        "slot": order.slot,
        "handle": order.handle,
        "commanded_at": shown_time(order.commanded_at),
        "ready_at": shown_time(order.ready_at),
        "stop_asked_at": shown_time(order.state_since) if stopping else None,
        "ended_at": None,
        "reason": order.stop_reason,
        "exit_code": None,
        "signal": None,
        "error": None,
        "peak_memory_kb": None,
        "cpu_ms": None,
    }


def event_view(event: Event) -> View:
    return {
        "seq": event.seq,
        "at": shown_time(event.at),
        "kind": event.kind,
        "subject": event.subject,
        "from": event.from_state,
        "to": event.to_state,
        "trigger": event.trigger,
        "actor": event.actor,
        "data": event.data,
    }


def slot_view(slot: Slot, holder: Order | None) -> View:
    return {
        "name": slot.name,
        "host": slot.host,
        "pool": slot.pool,
        "state": slot_word(slot, holder),
        "state_since": shown_time(slot.state_since if holder is None else holder.state_since),
        "order": None if holder is None else holder.id,
        "handle": None if holder is None else holder.handle,
        "incarnation": slot.incarnation,
        "uses": slot.uses,
        "created_at": shown_time(slot.created_at),
        "last_used_at": shown_time(slot.last_used_at),
        "error": slot.error,
        "retry_at": shown_time(slot.retry_at),
    }


def mode_view(mode: Mode, since: int, reason: str | None, actor: str) -> View:
    return {"mode": mode, "mode_since": shown_time(since), "mode_reason": reason, "mode_actor": actor}


def pool_view(pool: Pool, counts: Mapping[OrderState, int], words: Mapping[str, int]) -> View:
    """A pool with its unfinished orders by state and its slots by word."""
    settings = pool.settings
    return {
        "name": pool.name,
        "host": pool.host,
        **mode_view(pool.mode, pool.mode_since, pool.mode_reason, pool.mode_actor),
        "pending": counts.get(OrderState.PENDING, 0),
        "open": sum(count for state, count in counts.items() if state in OPEN),
        "orders": dict(counts),
        "slots": dict(words),
        "slots_max": settings.slots_max,
        "blocked_since": shown_time(pool.blocked_since),
        "blocked_s": seconds(pool.blocked_ms),
        "settings": {
            "memory_mb": settings.memory_mb,
            "queue_timeout_s": seconds(settings.queue_timeout_ms),
            "queue_timeout_max_s": seconds(settings.queue_timeout_max_ms),
            "start_timeout_s": seconds(settings.start_timeout_ms),
            "run_timeout_s": seconds(settings.run_timeout_ms),
            "stop_grace_s": seconds(settings.stop_grace_ms),
            "retry": retry_view(settings.retry),
        },
    }


def host_view(host: Host, lease: Lease | None, memory_used_mb: int, now: int) -> View:
    """A host, who leads it, and how much of its memory budget is taken by open runs."""
    return {
        "name": host.name,
        "driver": host.driver,
        **mode_view(host.mode, host.mode_since, host.mode_reason, host.mode_actor),
        "lease": None if lease is None else lease_view(lease, now),
        "memory_used_mb": memory_used_mb,
        "memory_mb": host.memory_mb,
        "identity": host.identity,
        "unreachable_since": shown_time(host.unreachable_since),
        "error": host.error,
        "dead_at": shown_time(host.dead_at),
    }


def lease_view(lease: Lease, now: int) -> View:
    return {"owner": lease.owner, "epoch": lease.epoch, "until": shown_time(lease.until), "live": lease.until > now}
