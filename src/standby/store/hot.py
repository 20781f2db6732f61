"""The changes every order goes through (submit, claim, ready, end), told apart: narrow statements write them.

A change is hot when the columns it writes are exactly those its narrow statement sets. Any other goes the general way,
and so does a hot one that its statement did not take: there it gets its exact verdict.
"""

from collections.abc import Set as AbstractSet
from enum import StrEnum
from typing import Final

from standby.core.model import Change, EventKind, Guards, Order, OrderState

SEPARATOR: Final = "\x1f"
NOTHING: Final = "\x1e"
"""Between and for values on their way to the database: a change whose texts hold them is not hot."""
_ESCAPED: Final = "\\u001"
"""How both stand in JSON."""


class Hot(StrEnum):
    SUBMIT = "submit"
    CLAIM = "claim"
    READY = "ready"
    END = "end"


_UNGUARDED: Final = Guards()
_STATE: Final = frozenset({"version", "state", "state_since"})
_RUN: Final = frozenset({"slot", "incarnation", "handle", "commanded_at", "command_until", "ready_at", "deadline"})
_SLOT: Final = frozenset({"version", "state", "state_since", "uses", "last_used_at"})
_COLUMNS: Final = {
    Hot.CLAIM: _STATE
    | {"attempt", "rank", "queue_due", "slot", "incarnation", "commanded_at", "command_until", "deadline"}
    | {"boot", "deploy_since"},
    Hot.READY: _STATE | {"ready_at", "handle", "deadline"},
    Hot.END: _STATE | _RUN | {"stop_reason", "reason", "exit_code", "ended_at", "dedupe_live", "due_at", "boot"},
}
HOT_KINDS: Final = {
    EventKind.ORDER_CLAIMED: Hot.CLAIM,
    EventKind.ORDER_READY: Hot.READY,
    EventKind.ORDER_COMPLETED: Hot.END,
    EventKind.ORDER_FAILED: Hot.END,
    EventKind.ORDER_CANCELLED: Hot.END,
    EventKind.ORDER_RETRY_WAITING: Hot.END,
}


def hot_kind(change: Change, data: str, order: AbstractSet[str], slot: AbstractSet[str] | None) -> Hot | None:
    """Which narrow statement writes this change, given the columns of its order and its slot that differ."""
    kind = HOT_KINDS.get(change.kind)
    if (
        kind is None
        or _ESCAPED in data
        or change.order is None
        or change.guards.lease is None
        or not order <= _COLUMNS[kind]
    ):
        return None
    if change.order.state_since != change.at or (slot is not None and not slot <= _SLOT):
        return None
    return kind if _FITS[kind](change, change.order) else None


def is_submit(change: Change, data: str) -> bool:
    """Whether the narrow statement for new orders writes this change."""
    order, spec, kept = change.order, change.spec, change.idempotency
    if change.kind is not EventKind.ORDER_SUBMITTED or order is None or spec is None or _ESCAPED in data:
        return False
    if kept is not None:
        texts = (kept.key, kept.fingerprint, kept.answer)
        if any(SEPARATOR in text or NOTHING in text for text in texts):
            return False
        if (kept.project, kept.order_id, kept.at) != (order.project, order.id, change.at):
            return False
    new = Order(
        id=order.id,
        project=order.project,
        pool=order.pool,
        memory_mb=order.memory_mb,
        submitted_at=change.at,
        state=OrderState.PENDING,
        state_since=change.at,
        rank=order.rank,
        due_at=order.due_at,
        queue_due=order.queue_due,
        dedupe_live=order.dedupe_live,
    )
    if change.sealed_env == b"" or order.dedupe_live == "":  # on its way a lone empty text looks like none
        return False
    rest = (change.order_was, change.run, change.slot, change.pool, change.host, change.project)
    alone = all(row is None for row in rest) and change.guards == _UNGUARDED
    return alone and order == new and spec.order_id == order.id


def _is_claim(change: Change, order: Order) -> bool:
    guards = change.guards
    taken = guards.slot_free == order.slot is not None and guards.slot_version is not None and guards.project_limit
    waited = order.rank is None and order.queue_due is None and order.deploy_since is None
    return taken and waited and order.commanded_at == change.at and change.run is None and change.slot is None


def _is_ready(change: Change, order: Order) -> bool:
    alone = change.guards.slot_free is None and change.run is None and change.slot is None
    return alone and order.ready_at == change.at and order.handle != ""


def _is_end(change: Change, order: Order) -> bool:
    run, was, slot = change.run, change.slot_was, change.slot
    if run is None or was is None or slot is None or change.guards.slot_free is not None:
        return False
    if run.boot is not None or run.error_name is not None:
        return False
    if "" in (run.handle, run.error):  # on its way a lone empty text looks like none
        return False
    same_run = (run.order_id, run.slot, run.ended_at) == (order.id, slot.name, change.at)
    same_outcome = (run.reason, run.exit_code) == (order.reason, order.exit_code)
    used = slot.uses == was.uses + 1 and slot.last_used_at == change.at
    let_go = order.slot is None and order.stop_reason is None and (order.ended_at is None or order.dedupe_live is None)
    return same_run and same_outcome and used and let_go


_FITS: Final = {Hot.CLAIM: _is_claim, Hot.READY: _is_ready, Hot.END: _is_end}
