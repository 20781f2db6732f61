"""A real server in a directory of its own, with everything a person could do to it: start, stop, kill, freeze, ask."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import httpx2

Answer = dict[str, Any]
T = TypeVar("T")
FAST = {"poll": "200ms", "lease": "3s", "renew": "500ms", "command_window": "1s", "log_poll": "100ms"}


def until(ask: Callable[[], T | None], what: str, seconds: float = 60) -> T:
    """Ask until the answer is true; a test fails when it never is."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := ask():
            return answer
        time.sleep(0.02)
    raise AssertionError(f"not within {seconds} s: {what}")


def passed(seconds: float) -> Callable[[], bool]:
    """Whether so much time has passed since now: where it is the time itself that a test is about."""
    deadline = time.monotonic() + seconds
    return lambda: time.monotonic() >= deadline


class House:
    """One instance: its configuration, its server process and its keeper."""

    def __init__(
        self, directory: Path, *, state: Path | None = None, toml: str = "", group: Path | None = None, **keys: Any
    ) -> None:
        self.directory, self._group = directory, group
        self.state = state or directory / "state"
        self._mark = f"{os.getpid()}-{time.monotonic_ns()}"
        directory.mkdir(parents=True, exist_ok=True)
        own = {"state_dir": str(self.state), "port": 0, "disk_reserve_mb": 1, **FAST, **keys}
        lines = [f"{key} = {json.dumps(value)}" for key, value in own.items()]
        self.config = directory / "standby.toml"
        self.config.write_text("\n".join(lines) + "\n" + toml)
        self.process: subprocess.Popen[bytes] | None = None
        self.url = self.key = ""

    # the server

    def start(self, env: Mapping[str, str] | None = None) -> "House":
        """Start the server and wait until it answers."""
        log = (self.directory / "server.log").open("ab")
        enter = (
            [] if self._group is None else ["sh", "-c", 'echo $$ > "$0/cgroup.procs" && exec "$@"', str(self._group)]
        )
        self.process = subprocess.Popen(
            [*enter, sys.executable, "-m", "standby.cli.main", "serve", "--config", str(self.config)],
            cwd=self.directory,
            env={**os.environ, "STANDBY_TEST_MARK": self._mark, **(env or {})},
            stdout=log,
            stderr=log,
            start_new_session=True,
        )
        log.close()
        until(self._answers, f"server in {self.directory} answers\n{self.tail()}")
        return self

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, f"the server ended: {self.tail()}"
        try:
            about = json.loads((self.state / "server.json").read_text())
        except (OSError, ValueError):
            return False
        if about["pid"] != self.process.pid:
            return False
        self.url, key_file = about["url"], self.state / "admin.key"
        self.key = key_file.read_text().strip() if key_file.exists() else self.key
        try:
            return httpx2.get(f"{self.url}/readyz", timeout=5).status_code == 200
        except httpx2.TransportError:
            return False

    def tail(self) -> str:
        """The end of what the server said."""
        path = self.directory / "server.log"
        return path.read_text()[-4000:] if path.exists() else ""

    def kill(self) -> None:
        """SIGKILL: the server has no chance to do anything."""
        self._end(signal.SIGKILL)

    def stop(self) -> int:
        """SIGTERM, as a service manager would; returns the exit code."""
        return self._end(signal.SIGTERM)

    def send(self, number: signal.Signals) -> None:
        assert self.process is not None
        self.process.send_signal(number)

    def _end(self, number: signal.Signals) -> int:
        if self.process is None:
            return 0
        self.process.send_signal(number)
        code = self.process.wait(timeout=60)
        self.process = None
        return code

    def keeper_pid(self) -> int:
        """The process id of this house's keeper, as it notes it in its directory."""
        return int((self.state / "hosts" / "local" / "keeper.lock").read_text())

    def close(self) -> None:
        """End the server, the keeper and whatever is left of the work."""
        self._end(signal.SIGKILL)
        print(self.tail())  # shown with a test that fails
        _kill(pid for pid, line in _processes() if "keeper" in line and str(self.state) in line)
        _kill(self.left_over())

    def left_over(self) -> list[int]:
        """Live processes that were started as work of this house."""
        found = []
        for pid, _ in _processes():
            try:
                environ = Path(f"/proc/{pid}/environ").read_bytes()
            except OSError:
                continue
            if f"STANDBY_TEST_HOUSE={self._mark}".encode() in environ.split(b"\0"):
                found.append(pid)
        return found

    # what a client does

    def call(self, method: str, path: str, body: Any = None, **headers: str) -> httpx2.Response:
        headers = {"Authorization": f"Bearer {self.key}", **{k.replace("_", "-"): v for k, v in headers.items()}}
        return httpx2.request(method, f"{self.url}/api/v1{path}", json=body, headers=headers, timeout=30)

    def get(self, path: str) -> Answer:
        answer = self.call("GET", path)
        assert answer.status_code == 200, answer.text
        found: Answer = answer.json()
        return found

    def submit(self, *command: str, **body: Any) -> str:
        """Submit a command (or what `body` says) and return the order's id."""
        env = {"STANDBY_TEST_HOUSE": self._mark, **body.pop("env", {})}
        if command:
            body["command"] = list(command)
        answer = self.call("POST", "/work-orders", {"env": env, **body})
        assert answer.status_code in (200, 201), answer.text
        order_id: str = answer.json()["id"]
        return order_id

    def events(self) -> list[Answer]:
        """Everything that ever happened here."""
        found: list[Answer] = []
        while page := self.get(f"/events?after={found[-1]['seq'] if found else 0}&limit=200")["events"]:
            found += page
        return found

    def order(self, order_id: str) -> Answer:
        return self.get(f"/work-orders/{order_id}")

    def ended(self, order_id: str, seconds: float = 60) -> Answer:
        """Wait until the order is over and return it."""
        return until(lambda: self._if_ended(order_id), f"order {order_id} ends", seconds)

    def _if_ended(self, order_id: str) -> Answer | None:
        try:
            order = self.order(order_id)
        except httpx2.TransportError:
            return None
        return order if order["state"] in ("completed", "failed", "cancelled") else None

    def in_state(self, order_id: str, *states: str, seconds: float = 60) -> Answer:
        def ask() -> Answer | None:
            order = self.order(order_id)
            return order if order["state"] in states else None

        return until(ask, f"order {order_id} is {states}", seconds)

    def log_lines(self, order_id: str, run: int | None = None) -> list[str]:
        """The whole stored log of a run (the last one unless said), once it is closed."""
        query = "" if run is None else f"&run={run}"
        lines: list[str] = []

        def closed() -> bool:
            page = self.get(f"/work-orders/{order_id}/logs?from={len(lines)}{query}")
            lines.extend(line["text"] for line in page["lines"])
            return bool(page["closed"]) and not page["lines"]

        until(closed, f"the log of {order_id} is closed")
        return lines


def _kill(pids: Iterable[int]) -> None:
    for pid in pids:
        with suppress(ProcessLookupError):  # it ended by itself meanwhile
            os.kill(pid, signal.SIGKILL)


def _processes() -> Iterator[tuple[int, str]]:
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                line = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
            except OSError:
                continue
            if state != "Z":
                yield int(entry.name), line


@contextmanager
def house(directory: Path, **keys: Any) -> Iterator[House]:
    """A house that is cleaned up whatever happens."""
    made = House(directory, **keys)
    try:
        yield made
    finally:
        made.close()
