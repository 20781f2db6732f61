"""The budget of processors: what open runs take, by their own word or their pool's. An idle place takes none."""

from collections.abc import Iterable, Mapping

from standby.core.model import Host, Order, Pool
from standby.core.warm import hands_over


def needed(pool: Pool, cpus: float | None, seats: bool) -> float:
    """What an order of this pool takes that asks for so much: what the pool says where it asks for nothing, and never
    less than a live place has."""
    own = pool.settings.template.cpus or 0.0
    if cpus is None:
        return own
    return max(own, cpus) if hands_over(pool, seats) else cpus


def used(pools: Mapping[str, Pool], opened: Iterable[Order], seats: bool) -> float:
    """What these open runs take."""
    return round(sum(needed(pools[order.pool], order.cpus, seats) for order in opened if order.pool in pools), 3)


def left(host: Host, pools: Mapping[str, Pool], opened: Iterable[Order], seats: bool) -> float | None:
    """What a host has for more; null is no limit."""
    return None if host.cpus is None else round(host.cpus - used(pools, opened, seats), 3)
