"""How long waiting orders will probably wait, from what was measured lately."""

from typing import Annotated, Final

from fastapi import Depends, Request

from standby.core import estimate
from standby.core.explain import Gate, GateName
from standby.core.model import Order
from standby.world import World

RUNS: Final = 50
FRESH_S: Final = 10.0
BY_ITSELF: Final = frozenset({GateName.PROJECT_LIMIT, GateName.MEMORY, GateName.SLOTS, GateName.TURN})
"""Gates that open as other runs end; nobody can say when an operator opens the others."""


class Waits:
    """Estimates; how long runs usually take is remembered for a few seconds."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._lengths: dict[str, tuple[float, estimate.Lengths | None]] = {}

    async def estimate_ms(self, order: Order, gate: Gate | None) -> int | None:
        """Until the order probably gets a slot; null when it does not wait for one, or nobody can say."""
        if order.rank is None or gate is None or gate.name not in BY_ITSELF:
            return None
        lengths = await self._measured(order.pool)
        pool = await self._world.store.pool(order.pool)
        if lengths is None or pool is None:
            return None
        now = self._world.clock.now()
        holders = await self._world.store.holders(pool=order.pool)
        open_ms = [now - (holder.commanded_at or now) for holder in holders.values()]
        ahead = await self._world.store.ahead(order)
        return estimate.wait_ms(ahead, pool.settings.slots_max, open_ms, lengths)

    async def _measured(self, pool: str) -> estimate.Lengths | None:
        now = self._world.clock.monotonic()
        read_at, lengths = self._lengths.get(pool, (None, None))
        if read_at is None or now - read_at >= FRESH_S:
            lengths = estimate.measured(await self._world.store.run_lengths(pool, RUNS))
            self._lengths[pool] = (now, lengths)
        return lengths


async def _waits(request: Request) -> Waits:
    waits: Waits = request.app.state.waits
    return waits


WaitsNeed = Annotated[Waits, Depends(_waits)]
