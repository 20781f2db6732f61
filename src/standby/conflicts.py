"""What an order does about others with its concurrency key when it is taken in: it waits, gives way, or ends them."""

from typing import Final

from msgspec.structs import replace

from standby.core import lifecycle
from standby.core.model import OnConflict, Order, Spec, Trigger
from standby.world import World

TRIES: Final = 20
MOST: Final = 1_000
"""So many older orders of one key are ended by a new one."""


async def settle(world: World, actor: str, order: Order, spec: Spec, seq: int) -> bool:
    """Cancel the order, or those that were taken in before it, as it wants; returns whether it was itself cancelled.
    `seq` is that of its submit: of two that arrive at once the later one sees the other."""
    key = spec.concurrency_key
    if key is None or spec.on_conflict is OnConflict.WAIT:
        return False
    others = await world.store.contenders(order.project, key, MOST)
    older = [each for each in others if each.seq < seq]
    if not older:
        return False
    if spec.on_conflict is OnConflict.CANCEL_NEW:
        said = f"order {older[0].order.id} has concurrency key {key}"
        await _cancel(world, actor, order.id, said)
        return True
    for each in older:
        await _cancel(world, actor, each.order.id, f"order {order.id} has concurrency key {key} now")
    return False


async def _cancel(world: World, actor: str, order_id: str, said: str) -> None:
    for _ in range(TRIES):
        work = await world.store.order(order_id)
        change = None if work is None else lifecycle.cancel(world.cause(Trigger.REQUEST, actor), work.order, work.spec)
        if change is None:
            return
        (verdict,) = await world.store.save([replace(change, note={**change.note, "said": said})])
        if verdict.saved:
            return
