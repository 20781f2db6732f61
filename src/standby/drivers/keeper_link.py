"""The server's side of the keeper's socket: connect, start the keeper when there is none, ask and be told."""

import asyncio
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final, cast

import msgspec
from msgspec import Struct

from standby.core.errors import Unreachable
from standby.core.model import Json
from standby.drivers.contract import CommandRefused, Exit
from standby.drivers.keeper.loop import TAKEN
from standby.drivers.keeper.wire import LINE_MAX, NAME, VERSION

_KEEPER: Final = Path(__file__).parent / "keeper"
_encode: Final = msgspec.json.Encoder().encode


class RunState(Struct, frozen=True):
    """What the keeper says of one run."""

    run_id: str
    over: bool
    handle: str | None
    exit: Exit | None


class Hello(Struct, frozen=True):
    """Who the keeper is."""

    version: int
    id: str
    boot: str
    pid: int


class TooLarge(Unreachable):
    """The keeper would not listen to so long a message, so it was not sent."""


class _Reply(Struct, frozen=True):
    n: int | None = None
    ok: msgspec.Raw = msgspec.Raw(b"{}")
    refused: str | None = None
    failed: str | None = None


_decode: Final = msgspec.json.Decoder(_Reply).decode


class Wire(asyncio.Protocol):
    """One connection: numbered questions, answers in any order, and pushes."""

    def __init__(self, on_change: Callable[[], None], timeout_s: float) -> None:
        self._on_change = on_change
        self._timeout_s = timeout_s
        self._hello: Hello | None = None
        self._waiting: dict[int, asyncio.Future[msgspec.Raw]] = {}
        self._number = 0
        self._rest = b""
        self._transport: asyncio.Transport | None = None

    @property
    def is_open(self) -> bool:
        return self._transport is not None and not self._transport.is_closing()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are not of its class

    def data_received(self, data: bytes) -> None:
        *lines, self._rest = (self._rest + data).split(b"\n")
        for line in lines:
            reply = _decode(line)
            if reply.n is None:
                self._on_change()
            else:
                self._resolve(self._waiting.pop(reply.n, None), reply)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        waiting, self._waiting = self._waiting, {}
        for answer in waiting.values():
            if not answer.done():
                answer.set_exception(Unreachable("the keeper closed the connection"))
        self._on_change()

    def _resolve(self, answer: asyncio.Future[msgspec.Raw] | None, reply: _Reply) -> None:
        if answer is None or answer.done():
            return
        if reply.refused is not None:
            answer.set_exception(CommandRefused(reply.refused))
        elif reply.failed is not None:
            answer.set_exception(Unreachable(f"the keeper could not do it: {reply.failed}"))
        else:
            answer.set_result(reply.ok)

    @property
    def hello(self) -> Hello:
        """Who is on the other side."""
        assert self._hello is not None, "greet first"
        return self._hello

    async def greet(self) -> None:
        """Learn who it is and ask to be told of changes."""
        try:
            answer = await self.ask("hello", {"version": VERSION})
        except CommandRefused as refused:
            raise Unreachable(f"the keeper cannot be talked to: {refused}") from refused
        self._hello = msgspec.json.decode(answer, type=Hello)
        await self.ask("watch", {})

    async def ask(self, verb: str, fields: Mapping[str, Json]) -> msgspec.Raw:
        """The answer; raises CommandRefused, or Unreachable when it is unknown whether it was heard."""
        if self._transport is None:
            raise Unreachable("the keeper closed the connection")
        self._number += 1
        number = self._number
        message = _encode({"n": number, "do": verb, **fields})
        if len(message) > LINE_MAX:
            raise TooLarge(f"a message of {len(message)} bytes, the keeper takes {LINE_MAX}")
        answer: asyncio.Future[msgspec.Raw] = asyncio.get_running_loop().create_future()
        self._waiting[number] = answer
        self._transport.write(message + b"\n")
        try:
            async with asyncio.timeout(self._timeout_s):
                return await answer
        except TimeoutError:
            raise Unreachable(f"the keeper did not answer within {self._timeout_s:g} s") from None
        finally:
            self._waiting.pop(number, None)

    def close(self) -> None:
        if self._transport is not None:
            self._transport.close()


class KeeperLink:
    """A connection to the directory's keeper that is made again, and the keeper too, whenever one is missing."""

    def __init__(
        self, directory: Path, env: Mapping[str, str], boot_id_path: str, timeout_s: float, launch_gap_s: float
    ) -> None:
        self._directory = directory
        self._env = dict(env)
        self._boot_id_path = boot_id_path
        self._timeout_s = timeout_s
        self._launch_gap_s = launch_gap_s
        self._wire: Wire | None = None
        self._connecting = asyncio.Lock()
        self._launch_after = 0.0
        self._listeners: set[asyncio.Event] = set()

    async def ready(self) -> Wire:
        """An open connection; raises Unreachable when there is none to be had."""
        if self._wire is not None and self._wire.is_open:
            return self._wire
        async with self._connecting:
            if self._wire is None or not self._wire.is_open:
                self._wire = await self._reach()
            return self._wire

    def close(self) -> None:
        """Hang up; the keeper and its runs live on."""
        if self._wire is not None:
            self._wire.close()
            self._wire = None

    def listen(self) -> asyncio.Event:
        """An event that is set whenever something may have changed; give it back with `unlisten`."""
        event = asyncio.Event()
        self._listeners.add(event)
        return event

    def unlisten(self, event: asyncio.Event) -> None:
        self._listeners.discard(event)

    def _on_change(self) -> None:
        for event in self._listeners:
            event.set()

    async def _reach(self) -> Wire:
        try:
            try:
                return await self._connect()
            except (ConnectionError, FileNotFoundError):
                await self._launch()
            return await self._connect()
        except OSError as error:
            raise Unreachable(f"the keeper of {self._directory} cannot be reached: {error}") from error

    async def _connect(self) -> Wire:
        loop = asyncio.get_running_loop()
        folder = os.open(self._directory, os.O_RDONLY | os.O_DIRECTORY)
        try:  # a socket's path is limited to 108 bytes, the directory's is not
            _, wire = await loop.create_unix_connection(
                lambda: Wire(self._on_change, self._timeout_s), f"/proc/self/fd/{folder}/{NAME}"
            )
        finally:
            os.close(folder)
        try:
            await wire.greet()
        except BaseException:
            wire.close()
            raise
        return wire

    async def _launch(self) -> None:
        """Start a keeper; its starter ends as soon as the keeper listens, or finds that another holds the lock."""
        now = asyncio.get_running_loop().time()
        if now < self._launch_after:
            raise Unreachable("the keeper died and was started again a moment ago")
        self._launch_after = now + self._launch_gap_s
        starter = await asyncio.create_subprocess_exec(
            *(sys.executable, "-I", "-S", "-X", "utf8", str(_KEEPER), str(self._directory), self._boot_id_path),
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL,
            env=self._env,
            start_new_session=True,
        )
        try:
            async with asyncio.timeout(self._timeout_s):
                code = await starter.wait()
        except TimeoutError:
            raise Unreachable("the keeper is not ready yet") from None
        if code not in (0, TAKEN):
            raise Unreachable(f"the keeper could not start (exit code {code}, see keeper.log)")
