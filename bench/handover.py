"""How long an order waits for a resident worker that is ready for it: a whole server, a worker that takes orders."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any, Final

from bench.rounds import Figures, Target, percentile
from bench.run import Run
from bench.server import Server, server
from standby.seal import Seal

RESIDENT: Final = """
[hosts.far]
driver = "scripted"
seats = false
[pools.default]
slots_max = 1
slots_warm = 1
memory_mb = 0
worker = true
warmth = "running"
"""
SLOT: Final = "standby-pool-default-001"
SETTLED_S: Final = 0.02
"""A question that is sent has arrived after this."""


class Line:
    """One kept connection to the server."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer

    @classmethod
    async def open(cls, url: str) -> "Line":
        host, port = url.removeprefix("http://").split(":")
        return cls(*await asyncio.open_connection(host, int(port)))

    def close(self) -> None:
        self._writer.close()

    async def ask(self, method: str, path: str, token: str, body: Any = None) -> tuple[int, Any]:
        """The status and the body of an answer."""
        text = b"" if body is None else json.dumps(body).encode()
        self._writer.write(
            f"{method} /api/v1/{path} HTTP/1.1\r\nHost: x\r\nAuthorization: Bearer {token}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(text)}\r\n\r\n".encode()
            + text
        )
        head = (await self._reader.readuntil(b"\r\n\r\n")).decode().lower()
        _, _, length = head.partition("content-length:")
        found = await self._reader.readexactly(int(length.split("\r\n")[0])) if length else b""
        return int(head.split()[1]), json.loads(found) if found else None


async def waits_ms(asked: Server, orders: int) -> list[float]:
    """From just before an order is submitted until the worker that waits for it has it; nothing else is going on."""
    seal = Seal(bytes.fromhex((asked.folder / "state" / "seal.key").read_text()))
    client, worker = await Line.open(asked.url), await Line.open(asked.url)
    found: list[float] = []
    # slots are made when somebody waits for them: the first order only makes one
    await client.ask("POST", "work-orders", asked.key, {"command": ["true"]})
    generation = 0
    for number in range(orders + 1):
        generation = await _made(client, asked.key, after=generation)
        boot = await _booted(worker, seal.slot_token(SLOT, generation))
        if number > 0:
            await _until_idle(client, asked.key)
        fetching = asyncio.ensure_future(worker.ask("GET", "worker/assignment?wait_s=20", boot))
        if number > 0:
            await asyncio.sleep(SETTLED_S)
            began = time.monotonic()
            submitting = asyncio.ensure_future(client.ask("POST", "work-orders", asked.key, {"command": ["true"]}))
            _, order = await fetching
            found.append((time.monotonic() - began) * 1000)
            await submitting
        else:
            _, order = await fetching
        status, _ = await worker.ask("POST", "worker/result", boot, {"run_id": order["run_id"]})
        assert status == 200
    client.close()
    worker.close()
    return found


async def _made(client: Line, key: str, after: int) -> int:
    """The slot's next generation, when it is being made."""
    async with asyncio.timeout(60):
        while True:
            _, said = await client.ask("GET", "slots", key)
            found: list[int] = [slot["generation"] for slot in said["slots"] if slot["generation"] > after]
            if found:
                return found[0]
            await asyncio.sleep(0.01)


async def _booted(worker: Line, token: str) -> str:
    async with asyncio.timeout(60):
        while True:
            status, said = await worker.ask("POST", "worker/boot", token, {"nonce": token[-16:]})
            if status == 200:
                return str(said["boot_token"])
            await asyncio.sleep(0.01)


async def _until_idle(client: Line, key: str) -> None:
    async with asyncio.timeout(60):
        while True:
            _, said = await client.ask("GET", "slots", key)
            if [slot["state"] for slot in said["slots"]] == ["idle"]:
                return
            await asyncio.sleep(0.01)


def measure(run: Run, engine: str) -> list[Figures]:
    """The rows: submit to work in the hands of a resident worker."""
    waits: list[list[float]] = []
    for number in range(max(1, run.scale.rounds // 2 + 1)):
        folder = Path(run.folder / f"handover-{engine}-{number}")
        folder.mkdir()
        with server(folder, run.database(engine), toml=RESIDENT) as asked:
            waits.append(asyncio.run(waits_ms(asked, run.scale.handed)))
    return [
        Figures(
            name=f"submit to a resident worker, {word}",
            engine=engine,
            unit="ms",
            better="lower",
            ours=[percentile(each, share) for each in waits],
            target=Target("at most", 5, of="ours") if word == "p50" else None,
        )
        for word, share in (("p50", 0.5), ("p99", 0.99))
    ]
