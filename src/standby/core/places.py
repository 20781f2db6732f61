"""Changes of pools, hosts and projects: what the configuration says of them, what operators want, what looks showed."""

from collections.abc import Mapping, Sequence
from hashlib import sha256
from typing import Final, TypeVar

from msgspec import Struct
from msgspec.json import encode
from msgspec.structs import asdict, replace

from standby.core.lifecycle import Cause, blocked_total_ms, change
from standby.core.model import (
    Change,
    EventKind,
    Host,
    Json,
    Mode,
    Override,
    Pool,
    PoolSettings,
    PressureLimits,
    Project,
    Reason,
)

K = EventKind
M = TypeVar("M", Pool, Host, Project)

BREAKS_AFTER: Final = 5
"""Failures without a success that open a pool's breaker."""
TRIES_AFTER_MS: Final = 300_000
"""So long after it opened, or its last try failed, a breaker lets one start through: what broke may have passed."""

OVERRIDABLE: Final[Mapping[str, str]] = {
    "slots_max": "slots_max",
    "slots_warm": "slots_warm",
    "running_max": "running_max",
    "starts_per_minute": "starts_per_minute",
    "queue_max": "queue_max",
    "idle_ttl_s": "idle_ttl_ms",
    "max_uses": "max_uses",
    "max_age_s": "max_age_ms",
    "pick": "pick",
    "image": "template.image",
    "memory_mb": "memory_mb",
    "queue_timeout_s": "queue_timeout_ms",
    "queue_timeout_max_s": "queue_timeout_max_ms",
    "deploy_timeout_s": "deploy_timeout_ms",
    "start_timeout_s": "start_timeout_ms",
    "run_timeout_s": "run_timeout_ms",
    "stop_grace_s": "stop_grace_ms",
    "retries": "retry.retries",
    "retry_base_s": "retry.base_ms",
    "retry_factor": "retry.factor",
    "retry_cap_s": "retry.cap_ms",
    "retry_on": "retry.retry_on",
    "no_retry_on": "retry.no_retry_on",
}
"""What an operator may set over the configuration, as the API names it, and the field that it is."""
PROJECT_SETTINGS: Final = ("running_max", "weight", "queue_max")
"""The same of a project."""


def overlaid(configured: PoolSettings, overrides: Mapping[str, Override]) -> PoolSettings:
    """The settings that count: what operators set, over what the configuration says."""
    parts: dict[str, dict[str, Json]] = {"": {}, "retry": {}, "template": {}}
    for name, override in overrides.items():
        part, _, field = OVERRIDABLE[name].rpartition(".")
        value = override.value
        if name.endswith("_s") and value is not None:
            value = round(value * 1000)
        if isinstance(value, list | tuple):
            value = tuple(Reason(each) for each in value)
        parts[part][field] = value
    retry, template = replace(configured.retry, **parts["retry"]), replace(configured.template, **parts["template"])
    return replace(configured, **parts[""], retry=retry, template=template)


def override_pool(
    cause: Cause, pool: Pool, configured: PoolSettings, wanted: Mapping[str, Override | None]
) -> Change | None:
    """Set some settings over the configuration, give others (null) back to it; null when nothing changes."""
    overrides = overridden(pool.overrides, wanted)
    after = _made_of(replace(pool, overrides=overrides), overlaid(configured, overrides))
    return None if after == pool else change(cause, K.POOL_OVERRIDDEN, pool_was=pool, pool=after)


def apply_pool(cause: Cause, was: Pool | None, name: str, host: str, settings: PoolSettings) -> Change | None:
    """Make the pool what the configuration says, but for what operators set; null when it is that already."""
    if was is None:
        # blocked until somebody leads its host for the first time
        after = Pool(name=name, host=host, settings=settings, mode_since=cause.at, blocked_since=cause.at)
    else:
        after = _made_of(replace(was, host=host), overlaid(settings, was.overrides))
    return None if after == was else change(cause, K.POOL_APPLIED, pool_was=was, pool=after)


def _made_of(pool: Pool, settings: PoolSettings) -> Pool:
    """The pool with these settings; slots of a new template may go better, so its breaker closes."""
    after = replace(pool, settings=settings)
    if fingerprint(settings) != fingerprint(pool.settings):
        return replace(after, failures=0, broken_at=None)
    return after


def count_failures(cause: Cause, pool: Pool, count: int, message: str) -> Change:
    """So many more of its slots could not be made, or could not start; too many without a success open its breaker."""
    failures = pool.failures + count
    breaks = failures >= BREAKS_AFTER and (pool.broken_at is None or may_try(pool, cause.at))
    after = replace(pool, failures=failures, broken_at=cause.at if breaks else pool.broken_at)
    kind = K.POOL_BROKEN if breaks else K.POOL_FAILING
    return change(cause, kind, pool_was=pool, pool=after, note={"error": message})


def count_success(cause: Cause, pool: Pool) -> Change | None:
    """One of its slots is good; null when there is nothing to forget, or its breaker has just opened: what serves then
    was made before."""
    if pool.failures == 0 or (pool.broken_at is not None and not may_try(pool, cause.at)):
        return None
    return change(cause, K.POOL_MENDED, pool_was=pool, pool=replace(pool, failures=0, broken_at=None))


def may_try(pool: Pool, now: int) -> bool:
    """Whether its open breaker lets one start through."""
    return pool.broken_at is not None and now - pool.broken_at >= TRIES_AFTER_MS


def reset_breaker(cause: Cause, pool: Pool) -> Change | None:
    """Let it make slots again; null when nothing keeps it from that."""
    if pool.failures == 0 and pool.broken_at is None:
        return None
    return change(cause, K.POOL_RESET, pool_was=pool, pool=replace(pool, failures=0, broken_at=None))


def set_pool_mode(cause: Cause, pool: Pool, mode: Mode, reason: str | None, *, stop: bool = False) -> Change | None:
    """Open, pause or drain a pool; null when it is that already. With `stop` what runs is stopped."""
    after = _wanted(cause, pool, mode, reason, stop)
    return None if after is None else change(cause, K.POOL_MODE, pool_was=pool, pool=after)


def _wanted(cause: Cause, row: M, mode: Mode, reason: str | None, stop: bool) -> M | None:
    """The row as an operator wants it, with who, when and why; null when it is that already."""
    if row.mode is mode and (row.mode_stop_at is not None) is stop:
        return None
    return replace(
        row,
        mode=mode,
        mode_since=cause.at,
        mode_reason=reason,
        mode_actor=cause.actor,
        mode_stop_at=cause.at if stop else None,
    )


def block(cause: Cause, pool: Pool, since: int) -> Change:
    """From `since` on its orders cannot be served, so their queue time stands still."""
    return change(cause, K.POOL_BLOCKED, pool_was=pool, pool=replace(pool, blocked_since=since))


def unblock(cause: Cause, pool: Pool) -> Change:
    """Its orders can be served again; what they could not wait is added up."""
    after = replace(pool, blocked_ms=blocked_total_ms(pool, cause.at), blocked_since=None)
    return change(cause, K.POOL_UNBLOCKED, pool_was=pool, pool=after)


class HostSaid(Struct, frozen=True, kw_only=True):
    """What the configuration says of a host."""

    driver: str
    memory_mb: int | None = None
    starts_max: int | None = None
    start_gap_ms: int = 0
    cpus: float | None = None
    limits: PressureLimits = PressureLimits()


def apply_host(cause: Cause, was: Host | None, name: str, said: HostSaid) -> Change | None:
    """Make the host what the configuration says; null when it is that already."""
    host = was or Host(name=name, driver=said.driver, mode_since=cause.at)
    after = replace(host, **asdict(said))
    return None if after == was else change(cause, K.HOST_APPLIED, host_was=was, host=after)


def set_host_mode(cause: Cause, host: Host, mode: Mode, reason: str | None, *, stop: bool = False) -> Change | None:
    """Open, pause or drain a host; null when it is that already. With `stop` what runs is stopped."""
    after = _wanted(cause, host, mode, reason, stop)
    return None if after is None else change(cause, K.HOST_MODE, host_was=host, host=after)


def lead_host(cause: Cause, host: Host, identity: str) -> Change:
    """A leader reached the platform for the first time in its epoch, and knows which one it is."""
    after = replace(host, identity=identity, unreachable_since=None, error=None)
    return change(cause, K.HOST_LED, host_was=host, host=after, note={"epoch": cause.lease[1] if cause.lease else None})


def host_unreachable(cause: Cause, host: Host, error: str) -> Change:
    """The platform could not be asked: nothing on it changes until it can."""
    since = cause.at if host.unreachable_since is None else host.unreachable_since
    return change(cause, K.HOST_UNREACHABLE, host_was=host, host=replace(host, unreachable_since=since, error=error))


def host_reachable(cause: Cause, host: Host) -> Change:
    """The platform answers again."""
    return change(cause, K.HOST_REACHABLE, host_was=host, host=replace(host, unreachable_since=None, error=None))


def declare_dead(cause: Cause, host: Host, reason: str) -> Change:
    """An operator's word: whatever was commanded on this host before now is gone, whichever platform answers next."""
    after = replace(host, dead_at=cause.at, identity=None)
    return change(cause, K.HOST_DECLARED_DEAD, host_was=host, host=after, note={"reason": reason})


def sweep(cause: Cause, host: Host, strays: Sequence[str]) -> Change:
    """Things of ours that belong to no slot are about to be taken away; their names are kept here."""
    return change(cause, K.HOST_SWEPT, host_was=host, host=replace(host, error=None), note={"strays": [*strays]})


def alarm(cause: Cause, host: Host, error: str | None) -> Change | None:
    """Something on the host needs a person (null: no longer); null when that is known. It stays in use."""
    if host.error == error or host.unreachable_since is not None:
        return None
    return change(cause, K.HOST_ALARMED, host_was=host, host=replace(host, error=error))


def press(cause: Cause, host: Host, after: Host) -> Change | None:
    """What was measured put the host on another level, or began or broke its calm; null when it did neither."""
    if after.pressure is not host.pressure:
        return change(cause, K.HOST_PRESSURE, host_was=host, host=after)
    if after.calm_since != host.calm_since:
        return change(cause, K.HOST_CALMING, host_was=host, host=after)
    return None


def fingerprint(settings: PoolSettings) -> str:
    """What tells slots of one template from those of another: what they are made of, and their memory."""
    return sha256(encode((settings.template, settings.memory_mb))).hexdigest()[:16]


def set_project_mode(
    cause: Cause, was: Project | None, name: str, mode: Mode, reason: str | None, *, stop: bool = False
) -> Change | None:
    """Open, pause or drain a project, which may have no row yet; null when it is that already. With `stop` what runs is
    stopped."""
    after = _wanted(cause, was or Project(name=name), mode, reason, stop)
    return None if after is None else change(cause, K.PROJECT_MODE, project_was=was, project=_limited(after))


def _limited(project: Project) -> Project:
    """The project with the limit that counts in its mode."""
    return replace(project, running_max=project.configured_max if project.mode is Mode.OPEN else 0)


def apply_project(cause: Cause, was: Project | None, configured: Project) -> Change | None:
    """Make the project what the configuration says, but for what operators set; null when it is that already."""
    after = _set_over(was or configured, configured, {} if was is None else was.overrides)
    return None if after == was else change(cause, K.PROJECT_APPLIED, project_was=was, project=after)


def override_project(
    cause: Cause, was: Project | None, configured: Project, wanted: Mapping[str, Override | None]
) -> Change | None:
    """Set some settings over the configuration, give others (null) back to it; null when nothing changes."""
    project = was or configured
    after = _set_over(project, configured, overridden(project.overrides, wanted))
    return None if after == project else change(cause, K.PROJECT_OVERRIDDEN, project_was=was, project=after)


def _set_over(project: Project, configured: Project, overrides: Mapping[str, Override]) -> Project:
    said = {name: getattr(configured, name) for name in PROJECT_SETTINGS}
    values = said | {name: override.value for name, override in overrides.items()}
    return _limited(replace(project, **values, configured_max=values["running_max"], overrides=overrides))


def overridden(was: Mapping[str, Override], wanted: Mapping[str, Override | None]) -> dict[str, Override]:
    """What is set by hand once this is; what is set to the value it has keeps who set it and when."""
    new = {
        name: override
        for name, override in wanted.items()
        if override is None or name not in was or was[name].value != override.value
    }
    return {name: override for name, override in {**was, **new}.items() if override is not None}


def refuse_for_pool(cause: Cause, pool: Pool) -> Change:
    """Orders are being refused, because too many wait in the pool."""
    note = {"queue_max": pool.settings.queue_max}
    return change(cause, K.POOL_BACKPRESSURE, pool_was=pool, pool=pool, note=note)


def refuse_for_project(cause: Cause, project: Project) -> Change:
    """Orders are being refused, because too many of the project wait."""
    note = {"queue_max": project.queue_max}
    return change(cause, K.PROJECT_BACKPRESSURE, project_was=project, project=project, note=note)
