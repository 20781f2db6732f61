"""A schedule in some of the houses: rival keepers make its orders, and every tick has exactly one."""

from collections import Counter
from collections.abc import Callable
from random import Random
from typing import Final

from msgspec.structs import replace

from sim.line import SimStore
from sim.loop import at_once
from sim.plan import Action, Shape
from standby import zones
from standby.core import cron
from standby.core.model import Missed, Schedule, Spec
from standby.store.contract import OrderFilter

EVERY_MINUTE: Final = "* * * * *"


def with_schedule(shape: Shape, todo: list[Action], chance: Random) -> tuple[Shape, list[Action]]:
    """Some houses have a schedule, which somebody keeps now and then."""
    if chance.random() < 0.7:
        return shape, todo
    for _ in range(len(todo) // 10):
        todo.insert(chance.randrange(2, len(todo) + 1), Action("keep schedules", chance.getrandbits(63)))
    return replace(shape, scheduled=True), todo


def schedule_of(shape: Shape, now: int) -> Schedule:
    """No tick of it may be lost."""
    pool = shape.pools[0]
    return Schedule(
        name="minutely",
        project=pool.project or "a",
        pool=pool.name,
        cron=EVERY_MINUTE,
        missed=Missed.ALL,
        memory_mb=pool.memory_mb,
        spec=Spec(order_id="", payload='{"script": {"run_ms": 100}}'),
        mode_since=now,
        mode_actor="sim",
        next_at=cron.tick_after(cron.parse(EVERY_MINUTE), zones.find("UTC"), now),
    )


class TickTruths:
    """A tick makes at most one order, and where all are made up for none is lost."""

    def __init__(self, store: SimStore, broken: Callable[[str], None]) -> None:
        self._store, self._broken = store, broken
        self.first: dict[str, int] = {}
        """When each schedule was to tick for the first time."""

    def check(self) -> None:
        """Of all ticks until now."""
        listed = at_once(self._store.orders(OrderFilter(), None, 10_000)).orders
        made = Counter((each.spec.schedule, each.spec.tick_at) for each in listed)
        for schedule in at_once(self._store.schedules()):
            assert schedule.next_at is not None
            for tick in range(self.first[schedule.name], schedule.next_at, 60_000):
                if made[schedule.name, tick] != 1:
                    self._broken(f"the tick at {tick} of {schedule.name} made {made[schedule.name, tick]} orders")
