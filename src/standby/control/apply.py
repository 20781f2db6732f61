"""Makes hosts, pools and projects in the store what the configuration says. Runs at every start."""

from standby.config import Config, HostConfig
from standby.core import lifecycle, places
from standby.core.errors import ConfigError, StandbyError
from standby.core.model import Change, Pool, PressureLimits, Trigger
from standby.world import World

TRIES = 5


async def apply_config(world: World) -> None:
    """Save what differs; a rival that applies at the same time is read again."""
    for _ in range(TRIES):
        changes = await _differences(world)
        if not changes or all(verdict.saved for verdict in await world.store.save(changes)):
            world.applied.set()
            return
    raise StandbyError("the configuration could not be applied: another server keeps changing the same pools")


async def _check_move(world: World, pool: Pool | None, host: str) -> None:
    """A pool's slots have unique names and belong to their host: both cannot be had at once."""
    if pool is None or pool.host == host:
        return
    if slots := await world.store.slots(host=pool.host, pool=pool.name):
        raise ConfigError(
            f"pools.{pool.name}.host: it still has {len(slots)} slots on host {pool.host}; say `standby pools drain "
            f"{pool.name}` with the old configuration first, or give the pool on {host} another name"
        )


def _limits(config: Config, host: HostConfig) -> PressureLimits:
    return PressureLimits(
        warning=host.pressure_warning,
        critical=host.pressure_critical,
        psi_warning=host.psi_warning,
        psi_critical=host.psi_critical,
        calm_ms=host.pressure_calm_ms,
        disk_reserve_mb=config.disk_reserve_mb,
    )


async def _differences(world: World) -> list[Change]:
    config, store = world.config, world.store
    hosts = {host.name: host for host in await store.hosts()}
    pools = {pool.name: pool for pool in await store.pools()}
    projects = {project.name: project for project in await store.projects()}

    def cause() -> lifecycle.Cause:
        return world.cause(Trigger.CONFIG, "config")

    changes: list[Change | None] = []
    for name, host in config.hosts.items():
        said = places.HostSaid(
            driver=host.driver,
            memory_mb=config.host_memory_mb(name),
            starts_max=config.host_starts_max(name),
            start_gap_ms=host.start_gap_ms,
            cpus=host.cpus,
            limits=_limits(config, host),
        )
        changes.append(places.apply_host(cause(), hosts.get(name), name, said))
    for name in config.pools:
        await _check_move(world, pools.get(name), config.pool_host(name))
        settings = config.pool_settings(name)
        changes.append(places.apply_pool(cause(), pools.get(name), name, config.pool_host(name), settings))
    changes += [places.apply_project(cause(), projects.get(name), config.project(name)) for name in config.projects]
    return [change for change in changes if change is not None]
