"""Connections to an engine: HTTP/1.1, kept between questions. Answers come whole, in pieces, or are the line itself."""

import asyncio
import contextlib
import ssl
import time
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Final

import httptools

KEPT_MAX: Final = 20
KEPT_S: Final = 60.0
READ: Final = 64 << 10
WRITE_S: Final = 5.0
UPGRADED: Final = 101


class HungUp(ConnectionError):
    """The other side closed the line, or speaks no HTTP."""


class Line:
    """One connection. Whoever asked takes the whole answer before the next question."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        if not writer.is_closing():  # what was written is with the other side, not with us
            writer.transport.set_write_buffer_limits(high=0 if writer.get_extra_info("sslcontext") is None else 1)
        self._parser = httptools.HttpResponseParser(self)
        self._pieces: deque[bytes] = deque()
        self._status = 0
        self._whole = True
        self._bounded = False
        self._keeps = True
        self.kept_since = 0.0

    async def ask(self, request: bytes) -> int:
        """Send a question; its status, once the head of the answer is there."""
        self._parser = httptools.HttpResponseParser(self)
        self._status, self._whole, self._bounded = 0, False, False
        await self.write(request)
        while not self._status:
            await self._more()
        return self._status

    async def pieces(self) -> AsyncIterator[bytes]:
        """The rest of the answer, as it comes."""
        while True:
            while self._pieces:
                yield self._pieces.popleft()
            if self._whole:
                return
            await self._more()

    async def rest(self) -> bytes:
        """The rest of the answer, when it is whole."""
        while not self._whole:
            await self._more()
        body = b"".join(self._pieces)
        self._pieces.clear()
        return body

    async def write(self, data: bytes) -> None:
        """Returns when all of it has left this process."""
        try:
            self._writer.write(data)
        except RuntimeError as error:  # what uvloop says of a line that was closed a moment ago
            raise HungUp(f"it hung up: {error}") from error
        async with asyncio.timeout(WRITE_S):
            await self._writer.drain()

    @property
    def serves(self) -> bool:
        """Whether it can be asked again."""
        ready = self._whole and self._keeps and not self._pieces
        return ready and not self._reader.at_eof() and not self._writer.is_closing()

    def close(self) -> None:
        self._writer.close()

    async def closed(self) -> None:
        """Close it, and wait until it is."""
        self._writer.transport.abort()
        with contextlib.suppress(OSError):
            await self._writer.wait_closed()

    async def _more(self) -> None:
        data = await self._reader.read(READ)
        if not data and self._status and not self._bounded:
            self._whole, self._keeps = True, False  # an answer that says not how long it is ends with its line
            return
        if not data:
            raise HungUp("it hung up in the middle of its answer" if self._status else "it hung up without an answer")
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserUpgrade:
            pass  # the answer is the line: nobody reads what comes by it
        except httptools.HttpParserError as error:
            raise HungUp(f"its answer is no HTTP: {error}") from error

    # what the parser calls

    def on_header(self, name: bytes, _: bytes) -> None:
        self._bounded = self._bounded or name.lower() in (b"content-length", b"transfer-encoding")

    def on_headers_complete(self) -> None:
        self._status = self._parser.get_status_code()

    def on_body(self, body: bytes) -> None:
        self._pieces.append(body)

    def on_message_complete(self) -> None:
        self._whole, self._keeps = True, self._status != UPGRADED and self._parser.should_keep_alive()


class Lines:
    """The connections to one address."""

    def __init__(self, *, path: str | None = None, address: tuple[str, int] | None = None, tls: ssl.SSLContext | None):
        """A Unix socket at `path`, or `address` with TLS."""
        self._path, self._address, self._tls = path, address, tls
        self._host = "engine" if address is None else f"{address[0]}:{address[1]}"
        self._kept: list[Line] = []

    async def take(self) -> Line:
        """One that nobody uses, or a new one."""
        while self._kept:
            line = self._kept.pop()
            if line.serves and time.monotonic() - line.kept_since < KEPT_S:
                return line
            line.close()
        if self._path is not None:
            return Line(*await asyncio.open_unix_connection(self._path, limit=READ))
        assert self._address is not None
        return Line(*await asyncio.open_connection(*self._address, ssl=self._tls, limit=READ))

    def give_back(self, line: Line) -> None:
        """It is kept for the next question, unless its last answer was not read to its end."""
        if line.serves and len(self._kept) < KEPT_MAX:
            line.kept_since = time.monotonic()
            self._kept.append(line)
        else:
            line.close()

    async def close(self) -> None:
        """Hang up on those that nobody uses."""
        kept, self._kept = self._kept, []
        for line in kept:
            await line.closed()

    def request(self, method: str, target: str, headers: Mapping[str, str], content: bytes) -> bytes:
        """The text of a question."""
        lines = [f"{method} {target} HTTP/1.1", f"Host: {self._host}", f"Content-Length: {len(content)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + content
