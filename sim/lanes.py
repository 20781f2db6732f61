"""What must hold of turns, and of the limits of pools and concurrency keys."""

from collections import Counter
from collections.abc import Callable, Mapping

from sim.book import Book
from standby.core.model import Event, EventKind, Order, Pool

SKEW_MS = 200
"""The most by which two leaders' clocks differ."""
KNOWN_MS = 3_000
"""So long after an order became ready its leader knows of it."""
SLACK = 3
"""Turns that a refused claim, or a page that was read before, may cost."""

Lane = tuple[str, str]


class LaneTruths:
    """Follows claims: no limit is exceeded, and no lane is passed for ever."""

    def __init__(self, book: Book, ready_since: Callable[[str], int], broken: Callable[[str], None]) -> None:
        self._book, self._ready_since, self._broken = book, ready_since, broken
        self._last: dict[str, int] = {}
        """Pool -> when a run last began there."""
        self._passed = Counter[Lane]()

    def forget(self) -> None:
        """Somebody else leads, or limits changed: turns are counted anew."""
        self._passed.clear()

    def claimed(self, name: str, order: Order, event: Event) -> None:
        """A claim."""
        pool = self._book.pools[order.pool]
        opened = [self._book.orders[order_id] for order_id in self._book.holder.values()]
        most = pool.settings.running_max
        if most is not None and sum(other.pool == pool.name for other in opened) > most:
            self._broken(f"{name} brings pool {pool.name} over its {most}")
        key = order.concurrency_key
        if key is not None and sum((each.project, each.concurrency_key) == (order.project, key) for each in opened) > 1:
            self._broken(f"{name} is a second run of concurrency key {key} of project {order.project}")
        self._rate(name, pool, event.at)
        self._turn(order, event.at)

    def _rate(self, name: str, pool: Pool, at: int) -> None:
        before, most = self._last.get(pool.name), pool.settings.starts_per_minute
        self._last[pool.name] = max(at, before or 0)
        # a claim may be saved after a later one: what counts is how far apart they were decided
        if most is not None and (most == 0 or (before is not None and (abs(at - before) + SKEW_MS) * most < 60_000)):
            self._broken(f"{name} begins too soon for the {most} starts a minute of {pool.name}")

    def _turn(self, order: Order, at: int) -> None:
        """Every lane whose head could have had this very place was passed once more."""
        self._passed.pop((order.pool, order.project), None)
        heads = self._heads(order.pool, at)
        for project in {lane[1] for lane in self._passed if lane[0] == order.pool} - heads.keys():
            del self._passed[order.pool, project]
        for project, head in heads.items():
            if project == order.project or not self._could(head, order):
                continue
            self._passed[order.pool, project] += 1
            if self._passed[order.pool, project] > self._bound(project):
                times = self._passed[order.pool, project]
                self._broken(f"{self._book.name(head.id)} of lane {project} was passed {times} times: starved")

    def _heads(self, pool: str, at: int) -> Mapping[str, Order]:
        waiting = [self._book.orders[order_id] for order_id in self._book.unfinished]
        heads: dict[str, Order] = {}
        for each in sorted((each for each in waiting if each.rank is not None), key=lambda each: (each.rank, each.id)):
            if each.pool == pool and self._ready_since(each.id) + KNOWN_MS < at:
                heads.setdefault(each.project, each)
        return heads

    def _could(self, head: Order, order: Order) -> bool:
        """Whether whatever let the order through would have let the head through as well."""
        project = self._book.projects.get(head.project)
        limited = project is not None and project.running_max is not None
        if limited or head.concurrency_key is not None:
            return False
        own = self._book.pools[head.pool].settings.template.cpus or 0.0
        wanted, had = (own if each.cpus is None else each.cpus for each in (head, order))
        return head.memory_mb <= order.memory_mb and wanted <= had

    def _bound(self, project: str) -> int:
        weights = dict.fromkeys("abc", 1) | {row.name: row.weight for row in self._book.projects.values()}
        mine = weights.pop(project)
        return sum(-(-weight // mine) + 1 for weight in weights.values()) + SLACK

    def event(self, event: Event) -> None:
        """What else happened."""
        if event.kind in (EventKind.POOL_APPLIED, EventKind.PROJECT_APPLIED, EventKind.POOL_MODE, EventKind.HOST_LED):
            self.forget()
