"""Images of an engine: whether one is there, and getting it."""

import base64
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final
from urllib.parse import quote

import msgspec
from msgspec import Struct

from standby.core.errors import ConfigError
from standby.drivers.contract import CommandRefused
from standby.drivers.docker.engine import Engine, EngineRefused

HUB: Final = "docker.io"
AUTH: Final = "X-Registry-Auth"


class ImageStore:
    """The engine's images, and who may pull from which registry."""

    def __init__(self, engine: Engine, registries: Mapping[str, str]) -> None:
        self._engine, self._registries = engine, registries

    async def has(self, image: str) -> bool:
        return await self._engine.get(f"/images/{quote(image, safe='/:@')}/json") is not None

    async def pull(self, image: str) -> AsyncIterator[str]:
        """Get it; yields how far it is. What goes wrong comes inside the answer, after its status."""
        name, tag = split(image)
        layers: dict[str, tuple[int, int]] = {}
        said = ""
        rest = b""
        try:
            async with self._engine.stream(
                "POST", "/images/create", {"fromImage": name, "tag": tag}, self._credentials(image)
            ) as pieces:
                async for piece in pieces:
                    *lines, rest = (rest + piece).split(b"\n")
                    for line in filter(None, map(bytes.strip, lines)):
                        words = _progress(msgspec.json.decode(line), layers)
                        if words != said:
                            said = words
                            yield words
        except EngineRefused as refusal:
            raise CommandRefused(f"{image} cannot be pulled: {refusal}") from refusal
        if not await self.has(image):
            raise CommandRefused(f"{image} was pulled, and is not there")

    def _credentials(self, image: str) -> dict[str, str]:
        registry = registry_of(image)
        login = self._registries.get(registry)
        if login is None:
            return {}
        user, _, password = login.partition(":")
        said = msgspec.json.encode({"username": user, "password": password, "serveraddress": registry})
        return {AUTH: base64.urlsafe_b64encode(said).decode()}


def split(image: str) -> tuple[str, str]:
    """Its name, and its tag or digest; an image without either is the latest (an empty tag would mean all of them)."""
    name, at, digest = image.partition("@")
    if at:
        return name, digest
    name, colon, tag = image.rpartition(":")
    return (name, tag) if colon and "/" not in tag else (image, "latest")


def registry_of(image: str) -> str:
    """Where it comes from: the part before the first slash if that can be a host."""
    first, slash, _ = image.partition("/")
    return first if slash and ("." in first or ":" in first or first == "localhost") else HUB


def logins(config: str | None) -> dict[str, str]:
    """Registry -> user:password, from the text of a Docker configuration file (`auths`)."""
    try:
        said = msgspec.json.decode(config or "{}", type=_Logins)
        found = {_host(registry): each.auth for registry, each in said.auths.items()}
        return {host: base64.b64decode(auth, validate=True).decode() for host, auth in found.items()}
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(f"DOCKER_AUTH_CONFIG is no Docker configuration with auths: {error}") from None


class _Login(Struct):
    auth: str


class _Logins(Struct):
    auths: dict[str, _Login] = {}


def _host(registry: str) -> str:
    host = registry.removeprefix("https://").removeprefix("http://").partition("/")[0]
    return HUB if host == "index.docker.io" else host


def _progress(said: Mapping[str, Any], layers: dict[str, tuple[int, int]]) -> str:
    if "error" in said:
        raise CommandRefused(str(said["error"]))
    detail = said.get("progressDetail") or {}
    if said.get("status") == "Downloading" and detail.get("total"):
        layers[str(said.get("id"))] = int(detail.get("current", 0)), int(detail["total"])
    if not layers:
        return str(said.get("status", ""))
    done, total = (sum(each[index] for each in layers.values()) for index in (0, 1))
    return f"{100 * done // total} % of {total >> 20} MB"
