"""What a run of the benchmark has to go by: how much to do, a database server, a folder, and who took part."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from msgspec import Struct

from bench.databases import Postgres
from bench.peers.environments import python_of
from bench.side import Side


class Scale(Struct, frozen=True, kw_only=True):
    """How much to do."""

    rounds: int
    emptied: int
    """Orders in a queue that is drained beside a peer's: a round takes about a second. With a third of them a tenth of
    the time was getting under way and running out."""
    drained: int
    """The same where ours is drained beside itself, or again and again."""
    pending: tuple[int, int]
    """Waiting orders in a short and in a long queue."""
    claimed: int
    """Orders that are served of it in a round."""
    drained_slow: int
    """Orders of peers that would take minutes."""
    calls: int
    """Submits in a round."""
    started: int
    """Orders in a stream of 50 a second."""
    history: tuple[int, int]
    """Ended orders in a small and in a large database."""
    held_s: int
    """How long a snapshot is held."""
    idle_s: int
    """How long an idle server is watched."""
    served: tuple[int, int]
    """Orders after which a server's memory is looked at."""
    handed: int
    """Orders that a resident worker waits for."""
    processes: int
    spawns: int
    containers: int
    """Starts of each tier in a round."""
    estimated: int
    """Histories of 1,000 orders in a round."""


FULL: Final = Scale(
    rounds=5,
    emptied=30_000,
    drained=10_000,
    pending=(1_000, 1_000_000),
    claimed=2_000,
    drained_slow=2_000,
    calls=2_000,
    started=400,
    history=(10_000, 1_000_000),
    held_s=30,
    idle_s=60,
    served=(10_000, 100_000),
    handed=300,
    processes=1_500,
    spawns=1_000,
    containers=15,
    estimated=6,
)
QUICK: Final = Scale(
    rounds=2,
    emptied=6_000,
    drained=2_000,
    pending=(1_000, 20_000),
    claimed=500,
    drained_slow=400,
    calls=400,
    started=50,
    history=(1_000, 20_000),
    held_s=4,
    idle_s=9,
    served=(1_000, 4_000),
    handed=30,
    processes=150,
    spawns=150,
    containers=3,
    estimated=1,
)


class Run:
    """One run of the benchmark."""

    def __init__(self, scale: Scale, postgres: Postgres, folder: Path) -> None:
        self.scale, self.postgres, self.folder = scale, postgres, folder
        self.versions: dict[str, str] = {"postgresql": postgres.settings["server_version"]}
        self._files = 0

    @contextmanager
    def ours(self, engine: str, slots: int = 100, url: str | None = None, *, gates: bool = False) -> Iterator[Side]:
        """Standby on a database of its own, with or without every gate that can be passed at full speed."""
        with Side("ours", url or self.database(engine), str(slots), *(["gates"] if gates else [])) as side:
            self.versions |= side.ask("about")
            yield side

    @contextmanager
    def peer(self, name: str, url: str | None = None) -> Iterator[Side]:
        """A peer on a database of its own."""
        where = url or (str(self.file()) if name == "huey" else self.postgres.database())
        with Side(f"peers.{name}", where, python=python_of(name)) as side:
            self.versions |= side.ask("about")
            yield side

    def database(self, engine: str) -> str:
        """The URL of an empty database of this engine."""
        return self.postgres.database() if engine == "postgresql" else f"sqlite:///{self.file()}"

    def file(self) -> Path:
        """A path for a new database, in a folder of its own."""
        self._files += 1
        path = self.folder / str(self._files) / "bench.db"
        path.parent.mkdir()
        return path
