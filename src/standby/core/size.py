"""How many slots a pool should have: made on demand and ahead of it, made anew, given up. Waiting orders come first.

Everything that is made takes one of the host's permits (`Room.permits`), unless the slots are seats. What is not made
for a waiting order leaves one permit free where there are several, so that the next order need not wait for it.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from standby.core import pressure, slots
from standby.core.admit import FAILURES_MAX, Plan, Room, serves
from standby.core.lifecycle import Cause
from standby.core.model import Change, Mode, Pool, Slot, SlotState

REFILL_AT_ONCE: Final = 4
"""So many slots of a pool are being made ahead of need at once, where the host has no limit."""

Causes = Callable[[], Cause]


def slot_name(installation: str, pool: str, number: int) -> str:
    return f"{installation}-pool-{pool}-{number:03}"


def size(cause: Causes, room: Room, plan: Plan, installation: str) -> Sequence[Change]:
    """The slots to begin, to make anew and to give up, of all pools of one host."""
    busy = [pool for pool in room.pools.values() if plan.wanted.get(pool.name) or not _rests(room, pool)]
    if not busy:
        return []
    budget = _Budget(room, plan)
    sized = [_Sized(cause, room, plan, pool, budget) for pool in busy]
    for each in sized:
        each.demand(installation)
    for each in sized:
        each.tend(installation)
    return [change for each in sized for change in each.changes]


def refills(room: Room, pool: Pool) -> bool:
    """Whether slots are kept ahead of need, or are to be made anew: its image is wanted without any order."""
    if (
        not serves(room.host, pool)
        or not pressure.takes_work(room.host)
        or room.tries.get(pool.name) == 0
        or room.is_seat(pool.name)
    ):
        return False
    used = (SlotState.CLEANING, SlotState.ERROR)
    return pool.settings.slots_warm > 0 or any(slot.pool == pool.name and slot.state in used for slot in room.slots)


def _rests(room: Room, pool: Pool) -> bool:
    """Whether nothing is to be done about the seats a pool has: the usual case, on the hot path."""
    settings = pool.settings
    if Mode.DRAINING in (room.host.mode, pool.mode) or not room.is_seat(pool.name):
        return False
    if settings.max_uses is not None or settings.max_age_ms is not None:
        return False
    states = [slot.state for slot in room.slots if slot.pool == pool.name]
    return len(states) <= settings.slots_max and SlotState.ERROR not in states


class _Budget:
    """What is left of the host for slots that no order waits for: permits and memory."""

    def __init__(self, room: Room, plan: Plan) -> None:
        self.permits, most = plan.permits, pressure.starts_max(room.host)
        if self.permits is not None and most is not None and most > 1:
            self.permits = min(self.permits, most - 1 - plan.starting)
        memory = room.host.memory_mb
        self.memory = None if memory is None else 0 if plan.blocked else memory - room.used_mb

    def take(self, memory_mb: int) -> bool:
        """A permit, and memory for a place that lives; false when there is none."""
        if self.permits is not None and self.permits <= 0:
            return False
        if memory_mb and self.memory is not None and memory_mb > self.memory:
            return False
        self.permits = None if self.permits is None else self.permits - 1
        self.spend(memory_mb)
        return True

    def spend(self, memory_mb: int) -> None:
        self.memory = None if self.memory is None else self.memory - memory_mb


class _Sized:
    """One pool, and the changes of its slots as they come together."""

    def __init__(self, cause: Causes, room: Room, plan: Plan, pool: Pool, budget: _Budget) -> None:
        self._cause, self._room, self._plan, self._pool, self._budget = cause, room, plan, pool, budget
        self._settings, self._seat = pool.settings, room.is_seat(pool.name)
        self._slots = [slot for slot in room.slots if slot.pool == pool.name]
        self._held = {order.slot for order in room.opened}
        self._touched = {order.slot for order in room.ending if order.slot is not None}
        """Slots with a change already, or with one under way."""
        self._new = 0
        claimed = any(admission.order.pool == pool.name for admission in plan.admissions)
        self._tries = 0 if claimed else room.tries.get(pool.name, 0)
        """How many more starts an open breaker lets through."""
        self.changes: list[Change] = []

    def demand(self, installation: str) -> None:
        """Begin what waiting orders want, used slots first; their permits are taken already."""
        wanted = self._plan.wanted.get(self._pool.name, 0)
        self._tries -= wanted
        alive = self._room.hands_over(self._pool.name)
        for slot in self._again()[:wanted]:
            self._change(slot, slots.recreate(self._cause(), slot))
            self._budget.spend(self._settings.memory_mb if alive and slot.incarnation is None else 0)
            wanted -= 1
        names = self._free_names(installation, wanted)
        self._budget.spend(len(names) * self._settings.memory_mb if alive else 0)
        self._create(names)

    def tend(self, installation: str) -> None:
        """Give up what is not wanted any more, then make what nobody waits for as far as permits go."""
        for slot, why in self._given_up():
            self._change(slot, slots.remove(self._cause(), slot, why))
        for slot in self._in(SlotState.CREATING):
            if self._is_late(slot):
                wait_s = self._settings.start_timeout_ms / 1000
                self._change(slot, slots.failed(self._cause(), slot, f"it was not ready after {wait_s:g} s"))
        if self._lacks_image():
            return
        for slot in self._again():
            if self._may_begin(new=slot.incarnation is None):
                self._change(slot, slots.recreate(self._cause(), slot))
        if serves(self._room.host, self._pool) and not self._seat:
            names = self._free_names(installation, self._lacking())
            self._create([name for name in names if self._may_begin(new=True)])

    # what is to be given up

    def _given_up(self) -> Iterator[tuple[Slot, str]]:
        """Slots that nobody holds, from the end, with the reason for each."""
        staying = [slot for slot in self._slots if slot.state is not SlotState.REMOVING]
        spare = len(staying) - self._settings.slots_max
        surplus, evicted = self._surplus(), {slot.name for slot in self._plan.evictions}
        for slot in sorted(staying, key=lambda slot: slot.name, reverse=True):
            if slot.name in self._held or slot.name in self._touched:
                continue
            why = self._useless(slot)
            if why is None and slot.state is SlotState.IDLE and slot.name in evicted:
                why = "its memory is needed by another pool"
            if why is None and spare > 0 and slot.state in (SlotState.IDLE, SlotState.ERROR):
                why = "there are more than slots_max"
            if why is None and slot.name in surplus:
                why = "it was idle for long"
            if why is not None:
                spare -= 1
                yield slot, why

    def _useless(self, slot: Slot) -> str | None:
        """Why it will not serve again, whatever the demand."""
        room, pool = self._room, self._pool
        if slot.template != room.made_of[pool.name]:
            return "its pool has another template"
        dirty = slot.state is SlotState.CLEANING and not self._seat
        if dirty or slot.state in (SlotState.IDLE, SlotState.ERROR):
            if Mode.DRAINING in (room.host.mode, pool.mode):
                return "its pool is draining"
            if not room.serves(slot):
                return f"it was used {slot.uses} times"
        if dirty and pool.broken_at is not None:
            return "its pool makes no slots: too many failed"
        if slot.state is SlotState.ERROR and slot.failures >= FAILURES_MAX:
            return f"it failed {slot.failures} times"
        return "it is old" if self._is_old(slot) else None

    def _is_old(self, slot: Slot) -> bool:
        """One at a time: slots that were made together do not go together."""
        most = self._settings.max_age_ms
        if most is None or slot.state is not SlotState.IDLE or self._room.now - slot.created_at < most:
            return False
        others = [other for other in self._slots if other.name in self._touched]
        return not others and not self._new and not self._in(SlotState.CREATING, SlotState.REMOVING)

    def _surplus(self) -> set[str]:
        """Slots above the warm ones that nobody used for long: broken ones, then the longest unused."""
        ttl = self._settings.idle_ttl_ms
        if ttl is None or self._seat:
            return set()
        idle = sorted((max(slot.state_since, slot.last_used_at or 0), slot.name) for slot in self._idle())
        broken = [(slot.state_since, slot.name) for slot in self._in(SlotState.ERROR)]
        long = [name for since, name in [*broken, *idle] if self._room.now - since >= ttl]
        return set(long[: max(0, len(broken) + len(idle) - self._settings.slots_warm)])

    def _is_late(self, slot: Slot) -> bool:
        """It should be made by now, also if only the time counts in which somebody could ask."""
        since = max(slot.state_since, self._room.asked_since)
        return self._room.now - since > self._settings.start_timeout_ms

    # what is to be made

    def _again(self) -> list[Slot]:
        """Slots that can be made anew now."""
        found = self._room.remakeable.get(self._pool.name, ())
        return [slot for slot in found if slot.name not in self._touched]

    def _lacking(self) -> int:
        """How many more must be made so that enough stay idle, those counted that no order waits for."""
        name = self._pool.name
        coming = [slot for slot in self._slots if slot.state in (SlotState.CREATING, SlotState.CLEANING)]
        making = sum(slot.template == self._room.made_of[name] for slot in coming) + self._new
        spoken = self._plan.spoken.get(name, 0)
        lacking = self._settings.slots_warm - len(self._idle()) - max(0, making - spoken)
        return lacking if self._budget.permits is not None else min(lacking, REFILL_AT_ONCE - making)

    def _idle(self) -> list[Slot]:
        free = [slot for slot in self._in(SlotState.IDLE) if slot.name not in self._held]
        return [slot for slot in free if self._room.serves(slot)]

    def _may_begin(self, *, new: bool) -> bool:
        if self._pool.broken_at is not None:
            if self._tries <= 0:
                return False
            self._tries -= 1
        if self._seat:
            return True
        alive = new and self._room.hands_over(self._pool.name)
        return self._budget.take(self._settings.memory_mb if alive else 0)

    def _lacks_image(self) -> bool:
        return not self._seat and self._settings.template.image in self._room.missing

    def _free_names(self, installation: str, lacking: int) -> list[str]:
        """The first free numbers up to the maximum, so that the unique name also proves the limit."""
        taken = {slot.name for slot in self._slots} | self._touched
        room = min(lacking, self._settings.slots_max - len(self._slots) - self._new)
        names: list[str] = []
        for number in range(1, self._settings.slots_max + 1):
            if len(names) >= room:
                break
            name = slot_name(installation, self._pool.name, number)
            if name not in taken:
                names.append(name)
        return names

    def _in(self, *states: SlotState) -> list[Slot]:
        """Slots in these states that nothing was decided about."""
        return [slot for slot in self._slots if slot.state in states and slot.name not in self._touched]

    def _create(self, names: Sequence[str]) -> None:
        made_of = self._room.made_of[self._pool.name]
        self.changes += [slots.create(self._cause(), name, self._pool, made_of) for name in names]
        self._touched.update(names)
        self._new += len(names)

    def _change(self, slot: Slot, change: Change) -> None:
        self.changes.append(change)
        self._touched.add(slot.name)
