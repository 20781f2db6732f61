"""What an explanation is computed from, and the gate that it finds."""

from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from functools import cached_property
from typing import Final

from msgspec import Struct

from standby.core.admit import Plan, admit
from standby.core.model import Host, Lease, Order, OrderState, Pool, Project, Slot
from standby.core.room import Room
from standby.core.sighting import ImageState

HOLDERS: Final = 20
"""So many orders that hold a gate are named."""


class GateName(StrEnum):
    NOT_BEFORE = "not_before"
    RETRY_WAIT = "retry_wait"
    HOST_NOT_LED = "host_not_led"
    HOST_UNREACHABLE = "host_unreachable"
    HOST_MODE = "host_mode"
    POOL_MODE = "pool_mode"
    PRESSURE = "pressure"
    PROJECT_MODE = "project_mode"
    PROJECT_LIMIT = "project_limit"
    POOL_LIMIT = "pool_limit"
    START_RATE = "start_rate"
    CONCURRENCY_KEY = "concurrency_key"
    BREAKER = "breaker"
    MEMORY = "memory"
    CPUS = "cpus"
    SLOTS = "slots"
    IMAGE = "image"
    STARTS = "starts"
    TURN = "turn"


FORESEEN: Final = frozenset(
    {
        GateName.PROJECT_LIMIT,
        GateName.POOL_LIMIT,
        GateName.MEMORY,
        GateName.CPUS,
        GateName.SLOTS,
        GateName.START_RATE,
        GateName.STARTS,
        GateName.TURN,
    }
)
"""They open as runs end and time passes, unless they are stuck; nobody can say when the others do."""


class Gate(Struct, frozen=True):
    """The gate that holds an order, in words for a person."""

    name: GateName
    text: str
    opens_at: int | None = None
    """When it opens by itself, where that is a fixed time."""
    follows: str | None = None
    """What happens next, where more can be said than its name tells."""
    needed: int | None = None
    """How much of what it waits for it needs (MB, slots, starts, runs)."""
    free: int | None = None
    """How much of that is free."""
    holders: Sequence[str] = ()
    """The orders that hold it, those that began first at the beginning."""
    stuck: bool = False
    """It never opens by itself: a person has to do something."""


class Line(Struct, frozen=True):
    """Those who wait for a start on a host."""

    place: int
    """Of the order in question, 1 for the next one."""
    length: int


class Turn(Struct, frozen=True):
    """An order's place in its lane, and who else is served in turns with that."""

    place: int
    others: Sequence[str]
    """Other projects with ready orders in the pool."""


class House(Struct, frozen=True, kw_only=True, dict=True):
    """Everything an explanation is computed from, read in one go."""

    pool: Pool
    host: Host
    lease: Lease | None
    slots: Sequence[Slot]
    """Of the pool."""
    holders: Mapping[str, Order]
    """Slot name -> the order that holds it, on the whole host."""
    project_open: int = 0
    project_max: int | None = None
    project_holders: Sequence[Order] = ()
    """The project's open runs over all hosts, where it is limited."""
    now: int
    pools: Mapping[str, Pool] = {}
    """Of the host."""
    host_slots: Sequence[Slot] = ()
    """Of all pools of the host."""
    measured_at: int | None = None
    """When the host was last measured, where it is pressed."""
    image: ImageState | None = None
    """What is known of the pool's image."""
    line: Line | None = None
    project: Project | None = None
    """Null for one that nobody limited or closed."""
    contenders: Mapping[str, Sequence[Order]] = {}
    """Concurrency key -> the unfinished orders of the project that have it, oldest first."""
    last_start: int | None = None
    """When a run last began in the pool, where it has a start rate."""
    turn: Turn | None = None
    first: Order | None = None
    """The first of the project's lane in the pool, where the host has budgets."""
    seats: bool = True
    """The host's slots are mere seats."""

    @cached_property
    def room(self) -> Room:
        """The host as its leader sees it."""
        image = self.image
        return Room(
            host=self.host,
            pools={**self.pools, self.pool.name: self.pool},
            slots=self.host_slots or self.slots,
            opened=list(self.holders.values()),
            seats=self.seats,
            now=self.now,
            missing=frozenset() if image is None or image.present else frozenset({image.image}),
        )

    @cached_property
    def _plans(self) -> dict[tuple[int, float | None], Plan]:
        return {}

    def plan(self, memory_mb: int, cpus: float | None) -> Plan:
        """What the leader would decide about an order of the pool if it were the only one that waits."""
        if (memory_mb, cpus) not in self._plans:
            alone = Order(
                id="",
                project="",
                pool=self.pool.name,
                memory_mb=memory_mb,
                cpus=cpus,
                submitted_at=self.now,
                state=OrderState.PENDING,
                state_since=self.now,
            )
            self._plans[memory_mb, cpus] = admit(self.room, [alone])
        return self._plans[memory_mb, cpus]

    @cached_property
    def on_host(self) -> Sequence[str]:
        """The orders that hold the host's memory."""
        return oldest(self.holders.values())

    @cached_property
    def in_pool(self) -> Sequence[str]:
        """The orders that hold the pool's slots."""
        return oldest(self.holders[slot.name] for slot in self.slots if slot.name in self.holders)


def oldest(orders: Iterable[Order]) -> Sequence[str]:
    """Some of these orders, those that began first at the beginning."""
    return [each.id for each in sorted(orders, key=lambda each: (each.commanded_at or 0, each.id))[:HOLDERS]]
