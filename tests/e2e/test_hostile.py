"""Ten thousand malformed requests among good ones: none of them leaves a trace."""

import asyncio
import contextlib
import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import islice
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from tests.e2e.hostile import ORDERS, SECRET, Hostile, request, requests
from tests.e2e.house import House, house, until

MALFORMED = 10_000
GOOD = 200
CALLERS = 12
GROWTH_MOST_MB = 80
PROCESSES = "[pools.default]\nslots_max = 4\nmemory_mb = 1\n"


class Caller:
    """One client: it keeps its connection as long as the server does."""

    def __init__(self, home: House) -> None:
        url = urlsplit(home.url)
        self._host, self._port = url.hostname or "", url.port or 0
        self._open: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, sent: bytes) -> tuple[int, str, bytes]:
        """Send what can be read; the answer's status, kind and body."""
        if self._open is None:
            self._open = await asyncio.open_connection(self._host, self._port)
        reader, writer = self._open
        writer.write(sent)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").lower()
        length = re.search(r"\r\ncontent-length: ([0-9]+)", head)
        assert length is not None, head
        body = await reader.readexactly(int(length[1]))
        if "\r\nconnection: close" in head:
            await self.close()
        kind = re.search(r"\r\ncontent-type: ([^\r;]*)", head)
        return int(head.split()[1]), kind[1] if kind else "", body

    async def throw(self, sent: bytes) -> bytes:
        """Send bytes on a connection of their own and hang up; whatever comes back."""
        reader, writer = await asyncio.open_connection(self._host, self._port)
        try:
            writer.write(sent)
            writer.write_eof()
            return await reader.read()
        except OSError:
            return b""
        finally:
            await _hang_up(writer)

    async def close(self) -> None:
        if self._open is not None:
            await _hang_up(self._open[1])
            self._open = None


async def _hang_up(writer: asyncio.StreamWriter) -> None:
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()


class Guests:
    """All callers together: who sent what, and what was wrong with an answer."""

    def __init__(self, home: House) -> None:
        self._home = home
        self.good: list[str] = []
        self.refused = self.dropped = 0
        self.odd: list[str] = []

    async def visit(self, hostile: Iterator[Hostile], good: Iterator[int]) -> None:
        """Take from both piles until they are empty."""
        caller = Caller(self._home)
        every = MALFORMED // GOOD
        while batch := list(islice(hostile, every)):
            for each in batch:
                await self._send(caller, each)
            for number in islice(good, 1):
                await self._submit(caller, number)
        for number in good:
            await self._submit(caller, number)
        await caller.close()

    async def _submit(self, caller: Caller, number: int) -> None:
        order = {"command": ["true"], "env": {"GOOD": f"{SECRET}good-{number}"}, "labels": {"n": str(number)}}
        sent = request(
            "POST",
            ORDERS,
            self._home.key,
            json.dumps(order).encode(),
            Content_Type="application/json",
            Idempotency_Key=f"good-{number}",
        )
        answers = [await caller.ask(sent) for _ in range(2)]
        assert [status for status, _, _ in answers] == [201, 201], answers
        assert answers[0][2] == answers[1][2]
        self.good.append(json.loads(answers[0][2])["id"])

    async def _send(self, caller: Caller, each: Hostile) -> None:
        if each.readable:
            status, kind, body = await caller.ask(each.sent)
            self.refused += 1
            if not 400 <= status < 500 or kind != "application/problem+json" or SECRET.encode() in body:
                self.odd.append(f"{status} {kind} {body[:300]!r} <- {each.sent[:600]!r}")
            return
        answer = await caller.throw(each.sent)
        self.dropped += not answer
        if answer and not re.match(rb"HTTP/1.1 4[0-9][0-9] .*\r\ncontent-type: application/problem", answer, re.DOTALL):
            self.odd.append(f"{answer[:300]!r} <- {each.sent[:300]!r}")


def _memory_mb(home: House, name: str) -> float:
    assert home.process is not None
    text = Path(f"/proc/{home.process.pid}/status").read_text()
    found = re.search(rf"{name}:\s+([0-9]+) kB", text)
    assert found is not None
    return int(found[1]) / 1024


def _submitted(home: House) -> list[str]:
    return [event["subject"] for event in home.events() if event["kind"] == "order.submitted"]


def test_ten_thousand_malformed_requests_leave_the_good_ones_alone_and_no_trace(
    tmp_path: Path, figure: Callable[[str], None]
) -> None:
    with house(tmp_path / "house", toml=PROCESSES) as home:
        home.start()
        began = len((home.directory / "server.log").read_bytes())  # what was said before holds the first key, once
        before = _memory_mb(home, "VmRSS")
        guests = Guests(home)
        hostile, good = requests(home.key, MALFORMED, seed=1), iter(range(GOOD))

        async def all_at_once() -> None:
            async with asyncio.TaskGroup() as tasks:
                for _ in range(CALLERS):
                    tasks.create_task(guests.visit(hostile, good))

        asyncio.run(all_at_once())
        peak = _memory_mb(home, "VmHWM")
        assert guests.odd == []
        assert len(set(guests.good)) == GOOD
        until(lambda: _all_ended(home, guests.good), "all good orders end")
        assert sorted(_submitted(home)) == sorted(guests.good)
        assert peak - before < GROWTH_MOST_MB
        said = (home.directory / "server.log").read_bytes()[began:].decode()
        for word in ("Traceback", SECRET, home.key, home.key[3:20], "Bearer"):
            assert word not in said, said[max(0, said.find(word) - 500) :][:1_000]
        figure(
            f"{MALFORMED} malformed requests: {guests.refused} refused as problems, {guests.dropped} dropped without a"
            f" word, {GOOD} good orders in between ended, memory grew {peak - before:.0f} MB at most"
        )


def _all_ended(home: House, orders: Sequence[str]) -> bool:
    found = home.get("/work-orders?state=completed&limit=200")["orders"]
    return sorted(each["id"] for each in found) == sorted(orders)


@pytest.mark.parametrize(
    "endless",
    [
        b"GET / HTTP/1.1\r\nX: ",
        b"GET /",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX: ",
        b"POST / HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n1;",
    ],
)
def test_a_head_without_an_end_is_refused_while_it_is_sent(tmp_path: Path, endless: bytes) -> None:
    with house(tmp_path / "house") as home:
        home.start()

        async def send() -> None:
            url = urlsplit(home.url)
            _, writer = await asyncio.open_connection(url.hostname, url.port)
            writer.write(endless)
            with contextlib.suppress(OSError):
                for _ in range(2_000):
                    writer.write(b"a" * 65_536)
                    await writer.drain()
            await _hang_up(writer)

        before = _memory_mb(home, "VmRSS")
        asyncio.run(send())
        assert _memory_mb(home, "VmHWM") - before < 20
