"""`standby serve`: the one place where everything is put together, and taken apart again in order."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final

import structlog
import uvicorn
import uvloop
from cyclopts import Parameter
from fastapi import FastAPI

from standby import log as logs
from standby.api.app import WorkersOnly, create_app
from standby.api.auth import KEY_FILE, ensure_first_key
from standby.api.front import FrontDoor
from standby.cli.talk import OK, private_files, say
from standby.config import Config, HostConfig, load_config
from standby.control.controller import Controller
from standby.core import work
from standby.core.errors import StandbyError
from standby.drivers.contract import Driver
from standby.drivers.docker import DockerDriver
from standby.drivers.docker.images import logins
from standby.drivers.process import ProcessDriver
from standby.drivers.scripted import ScriptedDriver, ScriptedPlatform
from standby.seal import Seal, load_key
from standby.store.store import open_store
from standby.world import Ids, StoreClock, World, settle_interpreter

SERVER_FILE: Final = "server.json"
REGISTRY_LOGINS: Final = "DOCKER_AUTH_CONFIG"
"""Names and passwords of registries, as in Docker's own configuration file."""
CONNECTIONS_GRACE_S: Final = 5
BACKLOG: Final = 2_048
UVICORN: Final[Mapping[str, Any]] = {
    "log_config": None,
    "http": FrontDoor,
    "access_log": False,
    "server_header": False,
    "timeout_graceful_shutdown": CONNECTIONS_GRACE_S,
}

OTHER_PORT: Final = "choose another: --port 8378, or `STANDBY_PORT=8378 make up`"

log = structlog.get_logger()


def serve(
    *,
    config: Annotated[Path | None, Parameter(env_var="STANDBY_CONFIG")] = None,
    state_dir: str | None = None,
    database: Annotated[str | None, Parameter(show_default=False)] = None,
    bind: str | None = None,
    port: int | None = None,
    auth: bool | None = None,
) -> int:
    """Start the server: the API, the page, and the work.

    Parameters
    ----------
    config
        The configuration file (standby.toml here, if there is one).
    state_dir
        Where everything is kept; .standby unless said (STANDBY_STATE_DIR).
    database
        postgresql://... or sqlite:///...; a SQLite file in the state directory unless said (STANDBY_DATABASE).
    bind
        Address to listen on; 127.0.0.1 unless said (STANDBY_BIND).
    port
        Port to listen on; 8377 unless said, 0 is any free one (STANDBY_PORT).
    auth
        Every request needs a key; with --no-auth none does, and only this machine may ask (STANDBY_AUTH).
    """
    flags = {"state_dir": state_dir, "database": database, "bind": bind, "port": port, "auth": auth}
    settings = load_config(config, flags=flags)
    with private_files():
        uvloop.run(run_server(settings))
    return OK


async def run_server(config: Config) -> None:
    """Serve until SIGTERM or SIGINT; running work is left alone."""
    _make_private(config.state_dir)
    instance = f"{socket.gethostname()}-{Ids().short()}"
    logs.set_up(instance)
    async with open_store(config.database_url, hints=config.hints) as store:
        clock = StoreClock()
        await clock.anchor(store)
        await ensure_first_key(store, config.state_dir, clock.now())
        secret = config.seal_key.get_secret_value() if config.seal_key else None
        world = World(
            config=config,
            store=store,
            clock=clock,
            seal=Seal(load_key(secret, config.state_dir)),
            drivers=build_drivers(config, clock.now),
        )
        await _run(world, instance)


def build_drivers(config: Config, now: Callable[[], int]) -> dict[str, Driver]:
    """A driver for each host of the configuration."""
    drivers: dict[str, Driver] = {}
    for name, host in config.hosts.items():
        match host.driver:
            case "process":
                drivers[name] = ProcessDriver(
                    config.host_directory(name),
                    now=now,
                    env_allow=config.env_allow,
                    cgroups=config.cgroups,
                    disk_reserve_mb=config.disk_reserve_mb,
                )
            case "coolify":
                drivers[name] = _coolify(host, config.installation, now)
            case "docker":
                drivers[name] = DockerDriver(
                    host.endpoint,
                    installation=config.installation,
                    host=name,
                    now=now,
                    tls=host.tls,
                    registries=logins(os.environ.get(REGISTRY_LOGINS)),
                )
            case "scripted":
                known = f"scripted:{config.installation}:{name}"
                platform = ScriptedPlatform(f"{known}:{Ids().short()}", seats=host.seats, name=known)
                platform.yard.refuses_creates = host.refuses_creates
                drivers[name] = ScriptedDriver(platform, now=now, lag_ms=host.lag_ms, reading_file=host.reading_file)
    return drivers


def _coolify(host: HostConfig, installation: str, now: Callable[[], int]) -> Driver:
    # here, because no other driver needs an HTTP library
    from standby.drivers.coolify import LAG_MS, Client, CoolifyDriver, CoolifyHost

    assert host.url is not None and host.project is not None and host.server is not None, "the configuration is checked"
    where = CoolifyHost(
        project=host.project, server=host.server, environment=host.environment, destination=host.destination
    )
    lag_ms = host.lag_ms if "lag_ms" in host.model_fields_set else LAG_MS
    client = Client(host.url, _token(host), now)
    return CoolifyDriver(client, where, installation=installation, now=now, lag_ms=lag_ms)


def _token(host: HostConfig) -> str:
    if host.token is not None:
        return host.token.get_secret_value()
    assert host.token_file is not None, "the configuration is checked"
    try:
        return host.token_file.read_text(encoding="ascii").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise StandbyError(f"the token file {host.token_file} cannot be read: {error}") from None


async def _run(world: World, instance: str) -> None:
    """API and controller side by side until a signal, or until one of them fails."""
    config, stop = world.config, asyncio.Event()
    with _listening(config) as listener, _beside(config.worker_socket_path) as beside:
        url = _url(config.bind, listener.getsockname()[1])
        socket_env = {} if beside is None else {work.SOCKET: str(beside)}
        world = replace(world, reach={work.URL: config.worker_url or url, **socket_env})
        app = create_app(world)
        server = _Server(uvicorn.Config(app, lifespan="on", **UVICORN))
        servers = [server]
        if beside is not None:
            servers.append(_Server(uvicorn.Config(WorkersOnly(app), uds=str(beside), lifespan="off", **UVICORN)))
        _on_signals(lambda: _stop(app, servers, stop))
        settle_interpreter()
        serving = asyncio.create_task(_serve(servers, listener))
        controlling = asyncio.create_task(Controller(world, instance).run(stop))
        try:
            await asyncio.wait(
                [serving, controlling, asyncio.create_task(server.ready.wait())],
                return_when=asyncio.FIRST_COMPLETED,
            )
            if server.ready.is_set():
                _announce(config, url)
            await asyncio.wait([serving, controlling], return_when=asyncio.FIRST_COMPLETED)
        finally:
            _stop(app, servers, stop)
            ends = await asyncio.gather(serving, controlling, return_exceptions=True)
            _forget_server(config.state_dir)
    for end in ends:
        if isinstance(end, BaseException):
            raise end


class _Server(uvicorn.Server):
    """Uvicorn inside our own loop: signals are ours, and it says when it is up."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.ready = asyncio.Event()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        if self.started:
            self.ready.set()


async def _serve(servers: Sequence[_Server], listener: socket.socket) -> None:
    """Serve on the listener, and beside it for workers."""
    main, *beside = servers
    await asyncio.gather(main.serve(sockets=[listener]), *(each.serve() for each in beside))


def _stop(app: FastAPI, servers: Sequence[uvicorn.Server], stop: asyncio.Event) -> None:
    app.state.stopping.set()
    for server in servers:
        server.should_exit = True
    stop.set()


def _on_signals(act: Callable[[], None]) -> None:
    """The first signal stops in order, the second one at once."""
    seen: list[int] = []

    def hear(number: int) -> None:
        if seen:
            os._exit(128 + number)
        seen.append(number)
        log.info("stopping", signal=signal.Signals(number).name)
        act()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, hear, number)


@contextlib.contextmanager
def _listening(config: Config) -> Iterator[socket.socket]:
    host = config.bind.strip("[]")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    # The protocol must be named: asyncio switches Nagle's algorithm off (40 ms an answer) only where it is.
    with socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP) as listener:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind((host, config.port))
        except socket.gaierror as error:
            text = f"cannot listen on {config.bind}: {error.strerror}; --bind takes an address, --port the port"
            raise StandbyError(text) from None
        except OSError as error:
            text = f"cannot listen on {config.bind} port {config.port}: {error.strerror}"
            raise StandbyError(f"{text}; {OTHER_PORT}") from None
        listener.listen(BACKLOG)
        listener.setblocking(False)
        yield listener


@contextlib.contextmanager
def _beside(path: Path | None) -> Iterator[Path | None]:
    """A place for the workers' socket that others than this user may open: what is mounted is its directory."""
    if path is None:
        log.warning("no socket for workers: its path would be too long; set worker_socket")
        yield None
        return
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.parent.chmod(0o755)
    except OSError as error:
        raise StandbyError(
            f"no directory for the workers' socket {path}: {error.strerror}; set worker_socket"
        ) from None
    try:
        yield path
    finally:
        path.unlink(missing_ok=True)


def _url(bind: str, port: int) -> str:
    host = bind.strip("[]")
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)  # noqa: S104 (a name to reach it by, not to bind)
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _announce(config: Config, url: str) -> None:
    """Tell clients (server.json) and the person where the server is."""
    _write_private(config.state_dir / SERVER_FILE, json.dumps({"url": url, "pid": os.getpid()}))
    say(f"Standby is at {url} ({config.database_shown})")
    say(page_line(config, url, terminal=sys.stderr.isatty()))


def page_line(config: Config, url: str, *, terminal: bool) -> str:
    """Where the page is. The key goes to a person's terminal only: what is not one may be a log that others read."""
    key_file = config.state_dir / KEY_FILE
    if not config.auth:
        return f"page: {url}/ (no key needed from this machine)"
    if not key_file.exists():
        return f"page: {url}/ (asks for a key)"
    if not terminal:
        return f"page: {url}/ (asks for the key, which is in {key_file})"
    return f"page: {url}/#key={key_file.read_text().strip()}"


def _forget_server(state_dir: Path) -> None:
    path = state_dir / SERVER_FILE
    with contextlib.suppress(OSError, ValueError, KeyError):
        about: dict[str, Any] = json.loads(path.read_text())
        if about["pid"] == os.getpid():
            path.unlink()


def _make_private(directory: Path) -> None:
    try:
        directory.mkdir(parents=True, exist_ok=True)
        directory.chmod(0o700)
    except OSError as error:
        text = f"the state directory {directory} cannot be made or closed to others: {error.strerror}"
        raise StandbyError(text) from None


def _write_private(path: Path, text: str) -> None:
    """Whole or not at all, for nobody else's eyes."""
    draft = path.with_name(f"{path.name}.{os.getpid()}")
    file = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(file, "w") as out:
        out.write(text + "\n")
    draft.replace(path)
