"""The engine's HTTP API over a Unix socket or TLS: one question each, never repeated."""

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlencode, urlsplit
from weakref import WeakValueDictionary

import msgspec

from standby.core.errors import ConfigError, Unreachable
from standby.drivers.docker.line import UPGRADED, Line, Lines
from standby.drivers.docker.shape import DEAD, REMOVING

API_VERSION: Final = (1, 41)
"""The oldest that has all we need. A newer engine is asked in its oldest version: what it promises to keep."""
CONNECT_S: Final = 5.0
TLS_PORT: Final = 2376
NOTHING_TO_DO: Final = b"\0"
"""What `call` answers where it was already so."""
GOING: Final = (REMOVING, DEAD)
"""What a container is from when its removal began, whether that comes to an end or not."""
_GOING_DOWN: Final = (
    "shutting down",
    "connection is closing",
    "transport is closing",
    "code = unavailable",
    "database not open",
)
"""What an engine says while it stops, or when its containerd is away: nothing is known then."""

Params = Mapping[str, str | int]


class EngineRefused(Exception):
    """The engine understood, and said no."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Unclear(Unreachable):
    """The engine answered no about one container, so nothing is known of that; of the others this says nothing."""


_BROKEN: Final = (OSError, asyncio.IncompleteReadError)


class Engine:
    """One engine. `Unreachable` where it could not be asked, `EngineRefused` where it answered no."""

    def __init__(self, endpoint: str, tls: Path | None = None, *, timeout_s: float = 30.0) -> None:
        """unix:///path, or tcp://host:port with `tls`: a directory with ca.pem, cert.pem and key.pem."""
        self.endpoint, self._timeout_s = endpoint, timeout_s
        url = urlsplit(endpoint)
        if url.scheme == "unix":
            self._lines = Lines(path=url.path, tls=None)
        else:
            self._lines = Lines(address=(url.hostname or "", url.port or TLS_PORT), tls=_tls_context(tls))
        self._prefix = ""
        self._alone: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """Held while a container's files are asked for, or while it is told to go."""
        self._told_to_go: set[str] = set()

    async def close(self) -> None:
        await self._lines.close()

    async def negotiate(self) -> None:
        """Find the version of the API to speak."""
        self._prefix = ""
        about = await self.get("/version")
        newest, oldest = _version(about["ApiVersion"]), _version(about.get("MinAPIVersion", "1.0"))
        if newest < API_VERSION:
            text = f"the engine at {self.endpoint} is too old: it speaks API {about['ApiVersion']}"
            raise Unreachable(f"{text}, and {_shown(API_VERSION)} is needed")
        self._prefix = f"/v{_shown(max(oldest, API_VERSION))}"

    async def get(self, path: str, **params: str | int) -> Any:
        """A look: JSON, or null for what is not there. Any other refusal leaves the answer unknown."""
        try:
            return msgspec.json.decode(await self.call("GET", path, params))
        except EngineRefused as refusal:
            if refusal.status == 404:
                return None
            raise Unreachable(f"the engine could not answer: {refusal}") from refusal
        except msgspec.DecodeError as error:
            raise Unreachable(f"the engine's answer cannot be read: {error}") from error

    async def call(self, method: str, path: str, params: Params | None = None, body: object = None) -> bytes:
        """Do something; bytes are sent as an archive, all else as JSON. Returns the answer, or NOTHING_TO_DO."""
        async with self._away(), asyncio.timeout(self._timeout_s), self._asked(method, path, params, body) as asked:
            status, line = asked
            content = await line.rest()
        if status >= 400:
            raise _refusal(status, content)
        return NOTHING_TO_DO if status == 304 else content

    async def files(self, method: str, container: str, path: str, packed: bytes | None = None) -> bytes:
        """Read or write files in a container, as an archive; never in one that is being removed. An engine before
        version 23 would mount the pool's `mounts` into what it is just deleting, and delete the files of the host."""
        if container in self._told_to_go:  # which takes an engine seconds where it fails
            raise EngineRefused(409, "the container is being removed")
        async with self._lock(container):
            about = msgspec.json.decode(await self.call("GET", f"/containers/{container}/json"))
            if about["State"]["Status"] in GOING:
                raise EngineRefused(409, f"the container is {about['State']['Status']}")
            return await self.call(method, f"/containers/{container}/archive", {"path": path}, packed)

    async def remove(self, container: str) -> None:
        """Take a container away with its volume, whatever it does, once nobody reads or writes its files."""
        self._told_to_go.add(container)
        try:
            async with self._lock(container):
                await self.call("DELETE", f"/containers/{container}", {"force": 1, "v": 1})
        finally:
            self._told_to_go.discard(container)

    def _lock(self, container: str) -> asyncio.Lock:
        return self._alone.setdefault(container, asyncio.Lock())

    @contextlib.asynccontextmanager
    async def stream(
        self, method: str, path: str, params: Params, headers: Mapping[str, str] | None = None
    ) -> AsyncIterator[AsyncIterator[bytes]]:
        """An answer that goes on, in pieces as they come."""
        async with self._away(), self._asked(method, path, params, None, headers) as (status, line):
            if status >= 400:
                raise _refusal(status, await line.rest())
            yield line.pieces()

    @contextlib.asynccontextmanager
    async def pipe(self, path: str, params: Params | None = None, body: object = None) -> AsyncIterator[Line]:
        """The line itself, after the engine took it over as a standard input; its end is the end of input."""
        upgrade = {"Connection": "Upgrade", "Upgrade": "tcp"}
        async with self._away(), self._asked("POST", path, params, body, upgrade, self._timeout_s) as asked:
            status, line = asked
            if status != UPGRADED:
                raise _refusal(status, await line.rest())
            yield line

    @contextlib.asynccontextmanager
    async def _asked(
        self,
        method: str,
        path: str,
        params: Params | None,
        body: object,
        headers: Mapping[str, str] | None = None,
        within_s: float | None = None,
    ) -> AsyncIterator[tuple[int, Line]]:
        """The status of an answer, and the line its rest comes by."""
        content = b"" if body is None else body if isinstance(body, bytes) else msgspec.json.encode(body)
        kind = "application/x-tar" if isinstance(body, bytes) else "application/json"
        target = f"{self._prefix}{path}?{urlencode(params)}" if params else self._prefix + path
        request = self._lines.request(method, target, {"Content-Type": kind, **(headers or {})}, content)
        async with asyncio.timeout(CONNECT_S):
            line = await self._lines.take()
        try:
            async with asyncio.timeout(within_s):
                status = await line.ask(request)
            yield status, line
        finally:
            self._lines.give_back(line)

    @contextlib.asynccontextmanager
    async def _away(self) -> AsyncIterator[None]:
        try:
            yield
        except _BROKEN as error:
            what = str(error) or repr(error)
            raise Unreachable(f"the engine at {self.endpoint} does not answer: {what}") from error


def _refusal(status: int, content: bytes) -> Exception:
    try:
        message = str(msgspec.json.decode(content)["message"])
    except (msgspec.DecodeError, KeyError, TypeError):
        message = content.decode(errors="replace")[:1000] or f"status {status}"
    if status == 503 or (status >= 500 and any(word in message.lower() for word in _GOING_DOWN)):
        return Unreachable(f"the engine is going down: {message}")
    return EngineRefused(status, message)


def _version(text: str) -> tuple[int, int]:
    major, _, minor = text.partition(".")
    return int(major), int(minor)


def _shown(version: tuple[int, int]) -> str:
    return f"{version[0]}.{version[1]}"


def _tls_context(directory: Path | None) -> ssl.SSLContext:
    if directory is None:
        raise ConfigError("an engine at tcp:// needs tls: a directory with ca.pem, cert.pem and key.pem")
    try:
        context = ssl.create_default_context(cafile=directory / "ca.pem")
        context.load_cert_chain(directory / "cert.pem", directory / "key.pem")
    except OSError as error:
        raise ConfigError(f"the TLS files in {directory} cannot be used: {error}") from error
    return context


class Anchor:
    """The stream of the engine's events. It breaks when the engine does, so what was learned with it holds as long."""

    def __init__(self, engine: Engine, labels: list[str]) -> None:
        self._engine = engine
        filters = {"type": ["container"], "label": labels}
        self._filters = msgspec.json.encode(filters).decode()
        self._reading: asyncio.Task[None] | None = None
        self._lock = asyncio.Lock()
        self._identity: str | None = None
        self._listeners: set[asyncio.Event] = set()
        self.moved = 0
        """Counts events: what was read before the last one may be outdated."""
        self._lives = 0

    async def identity(self) -> str:
        """The engine's id, asked once while the stream lasts; connects when it does not."""
        if self._identity is None:
            async with self._lock:
                if self._identity is None:
                    await self._connect()
        assert self._identity is not None
        return self._identity

    @contextlib.asynccontextmanager
    async def same(self) -> AsyncIterator[str]:
        """What is asked inside is asked of one engine: its id; Unreachable if the stream broke meanwhile."""
        identity, life = await self.identity(), self._lives
        try:
            yield identity
        except Unreachable:
            self._doubt()
            raise
        await asyncio.sleep(0)  # the stream may have broken in the very moment of the last answer
        if life != self._lives:
            raise Unreachable("the engine went away while it was asked")

    def _doubt(self) -> None:
        """Who answers next may be another one."""
        if self._identity is not None and self._reading is not None:
            self._identity = None
            self._reading.cancel()

    async def close(self) -> None:
        if self._reading is not None:
            self._reading.cancel()
            await asyncio.gather(self._reading, return_exceptions=True)
            self._reading = None
        self._identity = None

    async def changes(self) -> AsyncIterator[None]:
        """Yields at once, after each event, and when the stream broke."""
        heard = asyncio.Event()
        self._listeners.add(heard)
        try:
            while True:
                await self.identity()
                yield
                await heard.wait()
                heard.clear()
        finally:
            self._listeners.discard(heard)

    async def _connect(self) -> None:
        await self.close()
        await self._engine.negotiate()
        opened: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        reading = self._reading = asyncio.create_task(self._read(opened))
        await opened
        about = await self._engine.get("/info")
        if reading.done():
            raise Unreachable("the engine went away while it was asked who it is")
        # the id alone is the machine's: several engines may share it, and each storage driver has containers of its own
        self._identity = f"{about['ID']} {about['DockerRootDir']} {about['Driver']}"

    async def _read(self, opened: asyncio.Future[None]) -> None:
        why: Exception | None = None
        try:
            async with self._engine.stream("GET", "/events", {"filters": self._filters}) as pieces:
                if not opened.done():
                    opened.set_result(None)
                async for _ in pieces:
                    self._stir()
        except (Unreachable, EngineRefused) as error:
            why = error
        finally:
            if not opened.done():  # whatever happened: somebody waits for it
                opened.set_exception(Unreachable(f"the engine tells no events: {why}"))
            self._identity = None
            self._lives += 1
            self._stir()

    def _stir(self) -> None:
        self.moved += 1
        for listener in self._listeners:
            listener.set()
