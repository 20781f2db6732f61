"""Every legal change of a slot, each once. `SLOT_MOVES` is its state machine, like `lifecycle.ORDER_MOVES`."""

from typing import Final

from msgspec.structs import replace

from standby.core.lifecycle import Cause, Moves, change, check_move
from standby.core.model import Change, EventKind, Guards, Pool, Slot, SlotState

RETRY_MS: Final = 5_000
RETRY_CAP_MS: Final = 300_000

K = EventKind

SLOT_MOVES: Final[Moves] = {
    K.SLOT_CREATING: {None: frozenset({SlotState.CREATING}), SlotState.ERROR: frozenset({SlotState.CREATING})},
    K.SLOT_BOOTED: {state: frozenset({state}) for state in (SlotState.CREATING, SlotState.CLEANING, SlotState.IDLE)},
    K.SLOT_IDLE: {SlotState.CREATING: frozenset({SlotState.IDLE}), SlotState.CLEANING: frozenset({SlotState.IDLE})},
    K.SLOT_ERROR: {SlotState.CREATING: frozenset({SlotState.ERROR}), SlotState.CLEANING: frozenset({SlotState.ERROR})},
    K.SLOT_REMOVING: {
        SlotState.IDLE: frozenset({SlotState.REMOVING}),
        SlotState.ERROR: frozenset({SlotState.REMOVING}),
    },
    K.SLOT_GONE: {SlotState.REMOVING: frozenset({None})},
}


def create(cause: Cause, name: str, pool: Pool) -> Change:
    """nothing -> creating: the name is taken before anything is made."""
    slot = Slot(
        name=name, host=pool.host, pool=pool.name, state=SlotState.CREATING, state_since=cause.at, created_at=cause.at
    )
    return _slot(cause, K.SLOT_CREATING, None, slot, guards=Guards(lease=cause.lease, pool_version=pool.version))


def recreate(cause: Cause, slot: Slot) -> Change:
    """error -> creating: its time to try again has come."""
    after = replace(slot, state=SlotState.CREATING, state_since=cause.at, retry_at=None)
    return _slot(cause, K.SLOT_CREATING, slot, after)


def booted(cause: Cause, slot: Slot, nonce: str) -> Change:
    """creating | cleaning | idle, and a worker began to live there: the runs that are claimed from now on are its."""
    return _slot(cause, K.SLOT_BOOTED, slot, replace(slot, boot=nonce))


def made(cause: Cause, slot: Slot, incarnation: str) -> Change:
    """creating | cleaning -> idle: the place is there and clean."""
    after = replace(
        slot, state=SlotState.IDLE, state_since=cause.at, incarnation=incarnation, error=None, failures=0, retry_at=None
    )
    return _slot(cause, K.SLOT_IDLE, slot, after)


def failed(cause: Cause, slot: Slot, message: str) -> Change:
    """creating | cleaning -> error: the platform refused; tried again later, ever more rarely."""
    wait_ms = min(RETRY_MS * 2**slot.failures, RETRY_CAP_MS)
    after = replace(
        slot,
        state=SlotState.ERROR,
        state_since=cause.at,
        error=message,
        failures=slot.failures + 1,
        retry_at=cause.at + wait_ms,
        boot=None,
    )
    return _slot(cause, K.SLOT_ERROR, slot, after)


def remove(cause: Cause, slot: Slot) -> Change:
    """idle | error -> removing: nobody gets it any more, then it is taken away."""
    after = replace(slot, state=SlotState.REMOVING, state_since=cause.at, retry_at=None)
    idle = slot.state is SlotState.IDLE
    guards = Guards(
        lease=cause.lease,
        slot_free=slot.name if idle else None,
        slot_version=slot.version if idle else None,
    )
    return _slot(cause, K.SLOT_REMOVING, slot, after, guards=guards)


def gone(cause: Cause, slot: Slot) -> Change:
    """removing -> gone: the platform has nothing of it any more."""
    return _slot(cause, K.SLOT_GONE, slot, None)


def _slot(cause: Cause, kind: EventKind, was: Slot | None, after: Slot | None, guards: Guards | None = None) -> Change:
    row = after or was
    assert row is not None
    state_was, state = None if was is None else was.state, None if after is None else after.state
    check_move(SLOT_MOVES, kind, "slot", row.name, state_was, state)
    return change(cause, kind, guards, slot_was=was, slot=after)
