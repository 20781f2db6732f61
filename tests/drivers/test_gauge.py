"""Readings of a machine: numbers where it says them, null where it does not."""

from pathlib import Path

import pytest

from standby import machine
from standby.core.sighting import Pressure, Reading
from standby.drivers.gauge import MachineGauge

FIRST = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
SECOND = ("memory.max", "memory.current", "inactive_file")
MB = 2**20


class Boxed:
    """A machine of 2048 MB (1024 available) with control groups, as /proc and its mounts show them."""

    def __init__(self, directory: Path) -> None:
        self.proc, self.mounts = directory / "proc", directory / "mounts"
        (self.proc / "self").mkdir(parents=True)
        (self.proc / "meminfo").write_text("MemTotal: 2097152 kB\nMemAvailable: 1048576 kB\n")
        self._lines: list[str] = []

    def mount(self, name: str, kind: str, options: str, root: str = "/") -> Path:
        made = self.mounts / name
        made.mkdir(parents=True)
        self._lines.append(f"30 23 0:28 {root} {made} rw,relatime shared:9 - {kind} {kind} {options}\n")
        (self.proc / "self/mountinfo").write_text("".join(self._lines))
        return made

    def ours(self, *lines: str) -> None:
        (self.proc / "self/cgroup").write_text("".join(f"{line}\n" for line in lines))


def limit(group: Path, files: tuple[str, str, str], limit_mb: int | str, usage_mb: int, idle_mb: int = 0) -> None:
    group.mkdir(parents=True, exist_ok=True)
    (group / files[0]).write_text(f"{limit_mb if isinstance(limit_mb, str) else limit_mb * MB}\n")
    (group / files[1]).write_text(f"{usage_mb * MB}\n")
    (group / "memory.stat").write_text(f"cache 5\n{files[2]} {idle_mb * MB}\n")


@pytest.fixture
def boxed(tmp_path: Path) -> Boxed:
    return Boxed(tmp_path)


def test_the_second_version_of_control_groups_confines(boxed: Boxed, tmp_path: Path) -> None:
    boxed.ours("0::/app")
    group = boxed.mount("unified", "cgroup2", "rw") / "app"
    limit(group, SECOND, 100, 90, idle_mb=15)
    (group / "memory.pressure").write_text("some avg10=20.00 avg60=0.00\nfull avg10=10.00 avg60=0.00\n")
    reading = MachineGauge(tmp_path, boxed.proc).read()
    assert (reading.memory_total_mb, reading.memory_available_mb) == (100, 25)
    assert reading.pressure == Pressure(memory_some_avg10=20, memory_full_avg10=10)


@pytest.mark.parametrize("hybrid", [False, True])
def test_the_first_version_confines_also_beside_the_second(boxed: Boxed, hybrid: bool) -> None:
    boxed.ours("4:cpu,memory:/app", *(["0::/"] if hybrid else []))
    if hybrid:
        boxed.mount("unified", "cgroup2", "rw")
    boxed.mount("cpu", "cgroup", "rw,cpu")
    limit(boxed.mount("memory", "cgroup", "rw,memory") / "app", FIRST, 100, 60)
    found = machine.memory(boxed.proc)
    assert found is not None and found[:2] == (100, 40)
    assert machine.total_mb(boxed.proc) == 100


def test_a_group_above_ours_confines_too_and_the_fullest_counts(boxed: Boxed) -> None:
    boxed.ours("0::/outer/inner")
    outer = boxed.mount("unified", "cgroup2", "rw") / "outer"
    limit(outer, SECOND, 200, 180)
    limit(outer / "inner", SECOND, 100, 10)
    found = machine.memory(boxed.proc)
    assert found is not None and found[:2] == (200, 20)
    assert machine.total_mb(boxed.proc) == 100


@pytest.mark.parametrize("unlimited", ["max", str(2**63 - 4096)])
def test_a_group_without_a_limit_says_nothing(boxed: Boxed, unlimited: str) -> None:
    boxed.ours("0::/app")
    limit(boxed.mount("unified", "cgroup2", "rw") / "app", SECOND, unlimited, 90)
    assert machine.memory(boxed.proc) == machine.Memory(2048, 1024)
    assert machine.total_mb(boxed.proc) == 2048


@pytest.mark.parametrize("root", ["/docker/abc", "/"])
def test_in_a_container_the_mount_is_our_group(boxed: Boxed, root: str) -> None:
    boxed.ours("4:memory:/docker/abc")
    limit(boxed.mount("memory", "cgroup", "rw,memory", root), FIRST, 100, 95)
    found = machine.memory(boxed.proc)
    assert found is not None and found[:2] == (100, 5)


def test_a_machine_that_is_fuller_than_our_group_counts(boxed: Boxed) -> None:
    boxed.ours("0::/app")
    limit(boxed.mount("unified", "cgroup2", "rw") / "app", SECOND, 100, 10)
    (boxed.proc / "meminfo").write_text("MemTotal: 2097152 kB\nMemAvailable: 20480 kB\n")
    assert machine.memory(boxed.proc) == machine.Memory(2048, 20)


def test_containers_are_not_in_our_group(boxed: Boxed, tmp_path: Path) -> None:
    boxed.ours("0::/app")
    limit(boxed.mount("unified", "cgroup2", "rw") / "app", SECOND, 100, 90)
    assert MachineGauge(tmp_path, boxed.proc, confined=False).read().memory_total_mb == 2048


def test_a_reading_has_what_the_machine_says(tmp_path: Path) -> None:
    (tmp_path / "pressure").mkdir()
    (tmp_path / "meminfo").write_text("MemTotal:  2097152 kB\nMemFree: 5 kB\nMemAvailable:  1048576 kB\n")
    (tmp_path / "loadavg").write_text("1.25 0.50 0.10 1/100 4242\n")
    (tmp_path / "stat").write_text("cpu  100 0 100 700 100 0 0 0 0 0\ncpu0 1 1 1 1\n")
    for name, avg in (("memory", 1.5), ("cpu", 2.5), ("io", 3.5)):
        full = "" if name == "cpu" else "full avg10=0.25 avg60=0.00 avg300=0.00 total=1\n"
        (tmp_path / "pressure" / name).write_text(f"some avg10={avg} avg60=0.00 avg300=0.00 total=1\n{full}")
    gauge = MachineGauge(tmp_path, tmp_path)
    first = gauge.read()
    (tmp_path / "stat").write_text("cpu  150 0 125 720 105 0 0 0 0 0\n")
    second = gauge.read()
    assert (first.memory_total_mb, first.memory_available_mb, first.load_1m) == (2048, 1024, 1.25)
    assert (first.cpu_used, second.cpu_used) == (None, 0.75)
    assert first.pressure == Pressure(
        memory_some_avg10=1.5, memory_full_avg10=0.25, cpu_some_avg10=2.5, io_some_avg10=3.5, io_full_avg10=0.25
    )
    assert first.disk_free_mb is not None and first.disk_free_mb > 0


def test_what_a_machine_does_not_say_is_null(tmp_path: Path) -> None:
    reading = MachineGauge(tmp_path / "nowhere", tmp_path).read()
    assert reading == Reading(cpu_count=reading.cpu_count)


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    assert (MachineGauge(tmp_path).read().memory_total_mb or 0) > 0
