"""The changes every order goes through (submit, claim, ready, end), told apart: narrow statements write them.

A change is hot when the columns it tells of are among those its narrow statement sets; a column that no statement knows
is enough to make it another one. Any other goes the general way, and so does a hot one that its statement did not take:
there it gets its exact verdict.

The event of a hot move is stored without the columns that follow from its kind, its time and its state: two fifths less
to write for each order. They are given back when it is read.
"""

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from msgspec.structs import replace

from standby.core.model import ENDED, Change, Event, EventKind, Guards, Idempotency, Json, Order, OrderState

SEPARATOR: Final = "\x1f"
NOTHING: Final = "\x1e"
"""Between and for values on their way to the database: a change whose texts hold them is not hot."""
ESCAPE: Final = "\\"
ESCAPED: Final = f"{ESCAPE}u001"
"""How both stand in JSON; the one letter is found ten times as fast, and is hardly ever there."""


class Hot(StrEnum):
    SUBMIT = "submit"
    CLAIM = "claim"
    READY = "ready"
    END = "end"


SUBMIT: Final = Hot.SUBMIT
CLAIM: Final = Hot.CLAIM
READY: Final = Hot.READY
END: Final = Hot.END
MOVES: Final = frozenset({CLAIM, READY, END})
"""Hot changes of orders that are there already."""

_UNGUARDED: Final = Guards()
_STATE: Final = frozenset({"version", "state", "state_since"})
_RUN: Final = frozenset({"slot", "incarnation", "handle", "commanded_at", "command_until", "ready_at", "deadline"})
_SUBMITTED: Final = _STATE | frozenset(
    {"id", "project", "pool", "memory_mb", "submitted_at", "attempt", "rank", "due_at", "queue_due", "dedupe_live"}
    | {"concurrency_key"}
)
_SLOT: Final = frozenset({"version", "state", "state_since", "uses", "last_used_at"})
_TOLD: Final = {
    CLAIM: frozenset({"version", "attempt", "slot", "incarnation", "command_until", "deadline"}),
    READY: frozenset({"version", "handle", "deadline"}),
    END: frozenset({"version", "due_at", "dedupe_live", "reason", "exit_code"}),
}
"""What moves write that follows neither from their kind nor from their time and state."""
_KINDS: Final = {
    EventKind.ORDER_CLAIMED: CLAIM,
    EventKind.ORDER_READY: READY,
    EventKind.ORDER_COMPLETED: END,
    EventKind.ORDER_FAILED: END,
    EventKind.ORDER_CANCELLED: END,
    EventKind.ORDER_RETRY_WAITING: END,
}
_EMPTY: Final[Mapping[str, Json]] = dict.fromkeys(sorted(_RUN | {"stop_reason"}))
"""What every end leaves empty."""


def hot_move(change: Change) -> tuple[Hot, Mapping[str, Json]] | None:
    """Which narrow statement writes this change of an order that is there, and what its event tells; or null."""
    kind, told = _KINDS.get(change.kind), change.told
    if kind is None or told is None or change.guards.lease is None or not told.keys() <= _TOLD[kind]:
        return None
    if (kind is END and not _is_end(change)) or (kind is READY and told["handle"] == ""):
        return None
    data: dict[str, Json] = {"order": told}
    if change.slot is not None and change.slot_columns is not None:
        data["slot"] = {**change.slot_columns, "name": change.slot.name}
    if change.run is not None:
        data["run"] = change.run
    if change.note:
        data["note"] = change.note
    return kind, data


def whole(event: Event) -> Event:
    """An event that was stored, with what follows from it."""
    hot, order = _KINDS.get(event.kind), event.data.get("order")
    if hot is None or not isinstance(order, dict) or "state" in order:
        return event
    columns: dict[str, Json] = {"version": None, "state": event.to_state, "state_since": event.at}
    match hot:
        case Hot.CLAIM:
            columns |= {"rank": None, "queue_due": None, "commanded_at": event.at}
        case Hot.READY:
            columns |= {"ready_at": event.at}
        case Hot.END:
            columns |= _EMPTY
            if event.to_state in ENDED:
                columns |= {"ended_at": event.at}
    return replace(event, data={**event.data, "order": columns | order})


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


def _of_places(change: Change) -> bool:
    """Whether it writes a pool, a host or a project."""
    places = change.pool or change.pool_was or change.host or change.host_was or change.project or change.project_was
    return places is not None


def _is_end(change: Change) -> bool:
    run, used = change.run, change.slot_columns
    if run is None or run.boot is not None or run.error_name is not None:
        return False
    if run.handle == "" or run.error == "":  # on its way a lone empty text looks like none
        return False
    return used is None or used.keys() <= _SLOT
