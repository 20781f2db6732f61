"""A leader's picture of its host's hot rows: a cache, thrown away by any conflict and read again when others wrote."""

from collections.abc import Container, Iterable, Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from functools import cached_property
from typing import Final, TypedDict, TypeVar, Unpack

from msgspec.structs import replace

from standby.core import pressure
from standby.core.judge import Open
from standby.core.lanes import Turns
from standby.core.model import OPEN, Change, Host, Mode, Order, OrderState, Pool, Project, Slot, Spec, order_of, run_id
from standby.core.room import Room, Stock
from standby.drivers.contract import OpenRun
from standby.store.contract import Store, Work

R = TypeVar("R", Order, Slot, Pool, Host)

_PREPARING: Final = OrderState.PREPARING
_STOPPING: Final = OrderState.STOPPING


class Known(TypedDict, total=False):
    """Fields of `Room` that are no rows."""

    seats: bool
    now: int
    unsaved: AbstractSet[str]
    missing: AbstractSet[str]
    started_at: int
    asked_since: int
    turns: Turns
    overtaken: Mapping[str, int]
    pool_started: Mapping[str, int]


@dataclass
class Mirror:
    """Rows of one host as last read, with this leader's own saved changes laid over them."""

    host: Host
    pools: dict[str, Pool]
    slots: dict[str, Slot]
    opened: dict[str, Work]
    projects: dict[str, Project]
    project_open: dict[str, int]
    ending: dict[str, Order] = field(default_factory=dict)
    """Orders whose end is decided and not yet saved: their slots may be built upon, their memory and their place in a
    limit may not, because only for a slot it is checked when a claim is saved that nobody has it."""
    fresh: bool = field(default=True)
    """False once something suggests that others wrote."""
    _stock: Stock | None = None

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

    @property
    def limited(self) -> bool:
        """Whether anything but slots holds orders back."""
        host = self.host
        if host.memory_mb is not None or pressure.starts_max(host) is not None:
            return True
        return self._limits_projects or any(pool.settings.running_max is not None for pool in self.pools.values())

    @cached_property
    def _limits_projects(self) -> bool:
        return any(most is not None for most in self.project_max.values())

    @cached_property
    def _stops_projects(self) -> bool:
        return any(project.mode_stop_at is not None for project in self.projects.values())

    @cached_property
    def project_max(self) -> Mapping[str, int | None]:
        """How many open runs each project may have."""
        return {name: project.running_max for name, project in self.projects.items()}

    @cached_property
    def weights(self) -> Mapping[str, int]:
        """Of projects whose share is not that of everybody."""
        return {name: project.weight for name, project in self.projects.items() if project.weight != 1}

    @property
    def stock(self) -> Stock:
        """The slots, with what follows from them."""
        if self._stock is None:
            self._stock = Stock(self.slots.values())
        return self._stock

    @property
    def restless(self) -> bool:
        """Whether slots are to be taken away as soon as they are free; what else is to be done about them can wait for
        the poll."""
        draining = any(Mode.DRAINING in (self.host.mode, pool.mode) for pool in self.pools.values())
        return draining or len(self.slots) > sum(pool.settings.slots_max for pool in self.pools.values())

    @property
    def stopping(self) -> list[Order]:
        """Orders whose runs are to end."""
        return [work.order for work in self.opened.values() if work.order.state is _STOPPING]

    @property
    def stops(self) -> bool:
        """Whether anything is drained at once."""
        rows: list[Host | Pool] = [self.host, *self.pools.values()]
        return self._stops_projects or any(row.mode_stop_at is not None for row in rows)

    def stop_at(self, order: Order) -> int | None:
        """From when on its run is stopped, because what it belongs to is drained at once."""
        rows = (self.host, self.pools.get(order.pool), self.projects.get(order.project))
        times = [row.mode_stop_at for row in rows if row is not None and row.mode_stop_at is not None]
        return min(times, default=None)

    def spared(self, pool: Pool, now: int) -> list[str]:
        """Projects whose orders do not expire in a pool: those that are closed, and those that were until lately."""
        grace_ms = pool.settings.queue_timeout_ms or 0
        return [
            project.name
            for project in self.projects.values()
            if project.mode is not Mode.OPEN or (project.mode_since and now < project.mode_since + grace_ms)
        ]

    def open_at(self, at: int) -> list[Pool]:
        """Pools that were not noted as blocked at that time."""
        return [pool for pool in self.pools.values() if pool.blocked_since is None or pool.blocked_since > at]

    def closed_since(self, pool: Pool) -> int:
        """Since when an operator lets the pool take no new work."""
        return min(row.mode_since for row in (self.host, pool) if row.mode is not Mode.OPEN)

    def room(self, **known: Unpack[Known]) -> Room:
        """What admission is decided from, with what its leader knows besides the rows."""
        return Room(
            host=self.host,
            pools=self.pools,
            slots=self.stock,
            opened=[work.order for work in self.opened.values()],
            ending=list(self.ending.values()),
            project_open=self.project_open,
            project_max=self.project_max,
            weights=self.weights,
            **known,
        )

    def open_runs(self, ids: Iterable[str] | None = None) -> Iterator[tuple[str, Open]]:
        """Open runs (or those that orders have now of which these are runs) by their ids (or by these), with their
        slots; one whose slot is missing is left for the next reading."""
        opened, works = self.opened, list[tuple[str, Work | None]]()
        if ids is None:
            works += [(run_id(work.order), work) for work in opened.values()]
        else:
            works += [(each, opened.get(order_of(each))) for each in ids]
        for ident, work in works:
            if work is not None and (slot := self.slots.get(work.order.slot or "")) is not None:
                yield ident, Open(work.order, work.spec, slot)

    def to_look_at(self, unsaved: Container[str], over: Container[str]) -> list[OpenRun]:
        """What a platform is asked about: of a claim that is being saved there is nothing to see yet, and of a run that
        is over nothing more."""
        found: list[OpenRun] = []
        for work in self.opened.values():
            order, payload = work.order, work.spec.payload
            if order.state is _PREPARING and order.id in unsaved:
                continue
            ident, slot = run_id(order), order.slot or ""
            if ident not in over and slot in self.slots:
                found.append(OpenRun(run_id=ident, slot=slot, incarnation=order.incarnation or "", payload=payload))
        return found

    def apply(self, change: Change) -> None:
        """Lay a saved change over the rows."""
        if change.host is not None and change.host_was is not None:
            self.host = _next(change.host, change.host_was.version)
        if change.pool is not None and change.pool_was is not None:
            self.pools[change.pool.name] = _next(change.pool, change.pool_was.version)
        self._apply_slot(change)
        self._apply_order(change)

    def _apply_slot(self, change: Change) -> None:
        if change.slot is None and change.slot_was is None:
            return
        self._stock = None
        if change.slot is not None:
            was = change.slot_was
            self.slots[change.slot.name] = change.slot if was is None else _next(change.slot, was.version)
        elif change.slot_was is not None:
            self.slots.pop(change.slot_was.name, None)

    def settled(self, ends: Iterable[Order]) -> None:
        """Ends that were laid over the rows before they were saved, are."""
        for each in ends:
            order = self.ending.pop(each.id, None)
            if order is not None:
                self._count(order.project, -1)

    def send(self, change: Change) -> None:
        """Lay a change over the rows that is yet to be saved."""
        was, now = change.order_was, change.order
        if was is None or now is None or now.state in OPEN or was.id not in self.opened:
            self.apply(change)
            return
        self.ending[was.id] = was
        del self.opened[was.id]  # here, so that its place in a limit is given back when it is settled
        self._apply_slot(change)

    def _apply_order(self, change: Change) -> None:
        order, was = change.order, change.order_was
        if order is None or was is None:
            return
        if order.state in OPEN:
            known = self.opened.get(order.id)
            if known is not None:
                self.opened[order.id] = Work(_next(order, was.version), known.spec)
        elif self.opened.pop(order.id, None) is not None:
            self._count(order.project, -1)

    def claimed(self, change: Change, spec: Spec) -> None:
        """Lay a claim over the rows."""
        order = change.order
        assert order is not None
        self.opened[order.id] = Work(order, spec)
        self._count(order.project, 1)

    def _count(self, project: str, by: int) -> None:
        if self.project_open or project in self.projects:
            self.project_open[project] = max(0, self.project_open.get(project, 0) + by)


def _next(row: R, version: int) -> R:
    """The row with the version it has once it is saved."""
    return row if row.version == version + 1 else replace(row, version=version + 1)
