"""What a run leaves of its slot: the columns of it that change."""

from typing import Final

from standby.core.model import Json, Slot, SlotState
from standby.core.sighting import Exit

RETRY_MS: Final = 5_000
RETRY_CAP_MS: Final = 300_000
"""How long a broken slot waits before it is made anew: at first, and at the most."""
NOTED_MS: Final = 500
"""A mere seat is noted as used at most this often: its row is not written at each of many short runs."""


def used(slot: Slot, ending: Exit, at: int, *, seats: bool, lost: bool, counts: bool) -> dict[str, Json] | None:
    """After a run it is as it was (a seat), dirty, or broken where the place is to blame; null where that is not worth
    being written. What a lost run left is unknown, so it is dirty everywhere; a run that got anywhere proves the place.
    """
    if not (counts or lost or ending.place_failed or slot.failures) and _noted(slot, at):
        return None
    columns: dict[str, Json] = {"version": slot.version + 1, "uses": slot.uses + 1, "last_used_at": at}
    if ending.place_failed and ending.start_error is not None:
        return columns | broken(slot, at, ending.start_error)
    if slot.failures and not lost:
        columns["failures"] = 0
    if not seats or lost:
        columns |= {"state": SlotState.CLEANING, "state_since": at}
        if slot.boot is not None:
            columns["boot"] = None
    return columns


def broken(slot: Slot, at: int, message: str) -> dict[str, Json]:
    """In error: made anew later, ever more rarely."""
    return {
        "state": SlotState.ERROR,
        "state_since": at,
        "error": message,
        "failures": slot.failures + 1,
        "retry_at": at + min(RETRY_MS * 2**slot.failures, RETRY_CAP_MS),
        "boot": None,
    }


def _noted(slot: Slot, at: int) -> bool:
    return slot.last_used_at is not None and 0 <= at - slot.last_used_at < NOTED_MS
