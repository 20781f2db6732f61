"""Every key with its kind, default and meaning (which goes into docs/configuration.md), and what they come to."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self

from msgspec import Struct
from msgspec.structs import asdict, replace
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, PrivateAttr, SecretStr

from standby import machine
from standby.config.values import (
    Count,
    CountOrNone,
    DaysOrNone,
    Directory,
    FilePath,
    HttpUrlOrNone,
    Length,
    LengthOrNone,
    Megabytes,
    MegabytesOrNone,
    Mount,
    Name,
    Percent,
    ProcessorsOrNone,
    Reasons,
    Share,
    UuidOrNone,
    _or_none,
    _reset,
    _warmth,
    shown_url,
)
from standby.core.model import PoolSettings, Project, Reason, Reset, Retry, Template, Warmth

ENV_ALLOW: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL")
MEMORY_SHARE: Final = 0.8
LOCAL: Final = ("process", "scripted")
"""Drivers that make no containers."""
CONTAINER_MEMORY_MB: Final = 4_096
STARTS_MAX: Final = 4
SOCKET_PATH_MAX: Final = 107


class Source(Struct, frozen=True):
    """Where a setting's value comes from; `over` are the places that say it too and lose."""

    value_from: Literal["flag", "env", "file", "default"]
    where: str
    over: tuple[str, ...] = ()


class _Section(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True
    )


class HostConfig(_Section):
    """`[hosts.NAME]`: a platform that runs work."""

    driver: Literal["process", "docker", "coolify", "scripted"] = "process"
    """`"process"`, `"docker"`, `"coolify"` or `"scripted"`; see [drivers](drivers.md)."""
    starts_max: CountOrNone = None
    """Platform starts in flight at once: runs that were commanded and are not ready, slots that are being made. Not
    set: no limit for processes and scripted, 4 for others."""
    start_gap_ms: Length = Field(0, alias="start_gap")
    """At least so long between two starts."""
    memory_mb: MegabytesOrNone = None
    """Budget for everything on it. Not set: 80 % of this machine's memory (or of the control group that confines the
    server) for processes, 80 % of this machine's for Docker at `unix://`, unlimited for others. `"none"`: unlimited."""
    cpus: ProcessorsOrNone = None
    """Budget of processors for everything on it, counted by the `cpus` of its orders and pools. Not set: no limit."""
    pressure_warning: Share = 0.80
    """From this share of used memory on, `starts_max` is halved (1 where there is none) and starts are 2 s apart."""
    pressure_critical: Share = 0.90
    """From this share on, nothing new is started at all."""
    psi_warning: Percent = 10.0
    """The same as `pressure_warning`, when some work stood still for memory more than so many percent of the time."""
    psi_critical: Percent = 5.0
    """The same as `pressure_critical`, when all work stood still for memory more than so many percent of the time."""
    pressure_calm_ms: Length = Field("30s", alias="pressure_calm")  # type: ignore[assignment]
    """So long every reading must be below the limits of a level before the host leaves it."""
    endpoint: Annotated[str, Field(pattern=r"^(unix:///|tcp://).+", max_length=512)] = "unix:///var/run/docker.sock"
    """Docker: where its engine is, `"unix:///path"` or `"tcp://host:port"`."""
    tls: Directory | None = None
    """Docker: a directory with `ca.pem`, `cert.pem` and `key.pem`, for an engine at `tcp://`."""
    directory: Directory | None = None
    """Process: where its keeper lives. Not set: `<state_dir>/hosts/NAME`."""
    seats: bool = True
    """Scripted: whether slots are mere seats."""
    refuses_creates: Count = 0
    """Scripted, without seats: how many of the first places cannot be made."""
    reading_file: FilePath | None = None
    """Scripted: a file with what is measured on it, as `GET /hosts/NAME` shows a reading; missing: nothing is."""
    lag_ms: Length = Field(0, alias="lag")
    """Scripted: the driver's lag. Coolify: how late its statuses may be; not set: 3 minutes."""
    url: HttpUrlOrNone = None
    """Coolify: its address, for example `"https://coolify.example.com"`."""
    token: SecretStr | None = None
    """Coolify: an API token that may read, write and deploy. Better in its env twin, or in `token_file`."""
    token_file: FilePath | None = None
    """Coolify: a file that holds the token, where `token` is not set."""
    project: UuidOrNone = None
    """Coolify: the project (its uuid) that gets the applications."""
    server: UuidOrNone = None
    """Coolify: the server (its uuid) that runs them."""
    environment: Annotated[str, Field(min_length=1, max_length=255)] = "production"
    """Coolify: the project's environment."""
    destination: UuidOrNone = None
    """Coolify: the server's network (the uuid of a destination). Not set: the only one it has."""


class PoolConfig(_Section):
    """`[pools.NAME]`: interchangeable slots on one host, and defaults for their orders. What is not set comes from the
    profile, then from the built-in defaults: see `Config.pool_settings`."""

    host: str | None = None
    """The pool's host; may be left out when there is only one."""
    profile: Annotated[Literal["bots", "agents", "deployments"] | None, BeforeValidator(_or_none)] = None
    """A set of defaults: `"bots"`, `"agents"` or `"deployments"`, see below."""
    project: Annotated[Name | None, BeforeValidator(_or_none)] = None
    """Only orders of this project may use the pool."""
    slots_max: Count = 0
    """Slots at most."""
    slots_warm: Count = 0
    """So many idle, ready slots are kept ahead of need."""
    idle_ttl_ms: LengthOrNone = Field(None, alias="idle_ttl")
    """An idle slot above `slots_warm` is given up after this."""
    max_uses: CountOrNone = None
    """A slot is made anew after so many orders."""
    max_age_ms: LengthOrNone = Field(None, alias="max_age")
    """A slot is made anew after this."""
    pick: Literal["lru", "mru"] = "lru"
    """Which idle slot is taken: `"lru"` (the longest unused, of mere seats to half a second; never-used ones before
    all) or `"mru"`."""
    running_max: CountOrNone = None
    """Open runs at once. `"none"`: as many as there are slots."""
    starts_per_minute: CountOrNone = None
    """Runs that may begin in a minute, evenly spaced: with 30, one every two seconds. `"none"`: no limit."""
    queue_max: CountOrNone = None
    """Ready orders that may wait at once; further ones are refused with 429. `"none"`: no limit."""
    reset: Annotated[Reset, BeforeValidator(_reset)] = Reset.RECREATE
    """How a used slot is made ready again: `"recreate"`, or `"none"` where `project` is set."""
    memory_mb: Megabytes = 0
    """Memory counted for each order, and the limit of a container."""
    image: Annotated[str | None, Field(min_length=1, max_length=512), BeforeValidator(_or_none)] = None
    """Containers: the image, with its tag or digest."""
    command: Annotated[list[str], Field(max_length=200)] = []
    """Containers: what they run. Empty: what the image says."""
    warmth: Annotated[Warmth, BeforeValidator(_warmth)] = Warmth.CREATED
    """Containers: what an idle slot is: `"created"` (made, never started), `"running"`, or `"cold"` (nothing)."""
    worker: bool = False
    """Its slots have a resident worker that fetches its work."""
    ready: Literal["running", "healthy", "heartbeat"] = "running"
    """When a container is ready: it runs, its health check says so, or its worker does."""
    silence_ms: LengthOrNone = Field(None, alias="silence")
    """Its workers end themselves so long after their last answered heartbeat. `"none"`: their silence means nothing."""
    cpus: ProcessorsOrNone = None
    """Processors counted for each open run whose order asks for none, against the host's `cpus`; containers are held
    to it."""
    pids_max: CountOrNone = None
    """Containers: processes and threads at most."""
    shm_mb: Megabytes = 64
    """Containers: size of `/dev/shm`."""
    network: Annotated[str, Field(min_length=1, max_length=128)] = "bridge"
    """Containers: `"bridge"`, `"none"`, `"host"`, or a network's name."""
    mounts: Annotated[list[Mount], Field(max_length=50)] = []
    """Containers: `"source:target"` or `"source:target:ro"`."""
    user: Annotated[str | None, Field(min_length=1, max_length=128), BeforeValidator(_or_none)] = None
    """Containers: the user they run as. Not set: what the image says."""
    read_only: bool = True
    """Containers: the root file system cannot be written; `/tmp` can."""
    cap_add: Annotated[list[str], Field(max_length=64)] = []
    """Containers: capabilities they keep. All others are dropped."""
    queue_timeout_ms: LengthOrNone = Field(None, alias="queue_timeout")
    """How long an order waits while the pool could serve it."""
    queue_timeout_max_ms: LengthOrNone = Field(None, alias="queue_timeout_max")
    """The longest an order may ask for. Not set: the top-level value."""
    deploy_timeout_ms: Length = Field(0, alias="deploy_timeout")
    """How long it waits in all when it only waits for a start: the host's gate, a pull, a slot being made."""
    start_timeout_ms: Length = Field(0, alias="start_timeout")
    """From the command until it must be ready."""
    run_timeout_ms: LengthOrNone = Field(None, alias="run_timeout")
    """From ready until it must have ended."""
    stop_grace_ms: Length = Field(0, alias="stop_grace")
    """From the asking until it is forced."""
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    """Runs after the first."""
    retry_base_ms: Length = Field(0, alias="retry_base")
    """Wait before the first retry."""
    retry_factor: Annotated[float, Field(ge=1, le=100)] = 1.0
    """How much longer each next wait is. A tenth more or less by chance."""
    retry_cap_ms: Length = Field(0, alias="retry_cap")
    """The longest wait."""
    retry_on: Reasons = []
    """Reasons retried beside `lost`, `drained` and `start_failed`: `exit`, `oom`, `timeout`. What would fail to start
    each time (no such command) is retried only where `start_failed` is named here."""
    no_retry_on: Reasons = []
    """Reasons not retried although they would be."""
    retry_errors: Annotated[list[str], Field(max_length=100)] = []
    """Names of workers' errors that are retried, whatever the worker says."""
    fatal_errors: Annotated[list[str], Field(max_length=100)] = []
    """Names of workers' errors that are never retried."""


class ProjectConfig(_Section):
    """`[projects.NAME]`: limits of one project, and its share."""

    running_max: CountOrNone = None
    """Open runs at once, over all hosts. Not set: no limit."""
    weight: Annotated[int, Field(ge=1, le=1_000)] = 1
    """Its share of the turns where several projects wait for the same pool: 3 starts three orders for each one of a
    project with 1."""
    queue_max: CountOrNone = None
    """Ready orders that may wait at once, over all pools; further ones are refused with 429. Not set: no limit."""


_PLAIN: Final = ProjectConfig()
PROFILES: Final[Mapping[str, PoolSettings]] = {
    "bots": PoolSettings(slots_max=100, queue_timeout_ms=300_000),
    "agents": PoolSettings(
        slots_max=2,
        memory_mb=4096,
        queue_timeout_ms=None,
        queue_timeout_max_ms=None,
        retry=Retry(retry_on=(Reason.EXIT,)),
    ),
    "deployments": PoolSettings(queue_timeout_ms=None, queue_timeout_max_ms=None, retry=Retry(retries=0)),
}


class Config(_Section):
    """Everything an operator can set, checked. Made by `load_config`, or in a test by `Config.of`."""

    state_dir: Directory = Path(".standby")
    """Where this server keeps its SQLite files, keys and process hosts."""
    database: str | None = Field(None, repr=False)
    """`postgresql://user:password@host/name`; without it, SQLite in `state_dir`. `DATABASE_URL` counts too when nothing
    else is set."""
    installation: Name = "standby"
    """Goes into the names of slots, so that two installations can share a platform."""
    bind: Annotated[str, Field(min_length=1, max_length=255)] = "127.0.0.1"
    """Address to listen on."""
    port: Annotated[int, Field(ge=0, le=65_535)] = 8377
    """Port to listen on; 0 takes any free one."""
    auth: bool = True
    """Ask for a key. `false` is allowed only on a loopback address."""
    hints: bool = True
    """Wake up when something was committed. Without it everything waits for the next poll."""
    # Defaults of lengths are written as in the file: seconds, or a text.
    poll_ms: Length = Field(1, alias="poll")
    """How often each host's step is repeated when nothing wakes it."""
    lease_ms: Length = Field(10, alias="lease")
    """How long a server leads a host after its last sign of life."""
    renew_ms: Length = Field(3, alias="renew")
    """How often leases are renewed; less than `lease`."""
    command_window_ms: Length = Field(2, alias="command_window")
    """How long after a claim its start may be sent; less than `lease`."""
    shutdown_grace_ms: Length = Field(30, alias="shutdown_grace")
    """How long a stopping server may take. Work goes on either way."""
    log_cap_mb: Annotated[int, Field(ge=1, le=1_048_576)] = 8
    """Output kept of each run; the oldest is dropped."""
    log_poll_ms: Length = Field("250ms", alias="log_poll")  # type: ignore[assignment]
    """How often output is fetched."""
    request_max_kb: Annotated[int, Field(ge=1, le=1_048_576)] = 1_024
    """The largest request body."""
    queue_timeout_max_ms: LengthOrNone = Field("10m", alias="queue_timeout_max")  # type: ignore[assignment]
    """The longest queue timeout an order may ask for; above it is refused. `"none"`: no ceiling."""
    history_days: DaysOrNone = 30.0
    """How many days ended orders, their runs and logs, and events are kept. `"none"`: for ever."""
    seal_key: SecretStr | None = None
    """64 hexadecimal digits that env values are sealed with. Without it, the file `seal.key` in `state_dir`, made at
    the first start."""
    worker_url: Annotated[str | None, Field(min_length=1, max_length=2_048), BeforeValidator(_or_none)] = None
    """Where workers reach this server, when that is not the address it listens on: `"http://10.0.0.5:8377"`."""
    worker_socket: Directory | None = None
    """A Unix socket that serves the worker routes only, for places without a network; its directory is what is mounted.
    Not set: `<state_dir>/worker/api.sock`."""
    disk_reserve_mb: Megabytes = 1_024
    """Nothing new is started on a host that is seen to have less free disk: it is under critical pressure."""
    env_allow: list[str] = list(ENV_ALLOW)
    """What processes get of the server's environment. In the env twin: names with commas between."""
    cgroups: Literal["auto", "limit", "off"] = "off"
    """Process hosts. `"auto"`: a control group for each run where one can be made. It holds even a daemon that hides
    all its marks, and costs about half a millisecond a run. `"limit"`: it also holds the run to its memory, where the
    machine has a memory controller: what takes more is killed, and the run ends with `oom`."""
    hosts: dict[Name, HostConfig] = {}
    pools: dict[Name, PoolConfig] = {}
    projects: dict[Name, ProjectConfig] = {}
    _sources: dict[str, Source] = PrivateAttr(default_factory=dict)

    @classmethod
    def of(cls, **keys: Any) -> Self:
        """A configuration from keys as they are written in the file (`poll="50ms"`), checked as a whole."""
        from standby.config.load import checked, paths

        given = {".".join(path): Source("file", "configuration") for path in paths(keys)}
        return checked(cls, keys, given, "configuration")

    @property
    def sources(self) -> Mapping[str, Source]:
        """Where the value of each key comes from, by its path in the file (`pools.default.slots_max`)."""
        return self._sources

    @property
    def database_url(self) -> str:
        """Where the store is: the setting, or the SQLite file in the state directory."""
        return self.database or f"sqlite:///{self.state_dir / 'standby.db'}"

    @property
    def database_shown(self) -> str:
        """Where the store is, without its password."""
        return shown_url(self.database_url)

    def pool_base(self, name: str) -> PoolSettings:
        """What a pool's settings are without keys of its own: its profile, or the built-in defaults."""
        profile = self.pools[name].profile
        base = PoolSettings() if profile is None else PROFILES[profile]
        if self.makes_containers(name):
            base = replace(base, memory_mb=max(base.memory_mb, CONTAINER_MEMORY_MB))
        if base.queue_timeout_max_ms is None:
            return base
        return replace(base, queue_timeout_max_ms=self.queue_timeout_max_ms)

    def pool_settings(self, name: str) -> PoolSettings:
        """What the pool's orders get: its own keys, over its profile, over the built-in defaults."""
        pool, base = self.pools[name], self.pool_base(name)
        given = {key: getattr(pool, key) for key in pool.model_fields_set}
        given = {key: tuple(value) if isinstance(value, list) else value for key, value in given.items()}
        policy = {RETRY_KEYS[key]: value for key, value in given.items() if key in RETRY_KEYS}
        parts = {key: value for key, value in given.items() if key in TEMPLATE_KEYS}
        own = {key: value for key, value in given.items() if key in asdict(base)}
        template = replace(base.template, **parts)
        return replace(base, **own, retry=replace(base.retry, **policy), template=template)

    def pool_host(self, name: str) -> str:
        """The name of the pool's host: its own, or the only one there is."""
        return self.pools[name].host or next(iter(self.hosts))

    def makes_containers(self, pool: str) -> bool:
        """Whether the pool's slots are containers."""
        host = self.hosts.get(self.pool_host(pool))
        return host is not None and host.driver not in LOCAL

    @property
    def worker_socket_path(self) -> Path | None:
        """Where workers reach this server without a network; null where no socket can be: its path is too long."""
        path = (self.worker_socket or self.state_dir / "worker" / "api.sock").absolute()
        return path if len(os.fsencode(path)) <= SOCKET_PATH_MAX else None

    def host_memory_mb(self, name: str) -> int | None:
        """The host's budget: its own, or 80 % of this machine's memory where that is what it has; null is no limit."""
        host = self.hosts[name]
        containers = host.driver == "docker" and host.endpoint.startswith("unix:")
        if "memory_mb" in host.model_fields_set or not (containers or host.driver == "process"):
            return host.memory_mb
        total_mb = machine.total_mb(confined=not containers)
        return None if total_mb is None else int(total_mb * MEMORY_SHARE)

    def host_starts_max(self, name: str) -> int | None:
        """How many starts may be in flight on the host: its own key, or 4 on platforms that make containers."""
        host = self.hosts[name]
        if "starts_max" in host.model_fields_set or host.driver in LOCAL:
            return host.starts_max
        return STARTS_MAX

    def host_directory(self, name: str) -> Path:
        """Where a process host keeps its journal and output."""
        return self.hosts[name].directory or self.state_dir / "hosts" / name

    def project(self, name: str) -> Project:
        """What is said of a project; of most nothing is."""
        said = self.projects.get(name, _PLAIN)
        return Project(name=name, running_max=said.running_max, weight=said.weight, queue_max=said.queue_max)


RETRY_KEYS: Final = {
    "retries": "retries",
    "retry_base_ms": "base_ms",
    "retry_factor": "factor",
    "retry_cap_ms": "cap_ms",
    "retry_on": "retry_on",
    "no_retry_on": "no_retry_on",
    "retry_errors": "retry_errors",
    "fatal_errors": "fatal_errors",
}
TEMPLATE_KEYS: Final = frozenset(Template.__struct_fields__)
SECTIONS: Final[Mapping[str, type[_Section]]] = {"hosts": HostConfig, "pools": PoolConfig, "projects": ProjectConfig}


def keys_of(model: type[BaseModel]) -> dict[str, str]:
    """Keys as they are written -> the names of their fields; sections are not among them."""
    return {field.alias or name: name for name, field in model.model_fields.items() if name not in SECTIONS}


def defaults(config: Config) -> Iterator[tuple[str, Source]]:
    """The path of every key there is, and where its value comes from when nobody sets it."""
    built_in = Source("default", "built in")
    yield from ((key, built_in) for key in keys_of(Config))
    for section, model in SECTIONS.items():
        for name, table in getattr(config, section).items():
            profile = getattr(table, "profile", None)
            other = Source("default", f"profile {profile}") if profile else built_in
            for key in keys_of(model):
                yield f"{section}.{name}.{key}", built_in if key in ("host", "profile") else other
