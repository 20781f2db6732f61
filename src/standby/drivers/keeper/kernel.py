"""What the keeper asks of Linux: processes by pid and start time, pidfds, children, control groups."""

import contextlib
import ctypes
import errno
import fcntl
import os
import signal
import struct
import time
from collections.abc import Iterator, Sequence

GONE_STATES = b"ZX"
_NO_PROCESS = (errno.ESRCH, errno.EINVAL, errno.ENOENT)
"""None with this pid, or a thread has got it."""
_PR_SET_CHILD_SUBREAPER = 36
_PF_KTHREAD = 0x200000
_PIDFD_INFO_EXIT = 1 << 3
_PIDFD_INFO_SIZE = 64
_PIDFD_GET_INFO = (3 << 30) | (_PIDFD_INFO_SIZE << 16) | (0xFF << 8) | 11  # _IOWR(0xFF, 11, struct pidfd_info)


class Proc:
    """One process at one moment. The pid alone is no identity; pid and start time (in ticks since boot) are."""

    __slots__ = ("kernel_thread", "pgrp", "pid", "ppid", "sid", "start", "state", "status")

    def __init__(self, pid: int, stat: bytes) -> None:
        fields = stat[stat.rindex(b")") + 2 :].split()
        self.pid = pid
        self.state = fields[0]
        self.ppid, self.pgrp, self.sid = int(fields[1]), int(fields[2]), int(fields[3])
        self.kernel_thread = bool(int(fields[6]) & _PF_KTHREAD)
        self.start = int(fields[19])
        self.status = int(fields[49])

    @property
    def alive(self) -> bool:
        """A zombie is not alive, although it can still be signalled."""
        return self.state not in GONE_STATES


def read_bytes(path: str) -> bytes:
    """The whole of a small file."""
    fd = os.open(path, os.O_RDONLY)
    try:
        data = os.read(fd, 65536)
        if len(data) == 65536:
            while more := os.read(fd, 65536):
                data += more
        return data
    finally:
        os.close(fd)


def read_proc(pid: int) -> Proc | None:
    """The process with this pid, zombies included; null when there is none that we may see (hidepid hides others')."""
    try:
        return Proc(pid, read_bytes(f"/proc/{pid}/stat"))
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def all_procs() -> dict[int, Proc]:
    """Every process that can be seen."""
    found = (read_proc(int(name)) for name in os.listdir("/proc") if name.isdigit())
    return {proc.pid: proc for proc in found if proc is not None}


def environ_of(pid: int) -> bytes | None:
    """Its environment as it was at its last exec; null when it is gone or may not be read."""
    try:
        return read_bytes(f"/proc/{pid}/environ")
    except OSError:
        return None


def links_of(pid: int) -> list[str]:
    """Where its output goes."""
    links = []
    for name in ("fd/1", "fd/2"):
        try:
            links.append(os.readlink(f"/proc/{pid}/{name}"))
        except OSError:
            continue
    return links


def hold(pid: int, start: int) -> int | None:
    """A pidfd of exactly this process, so that nothing it is asked later can meet another one; null when it is gone.

    Raises OSError when it cannot be told, such as without a free file.
    """
    try:
        fd = os.pidfd_open(pid)
    except OSError as error:
        if error.errno in _NO_PROCESS:
            return None
        raise
    try:
        proc = read_proc(pid)
    except OSError:
        os.close(fd)
        raise
    if proc is not None and proc.start == start:
        return fd
    os.close(fd)
    return None


def send(proc: Proc, signum: signal.Signals) -> None:
    """Signal exactly this process, if it is still there."""
    fd = hold(proc.pid, proc.start)
    if fd is None:
        return
    try:
        signal.pidfd_send_signal(fd, signum)
    except (ProcessLookupError, PermissionError):
        pass
    finally:
        os.close(fd)


def status_of_ended(fd: int, pid: int, start: int) -> int | None:
    """The wait status of a process that was not our child: from its pidfd (Linux 6.15), or while it is a zombie."""
    status = _pidfd_status(fd)
    if status is not None:
        return status
    proc = read_proc(pid)
    if proc is not None and proc.start == start and not proc.alive:
        return proc.status
    return _pidfd_status(fd)  # it may have been reaped between the two questions


def _pidfd_status(fd: int) -> int | None:
    info = bytearray(_PIDFD_INFO_SIZE)
    struct.pack_into("=Q", info, 0, _PIDFD_INFO_EXIT)
    try:
        fcntl.ioctl(fd, _PIDFD_GET_INFO, info, True)
    except OSError:
        return None
    mask, status = struct.unpack_from("=Q52xi", info)
    return int(status) if mask & _PIDFD_INFO_EXIT else None


def become_subreaper() -> None:
    """Orphans of our runs become our children instead of init's."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "cannot become a subreaper")


def children() -> list[int]:
    """Pids of our children, zombies included.

    A child leaves this list only when we reap it, and we reap none while reading: so none is skipped.
    """
    me = os.getpid()
    try:
        return [int(pid) for pid in read_bytes(f"/proc/self/task/{me}/children").split()]
    except FileNotFoundError:  # a kernel without CONFIG_PROC_CHILDREN
        return [proc.pid for proc in all_procs().values() if proc.ppid == me]


def boottime() -> float:
    """Seconds since boot, sleep included: the clock in which the driver says until when a start is valid."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def make_cgroup_home(name: str) -> str | None:
    """A directory in our own control group (version 2) for those of the runs; null when none can be made."""
    try:
        mount = _cgroup2_mount()
        own = next(line[3:] for line in read_bytes("/proc/self/cgroup").decode().splitlines() if line[:3] == "0::")
        home = os.path.join(mount, own.strip("/"), name)
        os.makedirs(home, exist_ok=True)
        if not os.access(f"{home}/cgroup.kill", os.W_OK):
            return None
    except (OSError, StopIteration):
        return None
    return home


def _cgroup2_mount() -> str:
    mounts = (line.split() for line in read_bytes("/proc/mounts").decode().splitlines())
    return next(fields[1] for fields in mounts if fields[2] == "cgroup2")


@contextlib.contextmanager
def inside(groups: Sequence[str]) -> Iterator[None]:
    """Be in these control groups (each below one of ours), so that a child is in them from its first moment on."""
    try:
        for group in groups:
            write(f"{group}/cgroup.procs", "0")
        yield
    finally:
        try:
            for group in groups:
                write(f"{os.path.dirname(os.path.dirname(group))}/cgroup.procs", "0")
        except OSError as error:  # we would share the run's fate: the next keeper goes on
            raise SystemExit(f"cannot leave a run's control group: {error}") from error


def cgroup_make(path: str | None) -> bool:
    """Make a run's control group; false when there is none to make, or that cannot be done."""
    if path is None:
        return False
    try:
        os.makedirs(path, exist_ok=True)
    except OSError:
        return False
    return True


def cgroup_pids(path: str | None) -> list[int]:
    """Live members of a run's control group."""
    if path is None:
        return []
    try:
        return [int(pid) for pid in read_bytes(f"{path}/cgroup.procs").split()]
    except OSError:
        return []


def cgroup_kill(path: str | None) -> None:
    """End all members of a run's control group at once."""
    if path is not None:
        try:
            write(f"{path}/cgroup.kill", "1")
        except OSError:
            return


def cgroup_remove(path: str | None) -> None:
    """Take a run's empty control group away."""
    if path is not None:
        try:
            os.rmdir(path)
        except OSError:
            return


def write(path: str, text: str) -> None:
    """Write to a file of the kernel, in one go."""
    fd = os.open(path, os.O_WRONLY)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)
