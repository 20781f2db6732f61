"""A leader's care for its host's slots: what became of making them, which are made or given up next, what strayed."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final

from standby.control.act import Hands, Made
from standby.control.book import Book
from standby.control.captions import Captions
from standby.control.lease import Hold
from standby.control.mirror import Mirror
from standby.control.pace import Pace
from standby.control.pulls import Pulls
from standby.core import places, size, slots, strays, warm
from standby.core.admit import Plan, Room
from standby.core.lifecycle import Cause
from standby.core.model import Change, EventKind, SlotState, Trigger
from standby.core.sighting import Place
from standby.drivers.contract import Caption, Driver, Images, Places
from standby.world import World

SWEEP_S: Final = 15.0
"""How often a platform is asked for all its places."""
SWEEP_MAX_S: Final = 3600.0
"""What does not go is taken away again, at the longest, after this."""
_PROOFS: Final = frozenset({EventKind.ORDER_READY, EventKind.ORDER_COMPLETED})
"""What shows that a place is good."""


class Tending:
    """The slots of one host in the hands of its leader. What it remembers only makes it wait a little longer."""

    def __init__(
        self, world: World, driver: Driver, hold: Hold, book: Book, hands: Hands, cause: Callable[[Trigger], Cause]
    ) -> None:
        self._world, self._driver, self._book, self._hands, self._cause = world, driver, book, hands, cause
        self._places = driver if isinstance(driver, Places) and not driver.seats else None
        told = isinstance(driver, Caption) and not driver.seats
        self._captions = Captions(driver, hands, world.clock) if told else None  # type: ignore[arg-type]
        self._pulls = Pulls(world, driver, hold, hands.wake) if isinstance(driver, Images) else None
        self._asked_since = world.clock.now()
        self.pace = Pace(self._asked_since)
        self._away = False
        self._started_at = 0
        self._swept_at = float("-inf")
        self._looked: tuple[int, Sequence[Place]] | None = None
        self._suspects: strays.Suspects = {}
        self._tried: dict[str, tuple[float, float]] = {}
        """Strays whose removal was sent: when it is sent again, and how long after the last time that is."""

    async def close(self) -> None:
        """Let go of the pulls under way."""
        if self._pulls is not None:
            await self._pulls.close()

    def reached(self, *, reached: bool) -> None:
        """The platform answered, or did not: only the time in which it can be asked counts against a slot."""
        if reached and self._away:
            self._asked_since = self._world.clock.now()
        self._away = not reached

    def started(self) -> None:
        """A start was allowed just now."""
        self._started_at = self._world.clock.now()

    def room(self, mirror: Mirror) -> Room:
        """What admission and size are decided from."""
        images = {pool.settings.template.image for pool in mirror.pools.values()} if self._pulls is not None else ()
        return mirror.room(
            seats=self._driver.seats,
            now=self._world.clock.now(),
            unsaved=self._book.unsaved,
            missing=frozenset() if self._pulls is None else self._pulls.missing(images),
            started_at=self._started_at,
            asked_since=self._asked_since,
            turns=self.pace.turns,
            overtaken=self.pace.overtaken,
            pool_started=self.pace.started(mirror.pools),
        )

    async def settle(self, mirror: Mirror, reports: Sequence[Made]) -> None:
        """Note what became of creating, cleaning and removing."""
        changes: list[Change] = []
        for made in reports:
            slot = mirror.slots.get(made.slot.name)
            if slot is None or slot.version != made.slot.version:
                continue
            cause = self._cause(Trigger.SIZE)
            if made.error is not None:
                tell = slots.stuck if slot.state is SlotState.REMOVING else slots.failed
                changes.append(tell(cause, slot, made.error))
            elif made.incarnation is not None:
                changes.append(slots.made(cause, slot, made.incarnation))
            else:
                changes.append(slots.gone(cause, slot))
        saved = await self._book.save(changes)
        made_alive = {
            change.slot.pool
            for change in saved
            if change.slot is not None
            and change.kind is EventKind.SLOT_IDLE
            and warm.hands_over(mirror.pools[change.slot.pool], self._driver.seats)
        }
        await self._count(mirror, saved, made_alive)

    async def judged(self, mirror: Mirror, changes: Sequence[Change]) -> None:
        """Note what ends and readies say of the places they were in."""
        failing = any(pool.failures for pool in mirror.pools.values())
        proven = (change.order.pool for change in changes if change.kind in _PROOFS and change.order is not None)
        await self._count(mirror, changes, set(proven) if failing else ())

    async def size(self, mirror: Mirror, plan: Plan) -> None:
        """Begin, make anew and give up slots; get the images that are wanted."""
        room = self.room(mirror)
        changes = size.size(lambda: self._cause(Trigger.SIZE), room, plan, self._world.config.installation)
        saved = await self._book.save(changes)
        if saved:
            making = [change.slot for change in saved if change.kind is EventKind.SLOT_CREATING]
            if any(slot is not None and not room.is_seat(slot.pool) for slot in making):
                self.started()
            await self._count(mirror, saved, ())
        if self._pulls is not None:
            ahead = {pool.settings.template.image for pool in room.pools.values() if size.refills(room, pool)}
            self._pulls.want(image for image in room.missing if image in ahead or image in plan.pulls)

    async def sweep(self, mirror: Mirror) -> None:
        """Now and then compare the platform's places with the rows."""
        if self._places is None:
            return
        looked, self._looked = self._looked, None
        if looked is not None:
            await self._compare(mirror, self._places, *looked)
            return
        now = self._world.clock.monotonic()
        if now - self._swept_at >= SWEEP_S and self._hands.beside("places", self._look(self._places)):
            self._swept_at = now

    def caption(self, mirror: Mirror) -> None:
        """Keep the lines in the platform's own page current."""
        if self._captions is not None:
            self._captions.tell(mirror)

    async def _look(self, driver: Places) -> None:
        asked_at = self._world.clock.now()
        self._looked = asked_at, await driver.places()

    async def _compare(self, mirror: Mirror, driver: Places, asked_at: int, found: Sequence[Place]) -> None:
        result = strays.compare(self.room(mirror), found, asked_at, self._suspects, self._driver.lag_ms)
        self._suspects = result.suspects
        await self._book.save([slots.clean(self._cause(Trigger.LOOK), slot, why) for slot, why in result.vanished])
        if result.strays:
            due = self._due(result.strays)
            names = [f"{place.slot} {place.incarnation}" for place in due]
            if due and await self._book.save([places.sweep(self._cause(Trigger.LOOK), mirror.host, names)]):
                for place in due:
                    self._hands.beside(f"stray {place.incarnation}", driver.remove_stray(place))
            return
        alarm = None
        if result.refused:
            alarm = f"{result.refused} of {len(found)} places belong to no slot: too many to be removed; look at them"
        change = places.alarm(self._cause(Trigger.LOOK), mirror.host, alarm)
        await self._book.save([] if change is None else [change])

    def _due(self, strays: Sequence[Place]) -> Sequence[Place]:
        """Those whose removal was not tried just now: one that does not go is tried ever more rarely."""
        now = self._world.clock.monotonic()
        tried = {each.incarnation: self._tried.get(each.incarnation, (now, SWEEP_S / 2)) for each in strays}
        due = [each for each in strays if tried[each.incarnation][0] <= now]
        again = {each.incarnation: min(tried[each.incarnation][1] * 2, SWEEP_MAX_S) for each in due}
        self._tried = {**tried, **{name: (now + gap_s, gap_s) for name, gap_s in again.items()}}
        return due

    async def _count(self, mirror: Mirror, changes: Sequence[Change], proven: Iterable[str]) -> None:
        """Keep the pools' breakers: so many failures, or a success."""
        failures = _failures(changes, self._asked_since)
        counted: list[Change | None] = []
        for name, messages in failures.items():
            pool = mirror.pools[name]
            counted.append(places.count_failures(self._cause(Trigger.LOOK), pool, len(messages), messages[-1]))
            if self._pulls is not None:
                self._pulls.doubt(pool.settings.template.image)
        good = [mirror.pools[name] for name in proven if name not in failures]
        counted += [places.count_success(self._cause(Trigger.LOOK), pool) for pool in good]
        await self._book.save([change for change in counted if change is not None])


def _failures(changes: Sequence[Change], since: int) -> Mapping[str, list[str]]:
    """By pool, what went wrong with slots that went into error. A place that is older than that the platform can be
    asked may have been broken as it went away, which is not its pool's fault."""
    failures: dict[str, list[str]] = {}
    for change in changes:
        if change.slot is None or change.slot.state is not SlotState.ERROR:
            continue
        if change.slot_was is None or change.slot_was.state_since >= since:
            failures.setdefault(change.slot.pool, []).append(change.slot.error or "")
    return failures
