"""Images: one pull for each at a time on a host. What waits for one holds no permit meanwhile."""

import asyncio
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from typing import Final

import structlog
from msgspec.structs import replace

from standby.control.lease import Hold
from standby.core.errors import Unreachable
from standby.core.sighting import ImageState
from standby.drivers.contract import CommandRefused, Images
from standby.store.contract import StoreDown
from standby.world import World

log = structlog.get_logger()

RETRY_S: Final = 5.0
RETRY_CAP_S: Final = 300.0
SILENCE_S: Final = 600.0
"""A pull that says nothing for so long is given up."""
TELL_S: Final = 1.0
"""How often the progress is written down."""


class Pulls:
    """What one leader knows of its host's images, and the pulls it has under way."""

    def __init__(self, world: World, driver: Images, hold: Hold, wake: Callable[[], None]) -> None:
        self._world, self._driver, self._hold, self._wake = world, driver, hold, wake
        self._present: set[str] = set()
        self._failures: dict[str, int] = {}
        self._not_before: dict[str, float] = {}
        self._pulls: dict[str, asyncio.Task[None]] = {}

    def missing(self, images: Iterable[str | None]) -> AbstractSet[str]:
        """Those of these images that are not known to be there."""
        return {image for image in images if image is not None and image not in self._present}

    def want(self, images: Iterable[str]) -> None:
        """Ask for these, and get what is not there, unless that is under way or failed a moment ago."""
        now = self._world.clock.monotonic()
        for image in images:
            due = self._not_before.get(image, float("-inf")) <= now
            if image not in self._pulls and image not in self._present and due and self._hold.outlives(0):
                self._pulls[image] = asyncio.ensure_future(self._get(image))

    def doubt(self, image: str | None) -> None:
        """Something could not be made of it: whether it is there is asked again."""
        if image is not None:
            self._present.discard(image)

    async def close(self) -> None:
        """Let go of the pulls under way; the platform may finish them."""
        pulls = list(self._pulls.values())
        for pull in pulls:
            pull.cancel()
        await asyncio.gather(*pulls, return_exceptions=True)

    async def _get(self, image: str) -> None:
        clock, state = self._world.clock, ImageState(host=self._hold.host, image=image, at=0, present=False)
        error: str | None = None
        try:
            async with asyncio.timeout(SILENCE_S):
                there = await self._driver.has_image(image)
            if not there:
                await self._pull(replace(state, pulling_since=clock.now()))
        except (Unreachable, CommandRefused, TimeoutError) as failure:
            error = str(failure) or f"it said nothing for {SILENCE_S:.0f} s"
            log.warning("image could not be pulled", host=self._hold.host, image=image, error=error)
        except StoreDown as failure:
            error = str(failure)
        except Exception as failure:
            log.exception("pull failed", host=self._hold.host, image=image)
            error = repr(failure)
        finally:
            del self._pulls[image]
        self._settle(image, failed=error is not None)
        await self._tell(replace(state, present=error is None, error=error and error.replace("\0", "")))
        self._wake()

    async def _pull(self, state: ImageState) -> None:
        await self._tell(state)
        told_at = self._world.clock.monotonic()
        steps = aiter(self._driver.pull(state.image))
        while True:
            async with asyncio.timeout(SILENCE_S):
                progress = await anext(steps, None)
            if progress is None:
                return
            if self._world.clock.monotonic() - told_at >= TELL_S:
                told_at = self._world.clock.monotonic()
                await self._tell(replace(state, progress=progress.replace("\0", "")))

    def _settle(self, image: str, *, failed: bool) -> None:
        if not failed:
            self._present.add(image)
            self._failures.pop(image, None)
            self._not_before.pop(image, None)
            return
        failures = self._failures[image] = self._failures.get(image, 0) + 1
        wait_s = min(RETRY_S * 2 ** min(failures - 1, 16), RETRY_CAP_S)
        self._not_before[image] = self._world.clock.monotonic() + wait_s

    async def _tell(self, state: ImageState) -> None:
        """Write it down for those who ask; nothing is decided by it."""
        try:
            await self._world.store.put_image(replace(state, at=self._world.clock.now()))
        except StoreDown as error:
            log.info("an image's state could not be stored", image=state.image, error=str(error))
