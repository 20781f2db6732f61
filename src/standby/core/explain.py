"""Why an order waits: the first gate, in the order in which they are asked, that does not let it through."""

from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Final

from msgspec import Struct

from standby.core.lifecycle import blocked_total_ms
from standby.core.model import Host, Lease, Mode, Order, OrderState, Pool, Reason, Slot, SlotState


class GateName(StrEnum):
    NOT_BEFORE = "not_before"
    RETRY_WAIT = "retry_wait"
    HOST_NOT_LED = "host_not_led"
    HOST_UNREACHABLE = "host_unreachable"
    HOST_MODE = "host_mode"
    POOL_MODE = "pool_mode"
    PROJECT_LIMIT = "project_limit"
    MEMORY = "memory"
    SLOTS = "slots"
    TURN = "turn"


class Gate(Struct, frozen=True):
    """The gate that holds an order, in words for a person."""

    name: GateName
    text: str
    opens_at: int | None = None
    """When it opens by itself, where the order itself asked for a time; not in the text."""
    follows: str | None = None
    """What happens next, where more can be said than its name tells."""


class House(Struct, frozen=True, kw_only=True):
    """Everything an explanation is computed from, read in one go."""

    pool: Pool
    host: Host
    lease: Lease | None
    slots: Sequence[Slot]
    """Of the pool."""
    holders: Mapping[str, Order]
    """Slot name -> the order that holds it, on the whole host."""
    project_open: int
    project_max: int | None
    now: int


def gate(order: Order, house: House) -> Gate | None:
    """What holds this order now; null for one that does not wait."""
    if order.state not in (OrderState.PENDING, OrderState.WAITING_RETRY):
        return None
    return _its_own_time(order, house) or _platform(house) or _limits(order, house) or _places(order, house)


def gives_up_in_ms(order: Order, house: House) -> int | None:
    """How much longer it waits for a slot before it fails; null for ever, or when it does not wait for one. It stays
    the same while the pool is blocked."""
    if order.queue_due is None:
        return None
    return max(0, order.queue_due + blocked_total_ms(house.pool, house.now) - house.now)


def what_follows(order: Order, held_by: Gate | None, queue_timeout: str | None = None) -> str:
    """One sentence for a person: what happens to this order next, or what to do about an end that nobody wanted."""
    match order.state:
        case OrderState.PENDING | OrderState.WAITING_RETRY:
            return "it starts as soon as it can" if held_by is None else held_by.follows or _OPENS[held_by.name]
        case OrderState.PREPARING:
            return "it does not wait: its start was sent, and it is running as soon as it is seen at work"
        case OrderState.RUNNING:
            return "it does not wait: it runs until it ends, is cancelled or reaches its deadline"
        case OrderState.STOPPING:
            return "it does not wait: it was asked to end, and is forced when its grace is over"
        case _ if order.reason is Reason.QUEUE_TIMEOUT:
            return f"it waited {queue_timeout} for a slot, its queue_timeout; raise that, or slots_max"
        case _:
            return "nothing: it has ended; it can be run again as a new order"


_OPENS: Final[Mapping[GateName, str]] = {
    GateName.NOT_BEFORE: "it is queued when the time it asked for has come",
    GateName.RETRY_WAIT: "it is queued again when its retry time has come",
    GateName.HOST_NOT_LED: "it goes on as soon as a server leads the host; its queue time stands still meanwhile",
    GateName.HOST_UNREACHABLE: "it goes on as soon as the host answers; its queue time stands still meanwhile",
    GateName.HOST_MODE: "it goes on when somebody resumes the host; its queue time stands still meanwhile",
    GateName.POOL_MODE: "it goes on when somebody resumes the pool; its queue time stands still meanwhile",
    GateName.PROJECT_LIMIT: "it starts when a run of its project has ended and those before it are served",
    GateName.MEMORY: "it starts when runs on the host have ended and enough memory is free",
    GateName.SLOTS: "it starts when a slot comes free and those before it are served",
    GateName.TURN: "it starts with the next step, after those before it",
}


def _its_own_time(order: Order, house: House) -> Gate | None:
    if order.state is OrderState.WAITING_RETRY:
        return Gate(GateName.RETRY_WAIT, f"its last run ended with {order.reason}; {_until(order.due_at, house.now)}")
    if order.rank is None:
        return Gate(GateName.NOT_BEFORE, "it asked to wait", order.due_at)
    return None


def _until(at: int | None, now: int) -> str:
    left_s = max(0, (at or now) - now) / 1000
    return f"queued again in {left_s:.0f} s" if left_s >= 1 else "queued again at the next step"


def _platform(house: House) -> Gate | None:
    host, pool = house.host, house.pool
    if house.lease is None or house.lease.until <= house.now:
        return Gate(GateName.HOST_NOT_LED, f"no server leads host {host.name}: start one that reaches it")
    if host.unreachable_since is not None:
        away_s = (house.now - host.unreachable_since) / 1000
        return Gate(GateName.HOST_UNREACHABLE, f"host {host.name} cannot be asked since {away_s:.0f} s: {host.error}")
    if host.mode is not Mode.OPEN:
        return Gate(GateName.HOST_MODE, _mode_text("host", host.name, host.mode, host.mode_actor, host.mode_reason))
    if pool.mode is not Mode.OPEN:
        return Gate(GateName.POOL_MODE, _mode_text("pool", pool.name, pool.mode, pool.mode_actor, pool.mode_reason))
    return None


def _mode_text(noun: str, name: str, mode: Mode, actor: str, reason: str | None) -> str:
    because = f" ({reason})" if reason else ""
    return f"{noun} {name} is {mode} by {actor}{because}: resume it to go on"


def _limits(order: Order, house: House) -> Gate | None:
    if house.project_max is None or house.project_open < house.project_max:
        return None
    text = f"project {order.project} has {house.project_open} open runs and may have {house.project_max}"
    return Gate(GateName.PROJECT_LIMIT, text)


def _places(order: Order, house: House) -> Gate:
    pool, host = house.pool, house.host
    free = [slot for slot in house.slots if slot.state is SlotState.IDLE and slot.name not in house.holders]
    if (full := _full(house, free)) is not None:
        return full
    used = sum(holder.memory_mb for holder in house.holders.values())
    if host.memory_mb is not None and used + order.memory_mb > host.memory_mb:
        free_mb = max(0, host.memory_mb - used)
        text = f"needs {order.memory_mb} MB; {free_mb} of {host.memory_mb} MB on host {host.name} are free"
        return Gate(GateName.MEMORY, text)
    if not free:
        return Gate(GateName.SLOTS, f"pool {pool.name} is making a slot")
    return Gate(GateName.TURN, "it is served as soon as its turn comes")


def _full(house: House, free: Sequence[Slot]) -> Gate | None:
    """The pool may have no more slots than are taken."""
    name, most = house.pool.name, house.pool.settings.slots_max
    if most == 0:
        override = house.pool.overrides.get("slots_max")
        who = "the configuration" if override is None else override.actor
        text = f"pool {name} has slots_max = 0 (set by {who}): nothing starts"
        return Gate(GateName.SLOTS, text, follows=f"raise it: standby pools set {name} slots_max=N")
    busy = sum(slot.name in house.holders for slot in house.slots)
    if busy > most:
        when = f"it starts when fewer than {most} are busy"
        text = f"{busy} slots are busy, {most} {'is' if most == 1 else 'are'} allowed; {when}"
        return Gate(GateName.SLOTS, text, follows=f"{when} and those before it are served")
    if free or len(house.slots) < most:
        return None
    errors = sum(slot.state is SlotState.ERROR for slot in house.slots)
    broken = f", {errors} of them in error" if errors else ""
    return Gate(GateName.SLOTS, f"all {len(house.slots)} slots of pool {name} are taken{broken}")
