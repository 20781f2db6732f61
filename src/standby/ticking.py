"""The order of a tick, made ready: by the step that keeps schedules, and by who runs one now."""

from msgspec import Struct
from msgspec.structs import replace

from standby import conflicts
from standby.core import ticks
from standby.core.draft import foreign
from standby.core.errors import Refused
from standby.core.lifecycle import Cause
from standby.core.model import Change, Schedule
from standby.store.contract import Answer
from standby.world import World


class Made(Struct, frozen=True):
    """What became of a tick."""

    answer: Answer
    order_id: str
    new: bool = True
    """False when an unfinished order has its dedupe key: then that one is meant."""


def sealed_for(schedule: str) -> str:
    """What the env values of a schedule are bound to."""
    return f"schedule {schedule}"


async def make_tick(world: World, cause: Cause, schedule: Schedule, due: ticks.Due) -> Made:
    """Save a tick and its order in one transaction; raises Refused when the order cannot be made as things stand."""
    assert due.tick is not None
    store, seal = world.store, world.seal
    pool = await store.pool(schedule.pool)
    if pool is None:
        raise Refused(f"there is no pool {schedule.pool}")
    if (text := foreign(pool, schedule.project)) is not None:
        raise Refused(text)
    sealed = await store.schedule_env(schedule.name) if schedule.spec.env_names else None
    env = seal.open(sealed_for(schedule.name), sealed)
    order_id = world.ids.order(cause.at)
    order = ticks.order(cause, schedule, pool, due.tick, order_id, seal.close(order_id, env))
    verdicts = await store.save([_tick(world, cause, schedule, due, order_id), order], together=True)
    first = verdicts[1].order_id
    if first is not None:
        tick = _tick(world, cause, schedule, due, first, new=False)
        return Made((await store.save([tick], together=True))[0].answer, first, new=False)
    refused = [verdict.answer for verdict in verdicts if verdict.answer is not Answer.HELD_BACK]
    if verdicts[1].saved and order.order is not None and verdicts[1].seq is not None:
        await conflicts.settle(world, cause.actor, order.order, schedule.spec, verdicts[1].seq)
    return Made(refused[0], order_id)


def _tick(world: World, cause: Cause, schedule: Schedule, due: ticks.Due, order_id: str, *, new: bool = True) -> Change:
    assert due.tick is not None
    own = replace(cause, id=world.ids.short())
    return ticks.tick(own, schedule, due.tick, order_id, due.next_at, missed=due.missed, new=new)
