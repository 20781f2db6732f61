"""Where the server is: named, or found in the nearest state directory."""

import ipaddress
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

import httpx2
import msgspec
from msgspec import Struct

from standby.client.errors import ConfigError, ServerUnreachable

STATE_DIR: Final = ".standby"
SERVER_FILE: Final = "server.json"
OPTION: Final = "--{}"
ARGUMENT: Final = "{}="
"""How an error names what was given: as the command line has it, or as Python has it."""


class Address(Struct, frozen=True):
    """Where the server is, and the key it knows us by."""

    url: str
    key: str | None


def find_address(
    url: str | None = None,
    key: str | None = None,
    env: Mapping[str, str] | None = None,
    start: Path | None = None,
    said: str = OPTION,
) -> Address:
    """What is given, over STANDBY_URL and STANDBY_KEY, over the state directory, searched upward like git does."""
    env = os.environ if env is None else env
    given = url or env.get("STANDBY_URL")
    state = find_state_dir(env, start or Path.cwd())
    found = given or _server_url(state)
    if not found:
        name_it = f"name it with {said.format('url')} or STANDBY_URL"
        where = "" if state is None else f" (none runs that keeps its state in {state})"
        raise ServerUnreachable(f"no server found{where}: start one with `standby serve`, or {name_it}")
    # The key of this directory's server is not shown to any other one.
    ours = state is not None and found.rstrip("/") == (_server_url(state) or "").rstrip("/")
    address = Address(found.rstrip("/"), key or env.get("STANDBY_KEY") or (_admin_key(state) if ours else None))
    url_from = said.format("url") if url else "STANDBY_URL" if given else SERVER_FILE
    _check(address, url_from, said.format("key") if key else "STANDBY_KEY")
    return address


def _check(address: Address, url_from: str, key_from: str) -> None:
    """Refuse what no request can be made of."""
    try:
        parts = urlsplit(address.url)
        usable = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
        httpx2.URL(address.url)
    except (ValueError, httpx2.InvalidURL):
        usable = False
    if not usable:
        raise ConfigError(f"{url_from}: {address.url!r} is not an address; write one like http://127.0.0.1:8377")
    if address.key is not None and not (address.key.isascii() and address.key.isprintable()):
        raise ConfigError(f"{key_from}: this is not a key: keys begin with sb_ and are plain ASCII")


def find_state_dir(env: Mapping[str, str], start: Path) -> Path | None:
    """STANDBY_STATE_DIR, or the nearest `.standby` at or above a directory."""
    if env.get("STANDBY_STATE_DIR"):
        return Path(env["STANDBY_STATE_DIR"])
    for directory in [start, *start.parents]:
        if (directory / STATE_DIR).is_dir():
            return directory / STATE_DIR
    return None


def _server_url(state: Path | None) -> str | None:
    try:
        found = msgspec.json.decode((state / SERVER_FILE).read_bytes()) if state is not None else {}
    except (OSError, msgspec.DecodeError):
        return None
    url = found.get("url") if isinstance(found, dict) else None
    return url if isinstance(url, str) else None


def _admin_key(state: Path | None) -> str | None:
    try:
        return (state / "admin.key").read_text().strip() or None if state is not None else None
    except OSError:
        return None


def is_local(url: str) -> bool:
    """Whether an address is on this machine, where no proxy stands between."""
    name = urlsplit(url).hostname or ""
    try:
        return name == "localhost" or ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False
