"""A whole server as a person runs it, with the default timings: asked over HTTP, weighed from outside."""

import asyncio
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import httpx2

from bench.side import ROOT
from bench.talk import rate
from standby.store.store import migrate
from tests.e2e.house import until

SCRIPTED: Final = """
[hosts.local]
driver = "scripted"
[pools.default]
slots_max = {slots}
memory_mb = 0
queue_timeout = "10m"
"""
COUNT: Final = "statements"
SUBMIT: Final = b'{"command": ["true"]}'


class Server:
    """A running server."""

    def __init__(self, url: str, key: str, pid: int, folder: Path) -> None:
        self.url, self.key, self.pid, self.folder = url, key, pid, folder

    def get(self, path: str) -> Any:
        """What the API answers."""
        answer = httpx2.get(f"{self.url}{path}", headers={"Authorization": f"Bearer {self.key}"}, timeout=60)
        answer.raise_for_status()
        return answer.json() if "json" in answer.headers["content-type"] else answer.text

    def quiet(self) -> bool:
        """Whether nothing waits and nothing runs."""
        pool = self.get("/api/v1/pools/default")
        return int(pool["pending"]) + int(pool["open"]) == 0

    def completed(self) -> float:
        """How many orders ended well since it was started."""
        lines = str(self.get("/metrics")).splitlines()
        ended = [line for line in lines if line.startswith("standby_orders_ended_total")]
        return sum(float(line.split()[-1]) for line in ended if 'outcome="completed"' in line)

    def submit(self, orders: int, callers: int) -> float:
        """Orders a second that so many callers at once submit, each on a connection of its own."""
        return asyncio.run(self._submit(orders, callers))

    async def _submit(self, orders: int, callers: int) -> float:
        host, port = self.url.removeprefix("http://").split(":")
        lines = [await asyncio.open_connection(host, int(port)) for _ in range(callers)]
        head = (
            f"POST /api/v1/work-orders HTTP/1.1\r\nHost: {host}\r\nAuthorization: Bearer {self.key}\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(SUBMIT)}\r\n\r\n"
        )
        free = list(lines)

        async def call() -> None:
            reader, writer = free.pop()
            writer.write(head.encode() + SUBMIT)
            answered = (await reader.readuntil(b"\r\n\r\n")).decode().lower()
            assert answered.startswith("http/1.1 201"), answered
            await reader.readexactly(int(answered.partition("content-length:")[2].split("\r\n")[0]))
            free.append((reader, writer))

        found = await rate(orders, callers, call)
        for _, writer in lines:
            writer.close()
        return found

    def memory_mb(self) -> dict[str, float]:
        """RSS and PSS of the server, and what its keeper adds."""
        keepers = [_weight(pid)["Pss"] for pid in _of(self.folder) if pid != self.pid]
        return {**_weight(self.pid), "keeper": sum(keepers)}

    def statements(self) -> int:
        """How many statements its SQLite was asked for so far."""
        told = self.folder / COUNT
        told.unlink(missing_ok=True)
        os.kill(self.pid, signal.SIGUSR1)
        return int(until(lambda: told.read_text() if told.exists() else None, "the count is told"))


@contextmanager
def server(folder: Path, database: str, *, toml: str = "", traced: bool = False) -> Iterator[Server]:
    """A server in a folder of its own, ended with everything it started."""
    asyncio.run(migrate(database))
    state, config = folder / "state", folder / "standby.toml"
    config.write_text(f"state_dir = {json.dumps(str(state))}\ndatabase = {json.dumps(database)}\nport = 0\n{toml}")
    start = ["-m", "bench.traced", str(folder / COUNT)] if traced else ["-m", "standby.cli.main"]
    environ = {**os.environ, "PYTHONPATH": str(ROOT)}
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [sys.executable, *start, "serve", "--config", str(config)], cwd=folder, env=environ, stdout=log, stderr=log
        )
    try:
        about = until(_told(process, state, folder / "log"), "the server is up")
        until(lambda: httpx2.get(f"{about['url']}/readyz", timeout=5).status_code == 200, "the server is ready")
        yield Server(about["url"], (state / "admin.key").read_text().strip(), process.pid, folder)
    finally:
        process.terminate()
        process.wait(timeout=60)
        for pid in _of(folder):
            os.kill(pid, signal.SIGKILL)


def _told(process: subprocess.Popen[bytes], state: Path, log: Path) -> Callable[[], Any]:
    def ask() -> Any:
        assert process.poll() is None, f"the server ended: {log.read_text()[-2_000:]}"
        return json.loads(path.read_text()) if (path := state / "server.json").exists() else None

    return ask


def _of(folder: Path) -> list[int]:
    """The server and its keeper, which has no parent: every process that was started for this folder."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if entry.name.isdigit() and str(folder).encode() in (entry / "cmdline").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue  # it has ended
    return found


def _weight(pid: int) -> dict[str, float]:
    lines = [line.split() for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()]
    return {line[0].rstrip(":"): int(line[1]) / 1024 for line in lines if line[0] in ("Rss:", "Pss:")}
