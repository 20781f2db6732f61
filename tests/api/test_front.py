"""What is sent before anybody has looked at it: how much of it, and how long it may take."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import uvicorn
from uvicorn.server import ServerState

from standby.api import front
from tests.api.house import TOKEN, House

pytestmark = pytest.mark.anyio
Ends = tuple[asyncio.StreamReader, asyncio.StreamWriter]


@asynccontextmanager
async def knock(home: House) -> AsyncIterator[Ends]:
    """A connection to a front door."""
    config = uvicorn.Config(home.app, http=front.FrontDoor, lifespan="off", log_config=None)
    config.load()
    made = lambda: front.FrontDoor(config, ServerState(), {})  # noqa: E731
    server = await asyncio.get_running_loop().create_server(made, "127.0.0.1", 0)
    reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname()[:2])
    try:
        yield reader, writer
    finally:
        writer.close()
        server.close()


async def said(reader: asyncio.StreamReader) -> bytes:
    return await asyncio.wait_for(reader.read(), 10)


async def test_a_head_that_does_not_come_is_not_waited_for(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "HEAD_S", 0.05)
    for start in (b"", b"GET / HTTP/1.1\r\nHo"):
        async with knock(home) as (reader, writer):
            writer.write(start)
            assert await said(reader) == b""


async def test_a_body_may_take_its_time(home: House, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(front, "HEAD_S", 0.05)
    head = f"POST /api/v1/work-orders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n"
    async with knock(home) as (reader, writer):
        writer.write(head.encode() + b"Content-Type: application/json\r\nContent-Length: 20\r\n\r\n")
        with pytest.raises(TimeoutError):  # longer than a head may take
            await asyncio.wait_for(reader.read(1), 0.2)
        writer.write(b'{"command":["true"]}')
        assert (await said(reader)).startswith(b"HTTP/1.1 201 ")


async def test_a_head_that_is_too_large_is_a_problem(home: House) -> None:
    async with knock(home) as (reader, writer):
        writer.write(b"GET / HTTP/1.1\r\nX: " + b"a" * (front.HEAD_MAX + 1))
        answer = await said(reader)
        assert answer.startswith(b"HTTP/1.1 431 ") and b'"code":"head_too_large"' in answer


async def test_what_is_not_http_is_a_problem(home: House) -> None:
    async with knock(home) as (reader, writer):
        writer.write(b"\x16\x03\x01\x02\x00")
        answer = await said(reader)
        assert answer.startswith(b"HTTP/1.1 400 ") and b'"code":"bad_http"' in answer


async def test_a_body_in_small_chunks_is_read(home: House) -> None:
    head = f"POST /api/v1/work-orders HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {TOKEN}\r\nConnection: close\r\n"
    body = b'{"command":["true"],"payload":"' + b"a" * 60_000 + b'"}'
    async with knock(home) as (reader, writer):
        writer.write(head.encode() + b"Content-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n")
        writer.write(b"".join(b"1\r\n%c\r\n" % each for each in body) + b"0\r\n\r\n")
        assert (await said(reader)).startswith(b"HTTP/1.1 201 ")
