"""Limits that hold an order: of its project, its pool, the pool's start rate, and its concurrency key."""

from collections.abc import Sequence

from standby.core.house import Gate, GateName, House, oldest
from standby.core.model import Host, Mode, Order, Pool, Project
from standby.core.room import rate_opens_at


def limit(order: Order, house: House) -> Gate | None:
    """The first of them that is reached, in the order in which admission asks for them."""
    key = order.concurrency_key
    found = _project_limit(order, house) or of_pool(house)
    return found or (None if key is None else concurrency_key(order, house.contenders.get(key, ())))


def of_pool(house: House) -> Gate | None:
    """Those that hold every order of the pool."""
    return _pool_limit(house) or _start_rate(house)


def _project_limit(order: Order, house: House) -> Gate | None:
    if house.project is not None and house.project.mode is not Mode.OPEN:
        return Gate(GateName.PROJECT_MODE, mode_text("project", house.project, house.now), stuck=True)
    most = house.project_max
    if most is None or house.project_open < most:
        return None
    if most == 0:
        follows = f"raise it: standby projects set {order.project} running_max=N"
        text = f"project {order.project} may have no open runs"
        return Gate(GateName.PROJECT_LIMIT, text, follows=follows, needed=1, free=0, stuck=True)
    text = f"project {order.project} has {_counted(house.project_open, 'open run')} and may have {most}"
    return Gate(GateName.PROJECT_LIMIT, text, needed=1, free=0, holders=oldest(house.project_holders))


def _pool_limit(house: House) -> Gate | None:
    pool, most = house.pool, house.pool.settings.running_max
    count = sum(holder.pool == pool.name for holder in house.holders.values())
    if most is None or count < most:
        return None
    text = f"pool {pool.name} has {_counted(count, 'open run')} and may have {most}{_set_by(pool, 'running_max')}"
    follows = f"raise it: standby pools set {pool.name} running_max=N" if most == 0 else None
    held = oldest(holder for holder in house.holders.values() if holder.pool == pool.name)
    return Gate(GateName.POOL_LIMIT, text, follows=follows, needed=1, free=0, holders=held, stuck=most == 0)


def _start_rate(house: House) -> Gate | None:
    pool, most = house.pool, house.pool.settings.starts_per_minute
    if most is None:
        return None
    text = f"pool {pool.name} may begin {_counted(most, 'run')} a minute{_set_by(pool, 'starts_per_minute')}"
    if most == 0:
        follows = f"raise it: standby pools set {pool.name} starts_per_minute=N"
        return Gate(GateName.START_RATE, text, follows=follows, stuck=True)
    opens_at = rate_opens_at(pool, house.last_start)
    return Gate(GateName.START_RATE, text, opens_at) if opens_at is not None and opens_at > house.now else None


def concurrency_key(order: Order, contenders: Sequence[Order]) -> Gate | None:
    """Who of those that have its key is before it."""
    key, others = order.concurrency_key, [each for each in contenders if each.id != order.id]
    for other in others:
        if other.slot is not None:
            text = f"order {other.id} runs with the same concurrency key, {key}"
            return Gate(GateName.CONCURRENCY_KEY, text, needed=1, free=0, holders=[other.id])
    for other in others:
        if other.pool == order.pool and _place(other) < _place(order):
            text = f"order {other.id} is before it with the same concurrency key, {key}"
            return Gate(GateName.CONCURRENCY_KEY, text, needed=1, free=0, holders=[other.id])
    return None


def _place(order: Order) -> tuple[float, str]:
    return (float("inf") if order.rank is None else order.rank), order.id


def _counted(count: int, noun: str) -> str:
    """So many of something, for people."""
    return f"{count} {noun}{'' if count == 1 else 's'}"


def _set_by(pool: Pool, setting: str) -> str:
    override = pool.overrides.get(setting)
    return "" if override is None else f" (set by {override.actor})"


def mode_text(noun: str, row: Host | Pool | Project, now: int) -> str:
    """Who closed it, since when and why."""
    because = f" ({row.mode_reason})" if row.mode_reason else ""
    by = f"by {row.mode_actor} for {_length(now - row.mode_since)}{because}"
    return f"{noun} {row.name} is {row.mode} {by}: resume it to go on"


def _length(ms: int) -> str:
    for unit_ms, word in ((86_400_000, "days"), (3_600_000, "h"), (60_000, "min")):
        if ms >= 2 * unit_ms:
            return f"{ms // unit_ms} {word}"
    return f"{max(0, ms) // 1000} s"
