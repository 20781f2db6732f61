"""Random but legal histories, made with the real lifecycle, for the tests that compare what a store holds."""

from collections.abc import Sequence
from random import Random

from msgspec.structs import replace

from sim.fold import Rows
from standby.core import lifecycle, slots
from standby.core.lifecycle import Cause
from standby.core.model import (
    Change,
    Host,
    Mode,
    Order,
    OrderState,
    Pool,
    PoolSettings,
    Reason,
    Slot,
    SlotState,
    Spec,
    Trigger,
)
from standby.core.sighting import Exit
from standby.store.contract import OrderFilter, Store
from tests import make


def cause(chance: Random, trigger: Trigger = Trigger.LOOK) -> Cause:
    """Who did it, with a change id of its own."""
    return Cause(id=f"{chance.getrandbits(64):x}", at=make.NOW + chance.randrange(1_000), trigger=trigger, actor="t")


async def found_a_house(store: Store, chance: Random) -> None:
    """One host, two pools, one limited project and a few slots."""
    made = [
        make.put_host(None, Host(name="h", driver="process", memory_mb=4096, mode_since=1)),
        make.put_pool(None, Pool(name="p", host="h", settings=PoolSettings(slots_max=4), mode_since=1)),
        make.put_pool(None, Pool(name="q", host="h", mode_since=1)),
        make.limit_project("a", 3),
    ]
    await store.save([replace(one, id=f"{chance.getrandbits(64):x}") for one in made])
    pools = await store.pools()
    await store.save([slots.create(cause(chance), f"s-{n}", pools[n % 2]) for n in range(6)])


async def next_changes(store: Store, chance: Random) -> Sequence[Change]:
    """What could happen next, decided from the rows as they are now; some of it contradicts itself."""
    pools = {pool.name: pool for pool in await store.pools()}
    (host,) = await store.hosts()
    slots, held = await store.slots(), await store.holders()
    listed = (await store.orders(OrderFilter(), None, 40)).orders
    made = [submit(chance, pools[chance.choice("pq")]) for _ in range(chance.randrange(4))]
    made += [move_pool(chance, pools["p"])] if chance.random() < 0.1 else []
    made += [slot_change(chance, slot) for slot in slots if slot.name not in held and chance.random() < 0.6]
    for work in listed:
        if chance.random() < 0.7:
            made += order_change(chance, work.order, work.spec, pools[work.order.pool], host, slots)
    chance.shuffle(made)
    return made


def submit(chance: Random, pool: Pool) -> Change:
    number = f"{chance.getrandbits(48):x}"
    draft = Order(
        id=number,
        project=chance.choice("ab"),
        pool=pool.name,
        memory_mb=1,
        submitted_at=make.NOW,
        state=OrderState.PENDING,
        state_since=make.NOW,
        dedupe_live=chance.choice([None, None, "a/x"]),
    )
    spec = Spec(order_id=number, not_before=chance.choice([None, None, make.NOW * 2]))
    return lifecycle.submit(cause(chance, Trigger.REQUEST), draft, spec, pool, chance.choice([None, b"e"]), None)


def move_pool(chance: Random, pool: Pool) -> Change:
    mode = Mode.PAUSED if pool.mode is Mode.OPEN else Mode.OPEN
    moved = make.put_pool(pool, replace(pool, mode=mode, mode_reason="because"))
    return replace(moved, id=f"{chance.getrandbits(64):x}")


def slot_change(chance: Random, slot: Slot) -> Change:
    match slot.state:
        case SlotState.CREATING | SlotState.CLEANING:
            if chance.random() < 0.2:
                return slots.failed(cause(chance), slot, "no room")
            return slots.made(cause(chance), slot, f"{slot.name}#{slot.version}")
        case SlotState.ERROR:
            return slots.recreate(cause(chance), slot)
        case SlotState.REMOVING:
            return slots.gone(cause(chance), slot)
        case SlotState.IDLE:
            return slots.remove(cause(chance), slot)


def order_change(
    chance: Random, order: Order, spec: Spec, pool: Pool, host: Host, slots: Sequence[Slot]
) -> Sequence[Change]:
    why = cause(chance)
    match order.state:
        case OrderState.PENDING if order.rank is not None:
            idle = [slot for slot in slots if slot.pool == pool.name and slot.state is SlotState.IDLE]
            if idle and chance.random() < 0.8:
                return [claim(why, order, spec, chance.choice(idle), pool, host)]
            return [lifecycle.expire(why, order)] if chance.random() < 0.1 else []
        case OrderState.PENDING | OrderState.WAITING_RETRY:
            return [lifecycle.queue(why, order, spec, pool)]
        case OrderState.PREPARING if chance.random() < 0.6:
            return [lifecycle.ready(why, order, spec, "pid 1")]
        case OrderState.RUNNING if chance.random() < 0.3:
            return [lifecycle.stop(why, order, spec, Reason.TIMEOUT)]
        case OrderState.PREPARING | OrderState.RUNNING | OrderState.STOPPING:
            (slot,) = [slot for slot in slots if slot.name == order.slot]
            ending = Exit(code=chance.choice([0, 1])) if chance.random() < 0.7 else Exit(lost=True)
            ended = lifecycle.finish(
                why, order, spec, slot, ending, handle=None, seats=chance.random() < 0.5, chance=0.5
            )
            return [ended]
        case _:
            return []


def claim(why: Cause, order: Order, spec: Spec, slot: Slot, pool: Pool, host: Host) -> Change:
    # The lease guard has tests of its own; a version of the host can be guarded only with it.
    made = lifecycle.claim(why, order, spec, slot, pool, host, 2_000)
    return make.without_host_guard(made)


async def rows_of(store: Store) -> Rows:
    """Everything the tables hold."""
    listed = (await store.orders(OrderFilter(), None, 100_000)).orders
    runs = [run for one in listed for run in await store.runs(one.order.id)]
    return Rows(
        orders={one.order.id: one.order for one in listed},
        slots={slot.name: slot for slot in await store.slots()},
        pools={pool.name: pool for pool in await store.pools()},
        hosts={host.name: host for host in await store.hosts()},
        projects={project.name: project for project in await store.projects()},
        runs={(run.order_id, run.number): run for run in runs},
        schedules={schedule.name: schedule for schedule in await store.schedules()},
    )
