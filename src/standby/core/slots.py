"""Every legal change of a slot, each once. `SLOT_MOVES` is its state machine, like `lifecycle.ORDER_MOVES`."""

from collections.abc import Mapping
from typing import Final

from msgspec.structs import replace

from standby.core.lifecycle import Cause, Moves, change, check_move
from standby.core.model import Change, EventKind, Guards, Json, Pool, Slot, SlotState
from standby.core.wear import broken

K = EventKind
_ANY: Final = (SlotState.CREATING, SlotState.IDLE, SlotState.CLEANING, SlotState.ERROR)

SLOT_MOVES: Final[Moves] = {
    K.SLOT_CREATING: {state: frozenset({SlotState.CREATING}) for state in (None, SlotState.CLEANING, SlotState.ERROR)},
    K.SLOT_BOOTED: {state: frozenset({state}) for state in (SlotState.CREATING, SlotState.IDLE)},
    K.SLOT_IDLE: {SlotState.CREATING: frozenset({SlotState.IDLE}), SlotState.CLEANING: frozenset({SlotState.IDLE})},
    K.SLOT_CLEANING: {SlotState.IDLE: frozenset({SlotState.CLEANING})},
    K.SLOT_ERROR: {SlotState.CREATING: frozenset({SlotState.ERROR}), SlotState.CLEANING: frozenset({SlotState.ERROR})},
    K.SLOT_REMOVING: {state: frozenset({SlotState.REMOVING}) for state in _ANY},
    K.SLOT_STUCK: {SlotState.REMOVING: frozenset({SlotState.REMOVING})},
    K.SLOT_GONE: {SlotState.REMOVING: frozenset({None})},
}


def create(cause: Cause, name: str, pool: Pool, template: str = "") -> Change:
    """nothing -> creating: the name is taken before anything is made. `template` says what it is made of."""
    slot = Slot(
        name=name,
        host=pool.host,
        pool=pool.name,
        state=SlotState.CREATING,
        state_since=cause.at,
        created_at=cause.at,
        generation=cause.at,  # a name serves again: what was once made under it must not look like this one
        template=template,
    )
    return _slot(cause, K.SLOT_CREATING, None, slot, guards=Guards(lease=cause.lease, pool_version=pool.version))


def recreate(cause: Cause, slot: Slot) -> Change:
    """cleaning | error -> creating: what is there (`incarnation`) is taken away, and the next generation is made."""
    after = replace(
        slot,
        state=SlotState.CREATING,
        state_since=cause.at,
        retry_at=None,
        generation=slot.generation + 1,
        boot=None,
    )
    return _slot(cause, K.SLOT_CREATING, slot, after)


def booted(cause: Cause, slot: Slot, nonce: str) -> Change:
    """creating | idle, and a worker began to live there: the runs that are claimed from now on are its."""
    return _slot(cause, K.SLOT_BOOTED, slot, replace(slot, boot=nonce))


def made(cause: Cause, slot: Slot, incarnation: str) -> Change:
    """creating | cleaning (a seat) -> idle: the place is there and clean. Only a run proves that it is any good, so its
    failures are not forgotten yet."""
    after = replace(
        slot, state=SlotState.IDLE, state_since=cause.at, incarnation=incarnation, error=None, retry_at=None
    )
    return _slot(cause, K.SLOT_IDLE, slot, after)


def failed(cause: Cause, slot: Slot, message: str) -> Change:
    """creating | cleaning -> error: the platform refused; tried again later, ever more rarely."""
    return _slot(cause, K.SLOT_ERROR, slot, replace(slot, **broken(slot, cause.at, message)))


def clean(cause: Cause, slot: Slot, why: str) -> Change:
    """idle -> cleaning: its place is gone, or cannot serve; nobody gets it until it was made anew."""
    after = replace(slot, state=SlotState.CLEANING, state_since=cause.at)
    guards = Guards(lease=cause.lease, slot_free=slot.name, slot_version=slot.version)
    return _slot(cause, K.SLOT_CLEANING, slot, after, guards=guards, note={"why": why})


def remove(cause: Cause, slot: Slot, why: str | None = None) -> Change:
    """Any state -> removing: nobody gets it any more, then it is taken away."""
    after = replace(slot, state=SlotState.REMOVING, state_since=cause.at, retry_at=None)
    idle = slot.state is SlotState.IDLE
    guards = Guards(
        lease=cause.lease,
        slot_free=slot.name if idle else None,
        slot_version=slot.version if idle else None,
    )
    return _slot(cause, K.SLOT_REMOVING, slot, after, guards=guards, note={"why": why} if why else {})


def stuck(cause: Cause, slot: Slot, message: str) -> Change:
    """removing, and the platform does not take it away: tried again all the while, and told why it is still there."""
    return _slot(cause, K.SLOT_STUCK, slot, replace(slot, error=message))


def gone(cause: Cause, slot: Slot) -> Change:
    """removing -> gone: the platform has nothing of it any more."""
    return _slot(cause, K.SLOT_GONE, slot, None)


def _slot(
    cause: Cause,
    kind: EventKind,
    was: Slot | None,
    after: Slot | None,
    guards: Guards | None = None,
    note: Mapping[str, Json] | None = None,
) -> Change:
    row = after or was
    assert row is not None
    state_was, state = None if was is None else was.state, None if after is None else after.state
    check_move(SLOT_MOVES, kind, "slot", row.name, state_was, state)
    return change(cause, kind, guards=guards, slot_was=was, slot=after, note=note or {})
