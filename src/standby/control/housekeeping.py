"""Global steps: what belongs to no host. So far: idempotency keys are kept for a day."""

from standby.world import World

KEEP_IDEMPOTENCY_MS = 24 * 3_600_000
PAGE = 1_000


class Housekeeping:
    """One bounded step, repeated rarely."""

    every_s = 60.0

    def __init__(self, world: World) -> None:
        self._world = world

    async def step(self) -> int:
        """Drop old idempotency keys, a page at a time; returns how many."""
        return await self._world.store.prune_idempotency(self._world.clock.now() - KEEP_IDEMPOTENCY_MS, PAGE)
