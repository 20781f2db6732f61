"""Measure Standby on this machine, next to its peers: `make bench`, `make bench QUICK=1`.

python -m bench [--quick] [PART ...]      without parts all of them; a part may be named by how its name begins
"""

import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Final

from bench import containers, estimate, gates, handover, processes, queue, spawn, weight
from bench.databases import postgres
from bench.report import machine, table, write
from bench.rounds import Figures, Row, row
from bench.run import FULL, QUICK, Run
from bench.side import ROOT

Part = Callable[[Run], list[Figures]]

PG: Final = "postgresql"
SQLITE: Final = "sqlite"
PARTS: Final[Mapping[str, Part]] = {
    "drain-pg-100": partial(queue.drain, engine=PG, slots=100, peer="pgqueuer", target=1.0),
    "drain-pg-400": partial(queue.drain, engine=PG, slots=400, peer="pgqueuer", target=1.2),
    "drain-pg-procrastinate": partial(queue.drain, engine=PG, slots=100, peer="procrastinate", target=15),
    "drain-sqlite-100": partial(queue.drain, engine=SQLITE, slots=100, peer="huey", target=5),
    "drain-sqlite-400": partial(queue.drain, engine=SQLITE, slots=400, peer="huey", target=5),
    "submit-pg": partial(queue.submit, engine=PG, peers=("pgqueuer", "procrastinate")),
    "submit-sqlite": partial(queue.submit, engine=SQLITE, peers=("huey",)),
    "start-pg": partial(queue.start, engine=PG, peers=("pgqueuer", "procrastinate")),
    "start-sqlite": partial(queue.start, engine=SQLITE, peers=("huey",)),
    "handover-pg": partial(handover.measure, engine=PG),
    "handover-sqlite": partial(handover.measure, engine=SQLITE),
    "history-pg": partial(queue.history, engine=PG),
    "history-sqlite": partial(queue.history, engine=SQLITE),
    "snapshot-pg": queue.snapshot,
    "gates-pg": partial(gates.drain, engine=PG),
    "gates-sqlite": partial(gates.drain, engine=SQLITE),
    "claims-pg": partial(gates.claims, engine=PG),
    "claims-sqlite": partial(gates.claims, engine=SQLITE),
    "http-pg": partial(weight.http, engine=PG),
    "http-sqlite": partial(weight.http, engine=SQLITE),
    "idle-pg": partial(weight.idle, engine=PG),
    "idle-sqlite": partial(weight.idle, engine=SQLITE),
    "memory-sqlite": weight.memory,
    "containers": containers.measure,
    "processes": processes.measure,
    "spawn": spawn.measure,
    "estimate": estimate.measure,
}


def chosen(words: list[str]) -> list[str]:
    """The parts that these words begin; all without any. Exits with what there is when a word fits none."""
    for word in words:
        if not any(part.startswith(word) for part in PARTS):
            sys.exit(f"there is no part {word!r}; the parts are: {', '.join(PARTS)}")
    return [part for part in PARTS if not words or part.startswith(tuple(words))]


def measured(run: Run, parts: list[str]) -> tuple[list[Row], dict[str, str]]:
    """The rows of these parts, and what went wrong in those that have none: the figures survive one mistake."""
    rows, failed = list[Row](), dict[str, str]()
    for name in parts:
        began = time.monotonic()
        print(f"{name} ...", end=" ", flush=True)
        try:
            rows += [row(figures, run.versions) for figures in PARTS[name](run)]
        except Exception as error:  # noqa: BLE001 (said here, and at the end by the exit code)
            failed[name] = repr(error)
            traceback.print_exc()
        print(f"{time.monotonic() - began:.0f} s", flush=True)
    return rows, failed


def main() -> None:
    quick = "--quick" in sys.argv
    parts = chosen([word for word in sys.argv[1:] if word != "--quick"])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that everything that was started is ended
    facts = machine()
    with tempfile.TemporaryDirectory() as folder, postgres() as server:
        rows, failed = measured(Run(QUICK if quick else FULL, server, Path(folder)), parts)
    path = write(rows, {**facts, "postgresql": server.settings, "quick": quick, "failed": failed})
    print(f"\n{table(rows)}\n\nwritten to {path.relative_to(ROOT)}")
    sys.exit(f"failed: {', '.join(failed)}" if failed else 0)


if __name__ == "__main__":
    main()
