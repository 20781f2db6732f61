"""How long waiting orders will probably wait, from what was measured lately."""

from typing import Final

from standby.core import estimate
from standby.core.explain import Gate, GateName
from standby.core.model import Order, Pool
from standby.world import World

RUNS: Final = 50
FRESH_S: Final = 10.0
"""How long what runs usually take is remembered."""
BY_ITSELF: Final = frozenset({GateName.PROJECT_LIMIT, GateName.MEMORY, GateName.SLOTS, GateName.STARTS, GateName.TURN})
"""Gates that open as other runs end; nobody can say when an operator opens the others."""


async def read_line(world: World, pool: Pool, *, keep_s: float = 0.0) -> estimate.Line | None:
    """When the places of a pool come free, perhaps as it was `keep_s` ago; null when nobody can say."""
    lengths = await world.shared.ask(("lengths", pool.name), lambda: _measured(world, pool.name), keep_s=FRESH_S)
    if lengths is None:
        return None

    async def read() -> estimate.Line | None:
        now = world.clock.now()
        holders = await world.store.holders(pool=pool.name)
        open_ms = [now - (holder.commanded_at or now) for holder in holders.values()]
        return estimate.line(pool.settings.slots_max, open_ms, lengths)

    return await world.shared.ask(("line", pool.name, keep_s), read, keep_s=keep_s)


async def estimate_ms(world: World, order: Order, gate: Gate | None) -> int | None:
    """Until the order probably gets a slot; null when it does not wait for one, or nobody can say."""
    if order.rank is None or gate is None or gate.name not in BY_ITSELF:
        return None
    pool = await world.store.pool(order.pool)
    line = None if pool is None else await read_line(world, pool)
    return None if line is None else line.wait_ms(await world.store.ahead(order))


async def _measured(world: World, pool: str) -> estimate.Lengths | None:
    return estimate.measured(await world.store.run_lengths(pool, RUNS))
