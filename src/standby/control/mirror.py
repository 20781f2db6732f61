"""A leader's picture of its host's hot rows: a cache, thrown away by any conflict and read again when others wrote."""

from dataclasses import dataclass, field

from msgspec.structs import replace

from standby.core.admit import Room
from standby.core.judge import Open
from standby.core.model import OPEN, Change, Host, Pool, Project, Slot
from standby.store.contract import Store, Work


@dataclass
class Mirror:
    """Rows of one host as last read, with this leader's own saved changes laid over them."""

    host: Host
    pools: dict[str, Pool]
    slots: dict[str, Slot]
    opened: dict[str, Work]
    projects: dict[str, Project]
    project_open: dict[str, int]
    fresh: bool = field(default=True)
    """False once something suggests that others wrote."""

    @classmethod
    async def read(cls, store: Store, name: str) -> "Mirror":
        """Read everything anew."""
        host = await store.host(name)
        assert host is not None, f"host {name} was never applied"
        projects = {project.name: project for project in await store.projects()}
        limited = any(project.running_max is not None for project in projects.values())
        return cls(
            host=host,
            pools={pool.name: pool for pool in await store.pools() if pool.host == name},
            slots={slot.name: slot for slot in await store.slots(host=name)},
            opened={work.order.id: work for work in await store.open_orders(name)},
            projects=projects,
            project_open=dict(await store.open_by_project()) if limited else {},
        )

    def room(self) -> Room:
        """What admission is decided from."""
        return Room(
            host=self.host,
            pools=self.pools,
            slots=list(self.slots.values()),
            opened=[work.order for work in self.opened.values()],
            project_open=self.project_open,
            project_max={name: project.running_max for name, project in self.projects.items()},
        )

    def open_runs(self) -> list[Open]:
        """Open runs with their slots; one whose slot is missing is left for the next reading."""
        return [
            Open(work.order, work.spec, self.slots[work.order.slot])
            for work in self.opened.values()
            if work.order.slot in self.slots
        ]

    def apply(self, change: Change) -> None:
        """Lay a saved change over the rows."""
        if change.host is not None and change.host_was is not None:
            self.host = replace(change.host, version=change.host_was.version + 1)
        if change.pool is not None and change.pool_was is not None:
            self.pools[change.pool.name] = replace(change.pool, version=change.pool_was.version + 1)
        self._apply_slot(change)
        self._apply_order(change)

    def _apply_slot(self, change: Change) -> None:
        if change.slot is not None:
            version = change.slot.version if change.slot_was is None else change.slot_was.version + 1
            self.slots[change.slot.name] = replace(change.slot, version=version)
        elif change.slot_was is not None:
            self.slots.pop(change.slot_was.name, None)

    def _apply_order(self, change: Change) -> None:
        order, was = change.order, change.order_was
        if order is None or was is None:
            return
        if order.state in OPEN:
            known = self.opened.get(order.id)
            if known is not None:
                self.opened[order.id] = Work(replace(order, version=was.version + 1), known.spec)
        elif self.opened.pop(order.id, None) is not None:
            self._count(order.project, -1)

    def claimed(self, change: Change, work: Work) -> None:
        """Lay a saved claim over the rows."""
        assert change.order is not None and change.order_was is not None
        self.opened[change.order.id] = Work(replace(change.order, version=change.order_was.version + 1), work.spec)
        self._count(change.order.project, 1)

    def _count(self, project: str, by: int) -> None:
        if self.project_open or project in self.projects:
            self.project_open[project] = max(0, self.project_open.get(project, 0) + by)
