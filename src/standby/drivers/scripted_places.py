"""What a scripted platform has besides runs: places that are made and vanish, images that are pulled, captions."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator

from msgspec import Struct

from standby.core.model import Slot, Warmth
from standby.core.sighting import Place
from standby.drivers.contract import CommandRefused, Making

Pause = Callable[[], Awaitable[None]]


class Made(Struct, kw_only=True):
    """One place on the platform."""

    slot: str
    generation: int
    incarnation: str
    making: Making
    made_at: int
    ready_at: int
    used: bool = False
    """Something was started in it."""
    sound: bool = True
    """False: it is there and cannot serve."""

    def usable(self) -> bool:
        """Whether an idle slot could serve with it."""
        return self.sound and (not self.used or self.making.template.warmth is Warmth.RUNNING)


class Yard:
    """The places, images and captions of one platform, and what shall go wrong with them."""

    def __init__(self, identity: str) -> None:
        self._identity, self._count = identity, 0
        self.made: dict[str, Made] = {}
        """By incarnation."""
        self.create_ms: dict[str, int] = {}
        """By pool: how long it takes until a place is ready."""
        self.refuses_creates = 0
        """How many of the next places cannot be made."""
        self.images: set[str] | None = None
        """The images that are there; null: all there are."""
        self.pull_ms = 0
        self.pulls_fail = 0
        """How many of the next pulls fail."""
        self.pulling: dict[str, int] = {}
        """Image -> when its pull began."""
        self.pulls: list[str] = []
        """Every pull that ever began."""
        self.captions: dict[str, str] = {}

    def create(self, slot: Slot, making: Making, now: int) -> str | None:
        """Make the place unless this generation of it is there; null until it is ready."""
        place = self.find(slot.name, slot.generation)
        if place is None:
            image = making.template.image
            if self.images is not None and image is not None and image not in self.images:
                raise CommandRefused(f"no such image: {image}")
            if self.refuses_creates > 0:
                self.refuses_creates -= 1
                raise CommandRefused("the script says that this place cannot be made")
            place = self.put(slot, making, now)
        return place.incarnation if now >= place.ready_at else None

    def put(self, slot: Slot, making: Making, now: int) -> Made:
        """A new place, whatever there is."""
        self._count += 1
        place = Made(
            slot=slot.name,
            generation=slot.generation,
            incarnation=f"{self._identity}:{slot.name}:{self._count}",
            making=making,
            made_at=now,
            ready_at=now + self.create_ms.get(slot.pool, 0),
        )
        self.made[place.incarnation] = place
        return place

    def find(self, slot: str, generation: int) -> Made | None:
        """The place that was made as this generation."""
        mine = (made for made in self.made.values() if made.slot == slot and made.generation == generation)
        return next(mine, None)

    def named(self, slot: Slot) -> Made | None:
        """The very place that a slot is: by its incarnation, or where that is not known by its generation."""
        if slot.incarnation is not None:
            return self.made.get(slot.incarnation)
        return self.find(slot.name, slot.generation)

    def begin(self, incarnation: str) -> None:
        """Something starts there; raises CommandRefused where something else ran before."""
        place = self.made[incarnation]
        if place.used and place.making.template.warmth is not Warmth.RUNNING:
            raise CommandRefused(f"{incarnation} was used before")
        place.used = True

    def listed(self, now: int) -> Iterator[Place]:
        """Every place there is."""
        for made in self.made.values():
            yield Place(
                slot=made.slot,
                incarnation=made.incarnation,
                usable=made.usable() and now >= made.ready_at,
                made_at=made.made_at,
                asked_at=now,
            )

    async def pull(self, image: str, now: Callable[[], int], pause: Pause) -> AsyncIterator[str]:
        """Get an image: it is there when its time is over, counted by the passed clock."""
        self.pulls.append(image)
        self.pulling[image] = begun = now()
        try:
            while (left := begun + self.pull_ms - now()) > 0:
                yield f"{100 - 100 * left // self.pull_ms} %"
                await pause()
            if self.pulls_fail > 0:
                self.pulls_fail -= 1
                raise CommandRefused(f"the script says that {image} cannot be pulled")
        finally:
            self.pulling.pop(image, None)  # another leader may pull it too
        if self.images is not None:
            self.images.add(image)
