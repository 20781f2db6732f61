"""How many slots a pool should have: made on demand below its maximum, taken away when it drains or shrinks."""

from collections.abc import Callable, Mapping, Sequence

from standby.core import slots
from standby.core.admit import Room
from standby.core.lifecycle import Cause
from standby.core.model import Change, Mode, Pool, Slot, SlotState

FAILURES_MAX = 3


def slot_name(installation: str, pool: str, number: int) -> str:
    return f"{installation}-pool-{pool}-{number:03}"


def size(cause: Callable[[], Cause], room: Room, wanted: Mapping[str, int], installation: str) -> Sequence[Change]:
    """The slots to begin, to try again and to give up, of all pools of one host."""
    changes: list[Change] = []
    held = {order.slot for order in room.opened}
    for pool in room.pools.values():
        if not wanted.get(pool.name) and _rests(room, pool):
            continue
        mine = [slot for slot in room.slots if slot.pool == pool.name]
        coming = sum(slot.state in (SlotState.CREATING, SlotState.CLEANING) for slot in mine)
        lacking = max(0, wanted.get(pool.name, 0) - coming)
        names = _free_names(installation, pool, mine, lacking)
        changes += [slots.create(cause(), name, pool) for name in names]
        changes += _tend(cause, room, pool, [slot for slot in mine if slot.name not in held])
    return changes


def _rests(room: Room, pool: Pool) -> bool:
    """Whether nothing is to be done about the slots a pool has: the usual case, on the hot path."""
    if Mode.DRAINING in (room.host.mode, pool.mode):
        return False
    states = [slot.state for slot in room.slots if slot.pool == pool.name]
    return len(states) <= pool.settings.slots_max and SlotState.ERROR not in states


def _free_names(installation: str, pool: Pool, mine: Sequence[Slot], lacking: int) -> list[str]:
    """The first free numbers up to the maximum, so that the unique name also proves the limit."""
    taken = {slot.name for slot in mine}
    names: list[str] = []
    for number in range(1, pool.settings.slots_max + 1):
        if len(names) >= lacking or len(names) + len(mine) >= pool.settings.slots_max:
            break
        name = slot_name(installation, pool.name, number)
        if name not in taken:
            names.append(name)
    return names


def _tend(cause: Callable[[], Cause], room: Room, pool: Pool, unheld: Sequence[Slot]) -> list[Change]:
    changes: list[Change] = []
    draining = Mode.DRAINING in (room.host.mode, pool.mode)
    staying = [slot for slot in room.slots if slot.pool == pool.name and slot.state is not SlotState.REMOVING]
    spare = len(staying) - pool.settings.slots_max
    for slot in sorted(unheld, key=lambda slot: slot.name, reverse=True):
        if slot.state is SlotState.IDLE and (draining or spare > 0):
            changes.append(slots.remove(cause(), slot))
            spare -= 1
        elif slot.state is SlotState.ERROR:
            if draining or spare > 0 or slot.failures >= FAILURES_MAX:
                changes.append(slots.remove(cause(), slot))
                spare -= 1
            elif slot.retry_at is not None and slot.retry_at <= cause().at:
                changes.append(slots.recreate(cause(), slot))
    return changes
