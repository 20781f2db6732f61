"""What each setting allows by itself but not together with others, said in words."""

import re
from collections.abc import Iterator
from typing import Final

from standby.config.model import Config, HostConfig, PoolConfig
from standby.config.values import did_you_mean, is_loopback, names_database
from standby.core.model import PoolSettings, Reset, Template, Warmth

BESIDE: Final = {
    "queue_timeout": ("queue_timeout_max",),
    "slots_warm": ("slots_max",),
    "reset": ("project",),
    "ready": ("worker",),
}
"""Keys of a pool that contradict each other: whoever set the second one must hear of it, too."""
CONFINES: Final = ("image", "command", "pids_max", "shm_mb", "network", "mounts", "user", "read_only", "cap_add")
"""Keys of containers. A process does not have them: who believes in them would run work that nothing confines."""


def contradictions(config: Config) -> Iterator[tuple[tuple[str, ...], str]]:
    """What each key allows by itself but not together: the keys it is about, and what to do."""
    if config.database is not None and not names_database(config.database):
        yield ("database",), "write sqlite:///path/to/standby.db or postgresql://user@host:5432/database"
    if not config.auth and not is_loopback(config.bind):
        text = f"may be false only when bind is a loopback address, not {config.bind}; set auth = true"
        yield ("auth", "bind"), text
    for key, ms in (("renew", config.renew_ms), ("command_window", config.command_window_ms)):
        if not 0 < ms < config.lease_ms:
            yield (key, "lease"), "must be more than 0 and less than lease"
    for key, ms in (("poll", config.poll_ms), ("log_poll", config.log_poll_ms)):
        if ms <= 0:
            yield (key,), "must be more than 0"
    if config.seal_key and not re.fullmatch(r"[0-9a-fA-F]{64}", config.seal_key.get_secret_value()):
        yield ("seal_key",), "write 64 hexadecimal digits (for example from `openssl rand -hex 32`)"
    for name, host in config.hosts.items():
        for key, text in _host_contradictions(host):
            yield (f"hosts.{name}.{key}", f"hosts.{name}.driver"), text
    for name, pool in config.pools.items():
        for key, text in _pool_contradictions(config, name, pool):
            yield (*(f"pools.{name}.{each}" for each in (key, *BESIDE.get(key, ()))), "queue_timeout_max"), text


def _pool_contradictions(config: Config, name: str, pool: PoolConfig) -> Iterator[tuple[str, str]]:
    if pool.host is None and len(config.hosts) > 1:
        yield "host", f"there are several hosts; name one of {', '.join(config.hosts)}"
    if pool.host is not None and pool.host not in config.hosts:
        yield "host", f"there is no host {pool.host!r}; {did_you_mean(pool.host, config.hosts)}"
    settings = config.pool_settings(name)
    yield from _slot_contradictions(settings, containers=config.makes_containers(name))
    host = config.hosts.get(config.pool_host(name))
    if host is not None and host.cpus is not None and (settings.template.cpus or 0.0) > host.cpus:
        yield "cpus", f"is more than the {host.cpus:g} that its host has in all: nothing would ever start"
    if host is not None and host.driver == "process":
        own, plain = settings.template, Template()
        said = f"is for containers, and {config.pool_host(name)} runs processes: name a docker host, or leave it out"
        yield from ((key, said) for key in CONFINES if getattr(own, key) != getattr(plain, key))
    if host is not None and host.driver == "coolify":
        yield from _coolify_contradictions(settings)
    most = settings.queue_timeout_max_ms
    if most is not None and (settings.queue_timeout_ms is None or settings.queue_timeout_ms > most):
        yield "queue_timeout", "is above the ceiling; raise queue_timeout_max of this pool too"


def _slot_contradictions(settings: PoolSettings, *, containers: bool) -> Iterator[tuple[str, str]]:
    template = settings.template
    if settings.slots_warm > settings.slots_max:
        yield "slots_warm", "cannot be more than slots_max"
    if settings.reset is Reset.NONE and settings.project is None:
        yield "reset", 'only a pool of one project may hand a used slot on: set project, or reset = "recreate"'
    if containers and template.image is None:
        yield "image", "a pool of containers needs one"
    if template.ready == "heartbeat" and not template.worker:
        yield "ready", '"heartbeat" needs worker = true'


def _host_contradictions(host: HostConfig) -> Iterator[tuple[str, str]]:
    if host.driver == "docker" and host.endpoint.startswith("tcp:") and host.tls is None:
        yield "tls", "an engine at tcp:// needs it: a directory with ca.pem, cert.pem and key.pem"
    if host.pressure_warning > host.pressure_critical:
        yield "pressure_warning", "cannot be above pressure_critical"
    if host.driver != "coolify":
        return
    yield from ((key, "a coolify host needs it") for key in ("url", "project", "server") if getattr(host, key) is None)
    if host.token is None and host.token_file is None:
        yield "token", "a coolify host needs it, or token_file"


def _coolify_contradictions(settings: PoolSettings) -> Iterator[tuple[str, str]]:
    template = settings.template
    if not template.worker:
        yield "worker", "must be true on Coolify: only a worker can say how its run ended"
    if template.warmth is Warmth.COLD:
        yield "warmth", 'Coolify has no cold slots: write "created" or "running"'
    for key in ("command", "mounts", "user"):
        if getattr(template, key):
            yield key, "cannot be set on Coolify, which runs an image as it is"
