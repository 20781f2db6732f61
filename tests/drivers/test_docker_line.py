"""The connections to an engine, against a server that says what a test wants."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from standby.core.errors import Unreachable
from standby.drivers.docker.engine import Engine, EngineRefused

pytestmark = pytest.mark.anyio


class Said:
    """Answers each question with the next of some texts; null hangs up."""

    def __init__(self, *answers: bytes | None) -> None:
        self.answers = list(answers)
        self.lines: list[asyncio.Task[None]] = []
        self.asked: list[bytes] = []

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        line = asyncio.current_task()
        assert line is not None
        self.lines.append(line)
        while self.answers:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except (asyncio.IncompleteReadError, ConnectionError):
                break
            self.asked.append(head.partition(b"\r\n")[0])
            answer = self.answers.pop(0)
            if answer is None:
                break
            writer.write(answer)
            if b"Content-Length" not in answer and b"chunked" not in answer:
                break
        writer.close()


@asynccontextmanager
async def engine(tmp_path: Path, said: Said, timeout_s: float = 20.0) -> AsyncIterator[Engine]:
    path = tmp_path / "s"
    server = await asyncio.start_unix_server(said.serve, path)
    made = Engine(f"unix://{path}", timeout_s=timeout_s)
    try:
        yield made
    finally:
        await made.close()
        server.close()
        await asyncio.gather(*said.lines)


def whole(body: bytes, status: str = "200 OK", more: str = "") -> bytes:
    return f"HTTP/1.1 {status}\r\nContent-Length: {len(body)}\r\n{more}\r\n".encode() + body


async def test_one_line_serves_many_questions(tmp_path: Path) -> None:
    said = Said(
        whole(b"1"), whole(b"22"), b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\n333\r\n0\r\n\r\n"
    )
    async with engine(tmp_path, said) as asked:
        assert [await asked.get("/x", a="b c") for _ in range(3)] == [1, 22, 333]
    assert len(said.lines) == 1
    assert said.asked[0] == b"GET /x?a=b+c HTTP/1.1"


async def test_a_line_that_is_said_to_close_is_not_asked_again(tmp_path: Path) -> None:
    said = Said(whole(b"1", more="Connection: close\r\n"), whole(b"2"))
    async with engine(tmp_path, said) as asked:
        assert [await asked.get("/x") for _ in range(2)] == [1, 2]
    assert len(said.lines) == 2


async def test_an_answer_that_says_not_how_long_it_is_ends_with_its_line(tmp_path: Path) -> None:
    async with engine(tmp_path, Said(b'HTTP/1.1 409 Conflict\r\n\r\n{"message": "not now"}')) as asked:
        with pytest.raises(EngineRefused, match="not now"):
            await asked.call("POST", "/x")


@pytest.mark.parametrize(
    "answer",
    [
        None,
        b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\nhalf",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n64\r\nhalf",
        b"HTTP/1.1 200",
        b"no HTTP at all\r\n\r\n",
        whole(b"no JSON"),
    ],
)
async def test_half_an_answer_or_none_is_unreachable(tmp_path: Path, answer: bytes | None) -> None:
    said = Said(answer)
    if answer is not None and b"Length: 100" in answer:
        said.answers.append(None)  # it waits for one more question, and hangs up
    async with engine(tmp_path, said, timeout_s=0.5) as asked:
        with pytest.raises(Unreachable):
            await asked.get("/x")


async def test_a_question_is_never_sent_twice(tmp_path: Path) -> None:
    said = Said(whole(b"1"), None, whole(b"3"))
    async with engine(tmp_path, said) as asked:
        await asked.call("POST", "/x")
        with pytest.raises(Unreachable):
            await asked.call("POST", "/x")
        assert await asked.call("POST", "/x") == b"3"
    assert len(said.asked) == 3


async def test_a_line_whose_answer_was_not_read_to_its_end_is_given_up(tmp_path: Path) -> None:
    endless = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n"
    said = Said(endless, whole(b"2"))
    async with engine(tmp_path, said) as asked:
        async with asked.stream("GET", "/events", {}) as pieces:
            assert await anext(pieces) == b"abc"
        assert await asked.get("/x") == 2
    assert len(said.lines) == 2
