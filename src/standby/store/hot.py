"""The changes every order goes through (submit, claim, ready, end), told apart: narrow statements write them.

A change is hot when the columns it writes are exactly those its narrow statement sets; a column that no statement knows
is enough to make it another one. Any other goes the general way, and so does a hot one that its statement did not take:
there it gets its exact verdict.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from standby.core.model import Change, EventKind, Guards, Idempotency, Json, Order, OrderState

SEPARATOR: Final = "\x1f"
NOTHING: Final = "\x1e"
"""Between and for values on their way to the database: a change whose texts hold them is not hot."""
ESCAPED: Final = "\\u001"
"""How both stand in JSON."""


class Hot(StrEnum):
    SUBMIT = "submit"
    CLAIM = "claim"
    READY = "ready"
    END = "end"


MOVES: Final = frozenset({Hot.CLAIM, Hot.READY, Hot.END})
"""Hot changes of orders that are there already."""

_UNGUARDED: Final = Guards()
_STATE: Final = frozenset({"version", "state", "state_since"})
_RUN: Final = frozenset({"slot", "incarnation", "handle", "commanded_at", "command_until", "ready_at", "deadline"})
_SUBMITTED: Final = _STATE | frozenset(
    {"id", "project", "pool", "memory_mb", "submitted_at", "attempt", "rank", "due_at", "queue_due", "dedupe_live"}
    | {"concurrency_key"}
)
_SLOT: Final = frozenset({"version", "state", "state_since", "uses", "last_used_at"})
_CLAIMED: Final = frozenset({"attempt", "rank", "queue_due"}) | (_RUN - {"handle", "ready_at"})
_ENDED: Final = frozenset({"stop_reason", "reason", "exit_code", "ended_at", "dedupe_live", "due_at"})
_ORDER: Final = {
    Hot.CLAIM: _STATE | _CLAIMED,
    Hot.READY: _STATE | {"ready_at", "handle", "deadline"},
    Hot.END: _STATE | _RUN | _ENDED,
}
_KINDS: Final = {
    (EventKind.ORDER_CLAIMED, OrderState.PREPARING): Hot.CLAIM,
    (EventKind.ORDER_READY, OrderState.RUNNING): Hot.READY,
    (EventKind.ORDER_COMPLETED, OrderState.COMPLETED): Hot.END,
    (EventKind.ORDER_FAILED, OrderState.FAILED): Hot.END,
    (EventKind.ORDER_CANCELLED, OrderState.CANCELLED): Hot.END,
    (EventKind.ORDER_RETRY_WAITING, OrderState.WAITING_RETRY): Hot.END,
}


def hot_move(change: Change, was: Order, now: Order) -> tuple[Hot, Mapping[str, Json]] | None:
    """Which narrow statement writes this change of an order that is there, and what its event tells; or null."""
    kind, columns = _KINDS.get((change.kind, now.state)), change.columns
    if kind is None or columns is None or not columns.keys() <= _ORDER[kind] or not _of_a_run(change):
        return None
    if change.guards.lease is None or now.state_since != change.at or now.version != was.version + 1:
        return None
    if not _FITS[kind](change, was, now):
        return None
    data: dict[str, Json] = {"order": columns}
    if change.slot is not None and change.slot_columns is not None:
        data["slot"] = {**change.slot_columns, "name": change.slot.name}
    if change.run is not None:
        data["run"] = change.run
    if change.note:
        data["note"] = change.note
    return kind, data


def is_submit(change: Change, order: Order, columns: Mapping[str, Json]) -> bool:
    """Whether the narrow statement for new orders writes this change; `columns` are those of the order."""
    at, spec, kept = change.at, change.spec, change.idempotency
    if change.kind is not EventKind.ORDER_SUBMITTED or spec is None or not columns.keys() <= _SUBMITTED:
        return False
    if order.version != 1 or order.attempt or order.state is not OrderState.PENDING or spec.order_id != order.id:
        return False
    if order.submitted_at != at or order.state_since != at or change.guards != _UNGUARDED:
        return False
    if change.run or change.slot or change.slot_was or change.schedule or change.schedule_was or _of_places(change):
        return False
    if change.sealed_env == b"" or order.dedupe_live == "" or order.concurrency_key == "":
        return False  # on its way a lone empty text looks like none
    return kept is None or _is_kept(kept, order, at)


def _is_kept(kept: Idempotency, order: Order, at: int) -> bool:
    texts = (kept.key, kept.fingerprint, kept.answer)
    if any(SEPARATOR in text or NOTHING in text for text in texts):
        return False
    return (kept.project, kept.order_id, kept.at) == (order.project, order.id, at)


def _of_a_run(change: Change) -> bool:
    """Whether nothing is written beside the order, its slot and its run."""
    return not (_of_places(change) or change.spec or change.idempotency or change.sealed_env is not None)


def _of_places(change: Change) -> bool:
    """Whether it writes a pool, a host or a project."""
    places = change.pool or change.pool_was or change.host or change.host_was or change.project or change.project_was
    return places is not None


def _is_claim(change: Change, was: Order, now: Order) -> bool:
    guards = change.guards
    taken = guards.slot_free == now.slot is not None and guards.slot_version is not None and guards.project_limit
    waited = was.slot is None and was.state is OrderState.PENDING and now.rank is None and now.queue_due is None
    alone = not (change.run or change.slot or change.slot_was)
    return alone and taken and waited and now.commanded_at == change.at


def _is_ready(change: Change, was: Order, now: Order) -> bool:
    alone = change.guards.slot_free is None and not (change.run or change.slot or change.slot_was)
    return alone and was.state is OrderState.PREPARING and now.ready_at == change.at and now.handle != ""


def _is_end(change: Change, was: Order, now: Order) -> bool:
    run = change.run
    if run is None or change.guards.slot_free is not None:
        return False
    if run.boot is not None or run.error_name is not None:
        return False
    if run.handle == "" or run.error == "":  # on its way a lone empty text looks like none
        return False
    same_run = run.order_id == now.id and run.slot == was.slot and run.ended_at == change.at
    same_outcome = run.reason is now.reason and run.exit_code == now.exit_code
    let_go = now.slot is now.stop_reason is None and (now.ended_at is None or now.dedupe_live is None)
    return same_run and same_outcome and let_go and _is_use(change, was)


def _is_use(change: Change, was: Order) -> bool:
    """Whether it writes one more use of the order's slot and nothing else of it, or nothing at all."""
    slot_was, slot, used = change.slot_was, change.slot, change.slot_columns
    if slot_was is None or slot is None or used is None:
        return slot_was is None and slot is None and used is None
    if not used.keys() <= _SLOT or slot.version != slot_was.version + 1 or slot.name != was.slot:
        return False
    return slot.uses == slot_was.uses + 1 and slot.last_used_at == change.at


_FITS: Final = {Hot.CLAIM: _is_claim, Hot.READY: _is_ready, Hot.END: _is_end}
