"""How full this machine is, or the control group we are in; a file that is missing says nothing."""

import os
from pathlib import Path

from standby.core.sighting import Pressure, Reading
from standby.machine import PROC, Memory, memory, text


class MachineGauge:
    """Measures one machine; processor time is counted from one reading to the next. `confined`: what runs on it is in
    our own control group."""

    def __init__(self, disk: Path, proc: Path = PROC, *, confined: bool = True) -> None:
        self._disk, self._proc, self._confined = disk, proc, confined
        self._ticks: tuple[int, int] | None = None

    def read(self) -> Reading:
        """One reading; a few small files, so it is done on the spot."""
        found = memory(self._proc, confined=self._confined)
        load = self._text("loadavg").split()
        return Reading(
            memory_total_mb=None if found is None else found.total_mb,
            memory_available_mb=None if found is None else found.available_mb,
            cpu_count=os.cpu_count(),
            cpu_used=self._cpu_used(),
            load_1m=float(load[0]) if load else None,
            pressure=self._pressure(found),
            disk_free_mb=self._disk_free_mb(),
        )

    def _text(self, name: str) -> str:
        return text(self._proc / name)

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

    def _pressure(self, found: Memory | None) -> Pressure | None:
        """Of the group that limits us, where it says so, else of the machine."""
        texts = {}
        for name in ("memory", "cpu", "io"):
            own = "" if found is None or found.group is None else text(found.group / f"{name}.pressure")
            texts[name] = own or self._text(f"pressure/{name}")
        if not any(texts.values()):
            return None
        both = [(name, kind) for name in texts for kind in ("some", "full")]
        return Pressure(**{f"{name}_{kind}_avg10": _avg10(texts[name], kind) for name, kind in both})

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
