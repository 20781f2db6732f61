"""A memory limit for each run, and whether it was reached: by either version of the memory controller."""

import contextlib
import os
from functools import cached_property

from standby.drivers.keeper import kernel
from standby.drivers.keeper.journal import Record

_FIRST = {"limit": "memory.limit_in_bytes", "swap": "memory.memsw.limit_in_bytes", "peak": "memory.max_usage_in_bytes"}
_SECOND = {"limit": "memory.max", "swap": "memory.swap.max", "peak": "memory.peak"}


class Memory:
    """The memory groups of one keeper's runs; nothing where the machine does not allow any."""

    def __init__(self, name: str) -> None:
        self._name = name

    @cached_property
    def _home(self) -> str | None:
        return _first_home(self._name) or _second_home(self._name)

    def make(self, run_id: str, limit_mb: int) -> str | None:
        """A group that may take so much, swap included; null when there can be none."""
        if self._home is None:
            return None
        group, size = f"{self._home}/{run_id}", str(limit_mb << 20)
        try:
            os.makedirs(group, exist_ok=True)
            first = os.path.exists(f"{group}/{_FIRST['limit']}")
            files = _FIRST if first else _SECOND
            kernel.write(f"{group}/{files['limit']}", size)
            with contextlib.suppress(OSError):  # a kernel without an account of swap
                kernel.write(f"{group}/{files['swap']}", size if first else "0")
            if not first:
                kernel.write(f"{group}/memory.oom.group", "1")
        except OSError:
            self.remove(run_id)
            return None
        return group

    def tell(self, run_id: str) -> Record:
        """Whether a process of the run was killed for want of memory, and how much it took at the most."""
        group = f"{self._home}/{run_id}"
        told: Record = {}
        for file, word in (("memory.oom_control", "oom_kill"), ("memory.events", "oom_kill")):
            counts = dict(line.split(None, 1) for line in _text(f"{group}/{file}").splitlines())
            if int(counts.get(word, 0)) > 0:
                told["oom"] = True
        for files in (_FIRST, _SECOND):
            if peak := _text(f"{group}/{files['peak']}").strip():
                told["peak_memory_kb"] = int(peak) >> 10
        return told

    def remove(self, run_id: str) -> None:
        """Take the run's empty group away."""
        if self._home is not None:
            kernel.cgroup_remove(f"{self._home}/{run_id}")

    def remove_all(self) -> None:
        """Take away what a keeper of this name left, as far as nobody lives in it."""
        if self._home is not None:
            for entry in os.scandir(self._home):
                if entry.is_dir():
                    kernel.cgroup_remove(entry.path)
            kernel.cgroup_remove(self._home)


def _first_home(name: str) -> str | None:
    """In our own group of the first version's memory controller."""
    try:
        mounts = (line.split() for line in kernel.read_bytes("/proc/mounts").decode().splitlines())
        mount = next(each[1] for each in mounts if each[2] == "cgroup" and "memory" in each[3].split(","))
        groups = (line.split(":", 2) for line in kernel.read_bytes("/proc/self/cgroup").decode().splitlines())
        own = next(path for _, kinds, path in groups if "memory" in kinds.split(","))
        home = os.path.join(mount, own.strip("/"), name)
        os.makedirs(home, exist_ok=True)
    except (OSError, StopIteration):
        return None
    return home


def _second_home(name: str) -> str | None:
    """Where the runs' groups of the second version are, if those may limit memory."""
    home = kernel.make_cgroup_home(name)
    if home is None:
        return None
    try:
        for group in (os.path.dirname(home), home):
            kernel.write(f"{group}/cgroup.subtree_control", "+memory")
    except OSError:
        return None
    return home


def _text(path: str) -> str:
    try:
        return kernel.read_bytes(path).decode()
    except OSError:
        return ""
