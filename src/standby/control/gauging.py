"""A leader's eye on how full its host is: readings taken beside the steps, and what they make of the host's row."""

import asyncio
from collections.abc import Callable
from typing import Final

import msgspec
import structlog

from standby.control.act import Hands
from standby.control.book import Book
from standby.control.mirror import Mirror
from standby.core import places, pressure
from standby.core.lifecycle import Cause
from standby.core.model import Host, Level, Trigger
from standby.core.sighting import Reading
from standby.drivers.contract import Driver, Gauge
from standby.store.contract import StoreDown
from standby.world import World, within

log = structlog.get_logger()

FIRST_S: Final = 1.0
"""How long a new leader waits for its first reading."""
READING_S: Final = 1.0
"""How often a host is measured."""
KEPT_S: Final = 10.0
"""How often a reading is stored while nothing presses."""
BREAK_S: Final = 10.0
"""Readings further apart than this say nothing about the time between them."""


class Gauging:
    """The readings of one host in the hands of its leader. What it remembers only makes it wait a little longer."""

    def __init__(
        self, world: World, driver: Driver, book: Book, hands: Hands, cause: Callable[[Trigger], Cause]
    ) -> None:
        self._world, self._book, self._hands, self._cause = world, book, hands, cause
        self._gauge = driver if isinstance(driver, Gauge) else None
        self._asked_at = self._stored_at = self._known_at = float("-inf")
        self._taken: tuple[float, Reading] | None = None
        self._came = asyncio.Event()

    async def begin(self, host: Host) -> None:
        """The first reading of an epoch, so that nothing is claimed on a machine that was full before; it is not waited
        for long."""
        if self._gauge is not None and self._hands.beside("gauge", self._measure(self._gauge, host)):
            await within(self._came, FIRST_S)

    async def weigh(self, mirror: Mirror) -> None:
        """Take in the last reading, and have the next one taken when it is time."""
        if self._gauge is None:
            return
        taken, self._taken = self._taken, None
        if taken is not None:
            await self._take_in(mirror, *taken)
        now = self._world.clock.monotonic()
        if now - self._asked_at >= READING_S and self._hands.beside("gauge", self._measure(self._gauge, mirror.host)):
            self._asked_at = now

    async def _take_in(self, mirror: Mirror, at: float, reading: Reading) -> None:
        unbroken = at - self._known_at <= BREAK_S
        after = pressure.weigh(mirror.host, reading, self._world.clock.now(), unbroken=unbroken)
        if pressure.used(reading) is not None:
            self._known_at = at
        change = places.press(self._cause(Trigger.LOOK), mirror.host, after)
        if change is not None:
            await self._book.save([change])

    async def _measure(self, gauge: Gauge, host: Host) -> None:
        reading, at = Reading(), self._world.clock.monotonic()
        try:
            reading = await gauge.measure()
        finally:
            self._taken = at, reading
            self._came.set()
        found = pressure.measured(host.limits, reading)
        pressed = host.pressure is not Level.NONE or (found is not None and found[0] is not Level.NONE)
        if pressed:
            self._hands.wake()
        if reading != Reading() and (pressed or at - self._stored_at >= KEPT_S):
            self._stored_at = at
            await self._store(host.name, reading)

    async def _store(self, host: str, reading: Reading) -> None:
        try:
            await self._world.store.put_reading(host, self._world.clock.now(), msgspec.json.encode(reading).decode())
        except StoreDown as error:
            log.info("a reading is not stored", host=host, error=str(error))
