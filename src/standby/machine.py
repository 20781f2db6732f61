"""How much memory there is for us: what the machine has, or less where our control group (v1 or v2) confines us."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

PROC: Final = Path("/proc")


class Memory(NamedTuple):
    """What there is in all, and what can be had without making others wait."""

    total_mb: int
    available_mb: int
    group: Path | None = None
    """The control group that limits it; null: the machine itself."""

    @property
    def used(self) -> float:
        """The share that cannot be had."""
        return 1 - self.available_mb / self.total_mb if self.total_mb else 1.0


class _Version(NamedTuple):
    """How a version of the memory controller calls things."""

    limit: str
    usage: str
    idle: str
    """Of the files' cache, what is given up first: it counts as used, but can be had."""


_FIRST: Final = _Version("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
_SECOND: Final = _Version("memory.max", "memory.current", "inactive_file")


def memory(proc: Path = PROC, *, confined: bool = True) -> Memory | None:
    """The fullest of the machine and (`confined`) the control groups that we are in; null when nothing says so."""
    machine = _machine(proc)
    if machine is None or not confined:
        return machine
    return max([machine, *_groups(proc, machine.total_mb)], key=lambda each: each.used)


def total_mb(proc: Path = PROC, *, confined: bool = True) -> int | None:
    """What the machine has, or (`confined`) the least that a control group of ours allows; null: nobody knows."""
    machine = _machine(proc)
    if machine is None or not confined:
        return None if machine is None else machine.total_mb
    return min(each.total_mb for each in [machine, *_groups(proc, machine.total_mb)])


def text(path: Path) -> str:
    """What the file says; nothing where there is none."""
    try:
        return path.read_text()
    except OSError:
        return ""


def _machine(proc: Path) -> Memory | None:
    lines = [line.split() for line in text(proc / "meminfo").splitlines()]
    mb = {words[0].rstrip(":"): int(words[1]) >> 10 for words in lines if len(words) > 1}
    return Memory(mb["MemTotal"], mb["MemAvailable"]) if "MemTotal" in mb and "MemAvailable" in mb else None


def _groups(proc: Path, below_mb: int) -> Iterator[Memory]:
    """The groups that we are in, and those above them, as far as they allow less."""
    ours = [line.split(":", 2) for line in text(proc / "self/cgroup").splitlines()]
    for line in text(proc / "self/mountinfo").splitlines():
        before, _, after = line.partition(" - ")
        root, mount = before.split()[3:5]
        kind, _, options = after.split(" ", 2)
        if kind == "cgroup2":
            own, version = next((path for number, _, path in ours if number == "0"), None), _SECOND
        elif kind == "cgroup" and "memory" in options.split(","):
            own, version = next((path for _, kinds, path in ours if "memory" in kinds.split(",")), None), _FIRST
        else:
            continue
        for group in _up(Path(mount), root, own or "/"):
            if (found := _limited(group, version, below_mb)) is not None:
                yield found


def _up(mount: Path, root: str, own: str) -> Iterator[Path]:
    """The group's directory and those above it, as far as they are mounted here."""
    within = Path("/", own.removeprefix(root.rstrip("/")).lstrip("/"))
    group = mount / within.relative_to("/")
    if not group.is_dir():  # in a container the path is often that of the machine outside
        group = mount
    yield group
    while group != mount:
        group = group.parent
        yield group


def _limited(group: Path, version: _Version, below_mb: int) -> Memory | None:
    limit = text(group / version.limit).strip()
    if not limit.isdigit() or int(limit) >> 20 >= below_mb:
        return None
    usage = text(group / version.usage).strip()
    if not usage.isdigit():
        return None
    stat = dict(line.split(None, 1) for line in text(group / "memory.stat").splitlines())
    free = int(limit) - int(usage) + int(stat.get(version.idle, 0))
    return Memory(int(limit) >> 20, min(max(0, free), int(limit)) >> 20, group)
