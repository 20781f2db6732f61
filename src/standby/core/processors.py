"""The budget of processors: what the open runs of pools that declare `cpus` take. An idle place takes none."""

from collections.abc import Iterable, Mapping

from standby.core.model import Host, Order, Pool


def needed(pool: Pool) -> float:
    """What an order of this pool takes."""
    return pool.settings.template.cpus or 0.0


def used(pools: Mapping[str, Pool], opened: Iterable[Order]) -> float:
    """What these open runs take."""
    return round(sum(needed(pools[order.pool]) for order in opened if order.pool in pools), 3)


def left(host: Host, pools: Mapping[str, Pool], opened: Iterable[Order]) -> float | None:
    """What a host has for more; null is no limit."""
    return None if host.cpus is None else round(host.cpus - used(pools, opened), 3)
