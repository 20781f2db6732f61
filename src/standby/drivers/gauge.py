"""How full this machine is, read from /proc; a file that is missing says nothing."""

import os
from pathlib import Path
from typing import Final

from standby.core.sighting import Pressure, Reading

PRESSURES: Final = {
    "memory_some_avg10": ("memory", "some"),
    "memory_full_avg10": ("memory", "full"),
    "cpu_some_avg10": ("cpu", "some"),
    "io_some_avg10": ("io", "some"),
}


class MachineGauge:
    """Measures one machine; processor time is counted from one reading to the next."""

    def __init__(self, disk: Path, proc: Path = Path("/proc")) -> None:
        self._disk, self._proc = disk, proc
        self._ticks: tuple[int, int] | None = None

    def read(self) -> Reading:
        """One reading; a few small files, so it is done on the spot."""
        memory = self._memory_mb()
        load = self._text("loadavg").split()
        return Reading(
            memory_total_mb=memory.get("MemTotal"),
            memory_available_mb=memory.get("MemAvailable"),
            cpu_count=os.cpu_count(),
            cpu_used=self._cpu_used(),
            load_1m=float(load[0]) if load else None,
            pressure=self._pressure(),
            disk_free_mb=self._disk_free_mb(),
        )

    def _text(self, name: str) -> str:
        try:
            return (self._proc / name).read_text()
        except OSError:
            return ""

    def _memory_mb(self) -> dict[str, int]:
        lines = [line.split() for line in self._text("meminfo").splitlines()]
        return {name.rstrip(":"): int(kb) >> 10 for name, kb, *_ in lines}

    def _cpu_used(self) -> float | None:
        """Busy share of all processors since the last reading, 0 to 1; null for the first one."""
        words = self._text("stat").partition("\n")[0].split()[1:9]
        if len(words) < 5:
            return None
        ticks = [int(word) for word in words]
        now, before = (sum(ticks), ticks[3] + ticks[4]), self._ticks
        self._ticks = now
        if before is None or now[0] <= before[0]:
            return None
        return round(min(1.0, max(0.0, 1 - (now[1] - before[1]) / (now[0] - before[0]))), 3)

    def _pressure(self) -> Pressure | None:
        texts = {name: self._text(f"pressure/{name}") for name in ("memory", "cpu", "io")}
        if not any(texts.values()):
            return None
        return Pressure(**{key: _avg10(texts[name], kind) for key, (name, kind) in PRESSURES.items()})

    def _disk_free_mb(self) -> int | None:
        try:
            disk = os.statvfs(self._disk)
        except OSError:
            return None
        return disk.f_bavail * disk.f_frsize >> 20


def _avg10(text: str, kind: str) -> float | None:
    """From lines like `some avg10=0.12 avg60=... total=...`"""
    for line in text.splitlines():
        words = line.split()
        if words[:1] == [kind] and len(words) > 1:
            return float(words[1].partition("=")[2])
    return None
