"""Why an order waits: the first gate, in the order in which they are asked, that does not let it through."""

from collections.abc import Mapping
from typing import Final

from msgspec import Struct
from msgspec.structs import replace

from standby.core import pressure, processors
from standby.core.house import FORESEEN, HOLDERS, Gate, GateName, House, Line, Turn
from standby.core.lifecycle import blocked_total_ms
from standby.core.limits import limit, mode_text, of_pool
from standby.core.model import Lease, Level, Mode, Order, OrderState, Reason, SlotState
from standby.core.places import TRIES_AFTER_MS
from standby.core.room import Room
from standby.core.sighting import ImageState
from standby.core.warm import needed_mb

_BUDGETS: Final = (GateName.MEMORY, GateName.CPUS)

__all__ = ["FORESEEN", "Gate", "GateName", "House", "Line", "Start", "Turn", "gate", "starts"]


class Start(Struct, gc=False, frozen=True, kw_only=True):
    """A platform start in flight."""

    slot: str
    order: str | None
    """Null where a slot is being made."""
    since: int


def starts(room: Room) -> list[Start]:
    """The platform starts in flight on the host, the oldest first: who holds the deploy gate's permits."""
    found = [
        Start(slot=order.slot or "", order=order.id, since=order.commanded_at or 0)
        for order in room.opened
        if order.ready_at is None and not room.hands_over(order.pool)
    ]
    found += [
        Start(slot=slot.name, order=None, since=slot.state_since)
        for slot in room.stock.making
        if slot.pool in room.pools and not room.is_seat(slot.pool)
    ]
    return sorted(found, key=lambda start: (start.since, start.slot))


def gate(order: Order, house: House) -> Gate | None:
    """What holds this order now; null for one that does not wait."""
    if order.state not in (OrderState.PENDING, OrderState.WAITING_RETRY):
        return None
    found = _its_own_time(order, house) or _platform(house) or limit(order, house)
    if found is not None:
        return found
    found = _places(order.memory_mb, order.cpus, house)
    if found is None or not (found.stuck or found.name in _BUDGETS):
        found = _behind(order, house) or found
    return found or Gate(GateName.TURN, _turn_text(order, house))


def gives_up_in_ms(order: Order, house: House) -> int | None:
    """How much longer it waits for a slot before it fails; null for ever, or when it does not wait for one. It stays
    the same while the pool is blocked, and there is none while its project is closed."""
    if order.queue_due is None or (house.project is not None and house.project.mode is not Mode.OPEN):
        return None
    return max(0, order.queue_due + blocked_total_ms(house.pool, house.now) - house.now)


def what_follows(order: Order, held_by: Gate | None, queue_timeout: str | None = None) -> str:
    """One sentence for a person: what happens to this order next, or what to do about an end that nobody wanted."""
    match order.state:
        case OrderState.PENDING | OrderState.WAITING_RETRY:
            return "it starts as soon as it can" if held_by is None else _next(held_by)
        case OrderState.PREPARING:
            return "it does not wait: its start was sent, and it is running as soon as it is seen at work"
        case OrderState.RUNNING:
            return "it does not wait: it runs until it ends, is cancelled or reaches its deadline"
        case OrderState.STOPPING:
            return "it does not wait: it was asked to end, and is forced when its grace is over"
        case _ if order.reason is Reason.QUEUE_TIMEOUT:
            return f"it waited {queue_timeout} for a slot, its queue_timeout; raise that, or slots_max"
        case _ if order.reason is Reason.DEPLOY_TIMEOUT:
            return "it could have been served, but no start came through for deploy_timeout; see the host's starts"
        case _:
            return "nothing: it has ended; it can be run again as a new order"


def _next(gate: Gate) -> str:
    text = gate.follows or _OPENS[gate.name]
    return f"nothing happens by itself; {text}" if gate.stuck else text


_OPENS: Final[Mapping[GateName, str]] = {
    GateName.NOT_BEFORE: "it is queued when the time it asked for has come",
    GateName.RETRY_WAIT: "it is queued again when its retry time has come",
    GateName.HOST_NOT_LED: "it goes on as soon as a server leads the host; its queue time stands still meanwhile",
    GateName.HOST_UNREACHABLE: "it goes on as soon as the host answers; its queue time stands still meanwhile",
    GateName.HOST_MODE: "it goes on when somebody resumes the host; its queue time stands still meanwhile",
    GateName.POOL_MODE: "it goes on when somebody resumes the pool; its queue time stands still meanwhile",
    GateName.PRESSURE: "it starts when the host is calm again and those before it are served",
    GateName.PROJECT_MODE: "it goes on when somebody resumes the project; it does not expire meanwhile",
    GateName.PROJECT_LIMIT: "it starts when a run of its project has ended and those before it are served",
    GateName.POOL_LIMIT: "it starts when a run of the pool has ended and those before it are served",
    GateName.START_RATE: "it starts when the rate allows it and those before it are served",
    GateName.CONCURRENCY_KEY: "it starts when that has ended, and those before it are served",
    GateName.MEMORY: "it starts when runs on the host have ended and enough memory is free",
    GateName.CPUS: "it starts when runs on the host have ended and enough processors are free",
    GateName.BREAKER: "it goes on when somebody resets the breaker, or the pool gets another template",
    GateName.IMAGE: "it goes on when the image is there",
    GateName.STARTS: "it starts when a start in flight has come through and those before it are served",
    GateName.SLOTS: "it starts when a slot comes free and those before it are served",
    GateName.TURN: "it starts with the next step, after those before it",
}


def _its_own_time(order: Order, house: House) -> Gate | None:
    if order.state is OrderState.WAITING_RETRY:
        text = f"its last run ended with {order.reason}; {_until(order.due_at, house.now)}"
        return Gate(GateName.RETRY_WAIT, text, opens_at=order.due_at)
    if order.rank is None:
        return Gate(GateName.NOT_BEFORE, "it asked to wait", order.due_at)
    return None


def _until(at: int | None, now: int) -> str:
    left_s = max(0, (at or now) - now) / 1000
    return f"queued again in {left_s:.0f} s" if left_s >= 1 else "queued again at the next step"


def _platform(house: House) -> Gate | None:
    host, pool = house.host, house.pool
    if house.lease is None or house.lease.until <= house.now:
        text = f"no server leads host {host.name}: start one that reaches it"
        return Gate(GateName.HOST_NOT_LED, text, stuck=_unled_for_long(house.lease, house.now))
    if host.unreachable_since is not None:
        away_s = (house.now - host.unreachable_since) / 1000
        return Gate(GateName.HOST_UNREACHABLE, f"host {host.name} cannot be asked since {away_s:.0f} s: {host.error}")
    if host.mode is not Mode.OPEN:
        return Gate(GateName.HOST_MODE, mode_text("host", host, house.now), stuck=True)
    if pool.mode is not Mode.OPEN:
        return Gate(GateName.POOL_MODE, mode_text("pool", pool, house.now), stuck=True)
    if not pressure.takes_work(host):
        return _pressed(house, "nothing new is started")
    return None


def _unled_for_long(lease: Lease | None, now: int) -> bool:
    """Whether no server took over for as long as a lease lasts: then none is there that could."""
    return lease is None or now - lease.until > lease.until - lease.renewed_at


def _pressed(house: House, so: str) -> Gate:
    """What was measured against what is allowed, since when, and when it will be over if nothing changes."""
    host = house.host
    since_s = (house.now - (host.pressure_since or house.now)) / 1000
    text = f"host {host.name} is under {host.pressure} pressure since {since_s:.0f} s ({host.pressure_cause}): {so}"
    if house.measured_at is None or house.now - house.measured_at > pressure.STALE_MS:
        return Gate(GateName.PRESSURE, f"{text}; nothing is measured there now, so that it stays as it is")
    if host.calm_since is None:
        return Gate(GateName.PRESSURE, text)
    left_s = max(0, host.calm_since + host.limits.calm_ms - house.now) / 1000
    return Gate(
        GateName.PRESSURE, text, follows=f"what is measured is calm: the level ends in {left_s:.0f} s if it stays so"
    )


def _places(memory_mb: int, cpus: float | None, house: House) -> Gate | None:
    """What the leader's own decision about an order that needs so much comes to; null when it would be served."""
    plan, name = house.plan(memory_mb, cpus), house.pool.name
    if (never := _never(memory_mb, cpus, house)) is not None:
        return never
    if plan.admissions:
        return None
    if plan.held:
        return _starts(house)
    if plan.pulls and house.image is not None:
        return Gate(GateName.IMAGE, _image_text(house.image, house.host.name))
    if plan.blocked:
        return _memory(memory_mb, house)
    if not plan.spoken and (gate := _full(house) or _breaker(house) or _processors(cpus, house)) is not None:
        return gate
    making = _making(house)
    text = f"pool {name} is making {'a slot' if making < 2 else f'{making} slots'}"
    return Gate(GateName.SLOTS, text, follows="it starts when one is made and those before it are served")


def _behind(order: Order, house: House) -> Gate | None:
    """What the first of its lane waits for, where that is a budget of the host: nobody of the lane goes before it."""
    first = house.first
    if first is None or first.id == order.id:
        return None
    held = _places(first.memory_mb, first.cpus, house)
    if held is None or held.stuck or held.name not in _BUDGETS:
        return None
    follows = "it starts when that has started, and those before it are served"
    return replace(held, text=f"order {first.id}, the first of its lane, {held.text}", follows=follows)


def _turn_text(order: Order, house: House) -> str:
    turn = house.turn
    if turn is None or not turn.others:
        return "it is served as soon as its turn comes"
    named = ", ".join(turn.others[:4]) + (" and others" if len(turn.others) > 4 else "")
    return f"it is number {turn.place} of project {order.project}, which takes turns by weight with {named}"


def _never(memory_mb: int, cpus: float | None, house: House) -> Gate | None:
    """What keeps it from ever starting, whatever else it waits for: no slots, or more than its host has in all."""
    host, pool = house.host, house.pool
    if pool.settings.slots_max == 0:
        override = pool.overrides.get("slots_max")
        who = "the configuration" if override is None else override.actor
        text = f"pool {pool.name} has slots_max = 0 (set by {who}): nothing starts"
        follows = f"raise it: standby pools set {pool.name} slots_max=N"
        return Gate(GateName.SLOTS, text, follows=follows, needed=1, free=0, stuck=True)
    needed, needs = needed_mb(pool, memory_mb, house.seats), processors.needed(pool, cpus, house.seats)
    if host.memory_mb is not None and needed > host.memory_mb:
        have = f"more than the {host.memory_mb} MB that host {host.name} has in all"
        follows = "cancel it and ask for less, or raise the host's memory_mb"
        free = max(0, host.memory_mb - house.room.used_mb)
        text = f"needs {needed} MB, {have}: it can never start"
        return Gate(GateName.MEMORY, text, follows=follows, needed=needed, free=free, stuck=True)
    if host.cpus is not None and needs > host.cpus:
        have = f"more than the {host.cpus:g} that host {host.name} has in all"
        follows = "cancel it and ask for less, or raise the host's cpus"
        text = f"needs {needs:g} processors, {have}: it can never start"
        return Gate(GateName.CPUS, text, follows=follows, stuck=True)
    return None


def _memory(memory_mb: int, house: House) -> Gate:
    needed = needed_mb(house.pool, memory_mb, house.seats)
    name, most = house.host.name, house.host.memory_mb or 0
    free = max(0, most - house.room.used_mb)
    text = f"needs {needed} MB; {free} of {most} MB on host {name} are free"
    return Gate(GateName.MEMORY, text, needed=needed, free=free, holders=house.on_host)


def _processors(cpus: float | None, house: House) -> Gate | None:
    host, needs = house.host, processors.needed(house.pool, cpus, house.seats)
    left = processors.left(host, house.room.pools, house.holders.values(), house.seats)
    if left is None or needs <= max(0.0, left):
        return None
    text = f"needs {needs:g} processors; {max(0.0, left):g} of {host.cpus:g} on host {host.name} are free"
    return Gate(GateName.CPUS, text, holders=house.on_host)


def _breaker(house: House) -> Gate | None:
    pool = house.pool
    if pool.broken_at is None:
        return None
    errors = [slot.error for slot in house.slots if slot.error]
    last = f", the last with: {errors[-1]}" if errors else ""
    text = f"pool {pool.name} makes no slots since {pool.failures} of them failed without a success{last}"
    minutes = TRIES_AFTER_MS // 60_000
    follows = f"one is tried every {minutes} minutes; sooner: standby pools reset-breaker {pool.name}"
    return Gate(GateName.BREAKER, text, pool.broken_at + TRIES_AFTER_MS, follows=follows)


def _starts(house: House) -> Gate:
    """What keeps it from starting in a slot, or from getting one made."""
    host, room = house.host, house.room
    if host.starts_max == 0:
        text, follows = f"host {host.name} has starts_max = 0: nothing starts", "raise it in the configuration"
        return Gate(GateName.STARTS, text, follows=follows, needed=1, free=0, stuck=True)
    if host.pressure is Level.WARNING:
        most, gap_s = pressure.starts_max(host), pressure.start_gap_ms(host) / 1000
        return _pressed(house, f"{room.starting} of {most} starts are in flight, and they are {gap_s:g} s apart")
    if host.starts_max is None or room.starting < host.starts_max:
        gap_s, ago_s = host.start_gap_ms / 1000, (house.now + host.start_gap_ms - room.gap_ends_at) / 1000
        text = f"the last start on host {host.name} was {ago_s:.0f} s ago, and two are {gap_s:g} s apart"
        follows = "it starts when the gap is over and those before it are served"
        return Gate(GateName.STARTS, text, room.gap_ends_at, follows=follows)
    flying = starts(room)
    text = f"{room.starting} of {host.starts_max} starts on host {host.name} are in flight"
    holders = ", ".join(f"order {each.order}" if each.order else f"slot {each.slot}" for each in flying[:4])
    line = "" if house.line is None else f"; it is number {house.line.place} of {house.line.length} that wait"
    orders = [each.order for each in flying if each.order is not None]
    return Gate(GateName.STARTS, f"{text} ({holders}){line}", needed=1, free=0, holders=orders[:HOLDERS])


def _making(house: House) -> int:
    """How many slots of the pool are being made, or wait for that."""
    return sum(slot.state in (SlotState.CREATING, SlotState.CLEANING) for slot in house.slots)


def _image_text(image: ImageState, host: str) -> str:
    if image.pulling_since is not None:
        far = f": {image.progress}" if image.progress else ""
        return f"image {image.image} is being pulled to host {host}{far}"
    if image.error is not None:
        return f"image {image.image} could not be pulled to host {host} ({image.error}); it is tried again"
    return f"image {image.image} is not on host {host} yet"


def _full(house: House) -> Gate | None:
    """The pool may have no more slots than are taken."""
    name, most = house.pool.name, house.pool.settings.slots_max
    busy = sum(slot.name in house.holders for slot in house.slots)
    if busy > most:
        when = f"it starts when fewer than {most} are busy"
        text = f"{busy} slots are busy, {most} {'is' if most == 1 else 'are'} allowed; {when}"
        follows = f"{when} and those before it are served"
        return Gate(GateName.SLOTS, text, follows=follows, needed=1, free=0, holders=house.in_pool)
    if house.room.free[name] or len(house.slots) < most or _making(house):
        return None
    errors = sum(slot.state is SlotState.ERROR for slot in house.slots)
    broken = f", {errors} of them in error" if errors else ""
    text = f"all {len(house.slots)} slots of pool {name} are taken{broken}"
    if len(house.slots) == 1:
        text = f"the only slot of pool {name} is {'in error' if errors else 'taken'}"
    return Gate(GateName.SLOTS, text, needed=1, free=0, holders=house.in_pool)


def shut(house: House, memory_mb: int, cpus: float | None = None) -> Gate | None:
    """What holds an order of the pool that needs so much and does not open as runs end."""
    gates = (_platform(house), of_pool(house), _places(memory_mb, cpus, house))
    return next((gate for gate in gates if gate and (gate.stuck or gate.name not in FORESEEN)), None)
