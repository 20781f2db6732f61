"""A leader's picture of its rows, with changes laid over it that are not saved yet."""

from standby.control.mirror import Mirror
from standby.core import lifecycle
from standby.core.model import Change, Host, Mode, OrderState, Pool, Project
from standby.core.sighting import Exit
from standby.store.contract import Work
from tests import rows


def _mirror() -> Mirror:
    slot, pool = rows.slot(), rows.pool()
    order = rows.order(OrderState.RUNNING, slot=slot.name, memory_mb=80)
    return Mirror(
        host=rows.host(memory_mb=100),
        pools={pool.name: pool},
        slots={slot.name: slot},
        opened={order.id: Work(order, rows.spec())},
        projects={order.project: Project(name=order.project, running_max=1)},
        project_open={order.project: 1},
    )


def _end(mirror: Mirror) -> Change:
    ((work,), (slot,)) = mirror.opened.values(), mirror.slots.values()
    return lifecycle.finish(
        rows.cause(), work.order, work.spec, slot, Exit(code=0), handle=None, seats=True, chance=0.5
    )


def test_an_end_that_is_not_saved_yet_frees_its_slot_but_not_its_memory_nor_its_place_in_a_limit() -> None:
    mirror = _mirror()
    mirror.send(_end(mirror))
    room = mirror.room()
    assert [slot.name for slots in room.free.values() for slot in slots] == list(mirror.slots)
    assert [order.memory_mb for order in room.ending] == [80]
    assert set(room.project_open.values()) == {1}


def test_a_saved_end_gives_everything_back() -> None:
    mirror = _mirror()
    end = _end(mirror)
    mirror.send(end)
    assert end.order_was is not None
    mirror.settled([end.order_was])
    room = mirror.room()
    assert not room.ending
    assert set(room.project_open.values()) == {0}


def test_slots_are_taken_away_as_they_come_free_while_a_pool_drains_or_has_too_many() -> None:
    def restless(pool: Pool, host: Host) -> bool:
        mirror = _mirror()
        mirror.pools, mirror.host = {pool.name: pool}, host
        return mirror.restless

    assert not restless(rows.pool(), rows.host())
    assert restless(rows.pool(slots_max=0), rows.host())
    assert restless(rows.pool(mode=Mode.DRAINING), rows.host())
    assert restless(rows.pool(), rows.host(mode=Mode.DRAINING))
