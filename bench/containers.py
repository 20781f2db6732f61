"""How long an order waits for its container, in each tier of warmth, next to the bare engine doing the same by hand.

Both sides are timed until the first instruction of the work: it says so through a pipe that is mounted into every
container. One start of ours and one by hand take turns, with nothing else going on.
"""

import http.client
import json
import os
import queue
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from bench.rounds import Figures, Target, percentile
from bench.run import Run
from bench.server import Server, server
from tests.e2e.boxes import SLEEPS, resident
from tests.e2e.house import until
from tests.engine import BOX, RunningEngine, missing, own_engine

TIERS: Final = ("cold", "created", "running", "resident")
PIPE: Final = "pipe"
BEGIN: Final = ["/bin/sh", "-c", "echo >/marks/pipe"]
ADDS_MS: Final = 15
RESIDENT_MS: Final = 5
FASTER: Final = 40
MEMORY_MB: Final = 64
WORKER: Final = """
import sys
sys.path.insert(0, {place!r})
from worker import Worker

def work(job):
    with open("/marks/pipe", "wb", 0) as pipe:
        pipe.write(b".")

Worker().run(work)
"""
LISTENER: Final = """
import socket
with socket.socket(socket.AF_UNIX) as listening:
    listening.bind("/marks/line.sock")
    listening.listen()
    line = listening.accept()[0]
    while line.recv(100):
        with open("/marks/pipe", "wb", 0) as pipe:
            pipe.write(b".")
"""


class Marks:
    """When work began, as it says itself."""

    def __init__(self, folder: Path) -> None:
        os.mkfifo(folder / PIPE)
        self._pipe = os.open(folder / PIPE, os.O_RDWR)
        self._told: queue.SimpleQueue[float] = queue.SimpleQueue()
        threading.Thread(target=self._listen, daemon=True).start()

    def after_ms(self, begin: Callable[[], object]) -> float:
        """From just before something is asked for until the work begins."""
        began = time.perf_counter()
        begin()
        return (self._told.get(timeout=60) - began) * 1000

    def _listen(self) -> None:
        while os.read(self._pipe, 1):
            self._told.put(time.perf_counter())


class UnixLine(http.client.HTTPConnection):
    """HTTP over a Unix socket, on a kept connection."""

    def __init__(self, path: Path) -> None:
        super().__init__("engine", timeout=60)
        self._path = str(path)

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX)
        self.sock.connect(self._path)


def ask(line: http.client.HTTPConnection, method: str, path: str, body: Any = None, token: str = "") -> Any:
    """One question and its answer."""
    headers = {"Content-Type": "application/json", **({"Authorization": f"Bearer {token}"} if token else {})}
    line.request(method, path, None if body is None else json.dumps(body), headers)
    answer = line.getresponse()
    text = answer.read()
    assert answer.status < 400, f"{method} {path}: {text.decode()}"
    return json.loads(text) if text else None


class ByHand:
    """The bare engine: what a person who knows its API would send, and nothing more."""

    def __init__(self, engine: RunningEngine, folder: Path, keys: Mapping[str, Any]) -> None:
        self._line = UnixLine(engine.socket)
        self._binds = [*keys["mounts"], f"{folder}:/marks"]
        self._python: str = keys["command"][0]
        self._folder, self._made = folder, list[str]()
        self._talk = socket.socket(socket.AF_UNIX)

    def prepare(self, tier: str) -> Callable[[], object]:
        """Everything that may be done ahead; returns what is to be timed."""
        match tier:
            case "cold":
                return lambda: self._start(self._create(BEGIN))
            case "created":
                made = self._create(BEGIN)
                return lambda: self._start(made)
            case "running":
                alive = self._create(SLEEPS)
                self._start(alive)
                return lambda: self._exec(alive)
            case _:
                return lambda: self._talk.send(b".")

    @contextmanager
    def listener(self) -> Iterator[None]:
        """A process that lives in a container and waits for lines."""
        (self._folder / "listener.py").write_text(LISTENER)
        self._start(self._create([self._python, "-I", "/marks/listener.py"]))
        lives, self._made = self._made, []
        path = str(self._folder / "line.sock")
        until(lambda: self._talk.connect_ex(path) == 0, "the resident process listens")
        yield
        self._talk.close()
        self._made = lives
        self.tidy()

    def tidy(self) -> None:
        """Take away what was made."""
        for made in self._made:
            ask(self._line, "DELETE", f"/containers/{made}?force=1&v=1")
        self._made = []

    def _create(self, command: Sequence[str]) -> str:
        limits = {
            "Binds": self._binds,
            "NetworkMode": "none",
            "Memory": MEMORY_MB << 20,
            "MemorySwap": MEMORY_MB << 20,
            "CapDrop": ["ALL"],
            "ReadonlyRootfs": True,
        }
        body = {"Image": BOX, "Entrypoint": command, "Cmd": [], "HostConfig": limits}
        made: str = ask(self._line, "POST", "/containers/create", body)["Id"]
        self._made.append(made)
        return made

    def _start(self, made: str) -> None:
        ask(self._line, "POST", f"/containers/{made}/start")

    def _exec(self, alive: str) -> None:
        made = ask(self._line, "POST", f"/containers/{alive}/exec", {"Cmd": BEGIN})["Id"]
        ask(self._line, "POST", f"/exec/{made}/start", {"Detach": True})


class Ours:
    """A whole server with a pool of each tier, one slot each."""

    def __init__(self, asked: Server, engine: RunningEngine) -> None:
        host, port = asked.url.removeprefix("http://").split(":")
        self._line, self._engine, self._key = (
            http.client.HTTPConnection(host, int(port)),
            UnixLine(engine.socket),
            asked.key,
        )

    def prepare(self, tier: str) -> Callable[[], object]:
        """Wait until the pool rests with its slot warm; returns what is to be timed."""
        until(lambda: self._rests(tier), f"pool {tier} rests")
        body = {"command": BEGIN, "pool": tier, "retry": {"retries": 0}}
        return lambda: ask(self._line, "POST", "/api/v1/work-orders", body, self._key)

    def _rests(self, tier: str) -> bool:
        pool = ask(self._line, "GET", f"/api/v1/pools/{tier}", None, self._key)
        slots = ask(self._line, "GET", f"/api/v1/slots?pool={tier}", None, self._key)["slots"]
        filters = json.dumps({"label": [f"standby.pool={tier}"]})
        there = ask(self._engine, "GET", f"/containers/json?all=1&filters={quote(filters)}")
        warm = tier == "cold" or [slot["state"] for slot in slots] == ["idle"]
        return pool["pending"] + pool["open"] == 0 and warm and len(there) == (tier != "cold")


def _pools(folder: Path, engine: RunningEngine, keys: Mapping[str, Any]) -> str:
    marks = f"{folder}:/marks"
    common = {"image": BOX, "network": "none", "memory_mb": MEMORY_MB, "slots_max": 1, "slots_warm": 1}
    own: dict[str, dict[str, Any]] = {
        "cold": {"warmth": "cold", "slots_warm": 0},
        "created": {"warmth": "created"},
        "running": {"warmth": "running", "command": SLEEPS},
        "resident": {**keys, "warmth": "running", "command": [keys["command"][0], "-I", "/marks/worker.py"]},
    }
    text = f'[hosts.engine]\ndriver = "docker"\nendpoint = "{engine.unix}"\n'
    for name, each in own.items():
        pool = {**common, **each, "mounts": [*keys["mounts"], marks]}
        text += f"[pools.{name}]\n" + "".join(f"{key} = {json.dumps(value)}\n" for key, value in pool.items())
    return text


def measure(run: Run) -> list[Figures]:
    """The rows of all tiers; none where no engine can be started."""
    if (why := missing()) is not None:
        print(f"left out, because {why};", end=" ")
        return []
    base = run.file().parent
    folder = base / "m"
    folder.mkdir()
    keys = resident(base)
    (folder / "worker.py").write_text(WORKER.format(place=str(base / "worker")))
    marks = Marks(folder)
    found: dict[str, list[tuple[list[float], list[float]]]] = {tier: [] for tier in TIERS}
    with ExitStack() as stack:
        engine = stack.enter_context(own_engine(base / "e"))
        by_hand = ByHand(engine, folder, keys)
        stack.enter_context(by_hand.listener())
        toml = _pools(folder, engine, keys)
        (base / "s").mkdir()
        ours = Ours(stack.enter_context(server(base / "s", run.database("sqlite"), toml=toml)), engine)
        for number in range(run.scale.rounds + 1):
            for tier in TIERS:
                taken = [_turn(marks, ours, by_hand, tier) for _ in range(run.scale.containers if number else 1)]
                if number:  # the first round only warms up
                    found[tier].append(([each for each, _ in taken], [each for _, each in taken]))
    return [figures for tier in TIERS for figures in _rows(tier, found[tier])] + [_against_cold(found)]


def _turn(marks: Marks, ours: Ours, by_hand: ByHand, tier: str) -> tuple[float, float]:
    """One start of each side."""
    mine = marks.after_ms(ours.prepare(tier))
    ours.prepare(tier)  # until nothing of it is left
    theirs = marks.after_ms(by_hand.prepare(tier))
    by_hand.tidy()
    return mine, theirs


def _rows(tier: str, rounds: Sequence[tuple[list[float], list[float]]]) -> Iterator[Figures]:
    shares = (("p50", 0.5), ("p99", 0.99))
    for word, share in shares:
        target = Target("at most", RESIDENT_MS, of="ours") if (tier, word) == ("resident", "p50") else None
        yield Figures(
            name=f"submit to work begun, {tier}, {word}",
            engine="docker",
            unit="ms",
            better="lower",
            ours=[percentile(ours, share) for ours, _ in rounds],
            peer_name="bare engine",
            peer=[percentile(theirs, share) for _, theirs in rounds],
            target=target,
        )
    yield Figures(
        name=f"added to a bare start, {tier}, p50",
        engine="docker",
        unit="ms",
        better="lower",
        ours=[percentile(ours, 0.5) - percentile(theirs, 0.5) for ours, theirs in rounds],
        target=Target("at most", ADDS_MS, of="ours"),
    )


def _against_cold(found: Mapping[str, Sequence[tuple[list[float], list[float]]]]) -> Figures:
    pairs = zip(found["cold"], found["resident"], strict=True)
    return Figures(
        name="resident against cold, p50",
        engine="docker",
        unit="times",
        better="higher",
        ours=[percentile(cold, 0.5) / percentile(alive, 0.5) for (cold, _), (alive, _) in pairs],
        target=Target("at least", FASTER, of="ours"),
    )
