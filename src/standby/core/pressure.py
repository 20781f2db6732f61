"""How hard a host is pressed, what that means for new work, and when it is over. Pure: a row and a reading in."""

from typing import Final

from msgspec.structs import replace

from standby.core.model import Host, Level, PressureLimits
from standby.core.sighting import Reading

WARNING_GAP_MS: Final = 2_000
"""At the least between two starts on a host at warning."""
STALE_MS: Final = 30_000
"""A reading of that age says nothing about now."""
_LEVELS: Final = (Level.NONE, Level.WARNING, Level.CRITICAL)


def starts_max(host: Host) -> int | None:
    """Platform starts in flight at once, by its level; null is no limit. At warning half of what it is without, at
    least one, and one where nothing limits them."""
    most = host.starts_max
    match host.pressure:
        case Level.NONE:
            return most
        case Level.WARNING:
            return 1 if most is None else min(most, max(1, most // 2))
        case Level.CRITICAL:
            return 0


def start_gap_ms(host: Host) -> int:
    """Between two starts, by its level."""
    return host.start_gap_ms if host.pressure is Level.NONE else max(host.start_gap_ms, WARNING_GAP_MS)


def takes_work(host: Host) -> bool:
    """Whether anything may be claimed on it."""
    return host.pressure is not Level.CRITICAL


def used(reading: Reading) -> float | None:
    """Share of the memory that is used; null where it was not measured."""
    total, available = reading.memory_total_mb, reading.memory_available_mb
    return None if not total or available is None else max(0.0, 1 - available / total)


def measured(limits: PressureLimits, reading: Reading) -> tuple[Level, str | None] | None:
    """The level that a reading calls for, and why; null for one that does not say how full the memory is and calls for
    nothing."""
    share, psi = used(reading), reading.pressure
    if share is not None and share >= limits.critical:
        return Level.CRITICAL, f"{share:.0%} of the memory is used (limit {limits.critical:.0%})"
    full = None if psi is None else psi.memory_full_avg10
    if full is not None and full > limits.psi_critical:
        return (
            Level.CRITICAL,
            f"all work stood still for memory {full:g} % of the time (limit {limits.psi_critical:g} %)",
        )
    free = reading.disk_free_mb
    if free is not None and free < limits.disk_reserve_mb:
        return Level.CRITICAL, f"{free} MB of disk are free (reserve {limits.disk_reserve_mb} MB)"
    if share is not None and share >= limits.warning:
        return Level.WARNING, f"{share:.0%} of the memory is used (limit {limits.warning:.0%})"
    some = None if psi is None else psi.memory_some_avg10
    if some is not None and some > limits.psi_warning:
        return Level.WARNING, f"work stood still for memory {some:g} % of the time (limit {limits.psi_warning:g} %)"
    return None if share is None else (Level.NONE, None)


def weigh(host: Host, reading: Reading, now: int, *, unbroken: bool) -> Host:
    """The host as a reading makes it. It rises at once and falls by one level at a time, each after `calm_ms` of
    readings below that level's limits; `unbroken`: nothing is missing between this one and the one before."""
    found = measured(host.limits, reading)
    if found is None:
        return replace(host, calm_since=None)  # unknown: the level stays, and nobody can say that it was calm
    level, cause = found
    rank, before = _LEVELS.index(level), _LEVELS.index(host.pressure)
    if rank > before:
        return replace(host, pressure=level, pressure_since=now, pressure_cause=cause, calm_since=None)
    if rank == before:
        return replace(host, calm_since=None)
    calm_since = host.calm_since if unbroken and host.calm_since is not None else now
    if now - calm_since < host.limits.calm_ms:
        return replace(host, calm_since=calm_since)
    lower = _LEVELS[before - 1]
    if lower is Level.NONE:
        return replace(host, pressure=lower, pressure_since=now, pressure_cause=None, calm_since=None)
    cause = cause or "it was critical before"
    calm = now if level is Level.NONE else None
    return replace(host, pressure=lower, pressure_since=now, pressure_cause=cause, calm_since=calm)
