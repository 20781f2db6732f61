"""Readings of a machine: numbers where it says them, null where it does not."""

from pathlib import Path

from standby.core.sighting import Pressure, Reading
from standby.drivers.gauge import MachineGauge


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
        memory_some_avg10=1.5, memory_full_avg10=0.25, cpu_some_avg10=2.5, io_some_avg10=3.5
    )
    assert first.disk_free_mb is not None and first.disk_free_mb > 0


def test_what_a_machine_does_not_say_is_null(tmp_path: Path) -> None:
    reading = MachineGauge(tmp_path / "nowhere", tmp_path).read()
    assert reading == Reading(cpu_count=reading.cpu_count)


def test_this_machine_can_be_read(tmp_path: Path) -> None:
    assert (MachineGauge(tmp_path).read().memory_total_mb or 0) > 0
