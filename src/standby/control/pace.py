"""What a leader remembers of whom it served: whose turn is next, who was overtaken, when a run last began in a pool."""

from collections.abc import Callable, Mapping

from standby.core.admit import Plan
from standby.core.lanes import KEPT, Pass, Turns
from standby.core.model import Pool


class Pace:
    """One leader's memory of its claims. The next leader begins without: it waits for a whole gap of every start rate,
    and gives nobody more than one turn, and `OVERTAKEN_MAX` overtakings, too many."""

    def __init__(self, now: int) -> None:
        self.turns = Turns()
        self.overtaken: dict[str, int] = {}
        self._since = now
        self._started: dict[str, int] = {}

    def started(self, pools: Mapping[str, Pool]) -> Mapping[str, int]:
        """When a run last began in each pool that limits how many may in a minute, as late as it can have been."""
        limited = [name for name, pool in pools.items() if pool.settings.starts_per_minute is not None]
        return {name: self._started.get(name, self._since) for name in limited}

    def passed(self, plan: Plan) -> None:
        """Count for whom the plan left no memory how often they were overtaken; also for those who did not even have a
        slot just now, and wait on."""
        if len(self.overtaken) > KEPT:
            self.overtaken.clear()
        for waiting in self.overtaken:
            self.overtaken[waiting] += len(plan.admissions)
        self.overtaken.update(plan.overtaken)

    def starts(self, pool: str) -> Callable[[str], Pass]:
        """The pass at which each lane of a pool is served next."""
        return lambda project: self.turns.start((pool, project))

    def took(self, plan: Plan, weights: Mapping[str, int], now: int) -> None:
        """These orders are claimed."""
        orders = [admission.order for admission in plan.admissions]
        self.turns.take(orders, weights)
        for order in orders if self.overtaken else ():
            self.overtaken.pop(order.id, None)
        self._started.update(dict.fromkeys([order.pool for order in orders], now))
