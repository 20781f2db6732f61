"""`standby doctor`: what is wrong, here and at the server, and what to do about it."""

import asyncio
import os
import shutil
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from standby.cli.admin import ConfigFile
from standby.cli.table import print_rows
from standby.cli.talk import FAILED, HERE, OK, Server, ServerNeed, print_json
from standby.client.address import find_address
from standby.client.answers import Check
from standby.client.errors import ServerRefused, ServerUnreachable
from standby.config import Config, ConfigError, load_config
from standby.core.errors import StandbyError
from standby.store.store import POSTGRES, SQLITE, schema_status

WORDS: Final = {True: "ok", None: "warn", False: "bad"}
DISK_WARN_MB: Final = 1_024
CLOCK_SLACK_S: Final = 5.0


def doctor(*, config: ConfigFile = None, server: ServerNeed = HERE) -> int:
    """Look at the configuration, the state directory, the disk, the clock, the database and the server.

    Every line is ok, warn or bad, and says what to do. Exit code 1 when anything is bad.
    """
    here, there = list(_here(config)), list(_there(server))
    bad = any(check.ok is False for check in [*here, *there])
    if server.json:
        print_json({"ok": not bad, "here": here, "server": there})
        return FAILED if bad else OK
    for check in [*here, there[0]]:
        _print(check, "")
    for check in there[1:]:
        _print(check, "server, ")
    return FAILED if bad else OK


def _print(check: Check, part: str) -> None:
    hint = [("", f"-> {check.do}")] if check.do else []
    print_rows([(WORDS[check.ok].ljust(4), f"{part}{check.name}: {check.says}"), *hint])


def _here(file: Path | None) -> Iterator[Check]:
    """What can be seen without a server."""
    try:
        config = load_config(file)
    except ConfigError as error:
        for line in str(error).splitlines():
            yield _check("config", False, line, "correct it; `standby config check` says whether it can be used")
        return
    files = {source.where for source in config.sources.values() if source.value_from == "file"}
    yield _check("config", True, f"{', '.join(sorted(files)) or 'the defaults'} can be used")
    yield _state_dir(config.state_dir)
    yield _disk(config)
    yield _clock(config.state_dir)
    yield _database(config)


def _check(name: str, ok: bool | None, says: str, do: str | None = None) -> Check:
    return Check(name=name, ok=ok, says=says, do=do)


def _state_dir(path: Path) -> Check:
    name = "state directory"
    try:
        # Tried, not asked: root is told it may write where nobody can.
        with tempfile.TemporaryFile(dir=_nearest(path)):
            usable = path.is_dir() or not path.exists()
    except OSError:
        usable = False
    if not usable:
        return _check(name, False, f"{path} cannot be written", "run as its owner, or set state_dir to another place")
    if not path.exists():
        return _check(name, True, f"{path} is not there yet: `standby serve` makes it")
    if path.stat().st_mode & 0o077:
        return _check(name, None, f"{path} is open to others", f"chmod 700 {path}")
    return _check(name, True, f"{path} can be written")


def _nearest(path: Path) -> Path:
    return next((each for each in [path, *path.parents] if each.is_dir()), Path("/"))


def _disk(config: Config) -> Check:
    free_mb = shutil.disk_usage(_nearest(config.state_dir)).free // 2**20
    says = f"{free_mb} MB are free at {config.state_dir}"
    if free_mb < config.disk_reserve_mb:
        return _check("disk", False, f"{says}; nothing is started below {config.disk_reserve_mb}", "make room")
    return _check("disk", True if free_mb > config.disk_reserve_mb + DISK_WARN_MB else None, says)


def _clock(state: Path) -> Check:
    """A file from the future says that the clock was set back."""
    files = [path for path in state.glob("*") if path.is_file()] if os.access(state, os.R_OK) else []
    ahead_s = max((path.stat().st_mtime for path in files), default=0.0) - time.time()
    if ahead_s > CLOCK_SLACK_S:
        return _check("clock", False, f"the newest file is {ahead_s:.0f} s in the future", "set the clock (NTP)")
    return _check("clock", True, f"{time.strftime('%Y-%m-%dT%H:%M:%SZ', time.gmtime())}")


def _database(config: Config) -> Check:
    url, shown = config.database_url, config.database_shown
    began = time.monotonic()
    try:
        status = asyncio.run(schema_status(url))
    except (StandbyError, OSError) as error:
        do = "start it, or correct `database`" if url.startswith(POSTGRES) else "look at the file, or restore a backup"
        return _check("database", False, f"{shown}: {error}", do)
    took = f"{shown} answers in {(time.monotonic() - began) * 1000:.0f} ms"
    if status.refusal is None:
        return _check("database", True, took)
    if url.startswith(SQLITE) and not status.unknown and not status.changed:
        return _check("database", True, f"{shown}: `standby serve` makes it, or brings it up to date")
    return _check("database", False, f"{took}: {status.refusal}", "standby db migrate")


def _there(server: Server) -> Iterator[Check]:
    """What only the server knows."""
    try:
        address = find_address(server.url, server.key)
    except ServerUnreachable:
        yield _check("server", None, "none runs here", "start one with `standby serve`, or name one with --url")
        return
    try:
        found = server.ask(lambda client: client.doctor())
    except ServerUnreachable as error:
        do = "start it with `standby serve`"
        yield _check("server", False, str(error).removesuffix(f"; {do}"), do)
    except ServerRefused as error:
        yield _check("server", False, f"{address.url}: {error}", "is the key right, and the server of this version?")
    else:
        yield _check("server", True, f"{address.url} answers")
        yield from found
