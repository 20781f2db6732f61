"""Global steps: what belongs to no host. Idempotency keys are kept for a day, history for `history_days`."""

import structlog

from standby.world import World

KEEP_IDEMPOTENCY_MS = 24 * 3_600_000
DAY_MS = 24 * 3_600_000
PAGE = 1_000
ORDERS_BATCH = 500
EVENTS_BATCH = 2_000
BATCHES = 20
"""Commits of each kind in one step."""

log = structlog.get_logger()


class Housekeeping:
    """One bounded step, repeated rarely."""

    every_s = 60.0

    def __init__(self, world: World) -> None:
        self._world = world
        self._walked_to = 0

    async def step(self) -> None:
        """Drop old idempotency keys and old history, a bounded number of each."""
        store, now = self._world.store, self._world.clock.now()
        await store.prune_idempotency(now - KEEP_IDEMPOTENCY_MS, PAGE)
        days = self._world.config.history_days
        # A clock that jumped could make everything look old.
        if days is not None and self._world.clock.steady:
            before = now - int(days * DAY_MS)
            orders, events = await self._prune_orders(before), await self._prune_events(before)
            if orders or events:
                log.info("history was pruned", orders=orders, events=events, older_than_days=days)

    async def _prune_orders(self, before: int) -> int:
        """Walk from the oldest order on; those that stay are passed, and looked at again in the next walk."""
        removed = 0
        for _ in range(BATCHES):
            count, place = await self._world.store.prune_orders(before, self._walked_to, ORDERS_BATCH)
            removed, self._walked_to = removed + count, place or 0
            if place is None:
                break
        return removed

    async def _prune_events(self, before: int) -> int:
        removed = 0
        for _ in range(BATCHES):
            count = await self._world.store.prune_events(before, EVENTS_BATCH)
            removed += count
            if count < EVENTS_BATCH:
                break
        return removed
