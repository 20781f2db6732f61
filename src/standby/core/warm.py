"""What the slots of a pool are, as far as decisions depend on it: seats, places that are made, places that live."""

from standby.core.model import Pool, Reset, Slot, SlotState, Warmth
from standby.core.places import fingerprint


def is_seat(pool: Pool, seats: bool) -> bool:
    """Whether making its slots makes nothing. `seats`: the whole driver has nothing else."""
    return seats or pool.settings.template.warmth is Warmth.COLD


def hands_over(pool: Pool, seats: bool) -> bool:
    """Whether its idle slots are alive: work is handed over to them, which is no start of the platform."""
    return not seats and pool.settings.template.warmth is Warmth.RUNNING


def stays(pool: Pool, seats: bool) -> bool:
    """Whether a used slot serves again as it is: a seat, or a live place of one project that wants no reset."""
    settings = pool.settings
    kept = settings.reset is Reset.NONE and settings.project is not None
    return is_seat(pool, seats) or (kept and hands_over(pool, seats))


def made_of(pool: Pool, seats: bool) -> str:
    """What its slots must be made of to be claimed (`slot.template`); a seat is made of nothing."""
    return "" if is_seat(pool, seats) else fingerprint(pool.settings)


def may_make(pool: Pool, slot: Slot, seats: bool) -> bool:
    """Whether its place may be made now: a used one when it gets a permit, a seat at once; none of another template
    than its pool's."""
    if slot.state is SlotState.CLEANING and not is_seat(pool, seats):
        return False
    return slot.template == made_of(pool, seats)


def needed_mb(pool: Pool, memory_mb: int, seats: bool) -> int:
    """What a run of this pool takes that asks for so much: never less than a live place has."""
    return max(memory_mb, pool.settings.memory_mb) if hands_over(pool, seats) else memory_mb
