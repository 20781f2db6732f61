"""What an operator can set: one TOML file, an env twin for each top-level value, and flags. Read once, at the start.

In the file a length of time is a number of seconds or a text like "5m" or "250ms"; in the code it is milliseconds.
"none" in the file means unlimited; 0 means zero.
"""

import difflib
import ipaddress
import os
import re
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, Literal, Self
from urllib.parse import urlsplit

from msgspec.structs import asdict, replace
from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, SecretStr, StringConstraints, ValidationError
from pydantic_core import ErrorDetails

from standby.core.errors import ConfigError as ConfigError
from standby.core.model import NEVER_RETRIED, PoolSettings, Reason, Retry

FILE_NAME: Final = "standby.toml"
DATABASES: Final = ("sqlite:///", "postgresql://", "postgres://")
ENV_PREFIX: Final = "STANDBY_"
ENV_ALLOW: Final = ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "USER", "LOGNAME", "SHELL")
MEMORY_SHARE: Final = 0.8
_UNITS_MS: Final = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000}
_LENGTH: Final = re.compile(r"([0-9]+(?:\.[0-9]+)?)\s*(ms|s|m|h|d)")
_LENGTH_MAX_MS: Final = 100 * 366 * 86_400_000
_MEMORY_MAX_MB: Final = 2**40


def _length_ms(value: Any) -> Any:
    """A number of seconds, or a text like "5m", as milliseconds."""
    ms = value
    if isinstance(value, str) and (match := _LENGTH.fullmatch(value.strip())):
        ms = float(match[1]) * _UNITS_MS[match[2]]
    elif isinstance(value, str) and re.fullmatch(r"[0-9]+(\.[0-9]+)?", value.strip()):
        ms = float(value) * 1_000
    elif isinstance(value, int | float) and not isinstance(value, bool):
        ms = value * 1_000
    else:
        raise ValueError('write a number of seconds, or a text like "250ms", "30s", "5m", "1h"')
    if not 0 <= ms <= _LENGTH_MAX_MS:
        raise ValueError("a length of time must be 0 or more, and less than a hundred years")
    return round(ms)


def _or_none(value: Any) -> Any:
    return None if value == "none" else value


def _length_or_none(value: Any) -> Any:
    return None if value is None or value == "none" else _length_ms(value)


def _reason(value: Any) -> Any:
    try:
        reason = Reason(value)
    except ValueError:
        raise ValueError(f"write some of: {', '.join(sorted(set(Reason) - NEVER_RETRIED))}") from None
    if reason in NEVER_RETRIED:
        raise ValueError(f"{reason} is never retried")
    return reason


def _path(value: Any) -> Any:
    if not isinstance(value, str | Path) or not str(value) or "\0" in str(value):
        raise ValueError("write the path of a directory")
    return Path(value).expanduser().absolute()


Length = Annotated[int, BeforeValidator(_length_ms)]
LengthOrNone = Annotated[int | None, BeforeValidator(_length_or_none)]
Count = Annotated[int, Field(ge=0, le=1_000_000)]
CountOrNone = Annotated[int | None, Field(ge=0, le=1_000_000), BeforeValidator(_or_none)]
Megabytes = Annotated[int, Field(ge=0, le=_MEMORY_MAX_MB)]
MegabytesOrNone = Annotated[int | None, Field(ge=0, le=_MEMORY_MAX_MB), BeforeValidator(_or_none)]
Reasons = Annotated[list[Annotated[Reason, BeforeValidator(_reason)]], Field(max_length=len(Reason))]
Directory = Annotated[Path, BeforeValidator(_path)]
Name = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9-]{0,62}$")]


class _Section(BaseModel):
    model_config = ConfigDict(
        strict=True, extra="forbid", frozen=True, validate_default=True, hide_input_in_errors=True
    )


class HostConfig(_Section):
    """`[hosts.NAME]`: a platform that runs work."""

    driver: Literal["process", "scripted"] = "process"
    memory_mb: MegabytesOrNone = None
    directory: Directory | None = None
    seats: bool = True
    refuses_creates: Count = 0
    lag_ms: Length = Field(0, alias="lag")


class PoolConfig(_Section):
    """`[pools.NAME]`: interchangeable slots on one host, and defaults for their orders. What is not set comes from the
    profile, then from the built-in defaults: see `Config.pool_settings`."""

    host: str | None = None
    profile: Annotated[Literal["bots", "agents", "deployments"] | None, BeforeValidator(_or_none)] = None
    slots_max: Count = 0
    memory_mb: Megabytes = 0
    queue_timeout_ms: LengthOrNone = Field(None, alias="queue_timeout")
    queue_timeout_max_ms: LengthOrNone = Field(None, alias="queue_timeout_max")
    start_timeout_ms: Length = Field(0, alias="start_timeout")
    run_timeout_ms: LengthOrNone = Field(None, alias="run_timeout")
    stop_grace_ms: Length = Field(0, alias="stop_grace")
    retries: Annotated[int, Field(ge=0, le=100)] = 0
    retry_base_ms: Length = Field(0, alias="retry_base")
    retry_factor: Annotated[float, Field(ge=1, le=100)] = 1.0
    retry_cap_ms: Length = Field(0, alias="retry_cap")
    retry_on: Reasons = []
    no_retry_on: Reasons = []


class ProjectConfig(_Section):
    """`[projects.NAME]`: limits of one project."""

    running_max: CountOrNone = None


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
    database: str | None = Field(None, repr=False)
    """Null is the SQLite file in `state_dir`; see `database_url`."""
    installation: Name = "standby"
    bind: Annotated[str, Field(min_length=1, max_length=255)] = "127.0.0.1"
    port: Annotated[int, Field(ge=0, le=65_535)] = 8377
    auth: bool = True
    hints: bool = True
    # Defaults of lengths are written as in the file: seconds, or a text.
    poll_ms: Length = Field(1, alias="poll")
    lease_ms: Length = Field(10, alias="lease")
    renew_ms: Length = Field(3, alias="renew")
    command_window_ms: Length = Field(2, alias="command_window")
    shutdown_grace_ms: Length = Field(30, alias="shutdown_grace")
    log_cap_mb: Annotated[int, Field(ge=1, le=1_048_576)] = 8
    log_poll_ms: Length = Field("250ms", alias="log_poll")  # type: ignore[assignment]
    request_max_kb: Annotated[int, Field(ge=1, le=1_048_576)] = 1_024
    queue_timeout_max_ms: LengthOrNone = Field("10m", alias="queue_timeout_max")  # type: ignore[assignment]
    seal_key: SecretStr | None = None
    disk_reserve_mb: Megabytes = 1_024
    env_allow: list[str] = list(ENV_ALLOW)
    cgroups: Literal["auto", "off"] = "off"
    hosts: dict[Name, HostConfig] = {}
    pools: dict[Name, PoolConfig] = {}
    projects: dict[Name, ProjectConfig] = {}

    @classmethod
    def of(cls, **keys: Any) -> Self:
        """A configuration from keys as they are written in the file (`poll="50ms"`), checked as a whole."""
        try:
            config = cls.model_validate(_filled(keys))
        except ValidationError as error:
            raise ConfigError("\n".join(_say(each, {}, "configuration") for each in error.errors())) from None
        for problem in _contradictions(config):
            raise ConfigError(f"configuration: {problem}")
        return config

    @property
    def database_url(self) -> str:
        """Where the store is: the setting, or the SQLite file in the state directory."""
        return self.database or f"sqlite:///{self.state_dir / 'standby.db'}"

    @property
    def database_shown(self) -> str:
        """Where the store is, without its password."""
        return shown_url(self.database_url)

    def pool_settings(self, name: str) -> PoolSettings:
        """What the pool's orders get: its own keys, over its profile, over the built-in defaults."""
        pool = self.pools[name]
        if pool.profile is None:
            base = PoolSettings(queue_timeout_max_ms=self.queue_timeout_max_ms)
        else:
            base = PROFILES[pool.profile]
            if base.queue_timeout_max_ms is not None:
                base = replace(base, queue_timeout_max_ms=self.queue_timeout_max_ms)
        given = {key: getattr(pool, key) for key in pool.model_fields_set}
        policy = {_RETRY_KEYS[key]: value for key, value in given.items() if key in _RETRY_KEYS}
        policy = {key: tuple(value) if isinstance(value, list) else value for key, value in policy.items()}
        own = {key: value for key, value in given.items() if key in asdict(base)}
        return replace(base, **own, retry=replace(base.retry, **policy))

    def pool_host(self, name: str) -> str:
        """The name of the pool's host: its own, or the only one there is."""
        return self.pools[name].host or next(iter(self.hosts))

    def host_memory_mb(self, name: str) -> int | None:
        """The host's budget: its own, or for processes 80 % of this machine's memory; null is no limit."""
        host = self.hosts[name]
        if "memory_mb" in host.model_fields_set or host.driver != "process":
            return host.memory_mb
        return int(machine_memory_mb() * MEMORY_SHARE)

    def host_directory(self, name: str) -> Path:
        """Where a process host keeps its journal and output."""
        return self.hosts[name].directory or self.state_dir / "hosts" / name

    def running_max(self, project: str) -> int | None:
        """How many open runs a project may have; null is no limit."""
        found = self.projects.get(project)
        return None if found is None else found.running_max


_RETRY_KEYS: Final = {
    "retries": "retries",
    "retry_base_ms": "base_ms",
    "retry_factor": "factor",
    "retry_cap_ms": "cap_ms",
    "retry_on": "retry_on",
    "no_retry_on": "no_retry_on",
}
SECTIONS: Final = ("hosts", "pools", "projects")
SECRET_KEYS: Final = frozenset({"seal_key", "database"})


def load_config(
    path: Path | None = None, env: Mapping[str, str] | None = None, flags: Mapping[str, Any] | None = None
) -> Config:
    """The configuration: flag over env over file over default. Raises ConfigError with every problem, one a line."""
    env = os.environ if env is None else env
    named = path or (Path(env["STANDBY_CONFIG"]) if env.get("STANDBY_CONFIG") else None)
    file = named or Path(FILE_NAME)
    keys = _read(file, must_be_there=named is not None)
    sources = dict.fromkeys(keys, str(file))
    if env.get("DATABASE_URL") and "database" not in keys:
        keys["database"], sources["database"] = env["DATABASE_URL"], "DATABASE_URL"
    for key, field in _scalar_keys().items():
        if (text := env.get(ENV_PREFIX + key.upper())) is not None:
            keys[key], sources[key] = _from_env(field, text), ENV_PREFIX + key.upper()
    for key, value in (flags or {}).items():
        if value is not None:
            keys[key], sources[key] = value, f"--{key.replace('_', '-')}"
    try:
        config = Config.model_validate(_filled(keys))
    except ValidationError as error:
        raise ConfigError("\n".join(_say(each, sources, str(file)) for each in error.errors())) from None
    problems = [f"{sources.get(re.split('[:.,]', each)[0], str(file))}: {each}" for each in _contradictions(config)]
    if problems:
        raise ConfigError("\n".join(problems))
    return config


def _read(file: Path, *, must_be_there: bool) -> dict[str, Any]:
    try:
        return tomllib.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        if not must_be_there:
            return {}
        raise ConfigError(f"{file}: there is no such file; name another one with --config or STANDBY_CONFIG") from None
    except OSError as error:
        raise ConfigError(f"{file}: cannot be read: {error.strerror}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{file}: is not UTF-8 text; save it as UTF-8") from None
    except (tomllib.TOMLDecodeError, RecursionError, ValueError) as error:
        raise ConfigError(f"{file}: is not valid TOML: {error}") from None


def _filled(keys: Mapping[str, Any]) -> dict[str, Any]:
    """With a host `local` and a pool `default` where none is named."""
    filled = {"hosts": {}, "pools": {}, **keys}
    if filled["hosts"] == {}:
        filled["hosts"] = {"local": {"driver": "process"}}
    if filled["pools"] == {}:
        filled["pools"] = {"default": {}}
    return filled


def _scalar_keys() -> dict[str, Any]:
    """Top-level keys as they are written, with their type."""
    fields = Config.model_fields.items()
    return {field.alias or name: field.annotation for name, field in fields if name not in SECTIONS}


def _from_env(annotation: Any, text: str) -> Any:
    """An env text as the value it means; what does not fit is left for the check to refuse."""
    if annotation is bool:
        return {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}.get(text.lower(), text)
    if annotation in (int, int | None) and re.fullmatch(r"-?[0-9]{1,18}", text):
        return int(text)
    if annotation == list[str]:
        return [name.strip() for name in text.split(",") if name.strip()]
    return text


def _say(error: ErrorDetails, sources: Mapping[str, str], file: str) -> str:
    """One problem in words: where, which key, what to do. Never the value of a secret."""
    where = [str(part) for part in error["loc"] if part != "[key]"]
    source = sources.get(where[0], file) if where else file
    key = ".".join(where) or "the file"
    if error["type"] == "extra_forbidden":
        known = _keys_at(where[:-1])
        near = difflib.get_close_matches(where[-1], known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known keys are {', '.join(sorted(known))}"
        return f"{source}: {key}: unknown key; {hint}"
    if error["type"] == "string_pattern_mismatch":
        return f"{source}: {key}: write a name of a-z, 0-9 and -, at most 63 long, beginning with a letter or digit"
    return f"{source}: {key}: {error['msg'].removeprefix('Value error, ')}"


def _keys_at(where: list[str]) -> list[str]:
    models: dict[str, type[BaseModel]] = {"hosts": HostConfig, "pools": PoolConfig, "projects": ProjectConfig}
    model = models.get(where[0], Config) if where else Config
    return [field.alias or name for name, field in model.model_fields.items()]


def _contradictions(config: Config) -> list[str]:
    """What each key allows by itself but not together."""
    found = []
    if config.database is not None and not _names_database(config.database):
        found.append("database: write sqlite:///path/to/standby.db or postgresql://user@host:5432/database")
    if not config.auth and not _loopback(config.bind):
        found.append(f"auth: may be false only when bind is a loopback address, not {config.bind}; set auth = true")
    if not 0 < config.renew_ms < config.lease_ms:
        found.append("renew: must be more than 0 and less than lease")
    if not 0 < config.command_window_ms < config.lease_ms:
        found.append("command_window: must be more than 0 and less than lease")
    if config.poll_ms <= 0 or config.log_poll_ms <= 0:
        found.append("poll, log_poll: must be more than 0")
    key = config.seal_key.get_secret_value() if config.seal_key else None
    if key is not None and not re.fullmatch(r"[0-9a-fA-F]{64}", key):
        found.append("seal_key: write 64 hexadecimal digits (for example from `openssl rand -hex 32`)")
    for name, pool in config.pools.items():
        found.extend(f"pools.{name}.{problem}" for problem in _pool_contradictions(config, name, pool))
    return found


def _pool_contradictions(config: Config, name: str, pool: PoolConfig) -> list[str]:
    if pool.host is None and len(config.hosts) > 1:
        return [f"host: there are several hosts; name one of {', '.join(config.hosts)}"]
    if pool.host is not None and pool.host not in config.hosts:
        near = difflib.get_close_matches(pool.host, config.hosts, n=1)
        hint = f"did you mean {near[0]}?" if near else f"there are {', '.join(config.hosts)}"
        return [f"host: there is no host {pool.host!r}; {hint}"]
    settings = config.pool_settings(name)
    most = settings.queue_timeout_max_ms
    if most is not None and (settings.queue_timeout_ms is None or settings.queue_timeout_ms > most):
        return ["queue_timeout: is above the ceiling; raise queue_timeout_max of this pool too"]
    return []


def _names_database(url: str) -> bool:
    """Whether a URL has the shape of one that a store can be opened by. PostgreSQL's may name several servers."""
    if not url.startswith(DATABASES) or url in DATABASES:
        return False
    try:
        servers = [] if url.startswith("sqlite") else urlsplit(url).netloc.rpartition("@")[2].split(",")
        return all(urlsplit(f"//{each}").port != 0 for each in servers)
    except ValueError:
        return False


def _loopback(bind: str) -> bool:
    try:
        return bind == "localhost" or ipaddress.ip_address(bind.strip("[]")).is_loopback
    except ValueError:
        return False


def shown_url(url: str) -> str:
    """A database address without its password, and without its query, where passwords may hide too."""
    if "://" not in url:
        return url
    parts = urlsplit(url)
    user = f"{parts.username}@" if parts.username else ""
    return f"{parts.scheme}://{user}{parts.netloc.rpartition('@')[2]}{parts.path}"


def machine_memory_mb() -> int:
    """Memory of this machine, or of the container we are in when that is less."""
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        limit = Path("/sys/fs/cgroup/memory.max").read_text().strip()
    except OSError:
        limit = "max"
    return min(total, int(limit) if limit.isdigit() else total) // 2**20
