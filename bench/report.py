"""What is left of a run: a file with every row and the machine's facts, and a table for a person."""

import os
import platform
import sqlite3
import statistics
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import apsw
import msgspec

from bench.rounds import Row
from bench.side import ROOT

RESULTS: Final = ROOT / "bench" / "results"


def write(rows: Sequence[Row], facts: Mapping[str, Any]) -> Path:
    """Keep the run in a file named by its time."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{datetime.now(UTC):%Y-%m-%dT%H-%M-%SZ}.json"
    path.write_bytes(msgspec.json.format(msgspec.json.encode({"machine": facts, "rows": rows}), indent=2))
    return path


def machine() -> dict[str, Any]:
    """What a figure depends on besides the code."""
    cpu = next((line for line in Path("/proc/cpuinfo").read_text().splitlines() if "model name" in line), "unknown")
    return {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "commit": _commit(),
        "cpu": cpu.partition(":")[2].strip() or cpu,
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2**20,
        "load_before": os.getloadavg()[0],
        "kernel": platform.release(),
        "python": platform.python_version(),
        "sqlite": {"standby": apsw.sqlite_lib_version(), "huey": sqlite3.sqlite_version},
        "fdatasync_ms": round(fdatasync_ms(), 3),
    }


def fdatasync_ms(times: int = 100) -> float:
    """How long this disk takes to keep one small write: the median."""
    took = []
    with tempfile.TemporaryFile() as file:
        for _ in range(times):
            file.write(b"x" * 4096)
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            took.append((time.perf_counter() - began) * 1000)
    return statistics.median(took)


def _commit() -> str:
    found = subprocess.run(["git", "describe", "--always", "--dirty"], cwd=ROOT, capture_output=True, text=True)
    return found.stdout.strip() or "unknown"


def table(rows: Sequence[Row]) -> str:
    """All rows, one line each."""
    head = ("row", "engine", "ours", "(spread)", "peer", "(spread)", "against", "ratio", "target", "")
    lines = [head, *(_cells(row) for row in rows)]
    widths = [max(len(line[place]) for line in lines) for place in range(len(head))]
    left = {0, 1, 6, 8, 9}
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place in left else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )


def _cells(row: Row) -> tuple[str, ...]:
    return (
        row.name,
        row.engine,
        f"{_shown(row.ours)} {row.unit}",
        _spread(row.spread_ours),
        "" if row.peer is None else _shown(row.peer),
        "" if row.spread_peer is None else _spread(row.spread_peer),
        row.peer_name or "",
        "" if row.ratio is None else f"{row.ratio:.2f}x",
        row.target or "",
        row.verdict or "",
    )


def _spread(spread: tuple[float, float]) -> str:
    return "" if spread[0] == spread[1] else f"({_shown(spread[0])}-{_shown(spread[1])})"


def _shown(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
