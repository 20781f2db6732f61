"""Plain builders of rows and changes for the tests of the store: changes are written out, not decided."""

import itertools
import uuid
from typing import Any

from msgspec.structs import replace

from standby.core.model import (
    Change,
    EventKind,
    Guards,
    Host,
    Idempotency,
    Order,
    OrderState,
    Pool,
    Project,
    Run,
    Slot,
    SlotState,
    Spec,
    Trigger,
)

NOW = 1_700_000_000_000
_numbers = itertools.count(1)


def change(kind: EventKind, trigger: Trigger = Trigger.ADMIT, **parts: Any) -> Change:
    """A change with an id of its own."""
    return Change(id=uuid.uuid4().hex, kind=kind, at=NOW, trigger=trigger, actor="tester", **parts)


def order(project: str = "a", pool: str = "p", **columns: Any) -> Order:
    """A pending, ready order."""
    number = next(_numbers)
    base: dict[str, Any] = {
        "id": f"order-{uuid.uuid4().hex[:8]}-{number}",
        "project": project,
        "pool": pool,
        "memory_mb": 256,
        "submitted_at": NOW,
        "state": OrderState.PENDING,
        "state_since": NOW,
        "rank": NOW + number,
    }
    if columns.get("due_at") is not None:
        base["rank"] = None
    return Order(**{**base, **columns})


def slot(
    name: str = "s-1", host: str = "h", pool: str = "p", state: SlotState = SlotState.IDLE, **columns: Any
) -> Slot:
    """An idle slot."""
    base: dict[str, Any] = {"state_since": NOW, "created_at": NOW, "incarnation": f"{name}#1"}
    return Slot(name=name, host=host, pool=pool, state=state, **{**base, **columns})


def submit(
    row: Order | None = None,
    *,
    env: bytes | None = None,
    key: str | None = None,
    labels: dict[str, str] | None = None,
    **columns: Any,
) -> Change:
    """nothing -> pending."""
    row = row or order(**columns)
    replay = None
    if key is not None:
        replay = Idempotency(
            project=row.project, key=key, fingerprint="f", order_id=row.id, answer=f'{{"id":"{row.id}"}}', at=NOW
        )
    return change(
        EventKind.ORDER_SUBMITTED,
        Trigger.REQUEST,
        order=row,
        spec=Spec(order_id=row.id, command=("true",), labels=labels or {}),
        sealed_env=env,
        idempotency=replay,
    )


def claim(was: Order, place: Slot, **guards: Any) -> Change:
    """pending -> preparing in a slot."""
    now = replace(
        was,
        state=OrderState.PREPARING,
        attempt=was.attempt + 1,
        rank=None,
        queue_due=None,
        slot=place.name,
        incarnation=place.incarnation,
        commanded_at=NOW,
        command_until=NOW + 2_000,
        boot=place.boot,
    )
    checks = Guards(**{"slot_free": place.name, "slot_version": place.version, **guards})
    return change(EventKind.ORDER_CLAIMED, order_was=was, order=now, guards=checks)


def ready(was: Order, **guards: Any) -> Change:
    """preparing -> running."""
    now = replace(was, state=OrderState.RUNNING, ready_at=NOW + 1, handle="pid 7")
    return change(EventKind.ORDER_READY, Trigger.LOOK, order_was=was, order=now, guards=Guards(**guards))


def settle(was: Order, place: Slot | None = None, **guards: Any) -> Change:
    """preparing or running -> completed; the slot counts one use more."""
    assert was.slot is not None and was.incarnation is not None
    now = replace(
        was,
        state=OrderState.COMPLETED,
        dedupe_live=None,
        slot=None,
        incarnation=None,
        handle=None,
        commanded_at=None,
        command_until=None,
        ready_at=None,
        exit_code=0,
        ended_at=NOW + 2,
    )
    run = Run(
        order_id=was.id,
        number=was.attempt,
        slot=was.slot,
        incarnation=was.incarnation,
        commanded_at=NOW,
        ended_at=NOW + 2,
        exit_code=0,
    )
    used = None if place is None else replace(place, uses=place.uses + 1, last_used_at=NOW + 2)
    return change(
        EventKind.ORDER_COMPLETED,
        Trigger.LOOK,
        order_was=was,
        order=now,
        run=run,
        slot_was=place,
        slot=used,
        guards=Guards(**guards),
    )


def cancel(was: Order) -> Change:
    """pending -> cancelled."""
    now = replace(
        was, state=OrderState.CANCELLED, rank=None, due_at=None, queue_due=None, dedupe_live=None, ended_at=NOW + 3
    )
    return change(EventKind.ORDER_CANCELLED, Trigger.REQUEST, order_was=was, order=now)


def add_slot(row: Slot) -> Change:
    """nothing -> a slot, idle at once."""
    return change(EventKind.SLOT_IDLE, Trigger.SIZE, slot=row)


def slot_gone(was: Slot) -> Change:
    """A slot -> nothing."""
    return change(EventKind.SLOT_GONE, Trigger.SIZE, slot_was=was)


def put_pool(was: Pool | None, now: Pool) -> Change:
    """A pool as the configuration wants it."""
    return change(EventKind.POOL_APPLIED, Trigger.CONFIG, pool_was=was, pool=now)


def put_host(was: Host | None, now: Host) -> Change:
    """A host as the configuration wants it."""
    return change(EventKind.HOST_APPLIED, Trigger.CONFIG, host_was=was, host=now)


def limit_project(name: str, running_max: int | None, was: Project | None = None) -> Change:
    """How many open runs a project may have."""
    now = Project(name=name, running_max=running_max)
    return change(EventKind.PROJECT_APPLIED, Trigger.CONFIG, project_was=was, project=now)


def saved_order(made: Change) -> Order:
    """The order as it is after the change was saved."""
    assert made.order is not None
    return made.order if made.order_was is None else replace(made.order, version=made.order_was.version + 1)


def saved_slot(made: Change) -> Slot:
    """The slot as it is after the change was saved."""
    assert made.slot is not None
    return made.slot if made.slot_was is None else replace(made.slot, version=made.slot_was.version + 1)


def without_host_guard(made: Change) -> Change:
    """The same change, decided without a look at the host's version."""
    return replace(made, guards=replace(made.guards, host_version=None))
