"""A control group with a memory limit, in which a whole house lives: its server, its keeper and its work."""

import os
from pathlib import Path

from tests.e2e.house import until

NAMES = {
    1: ("memory.limit_in_bytes", "memory.usage_in_bytes", "memory.oom_control", "total_inactive_file"),
    2: ("memory.max", "memory.current", "memory.events", "inactive_file"),
}


class Group:
    """One group, by either version of the memory controller."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._limit, self._usage, self._kills, self._idle = NAMES[1 if (path / NAMES[1][0]).exists() else 2]

    def limit(self, mb: int) -> None:
        (self.path / self._limit).write_text(str(mb << 20))

    def used_mb(self) -> int:
        """What cannot be given up."""
        return (int((self.path / self._usage).read_text()) - self._words("memory.stat")[self._idle]) >> 20

    def oom_kills(self) -> int:
        return self._words(self._kills)["oom_kill"]

    def remove(self) -> None:
        """Take it away once nobody lives in it."""
        until(lambda: _removed(self.path), f"nobody lives in {self.path} any more")

    def _words(self, name: str) -> dict[str, int]:
        pairs = (line.split() for line in (self.path / name).read_text().splitlines())
        return {pair[0]: int(pair[1]) for pair in pairs}


def make_group() -> Group | None:
    """A new one below our own; null where there can be none that limits memory."""
    path = _home() / f"standby-test-{os.getpid()}"
    try:
        path.mkdir()
        made = Group(path)
        made.limit(1 << 20)
    except OSError:
        _removed(path)
        return None
    return made


def _home() -> Path:
    ours = [line.split(":", 2) for line in Path("/proc/self/cgroup").read_text().splitlines()]
    for _, kinds, path in ours:
        if "memory" in kinds.split(","):
            return Path("/sys/fs/cgroup/memory") / path.lstrip("/")
    return Path("/sys/fs/cgroup")


def _removed(path: Path) -> bool:
    try:
        path.rmdir()
    except OSError:
        return False
    return True
